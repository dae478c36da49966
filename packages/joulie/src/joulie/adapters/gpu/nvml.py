"""NVIDIA GPUs through NVML (nvidia-ml-py): power limits, power and energy.

Source: NVML API reference, device queries and commands. NVML counts in mW and mJ. Only whole GPUs are listed: a
limit belongs to the GPU, also where MIG divides it.

`NvmlSession` is the connection to the driver; the limiter and the meter of one process share it, since the library
counts initialisations and reconnects only after the last one has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from joulie.adapters.gpu.library import READ_BACK_TOLERANCE_W, GpuLimiter, GpuSession
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

_MILLI = 1e-3
_LIBRARY = "libnvidia-ml.so.1"


class NvmlSession(GpuSession):
    """Connection of the process to the NVIDIA driver."""

    title = "NVML"

    def _connect(self) -> ModuleType:
        try:
            ctypes.CDLL(_LIBRARY)
        except OSError:
            # Checked before pynvml is imported, which costs 5 MB on every node without a GPU.
            raise ControlFailedError(
                f"{_LIBRARY} not found: no NVIDIA driver, or a container without the NVIDIA runtime"
            ) from None
        import pynvml  # type: ignore[import-untyped]

        module: ModuleType = pynvml
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            raise ControlFailedError(f"{self.title}: {error}") from error
        return module

    def _shut_down(self, library: Any) -> None:
        library.nvmlShutdown()

    def _error_type(self, library: Any) -> type[Exception]:
        error_type: type[Exception] = library.NVMLError
        return error_type

    def _references(self, library: Any) -> Sequence[int]:
        return range(library.nvmlDeviceGetCount())

    def _open(self, library: Any, reference: Any) -> tuple[str, Any]:
        handle = library.nvmlDeviceGetHandleByIndex(reference)
        return str(library.nvmlDeviceGetUUID(handle)), handle


class Nvml(GpuLimiter):
    """Power limits of NVIDIA GPUs; a `PowerLimiter`.

    `PowerDevice.limit_w` is the limit that was set, `default_w` the one after a reboot.

    Args:
        session: connection shared with `NvmlMeter`; None opens a new one.
    """

    name = "nvml"
    vendor = "NVIDIA"

    def __init__(self, session: NvmlSession | None = None) -> None:
        super().__init__(session or NvmlSession())

    def _supports_limit(self, device: PowerDevice) -> bool:
        return device.min_w is not None and device.limit_w is not None

    def _set_limit(self, handle: Any, limit_w: float, action: str) -> float:
        """Write a limit; the returned limit in force may be lower, if another mechanism enforces a lower one."""
        nvml = self._session.library()
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w / _MILLI))
            set_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) * _MILLI
        except nvml.NVMLError as error:
            raise _control_error(nvml, action, error) from error
        enforced_w = _watts(self._session.read("nvmlDeviceGetEnforcedPowerLimit", handle))
        in_force_w: float = set_w if enforced_w is None else enforced_w
        if abs(set_w - limit_w) > READ_BACK_TOLERANCE_W or in_force_w > limit_w + READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {max(set_w, in_force_w):g} W is in force")
        return in_force_w

    def _device(self, uuid: str, handle: Any) -> PowerDevice:
        read = self._session.read
        min_mw, max_mw = read("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
        name = read("nvmlDeviceGetName", handle)
        return PowerDevice(
            uuid,
            DeviceKind.GPU,
            model=None if name is None else str(name),
            limit_w=_watts(read("nvmlDeviceGetPowerManagementLimit", handle)),
            min_w=_watts(min_mw),
            max_w=_watts(max_mw),
            default_w=_watts(read("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        )


class NvmlMeter:
    """Power and energy of NVIDIA GPUs; a `PowerSource`.

    Args:
        session: connection shared with `Nvml`; None opens a new one.
    """

    name = "nvml"

    def __init__(self, session: NvmlSession | None = None) -> None:
        self._session = session or NvmlSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU reports its power."""
        try:
            readings = list(self._read("nvmlDeviceGetPowerUsage"))
        except ControlFailedError as error:
            return str(error)
        if not readings:
            return "no NVIDIA GPU responds"
        return None if any(power is not None for _, power in readings) else "no NVIDIA GPU reports its power"

    def energy(self) -> Sequence[EnergyReading]:
        """Energy since the driver was loaded, of GPUs that count it (Volta and later)."""
        readings = self._read("nvmlDeviceGetTotalEnergyConsumption")
        return [EnergyReading(uuid, energy_mj * _MILLI, None) for uuid, energy_mj in readings if energy_mj is not None]

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that reports it, W."""
        readings = self._read("nvmlDeviceGetPowerUsage")
        return {uuid: power_mw * _MILLI for uuid, power_mw in readings if power_mw is not None}

    def _read(self, function: str) -> Iterator[tuple[str, int | None]]:
        for uuid, handle in self._session.gpus():
            yield uuid, self._session.read(function, handle)


def _control_error(nvml: ModuleType, action: str, error: Exception) -> ControlRefusedError | ControlFailedError:
    refusals = {nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    kind = ControlRefusedError if getattr(error, "value", None) in refusals else ControlFailedError
    return kind(f"{action}: {error}")


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts * _MILLI
