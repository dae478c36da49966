"""AMD GPUs through AMD SMI, the optional Python package installed with ROCm: power limits and power.

Source: AMD SMI Python API reference. On bare metal it counts caps in uW and power in W; values that a GPU does not
provide are ``"N/A"``. Its errors name the status: ``AMDSMI_STATUS_NO_PERM``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulie.adapters.gpu.library import READ_BACK_TOLERANCE_W, GpuLimiter, GpuSession
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

_MICRO = 1e-6
_SENSOR = 0  # the cap of the whole package; queries read this one
_REFUSALS = ("AMDSMI_STATUS_NO_PERM", "AMDSMI_STATUS_NOT_SUPPORTED", "AMDSMI_STATUS_NOT_YET_IMPLEMENTED")
_POWER_KEYS = ("current_socket_power", "average_socket_power", "socket_power")
_INVALID = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Maximum values of unsigned integers, which stand for a missing value."""


class AmdSmiSession(GpuSession):
    """Connection of the process to the amdgpu driver.

    Args:
        load: returns the module `amdsmi`.
    """

    title = "AMD SMI"

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("amdsmi")) -> None:
        super().__init__()
        self._load = load

    def _connect(self) -> Any:
        try:
            smi = self._load()
            smi.amdsmi_init()
        except Exception as error:  # the package raises errors of many types when its library is missing
            raise ControlFailedError(f"{self.title} is not available: {error}") from error
        return smi

    def _shut_down(self, library: Any) -> None:
        library.amdsmi_shut_down()

    def _error_type(self, library: Any) -> type[Exception]:
        error_type: type[Exception] = library.AmdSmiException
        return error_type

    def _references(self, library: Any) -> Sequence[Any]:
        handles: Sequence[Any] = library.amdsmi_get_processor_handles()
        return handles

    def _open(self, library: Any, reference: Any) -> tuple[str, Any]:
        return str(library.amdsmi_get_gpu_device_uuid(reference)), reference


class AmdSmi(GpuLimiter):
    """Power limits of AMD GPUs; a `PowerLimiter`.

    Args:
        session: connection shared with `AmdSmiMeter`; None opens a new one.
    """

    name = "amdsmi"
    vendor = "AMD"

    def __init__(self, session: AmdSmiSession | None = None) -> None:
        super().__init__(session or AmdSmiSession())

    def _set_limit(self, handle: Any, limit_w: float, action: str) -> float:
        smi = self._session.library()
        try:
            smi.amdsmi_set_power_cap(handle, _SENSOR, round(limit_w / _MICRO))
        except smi.AmdSmiException as error:
            kind = ControlRefusedError if any(name in str(error) for name in _REFUSALS) else ControlFailedError
            raise kind(f"{action}: {error}") from error
        in_force_w = _cap_w(_query(self._session, "amdsmi_get_power_cap_info", handle), "power_cap")
        if in_force_w is None:
            raise ControlFailedError(f"{action}: accepted, but the cap in force cannot be read")
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force")
        return in_force_w

    def _device(self, uuid: str, handle: Any) -> PowerDevice:
        caps = _query(self._session, "amdsmi_get_power_cap_info", handle)
        name = _query(self._session, "amdsmi_get_gpu_asic_info", handle).get("market_name")
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
        session: connection shared with `AmdSmi`; None opens a new one.
    """

    name = "amdsmi"

    def __init__(self, session: AmdSmiSession | None = None) -> None:
        self._session = session or AmdSmiSession()

    def unavailable(self) -> str | None:
        """None if at least one GPU reports its power."""
        try:
            return None if self.power_w() else "no AMD GPU reports its power"
        except ControlFailedError as error:
            return str(error)

    def energy(self) -> Sequence[EnergyReading]:
        """No readings: power is read directly."""
        return []

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that reports it, W: current power if the GPU measures it (MI300), else the average."""
        powers = {
            uuid: _power_w(_query(self._session, "amdsmi_get_power_info", gpu)) for uuid, gpu in self._session.gpus()
        }
        return {uuid: power_w for uuid, power_w in powers.items() if power_w is not None}


def _query(session: GpuSession, function: str, handle: Any) -> Mapping[str, Any]:
    """Fields returned by a query of one GPU; empty if it fails."""
    fields: Mapping[str, Any] = session.read(function, handle) or {}
    return fields


def _cap_w(caps: Mapping[str, Any], key: str) -> float | None:
    """A cap in W; None if it is missing, or 0, which stands for an unknown value."""
    value = caps.get(key)
    return value * _MICRO if isinstance(value, int) and value > 0 else None


def _power_w(info: Mapping[str, Any]) -> float | None:
    """The first valid power, W; None without any."""
    for key in _POWER_KEYS:
        value = info.get(key)
        if isinstance(value, int) and value not in _INVALID:
            return float(value)
    return None
