"""Power caps of a node's own CPUs: by power limit where that works, else by frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulie.apps.agent.frequency import BACKEND as DVFS
from joulie.apps.agent.frequency import FrequencyWriter
from joulie.apps.agent.limits import LimitWriter
from joulie.apps.agent.outcome import Outcome, blocked, failed, listed
from joulie.apps.agent.throttle import Throttle
from joulie.domain.actuation import WantedCap
from joulie.domain.hardware import CapRange


@dataclass(frozen=True)
class CpuFacts:
    """What the controller needs to know of the CPUs.

    Attributes:
        limits: range of one package; None where neither device nor catalogue knows.
        packages: number of packages.
        power_w: power of all packages in this cycle, W; None without a sample.
        measured: whether power can be measured at all.
    """

    limits: CapRange | None
    packages: int
    power_w: float | None
    measured: bool


class CpuControl:
    """Power limits first (RAPL, HSMP), frequency where they do not work, and back when they do again.

    Attributes:
        backend: the backend in use: rapl, hsmp, dvfs or none.
        limits_w: power limits in force by package, W.
    """

    def __init__(self, writer: LimitWriter, frequency: FrequencyWriter, throttle: Throttle) -> None:
        self._writer = writer
        self._frequency = frequency
        self.throttle = throttle
        self.backend = "none"
        self.limits_w: Mapping[str, float] = {}

    def enforce(self, cap: WantedCap, facts: CpuFacts, now_s: float) -> Outcome:
        """Bring the CPUs to a cap; never raises for what a device does."""
        outcome = self._lift() if cap.lifted else self._cap(cap, facts, now_s)
        self.backend = outcome.backend
        return outcome

    def _lift(self) -> Outcome:
        self.limits_w = {}
        outcome = self._writer.lift()
        problems = self._release_frequency()
        if problems:
            return failed(DVFS, f"original frequency limits are not restored: {problems}")
        if outcome.backend == "none" and self._frequency.limiter.unavailable() is None:
            return Outcome(DVFS, outcome.result, outcome.message)
        return outcome

    def _cap(self, cap: WantedCap, facts: CpuFacts, now_s: float) -> Outcome:
        outcome, self.limits_w = self._writer.cap(cap)
        if outcome.backend != "none":
            problems = self._release_frequency()
            return (
                failed(outcome.backend, f"{outcome.message}; throttle not taken back: {problems}")
                if problems
                else outcome
            )
        reason = self._frequency.limiter.unavailable()
        if reason is not None:
            return Outcome("none", outcome.result, f"{outcome.message}; dvfs: {reason}")
        return self._throttle(cap, facts, now_s, outcome.message)

    def _throttle(self, cap: WantedCap, facts: CpuFacts, now_s: float, why: str) -> Outcome:
        throttle_pct = self.throttle.wanted_pct(
            cap, facts.limits, facts.packages, facts.power_w, now_s, measured=facts.measured
        )
        if throttle_pct is None:
            return blocked(
                DVFS, f"{why}; dvfs: power cannot be measured, and the CPU's maximum, which would tell, is not known"
            )
        done = self._frequency.apply(throttle_pct)
        if done.problems:
            return (failed if done.failed else blocked)(DVFS, listed(done.problems))
        how = "by measured power" if facts.measured else "by a fixed share, since power cannot be measured"
        return Outcome(DVFS, done.outcome(DVFS, cap).result, f"frequency limited {how}; {why}")

    def _release_frequency(self) -> str:
        """Take a throttle back, also one of an earlier process; returns what went wrong."""
        self.throttle.release()
        return listed(self._frequency.release()) if self._frequency.holding else ""
