"""AMD GPUs by AMD SMI, the Python package that ROCm installs; it is optional.

Source: AMD SMI Python API reference. On bare metal it counts caps in uW and power in W; values that a GPU lacks are
``"N/A"``. Its errors name the status: ``AMDSMI_STATUS_NO_PERM``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

log = logging.getLogger(__name__)

_MICRO = 1e-6
_SENSOR = 0  # the cap of the whole package; queries read this one
_REFUSALS = ("AMDSMI_STATUS_NO_PERM", "AMDSMI_STATUS_NOT_SUPPORTED", "AMDSMI_STATUS_NOT_YET_IMPLEMENTED")
_POWER_KEYS = ("current_socket_power", "average_socket_power", "socket_power")
READ_BACK_TOLERANCE_W = 1.0
"""Drivers round to whole watts; more than this is another limit."""


class AmdSmiSession:
    """The process's connection to the amdgpu driver, made when first needed.

    Args:
        load: returns the module `amdsmi`.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("amdsmi")) -> None:
        self._load = load
        self._smi: Any = None
        self._lost: set[int] = set()

    def library(self) -> Any:
        """The module `amdsmi`, connected.

        Raises:
            ControlFailedError: it is not installed, or there is no driver.
        """
        if self._smi is None:
            try:
                smi = self._load()
                smi.amdsmi_init()
            except Exception as error:  # the package raises errors of many kinds when its library is missing
                raise ControlFailedError(f"AMD SMI cannot be used: {error}") from error
            self._smi = smi
        return self._smi

    def gpus(self) -> Iterator[tuple[str, Any]]:
        """UUID and handle of every GPU that answers; one that does not is logged when that begins.

        Raises:
            ControlFailedError: the driver as a whole does not answer.
        """
        smi = self.library()
        try:
            handles = smi.amdsmi_get_processor_handles()
        except smi.AmdSmiException as error:
            self.close()
            raise ControlFailedError(f"AMD SMI: {error}") from error
        for index, handle in enumerate(handles):
            try:
                uuid = str(smi.amdsmi_get_gpu_device_uuid(handle))
            except smi.AmdSmiException as error:
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

    def read(self, function: str, handle: Any) -> Mapping[str, Any]:
        """What a query of one GPU answers; nothing where it cannot."""
        smi = self.library()
        try:
            answer: Mapping[str, Any] = getattr(smi, function)(handle)
        except smi.AmdSmiException:
            return {}
        return answer

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        smi, self._smi = self._smi, None
        if smi is not None:
            try:
                smi.amdsmi_shut_down()
            except smi.AmdSmiException as error:
                log.debug("AMD SMI did not shut down", extra={"error": str(error)})


class AmdSmi:
    """Power limits of AMD GPUs; a `PowerLimiter`. A GPU's id is its UUID.

    Args:
        session: the connection, shared with `AmdSmiMeter`.
    """

    name = "amdsmi"

    def __init__(self, session: AmdSmiSession | None = None) -> None:
        self._session = session or AmdSmiSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU tells its cap."""
        try:
            devices = self.devices()
        except ControlFailedError as error:
            return str(error)
        if not devices:
            return "no AMD GPU answers"
        if all(device.limit_w is None for device in devices):
            return f"power caps are not supported by {', '.join(device.model or device.id for device in devices)}"
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [self._device(uuid, handle) for uuid, handle in self._session.gpus()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        handle = self._session.gpu(device_id)
        smi = self._session.library()
        action = f"set {limit_w:g} W on GPU {device_id}"
        try:
            smi.amdsmi_set_power_cap(handle, _SENSOR, round(limit_w / _MICRO))
        except smi.AmdSmiException as error:
            kind = ControlRefusedError if any(name in str(error) for name in _REFUSALS) else ControlFailedError
            raise kind(f"{action}: {error}") from error
        in_force_w = _cap_w(self._session.read("amdsmi_get_power_cap_info", handle), "power_cap")
        if in_force_w is None:
            raise ControlFailedError(f"{action}: accepted, but the cap in force cannot be read")
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force")
        return in_force_w

    def _device(self, uuid: str, handle: Any) -> PowerDevice:
        caps = self._session.read("amdsmi_get_power_cap_info", handle)
        name = self._session.read("amdsmi_get_gpu_asic_info", handle).get("market_name")
        return PowerDevice(
            uuid,
            DeviceKind.GPU,
            model=name if isinstance(name, str) and name not in ("", "N/A") else None,
            limit_w=_cap_w(caps, "power_cap"),
            min_w=_cap_w(caps, "min_power_cap"),
            max_w=_cap_w(caps, "max_power_cap"),
            default_w=_cap_w(caps, "default_power_cap"),
        )


class AmdSmiMeter:
    """Power of AMD GPUs; a `PowerSource`.

    Args:
        session: the connection, shared with `AmdSmi`.
    """

    name = "amdsmi"

    def __init__(self, session: AmdSmiSession | None = None) -> None:
        self._session = session or AmdSmiSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU tells its power."""
        try:
            return None if self.power_w() else "no AMD GPU tells its power"
        except ControlFailedError as error:
            return str(error)

    def energy(self) -> Sequence[EnergyReading]:
        """Nothing: power is read directly."""
        return []

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that tells it, W: now where the GPU measures that (MI300), else its average."""
        powers = {
            uuid: _power_w(self._session.read("amdsmi_get_power_info", gpu)) for uuid, gpu in self._session.gpus()
        }
        return {uuid: power_w for uuid, power_w in powers.items() if power_w is not None}


def _cap_w(caps: Mapping[str, Any], key: str) -> float | None:
    """A cap in W; None where it is missing, or the 0 of a GPU that does not say."""
    value = caps.get(key)
    return value * _MICRO if isinstance(value, int) and value > 0 else None


def _power_w(info: Mapping[str, Any]) -> float | None:
    """The first power that is a number and not an unsigned integer's largest value, which means none."""
    for key in _POWER_KEYS:
        value = info.get(key)
        if isinstance(value, int) and value not in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
            return float(value)
    return None
