"""Power capping of the host's CPUs: by power limits (RAPL, HSMP), with frequency limits as the fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.apps.agent.frequency import BACKEND as DVFS
from joulie.apps.agent.frequency import FrequencyWriter
from joulie.apps.agent.limits import LimitWriter
from joulie.apps.agent.outcome import Outcome, blocked, failed, format_problems
from joulie.apps.agent.throttle import PowerReading, Throttle
from joulie.domain.actuation import WantedCap, socket_of
from joulie.domain.hardware import CapRange


@dataclass(frozen=True)
class CpuFacts:
    """Properties and measurements of the CPUs in one cycle.

    Attributes:
        limits: cap range of one socket; None if neither the device nor the catalogue states one.
        packages: number of sockets.
        power: total power of all packages in this cycle.
    """

    limits: CapRange | None
    packages: int
    power: PowerReading


class CpuControl:
    """Enforces CPU caps by power limit, falls back to frequency limits, and returns once power limits work again.

    Attributes:
        throttle: frequency controller of the fallback.
        backend: backend in use: rapl, hsmp, dvfs or none.
        limits_w: power limits in force by package, W.
    """

    def __init__(self, writer: LimitWriter, frequency: FrequencyWriter, throttle: Throttle) -> None:
        self._writer = writer
        self._frequency = frequency
        self.throttle = throttle
        self.backend = "none"
        self.limits_w: Mapping[str, float] = {}

    def enforce(self, cap: WantedCap, facts: CpuFacts, now_s: float) -> Outcome:
        """Apply a cap to the CPUs; device errors are reported in the outcome, never raised."""
        outcome = self._lift() if cap.lifted else self._cap(cap, facts, now_s)
        self.backend = outcome.backend
        return outcome

    def _lift(self) -> Outcome:
        self.limits_w = {}
        outcome = self._writer.lift()
        problems = self._release_frequency()
        if problems:
            return failed(DVFS, f"original frequency limits not restored: {problems}")
        if outcome.backend == "none" and self._frequency.limiter.unavailable() is None:
            return Outcome(DVFS, outcome.result, outcome.message)
        return outcome

    def _cap(self, cap: WantedCap, facts: CpuFacts, now_s: float) -> Outcome:
        outcome, self.limits_w = self._writer.cap(cap)
        if self.limits_w:
            if problems := self._release_frequency():
                return failed(outcome.backend, f"{outcome.message}; frequency limits not restored: {problems}")
            limited = len({socket_of(package) for package in self.limits_w})
            if outcome.result is ControlOutcome.APPLIED and limited < facts.packages:
                return failed(outcome.backend, f"{outcome.message}; {limited} of {facts.packages} sockets are limited")
            return outcome
        reason = self._frequency.limiter.unavailable()
        if reason is not None:
            holds_limits = outcome.backend == "none" and self._frequency.may_hold_limits
            backend = DVFS if holds_limits else outcome.backend
            return Outcome(backend, outcome.result, f"{outcome.message}; dvfs: {reason}")
        return self._throttle(cap, facts, now_s, outcome.message)

    def _throttle(self, cap: WantedCap, facts: CpuFacts, now_s: float, why: str) -> Outcome:
        throttling = self.throttle.hold(cap, facts.limits, facts.packages, facts.power, now_s)
        if throttling is None:
            return blocked(DVFS, f"{why}; dvfs: power cannot be measured and the CPU's maximum power is unknown")
        done = self._frequency.apply(throttling.throttle_pct)
        if done.problems:
            return (failed if done.failed else blocked)(DVFS, format_problems(done.problems))
        return Outcome(DVFS, throttling.result, f"frequency limited {throttling.how}; {why}")

    def _release_frequency(self) -> str:
        """Restore the original frequency limits, including those saved by an earlier process; returns the problems."""
        self.throttle.release()
        return format_problems(self._frequency.release()) if self._frequency.may_hold_limits else ""
