"""NVIDIA GPUs by NVML (nvidia-ml-py): power limits, power and energy.

Source: NVML API reference, device queries and commands. NVML counts in mW and mJ. Only whole GPUs are listed: a
limit belongs to the GPU, also where MIG divides it.

`NvmlSession` is the connection to the driver; the limiter and the meter of one process share it, since the library
counts initialisations and starts anew only after the last has ended.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

log = logging.getLogger(__name__)

_MILLI = 1e-3
_LIBRARY = "libnvidia-ml.so.1"
READ_BACK_TOLERANCE_W = 1.0
"""Drivers take milliwatts and may round to whole watts; more than this is another limit."""


class NvmlSession:
    """The process's connection to the NVIDIA driver, made when first needed and made anew when it breaks."""

    def __init__(self) -> None:
        self._nvml: ModuleType | None = None
        self._lost: set[int] = set()

    def library(self) -> ModuleType:
        """`pynvml`, connected.

        Raises:
            ControlFailedError: there is no driver, or it does not answer.
        """
        if self._nvml is None:
            self._nvml = _connect()
        return self._nvml

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError as error:
                log.debug("NVML did not shut down", extra={"error": str(error)})

    def gpus(self) -> Iterator[tuple[str, Any]]:
        """UUID and handle of every GPU that answers, by index; one that does not is logged when that begins.

        Raises:
            ControlFailedError: the driver as a whole does not answer.
        """
        nvml = self.library()
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.close()  # a driver that was loaded again answers a new connection only
            raise ControlFailedError(f"NVML: {error}") from error
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(nvml.nvmlDeviceGetUUID(handle))
            except nvml.NVMLError as error:
                if index not in self._lost:
                    log.warning("GPU does not answer, left out", extra={"gpu": index, "error": str(error)})
                self._lost.add(index)
                continue
            self._lost.discard(index)
            yield uuid, handle

    def gpu(self, uuid: str) -> Any:
        """The handle of a GPU.

        Raises:
            ControlFailedError: it, or the driver, does not answer.
        """
        for found, handle in self.gpus():
            if found == uuid:
                return handle
        raise ControlFailedError(f"no GPU {uuid} answers")

    def read(self, function: str, handle: Any) -> Any:
        """What a query of one device answers; None where it cannot."""
        nvml = self.library()
        try:
            return getattr(nvml, function)(handle)
        except nvml.NVMLError:
            return None


class Nvml:
    """Power limits of NVIDIA GPUs; a `PowerLimiter`. A GPU's id is its UUID.

    Args:
        session: the connection, shared with `NvmlMeter`.
    """

    name = "nvml"

    def __init__(self, session: NvmlSession | None = None) -> None:
        self._session = session or NvmlSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU states the limits that it takes."""
        try:
            devices = self.devices()
        except ControlFailedError as error:
            return str(error)
        if not devices:
            return "no NVIDIA GPU answers"
        if all(device.min_w is None or device.limit_w is None for device in devices):
            return f"power limits are not supported by {', '.join(device.model or device.id for device in devices)}"
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`; `limit_w` is the limit that was set, `default_w` the one after a reboot."""
        return [self._device(uuid, handle) for uuid, handle in self._session.gpus()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`; returns the limit enforced, which something else may hold lower."""
        limit_w = positive_number("limit_w", limit_w)
        handle = self._session.gpu(device_id)
        nvml = self._session.library()
        action = f"set {limit_w:g} W on GPU {device_id}"
        try:
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w / _MILLI))
            set_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) * _MILLI
        except nvml.NVMLError as error:
            raise _control_error(nvml, action, error) from error
        enforced_w = _watts(self._session.read("nvmlDeviceGetEnforcedPowerLimit", handle))
        in_force_w = set_w if enforced_w is None else enforced_w
        if abs(set_w - limit_w) > READ_BACK_TOLERANCE_W or in_force_w > limit_w + READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {max(set_w, in_force_w):g} W is in force")
        return in_force_w

    def _device(self, uuid: str, handle: Any) -> PowerDevice:
        read = self._session.read
        low_high = read("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
        name = read("nvmlDeviceGetName", handle)
        return PowerDevice(
            uuid,
            DeviceKind.GPU,
            model=None if name is None else str(name),
            limit_w=_watts(read("nvmlDeviceGetPowerManagementLimit", handle)),
            min_w=_watts(low_high[0]),
            max_w=_watts(low_high[1]),
            default_w=_watts(read("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        )


class NvmlMeter:
    """Power and energy of NVIDIA GPUs; a `PowerSource`.

    Args:
        session: the connection, shared with `Nvml`.
    """

    name = "nvml"

    def __init__(self, session: NvmlSession | None = None) -> None:
        self._session = session or NvmlSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU tells its power."""
        try:
            readings = list(self._read("nvmlDeviceGetPowerUsage"))
        except ControlFailedError as error:
            return str(error)
        if not readings:
            return "no NVIDIA GPU answers"
        return None if any(power is not None for _, power in readings) else "no GPU here tells its power"

    def energy(self) -> Sequence[EnergyReading]:
        """Energy since the driver was loaded, of GPUs that count it (Volta and later)."""
        readings = self._read("nvmlDeviceGetTotalEnergyConsumption")
        return [EnergyReading(uuid, energy_mj * _MILLI, None) for uuid, energy_mj in readings if energy_mj is not None]

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that tells it, W."""
        readings = self._read("nvmlDeviceGetPowerUsage")
        return {uuid: power_mw * _MILLI for uuid, power_mw in readings if power_mw is not None}

    def _read(self, function: str) -> Iterator[tuple[str, int | None]]:
        for uuid, handle in self._session.gpus():
            yield uuid, self._session.read(function, handle)


def _connect() -> ModuleType:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        # Asked before pynvml is imported, which costs 5 MB on every node without a GPU.
        raise ControlFailedError(
            f"{_LIBRARY} not found: no NVIDIA driver, or a container without the NVIDIA runtime"
        ) from None
    import pynvml  # type: ignore[import-untyped]

    module: ModuleType = pynvml
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        raise ControlFailedError(f"NVML: {error}") from error
    return module


def _control_error(nvml: ModuleType, action: str, error: Exception) -> ControlRefusedError | ControlFailedError:
    refusals = {nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    kind = ControlRefusedError if getattr(error, "value", None) in refusals else ControlFailedError
    return kind(f"{action}: {error}")


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts * _MILLI
