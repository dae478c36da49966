"""AMD SMI by ctypes: the calls that Joulie needs, as the worker process makes them.

Only calls whose binary interface has stayed the same since ROCm 6.0 are used; that of amdsmi_get_power_info, for
example, has not, so power comes from the energy counter. Caps are in uW. Source: AMD SMI C API reference and the
headers of ROCm 6 and 7.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from joulie.adapters.gpu.library import GpuState, LibraryError, close_library, load_library

LIBRARIES = ("libamd_smi.so", "/opt/rocm/lib/libamd_smi.so")

_MICRO = 1e-6
_SUCCESS, _NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _NO_PERM = 0, 2, 3, 10
_REFUSALS = frozenset({_NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _NO_PERM})
_INIT_AMD_GPUS = 1 << 1
_PROCESSOR_AMD_GPU = 1
_SENSOR = 0  # the cap of the whole package
_UUID_LENGTH = 38
# The structure begins with the name; its length, and what follows, differ between releases. The largest takes 1 KiB.
_ASIC_INFO_BYTES = 8192
_UNKNOWN = 0xFFFFFFFFFFFFFFFF


class _PowerCapInfo(ctypes.Structure):
    """amdsmi_power_cap_info_t, uW."""

    _fields_ = (
        ("power_cap", ctypes.c_uint64),
        ("default_power_cap", ctypes.c_uint64),
        ("dpm_cap", ctypes.c_uint64),
        ("min_power_cap", ctypes.c_uint64),
        ("max_power_cap", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 3),
    )


class AmdSmiLibrary:
    """A connection to the amdgpu driver through AMD SMI."""

    title = "AMD SMI"

    def __init__(self) -> None:
        self._smi: ctypes.CDLL | None = None

    @property
    def connected(self) -> bool:
        """Whether the library is loaded and initialised."""
        return self._smi is not None

    def connect(self) -> None:
        """Load and initialise the library."""
        smi = _load()
        code = smi.amdsmi_init(ctypes.c_uint64(_INIT_AMD_GPUS))
        if code != _SUCCESS:
            message = _message(smi, code)
            close_library(smi)
            raise LibraryError(f"{self.title}: {message}")
        self._smi = smi

    def disconnect(self) -> None:
        """Shut the library down and unload it."""
        smi, self._smi = self._smi, None
        if smi is not None:
            smi.amdsmi_shut_down()
            close_library(smi)

    def read(self) -> Sequence[GpuState]:
        """All physical GPUs, by socket."""
        return [self._state(handle) for handle in self._handles()]

    def survives_disconnect(self) -> bool:
        """Caps belong to the kernel's driver and stay."""
        return True

    def set_limit(self, uuid: str, limit_w: float) -> tuple[float, float]:
        """Write a cap, in whole watts as the driver takes it; the cap in force then, W, twice."""
        handle = next((handle for handle in self._handles() if self._uuid(handle) == uuid), None)
        if handle is None:
            raise LibraryError(f"GPU {uuid} does not respond")
        smi = self._loaded()
        cap_uw = round(round(limit_w) / _MICRO)
        code = smi.amdsmi_set_power_cap(handle, ctypes.c_uint32(_SENSOR), ctypes.c_uint64(cap_uw))
        if code != _SUCCESS:
            raise LibraryError(_message(smi, code), "refused" if code in _REFUSALS else "failed")
        caps = self._caps(handle)
        if caps is None or not caps.power_cap:
            raise LibraryError("accepted, but the cap in force cannot be read")
        in_force_w = caps.power_cap * _MICRO
        return in_force_w, in_force_w

    def _loaded(self) -> ctypes.CDLL:
        if self._smi is None:
            raise LibraryError(f"{self.title}: not connected")
        return self._smi

    def clocks(self) -> Sequence[GpuState]:
        """None: Joulie locks clocks of NVIDIA GPUs only."""
        return ()

    def lock_clock(self, uuid: str, max_mhz: float) -> float:
        """Refused."""
        raise LibraryError(f"{self.title}: clocks are not locked", "refused")

    def reset_clock(self, uuid: str) -> None:
        """Nothing to do."""

    def _handles(self) -> Iterator[ctypes.c_void_p]:
        """Handle of each physical GPU."""
        smi = self._loaded()
        for socket in self._list(smi.amdsmi_get_socket_handles):
            handles = self._list(smi.amdsmi_get_processor_handles, ctypes.c_void_p(socket))
            for index, handle in enumerate(map(ctypes.c_void_p, handles)):
                kind = ctypes.c_uint32()
                code = smi.amdsmi_get_processor_type(handle, ctypes.byref(kind))
                if code == _SUCCESS and kind.value == _PROCESSOR_AMD_GPU and not self._is_part(handle, index):
                    yield handle

    def _is_part(self, handle: ctypes.c_void_p, index: int) -> bool:
        """Whether this is a partition of the GPU before it, or the second die of its board: neither has a cap."""
        caps = self._caps(handle)
        return index > 0 if caps is None else caps.power_cap == caps.max_power_cap == 0

    def _list(self, function: Any, *arguments: Any) -> Sequence[int]:
        """Handles that a function lists: asked for their number first, then for them."""
        count = ctypes.c_uint32()
        code = function(*arguments, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        if code == _SUCCESS and count.value:
            code = function(*arguments, ctypes.byref(count), handles)
        if code != _SUCCESS:
            raise LibraryError(f"{self.title}: {_message(self._loaded(), code)}")
        return [handle for handle in handles[: count.value] if handle]

    def _state(self, handle: ctypes.c_void_p) -> GpuState:
        uuid = self._uuid(handle)
        if uuid is None:
            return {"lost": "no UUID can be read"}
        caps = self._caps(handle)
        return {
            "uuid": uuid,
            "model": self._model(handle),
            "limit_w": _watts(caps.power_cap) if caps else None,
            "min_w": _watts(caps.min_power_cap) if caps else None,
            "max_w": _watts(caps.max_power_cap) if caps else None,
            "default_w": _watts(caps.default_power_cap) if caps else None,
            "power_w": None,
            "energy_j": self._energy_j(handle),
            "mig": None,
        }

    def _uuid(self, handle: ctypes.c_void_p) -> str | None:
        text, length = ctypes.create_string_buffer(_UUID_LENGTH), ctypes.c_uint(_UUID_LENGTH)
        if self._loaded().amdsmi_get_gpu_device_uuid(handle, ctypes.byref(length), text) != _SUCCESS:
            return None
        return text.value.decode(errors="replace") or None

    def _model(self, handle: ctypes.c_void_p) -> str | None:
        info = ctypes.create_string_buffer(_ASIC_INFO_BYTES)
        if self._loaded().amdsmi_get_gpu_asic_info(handle, info) != _SUCCESS:
            return None
        name = info.value.decode(errors="replace")
        return None if name in {"", "N/A"} else name

    def _caps(self, handle: ctypes.c_void_p) -> _PowerCapInfo | None:
        caps = _PowerCapInfo()
        code = self._loaded().amdsmi_get_power_cap_info(handle, ctypes.c_uint32(_SENSOR), ctypes.byref(caps))
        return caps if code == _SUCCESS else None

    def _energy_j(self, handle: ctypes.c_void_p) -> float | None:
        counter, resolution_uj, time_ns = ctypes.c_uint64(), ctypes.c_float(), ctypes.c_uint64()
        code = self._loaded().amdsmi_get_energy_count(
            handle, ctypes.byref(counter), ctypes.byref(resolution_uj), ctypes.byref(time_ns)
        )
        if code != _SUCCESS or counter.value == _UNKNOWN or not resolution_uj.value > 0.0:
            return None
        return counter.value * resolution_uj.value * _MICRO


def _load() -> ctypes.CDLL:
    missing = LibraryError("no library")
    for name in LIBRARIES:
        try:
            return load_library(name, "no ROCm here, or not mounted into the container")
        except LibraryError as error:
            missing = error
    raise missing


def _watts(microwatts: int) -> float | None:
    """A cap, W; None for 0 and for the largest number, which both stand for an unknown value."""
    return microwatts * _MICRO if 0 < microwatts < _UNKNOWN else None


def _message(smi: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    smi.amdsmi_status_code_to_string(ctypes.c_uint32(code), ctypes.byref(text))
    return text.value.decode(errors="replace") if text.value else f"status {code}"
