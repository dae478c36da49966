"""Power limits of the host's devices.

Every write is planned, preceded by saving the original limit to disk, and verified by the value read back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from joulie.apps.agent.backend_limits import BackendLimits, one_by_one
from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import (
    SIMULATED,
    Enforcement,
    Outcome,
    blocked,
    failed,
    format_left,
    format_problems,
    joined,
    restored,
)
from joulie.domain.actuation import (
    LimitedDevice,
    WantedCap,
    WantedLimits,
    cpu_range,
    die_shares,
    gpu_range,
    same_limit,
    scaled_range,
    unsure_dies,
    wanted_limits,
)
from joulie.domain.hardware import CapRange, Catalogue
from joulie.domain.limit_records import FoundLimit
from joulie.ports.devices import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    JointPowerLimiter,
    NoBackendError,
    PowerDevice,
    PowerLimiter,
)

_log = logging.getLogger(__name__)

LIFTED = WantedCap()


def limited_devices(devices: Sequence[PowerDevice], catalogue: Catalogue, cpu_model: str) -> list[LimitedDevice]:
    """Devices with their cap ranges and their shares of a cap in watts, which the dies of a socket divide.

    A die whose share is not known now counts as one whose limit cannot be read: it is judged in a later cycle.
    """
    shares = die_shares({device.id: device.max_w for device in devices})
    unsure = unsure_dies(shares)
    return [
        LimitedDevice(
            device.id,
            None if device.id in unsure else device.limit_w,
            device_range(device, catalogue, cpu_model, shares[device.id]),
            shares[device.id],
            clips=device.min_w is None,
        )
        for device in devices
    ]


def device_range(device: PowerDevice, catalogue: Catalogue, cpu_model: str, share: float = 1.0) -> CapRange | None:
    """Cap range of a device: as reported by the device, else from the catalogue; None if unknown.

    Args:
        device: the device.
        catalogue: hardware catalogue, which describes whole sockets.
        cpu_model: model of the host's CPUs.
        share: part of its socket that a die is.
    """
    if device.kind is DeviceKind.CPU_PACKAGE:
        cpu = catalogue.cpu(device.model or cpu_model).model
        return cpu_range(device.min_w, device.max_w, scaled_range(cpu.cap_range if cpu else None, share))
    gpu = catalogue.gpu(device.model).model if device.model else None
    return gpu_range(device.min_w, device.max_w, device.default_w, gpu.cap_range if gpu else None)


class LimitWriter:
    """Writes the limits of one kind of device through the first available backend.

    Args:
        limiters: backends in order of preference.
        originals: store of the original limits.
        describe: adds cap ranges and shares to the devices of a backend.
        simulate_only: plan limits, but write none.
        yields: leave devices whose limit another program sets again and again to that program.
    """

    def __init__(
        self,
        limiters: Sequence[PowerLimiter],
        originals: OriginalLimits,
        describe: Callable[[Sequence[PowerDevice]], Sequence[LimitedDevice]],
        *,
        simulate_only: bool = False,
        yields: bool = False,
    ) -> None:
        self.limiters = limiters
        self._originals = originals
        self._describe = describe
        self._simulate_only = simulate_only
        self._limits = {
            limiter.name: BackendLimits(
                limiter.name,
                limiter.set_limits if isinstance(limiter, JointPowerLimiter) else one_by_one(limiter.set_limit),
                originals,
                same_limit,
                simulate_only=simulate_only,
                yields=yields,
            )
            for limiter in limiters
        }
        # Listed since the last write, by backend: one listing serves a cycle.
        self._listed: dict[str, Sequence[PowerDevice]] = {}

    @property
    def resets(self) -> Mapping[str, int]:
        """Times that another program replaced Joulie's limit by a higher one, by device."""
        return {device: times for limits in self._limits.values() for device, times in limits.resets.items()}

    def cap(self, cap: WantedCap) -> tuple[Outcome, Mapping[str, float]]:
        """Enforce a cap by the first backend that limits at least one device; limits of the others are restored.

        Returns:
            The outcome, and the limits in force by device, W; without any, the backends are those that may still
            have limits of an earlier cycle, else ``none``.
        """
        reasons: dict[str, str] = {}
        holding: list[str] = []
        refusals_only = True
        for limiter in self.limiters:
            reason = limiter.unavailable()
            done = Enforcement(left_w=self._limits[limiter.name].left()) if reason else self._enforce(limiter, cap)
            if done.in_force_w:
                for other in self.limiters:
                    if other is not limiter:
                        self._restore(other)
                return self._outcome(limiter, done, cap), done.in_force_w
            problem = reason or format_problems(done.problems) or "no devices"
            reasons[limiter.name] = f"{problem}{format_left(done.left_w)}"
            holding += [limiter.name] if done.left_w or self._limits[limiter.name].in_doubt else []
            refusals_only = refusals_only and not done.failed
        result = blocked if refusals_only else failed
        return result(joined(holding), format_problems(reasons) or "no backend is configured"), {}

    def lift(self) -> Outcome:
        """Restore the original limits of every device that was capped."""
        found = {limiter.name: self._restore(limiter) for limiter in self.limiters}
        holding = [name for name, problems in found.items() if problems]
        if not holding:
            return restored(self.available_backend(), "no cap requested, original limits in force")
        result = blocked if self._simulate_only else failed
        problems = format_problems({device: reason for name in holding for device, reason in found[name].items()})
        left = format_left(limit_w for name in holding for limit_w in self._limits[name].left())
        return result(joined(holding), f"original limits not restored: {problems}{left}")

    def available_backend(self) -> str:
        """Name of the first available backend; ``none`` without one."""
        return next((limiter.name for limiter in self.limiters if limiter.unavailable() is None), "none")

    def devices(self) -> list[PowerDevice]:
        """Devices of the first backend that lists any; empty without one."""
        return self.found()[0]

    def found(self) -> tuple[list[PowerDevice], str | None]:
        """Devices of the first backend that lists any, and why there may be others: a backend does not respond."""
        problems: dict[str, str] = {}
        for limiter in self.limiters:
            try:
                if found := self._list(limiter):
                    self._listed[limiter.name] = found
                    return found, None
            except NoBackendError as error:
                _log.debug("no devices", extra={"backend": limiter.name, "error": str(error)})
            except (ControlFailedError, ControlRefusedError) as error:
                problems[limiter.name] = str(error)
        return [], format_problems(problems) or None

    def _outcome(self, limiter: PowerLimiter, done: Enforcement, cap: WantedCap) -> Outcome:
        outcome = done.outcome(limiter.name, cap)
        if not self._simulate_only:
            return outcome
        return blocked(limiter.name, f"{SIMULATED}; otherwise {outcome.message}")

    def _enforce(self, limiter: PowerLimiter, cap: WantedCap) -> Enforcement:
        try:
            wanted = self._wanted_limits(cap, limiter, self._take_listed(limiter))
        except (ControlFailedError, ControlRefusedError, OSError) as error:
            return Enforcement(failed={limiter.name: str(error)}, left_w=self._limits[limiter.name].left())
        limits = self._limits[limiter.name]
        # First what gets more power, so that a device is never left under the limit of another pod.
        unrestored = limits.restore(lambda: wanted.found, only=wanted.released) if wanted.released else {}
        done = limits.enforce(wanted.found, wanted.limits_w)
        done.refused |= wanted.refused
        done.failed |= unrestored
        return done

    def _restore(self, limiter: PowerLimiter) -> Mapping[str, str]:
        """Restore the limits that a backend changed and forget those restored; returns the problems by device."""
        return self._limits[limiter.name].restore(partial(self._found_limits, limiter))

    def _found_limits(self, limiter: PowerLimiter) -> Sequence[FoundLimit]:
        listed = self._take_listed(limiter)
        unlimited = {device.id for device in listed if not device.limitable}
        untouched = unlimited - self._originals.for_backend(limiter.name).keys()
        return [found for found in self._wanted_limits(LIFTED, limiter, listed).found if found.id not in untouched]

    def _wanted_limits(self, cap: WantedCap, limiter: PowerLimiter, listed: Sequence[PowerDevice]) -> WantedLimits:
        reported = self._originals.reported(limiter.name)
        return wanted_limits(cap, self._describe(listed), *((reported.cap, reported.limits_w) if reported else ()))

    def _take_listed(self, limiter: PowerLimiter) -> Sequence[PowerDevice]:
        """Devices of a backend, as last listed; once only, since the limits are about to change."""
        listed = self._listed.pop(limiter.name, None)
        return self._list(limiter) if listed is None else listed

    @staticmethod
    def _list(limiter: PowerLimiter) -> list[PowerDevice]:
        return list(limiter.devices())
