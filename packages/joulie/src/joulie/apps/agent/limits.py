"""Power limits of the host's devices.

Every write is planned, preceded by saving the original limit to disk, and verified by the value read back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import Enforcement, Outcome, blocked, failed, format_problems, restored
from joulie.domain.actuation import LimitedDevice, WantedCap, cpu_range, gpu_range, plan_limits
from joulie.domain.hardware import CapRange, Catalogue
from joulie.ports import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    NoBackendError,
    PowerDevice,
    PowerLimiter,
)

_log = logging.getLogger(__name__)

LIFTED = WantedCap()


def device_range(device: PowerDevice, catalogue: Catalogue, cpu_model: str) -> CapRange | None:
    """Cap range of a device: as reported by the device, else from the catalogue; None if unknown."""
    if device.kind is DeviceKind.CPU_PACKAGE:
        cpu = catalogue.cpu(device.model or cpu_model).model
        return cpu_range(device.min_w, device.max_w, cpu.cap_range if cpu else None)
    gpu = catalogue.gpu(device.model).model if device.model else None
    return gpu_range(device.min_w, device.max_w, device.default_w, gpu.cap_range if gpu else None)


@dataclass(frozen=True)
class LimitWriter:
    """Writes the limits of one kind of device through the first available backend.

    Attributes:
        limiters: backends in order of preference.
        originals: store of the original limits.
        range_of: returns the cap range of a device; None if unknown.
        simulate_only: plan limits, but write none.
    """

    limiters: Sequence[PowerLimiter]
    originals: OriginalLimits
    range_of: Callable[[PowerDevice], CapRange | None]
    simulate_only: bool = False

    def cap(self, cap: WantedCap) -> tuple[Outcome, Mapping[str, float]]:
        """Enforce a cap by the first backend that limits at least one device; limits of the others are restored.

        Returns:
            The outcome, and the limits in force by device, W. Backend ``none``: no backend could limit a device.
        """
        reasons: dict[str, str] = {}
        refusals_only = True
        for limiter in self.limiters:
            reason = limiter.unavailable()
            if reason is not None:
                reasons[limiter.name] = reason
                continue
            done = self._enforce(limiter, cap)
            if done.in_force_w:
                for other in self.limiters:
                    if other is not limiter:
                        self._restore(other)
                return self._outcome(limiter, done, cap), done.in_force_w
            reasons[limiter.name] = format_problems(done.problems) or "no devices"
            refusals_only = refusals_only and not done.failed
        result = blocked if refusals_only else failed
        return result("none", format_problems(reasons) or "no backend is configured"), {}

    def lift(self) -> Outcome:
        """Restore the original limits of every device that was capped."""
        problems: dict[str, str] = {}
        for limiter in self.limiters:
            problems |= self._restore(limiter)
        backend = self.available_backend()
        if problems:
            result = blocked if self.simulate_only else failed
            return result(backend, f"original limits not restored: {format_problems(problems)}")
        return restored(backend, "no cap requested, original limits in force")

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
                if found := list(limiter.devices()):
                    return found, None
            except NoBackendError as error:
                _log.debug("no devices", extra={"backend": limiter.name, "error": str(error)})
            except (ControlFailedError, ControlRefusedError) as error:
                problems[limiter.name] = str(error)
        return [], format_problems(problems) or None

    def _outcome(self, limiter: PowerLimiter, done: Enforcement, cap: WantedCap) -> Outcome:
        outcome = done.outcome(limiter.name, cap)
        if not self.simulate_only:
            return outcome
        return blocked(limiter.name, f"SIMULATE_ONLY: nothing is written; otherwise {outcome.message}")

    def _enforce(self, limiter: PowerLimiter, cap: WantedCap) -> Enforcement:
        done = Enforcement()
        try:
            found = [LimitedDevice(device.id, device.limit_w, self.range_of(device)) for device in limiter.devices()]
        except (ControlFailedError, ControlRefusedError) as error:
            done.failed[limiter.name] = str(error)
            return done
        plan = plan_limits(cap, found, self.originals.for_backend(limiter.name))
        done.refused |= plan.refused
        done.in_force_w = {name: limit_w for name, limit_w in plan.targets_w.items() if name not in plan.writes_w}
        if self.simulate_only:
            done.in_force_w = dict(plan.targets_w)
            return done
        try:
            self.originals.remember(limiter.name, plan.originals_w)
        except OSError as error:
            reason = f"limits not changed: the original limits could not be saved: {error}"
            done.failed |= dict.fromkeys(plan.writes_w, reason)
            return done
        for name, limit_w in plan.writes_w.items():
            self._write(limiter, name, limit_w, done)
        return done

    def _write(self, limiter: PowerLimiter, device_id: str, limit_w: float, done: Enforcement) -> None:
        try:
            done.in_force_w[device_id] = limiter.set_limit(device_id, limit_w)
        except ControlRefusedError as error:
            done.refused[device_id] = str(error)
        except ControlFailedError as error:
            done.failed[device_id] = str(error)
        else:
            _log.info("limit set", extra={"backend": limiter.name, "device": device_id, "limit_w": limit_w})

    def _restore(self, limiter: PowerLimiter) -> Mapping[str, str]:
        """Restore the limits that a backend changed and forget those restored; returns the problems by device."""
        saved = self.originals.for_backend(limiter.name)
        if saved and self.simulate_only:
            return dict.fromkeys(saved, "SIMULATE_ONLY: nothing is written")
        done = self._enforce(limiter, LIFTED) if saved else Enforcement()
        problems = dict(done.problems)
        for name in saved:
            if name in done.in_force_w:
                try:
                    self.originals.forget(limiter.name, name)
                except OSError as error:
                    problems[name] = f"restored, but the saved limit could not be deleted: {error}"
            elif not done.problems:
                problems[name] = f"not listed by {limiter.name}; the original limit remains saved"
        if saved and not problems:
            _log.info("original limits restored", extra={"backend": limiter.name, "devices": sorted(saved)})
        return problems
