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
_SM_CLOCK = 1
_IDLE, _POWER_LIMIT = 0x1, 0x4
_SLOWED = 0x8 | 0x10 | 0x20 | 0x40 | 0x80
"""Reasons of a lower clock: hardware slowdown, sync boost, heat by software and by hardware, power brake."""
_MAX_MEMORY_CLOCKS, _MAX_CLOCKS = 64, 1024
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
        handle = self._handle_of(uuid)
        self._order("nvmlDeviceSetPowerManagementLimit", handle, ctypes.c_uint(round(limit_w / _MILLI)))
        set_w = self._watts("nvmlDeviceGetPowerManagementLimit", handle)
        if set_w is None:
            raise LibraryError("accepted, but the limit in force cannot be read")
        enforced_w = self._watts("nvmlDeviceGetEnforcedPowerLimit", handle)
        return set_w, set_w if enforced_w is None else enforced_w

    def clocks(self) -> Sequence[GpuState]:
        """SM clocks of the GPUs that state them, and why they are not higher."""
        return [state for handle in self._handles() if (state := self._clock_state(handle)) is not None]

    def lock_clock(self, uuid: str, max_mhz: float) -> float:
        """Lock the SM clock between the smallest supported one and the largest up to `max_mhz`; returns that, MHz."""
        handle = self._handle_of(uuid)
        supported = self._supported_mhz(handle)
        largest = max((mhz for mhz in supported if mhz <= max_mhz), default=None)
        if largest is None:
            raise LibraryError(f"no supported SM clock up to {max_mhz:g} MHz is known", "refused")
        self._order("nvmlDeviceSetGpuLockedClocks", handle, ctypes.c_uint(min(supported)), ctypes.c_uint(largest))
        return float(largest)

    def reset_clock(self, uuid: str) -> None:
        """Take the lock of the SM clock away."""
        self._order("nvmlDeviceResetGpuLockedClocks", self._handle_of(uuid))

    def _handle_of(self, uuid: str) -> ctypes.c_void_p | str:
        for handle in self._handles():
            if self._text("nvmlDeviceGetUUID", handle) == uuid:
                return handle
        raise LibraryError(f"GPU {uuid} does not respond")

    def _order(self, function: str, handle: ctypes.c_void_p | str, *arguments: Any) -> None:
        """Call a function that changes something."""
        code = self._call(function, handle, *arguments)
        if code != _SUCCESS:
            raise LibraryError(_message(self._loaded(), code), "refused" if code in _REFUSALS else "failed")

    def _clock_state(self, handle: ctypes.c_void_p | str) -> GpuState | None:
        uuid = self._text("nvmlDeviceGetUUID", handle)
        if uuid is None:
            return None
        now, largest, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        codes = {
            self._call("nvmlDeviceGetClockInfo", handle, ctypes.c_int(_SM_CLOCK), ctypes.byref(now)),
            self._call("nvmlDeviceGetMaxClockInfo", handle, ctypes.c_int(_SM_CLOCK), ctypes.byref(largest)),
        }
        told = self._call("nvmlDeviceGetCurrentClocksEventReasons", handle, ctypes.byref(reasons))
        if told == _FUNCTION_NOT_FOUND:  # its name before driver 535
            told = self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons))
        if {*codes, told} != {_SUCCESS}:
            return None
        return {
            "uuid": uuid,
            "sm_mhz": now.value,
            "largest_mhz": largest.value,
            "idle": bool(reasons.value & _IDLE),
            "at_power_limit": bool(reasons.value & _POWER_LIMIT),
            "slowed": bool(reasons.value & _SLOWED),
        }

    def _supported_mhz(self, handle: ctypes.c_void_p | str) -> Sequence[int]:
        """SM clocks at the largest memory clock; empty where they are not told."""
        memory = self._numbers("nvmlDeviceGetSupportedMemoryClocks", _MAX_MEMORY_CLOCKS, handle)
        if not memory:
            return ()
        return self._numbers("nvmlDeviceGetSupportedGraphicsClocks", _MAX_CLOCKS, handle, ctypes.c_uint(max(memory)))

    def _numbers(self, function: str, room: int, *arguments: Any) -> Sequence[int]:
        count, numbers = ctypes.c_uint(room), (ctypes.c_uint * room)()
        code = self._call(function, *arguments, ctypes.byref(count), numbers)
        return numbers[: count.value] if code == _SUCCESS else ()

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
