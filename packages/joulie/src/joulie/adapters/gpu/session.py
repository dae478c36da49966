"""GPUs through a vendor's library (NVML, AMD SMI): power limits, power and energy.

The limiter and the meter of a vendor share a `GpuSession`. It reads all GPUs at once, in a process of its own, and
keeps what it read for a moment: one cycle of the agent asks several times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulie.adapters.gpu.process import LibraryProcess, OutdatedLibraryError
from joulie.domain.quantities import positive_number
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

READ_BACK_TOLERANCE_W = 1.0
"""Drivers may round to whole watts, W; a larger difference means that another limit is in force."""

FRESH_S = 1.0
"""Time for which a reading is used again, s."""

MIN_RECONNECT_S, MAX_RECONNECT_S = 20.0, 600.0
"""Pauses before connecting anew because of a GPU that is lost: a GPU that was reset needs a new connection, s."""

OUTDATED_S = 60.0
"""Time for which the library must be outdated before a restart is asked for, s."""

_log = logging.getLogger(__name__)


class GpuSession:
    """All GPUs of a vendor; a `DriverClient`.

    Args:
        process: the library's process.
        clock: monotonic time, s.
    """

    def __init__(self, process: LibraryProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock
        self._held: str | None = None
        self._renewable = False
        self._outdated_since_s: float | None = None
        self._gpus: Sequence[dict[str, Any]] = ()
        self._read_at_s = float("-inf")
        self._lost: dict[int, str] = {}
        self._reconnect_pause_s = MIN_RECONNECT_S
        self._reconnect_at_s = float("-inf")

    @property
    def lost(self) -> Sequence[str]:
        """See `DriverClient.lost`."""
        return [f"GPU {index} does not respond: {why}" for index, why in sorted(self._lost.items())]

    @property
    def restart_reason(self) -> str | None:
        """See `DriverClient.restart_reason`."""
        if self._outdated_since_s is None or self._clock() - self._outdated_since_s < OUTDATED_S:
            return None
        return "the GPU driver was replaced, and only a new container has its library"

    def gpus(self) -> Sequence[dict[str, Any]]:
        """GPUs that respond, in a stable order; one that stops responding is logged once.

        Raises:
            NoBackendError: this machine has no such library.
            ControlFailedError: the driver does not respond, or was let go.
        """
        if self._held is not None:
            raise ControlFailedError(self._held)
        if self._clock() - self._read_at_s >= FRESH_S:
            self._gpus = self._without_lost(self._read())
            self._read_at_s = self._clock()
        return self._gpus

    def set_limit(self, uuid: str, limit_w: float) -> tuple[float, float]:
        """Write a limit; the limit that is set then, and the one that is enforced, W."""
        self._read_at_s = float("-inf")
        answer = self.ask(do="set", uuid=uuid, limit_w=limit_w)
        return answer["set_w"], answer["enforced_w"]

    def ask(self, **request: Any) -> Mapping[str, Any]:
        """The driver's answer to a request; raises as `LibraryProcess.ask`, and while the driver was let go."""
        if self._held is not None:
            raise ControlFailedError(self._held)
        return self._process.ask(**request)

    def hold(self, reason: str | None) -> None:
        """See `DriverClient.hold`; a process that cannot be ended is told of in the reason."""
        if reason == self._held:
            return
        if reason is None:
            self._process.retry_now()
        self._held = reason
        self._read_at_s = float("-inf")
        if reason is not None:
            self._renewable, self._outdated_since_s = True, None
            self.close()

    def close(self) -> None:
        """End the library's process; the next use starts another."""
        self._read_at_s = float("-inf")
        try:
            self._process.end()
        except ControlFailedError as error:
            _log.warning("GPU driver could not be let go", extra={"error": str(error)})

    def _read(self) -> Sequence[dict[str, Any]]:
        try:
            found: Sequence[dict[str, Any]] = self._process.ask(do="read")["gpus"]
        except OutdatedLibraryError:
            # Where the library never fitted the driver, a restart would not help either.
            if self._renewable and self._outdated_since_s is None:
                self._outdated_since_s = self._clock()
            raise
        self._renewable, self._outdated_since_s = True, None
        return found

    def _without_lost(self, found: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        lost = {index: gpu["lost"] for index, gpu in enumerate(found) if "lost" in gpu}
        for index in lost.keys() - self._lost.keys():
            _log.warning("GPU does not respond, ignored", extra={"gpu": index, "error": lost[index]})
        if lost and not self._lost:
            self._reconnect_pause_s = MIN_RECONNECT_S
            self._reconnect_at_s = self._clock() + MIN_RECONNECT_S
        self._lost = lost
        if lost and self._clock() >= self._reconnect_at_s:
            self._process.ask(do="disconnect")
            self._reconnect_pause_s = min(MAX_RECONNECT_S, 2.0 * self._reconnect_pause_s)
            self._reconnect_at_s = self._clock() + self._reconnect_pause_s
        return [gpu for gpu in found if "lost" not in gpu]


class GpuLimiter:
    """Power limits of a vendor's GPUs; a `PowerLimiter`. A GPU's id is its UUID.

    Attributes:
        name: name of the backend.
        vendor: vendor of the GPUs in messages.
    """

    name: str
    vendor: str

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def unavailable(self) -> str | None:
        """None if the power of at least one GPU can be limited."""
        try:
            devices = self.devices()
        except ControlFailedError as error:
            return str(error)
        if not devices:
            return f"no {self.vendor} GPU responds"
        if not any(device.limit_w is not None and device.max_w is not None for device in devices):
            return f"power limits are not supported by {', '.join(device.model or device.id for device in devices)}"
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [
            PowerDevice(
                gpu["uuid"],
                DeviceKind.GPU,
                model=gpu["model"],
                limit_w=gpu["limit_w"],
                min_w=gpu["min_w"],
                max_w=gpu["max_w"],
                default_w=gpu["default_w"],
                mig=gpu["mig"],
            )
            for gpu in self._session.gpus()
        ]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`; the limit in force may be lower, if something else enforces a lower one."""
        limit_w = positive_number("limit_w", limit_w)
        action = f"set {limit_w:g} W on GPU {device_id}"
        try:
            set_w, enforced_w = self._session.set_limit(device_id, limit_w)
        except (ControlFailedError, ControlRefusedError) as error:
            raise type(error)(f"{action}: {error}") from error
        if abs(set_w - limit_w) > READ_BACK_TOLERANCE_W or enforced_w > limit_w + READ_BACK_TOLERANCE_W:
            told_w = max(set_w, enforced_w)
            raise ControlFailedError(f"{action}: accepted, but {told_w:g} W is in force", in_force=set_w)
        return enforced_w


class GpuMeter:
    """Power and energy of a vendor's GPUs; a `PowerSource`.

    Attributes:
        name: name of the source.
        vendor: vendor of the GPUs in messages.
    """

    name: str
    vendor: str

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def unavailable(self) -> str | None:
        """None if at least one GPU reports its power or counts its energy."""
        try:
            gpus = self._session.gpus()
        except ControlFailedError as error:
            return str(error)
        if not gpus:
            return f"no {self.vendor} GPU responds"
        measured = any(gpu["power_w"] is not None or gpu["energy_j"] is not None for gpu in gpus)
        return None if measured else f"no {self.vendor} GPU reports its power"

    def energy(self) -> Sequence[EnergyReading]:
        """Energy since the driver was loaded, of GPUs that count it."""
        return [EnergyReading(gpu["uuid"], gpu["energy_j"], None) for gpu in self._gpus("energy_j")]

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that reports it, W."""
        return {gpu["uuid"]: gpu["power_w"] for gpu in self._gpus("power_w")}

    def _gpus(self, field: str) -> Sequence[dict[str, Any]]:
        return [gpu for gpu in self._session.gpus() if gpu[field] is not None]
