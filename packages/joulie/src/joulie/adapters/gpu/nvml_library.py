"""NVML by ctypes: the calls that Joulie needs, as the worker process makes them.

Only the standard library is imported, and little of it: the module nvidia-ml-py alone takes more memory than this
whole process. NVML counts in mW and mJ. Source: NVML API reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from joulie.adapters.gpu.library import GpuState, LibraryError, close_library, load_library

LIBRARY = "libnvidia-ml.so.1"

_MILLI = 1e-3
_SUCCESS = 0
_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND = 3, 4, 13
_VERSION_MISMATCH = 18
_REFUSALS = frozenset({_NOT_SUPPORTED, _NO_PERMISSION, _FUNCTION_NOT_FOUND})
_TEXT_LENGTH = 96
_FEATURE_ENABLED = 1


class NvmlLibrary:
    """A connection to the NVIDIA driver; only whole GPUs are listed, also where MIG divides them."""

    title = "NVML"

    def __init__(self) -> None:
        self._nvml: ctypes.CDLL | None = None

    @property
    def connected(self) -> bool:
        """Whether the library is loaded and initialised."""
        return self._nvml is not None

    def connect(self) -> None:
        """Load and initialise the library."""
        nvml = load_library(LIBRARY, "no NVIDIA driver, or a container without the NVIDIA runtime")
        code = nvml.nvmlInit_v2()
        if code != _SUCCESS:
            message = _message(nvml, code)
            close_library(nvml)
            raise LibraryError(f"{self.title}: {message}", "outdated" if code == _VERSION_MISMATCH else "failed")
        self._nvml = nvml

    def disconnect(self) -> None:
        """Shut the library down, which closes the device files, and unload it: a new driver has another."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.nvmlShutdown()
            close_library(nvml)

    def read(self) -> Sequence[GpuState]:
        """All GPUs, by index."""
        return [self._state(handle) for handle in self._handles()]

    def survives_disconnect(self) -> bool:
        """Whether limits stay when nobody is connected: without persistence mode the driver forgets them."""
        return all(
            self._number("nvmlDeviceGetPersistenceMode", handle) == _FEATURE_ENABLED
            for handle in self._handles()
            if isinstance(handle, ctypes.c_void_p)
        )

    def set_limit(self, uuid: str, limit_w: float) -> tuple[float, float]:
        """Write a limit; the limit that is set then, and the one that is enforced, W: others may hold a lower one."""
        handle = next((handle for handle in self._handles() if self._text("nvmlDeviceGetUUID", handle) == uuid), None)
        if handle is None:
            raise LibraryError(f"GPU {uuid} does not respond")
        nvml = self._loaded()
        code = self._call("nvmlDeviceSetPowerManagementLimit", handle, ctypes.c_uint(round(limit_w / _MILLI)))
        if code != _SUCCESS:
            raise LibraryError(_message(nvml, code), "refused" if code in _REFUSALS else "failed")
        set_w = self._watts("nvmlDeviceGetPowerManagementLimit", handle)
        if set_w is None:
            raise LibraryError("accepted, but the limit in force cannot be read")
        enforced_w = self._watts("nvmlDeviceGetEnforcedPowerLimit", handle)
        return set_w, set_w if enforced_w is None else enforced_w

    def _loaded(self) -> ctypes.CDLL:
        if self._nvml is None:
            raise LibraryError(f"{self.title}: not connected")
        return self._nvml

    def _handles(self) -> Iterator[ctypes.c_void_p | str]:
        """Handle of each GPU by index, or why it does not respond."""
        nvml = self._loaded()
        count = ctypes.c_uint()
        code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if code != _SUCCESS:
            raise LibraryError(f"{self.title}: {_message(nvml, code)}")
        for index in range(count.value):
            handle = ctypes.c_void_p()
            code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            yield handle if code == _SUCCESS else _message(nvml, code)

    def _state(self, handle: ctypes.c_void_p | str) -> GpuState:
        if isinstance(handle, str):
            return {"lost": handle}
        text = ctypes.create_string_buffer(_TEXT_LENGTH)
        code = self._call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(_TEXT_LENGTH))
        if code != _SUCCESS:
            return {"lost": _message(self._loaded(), code)}
        low, high = ctypes.c_uint(), ctypes.c_uint()
        ranged = self._call(
            "nvmlDeviceGetPowerManagementLimitConstraints", handle, ctypes.byref(low), ctypes.byref(high)
        )
        energy_mj, mig, pending = ctypes.c_ulonglong(), ctypes.c_uint(), ctypes.c_uint()
        counted = self._call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(energy_mj))
        divisible = self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(mig), ctypes.byref(pending))
        return {
            "uuid": text.value.decode(errors="replace"),
            "model": self._text("nvmlDeviceGetName", handle),
            "limit_w": self._watts("nvmlDeviceGetPowerManagementLimit", handle),
            "min_w": low.value * _MILLI if ranged == _SUCCESS else None,
            "max_w": high.value * _MILLI if ranged == _SUCCESS else None,
            "default_w": self._watts("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            "power_w": self._watts("nvmlDeviceGetPowerUsage", handle),
            "energy_j": energy_mj.value * _MILLI if counted == _SUCCESS else None,
            "mig": mig.value == _FEATURE_ENABLED if divisible == _SUCCESS else None,
        }

    def _text(self, function: str, handle: ctypes.c_void_p | str) -> str | None:
        if isinstance(handle, str):
            return None
        text = ctypes.create_string_buffer(_TEXT_LENGTH)
        if self._call(function, handle, text, ctypes.c_uint(_TEXT_LENGTH)) != _SUCCESS:
            return None
        return text.value.decode(errors="replace")

    def _watts(self, function: str, handle: ctypes.c_void_p | str) -> float | None:
        milliwatts = self._number(function, handle)
        return None if milliwatts is None else milliwatts * _MILLI

    def _number(self, function: str, handle: ctypes.c_void_p | str) -> int | None:
        number = ctypes.c_uint()
        return number.value if self._call(function, handle, ctypes.byref(number)) == _SUCCESS else None

    def _call(self, function: str, handle: ctypes.c_void_p | str, *arguments: Any) -> int:
        """Return code of a function; an older library may lack it."""
        try:
            code: int = getattr(self._loaded(), function)(handle, *arguments)
        except AttributeError:
            return _FUNCTION_NOT_FOUND
        return code


def _message(nvml: ctypes.CDLL, code: int) -> str:
    describe = nvml.nvmlErrorString
    describe.restype = ctypes.c_char_p
    text: bytes | None = describe(code)
    return text.decode(errors="replace") if text else f"error {code}"
