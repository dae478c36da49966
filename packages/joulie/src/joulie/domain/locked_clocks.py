"""Locked SM clocks: what a GPU is to be told next, and whether its lock acts.

No function tells which lock is in force, and a driver may take one without effect. So a lock counts as applied once the
clock was read at or below it under load, where it was above it, or held by the power limit, without the lock. Under
load means that a process keeps a context: it holds the largest clock, with work or without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

STEP_HZ = 15e6
"""Step of supported clocks, Hz: up to that far above its lock a clock counts as locked."""
ANY_GPU = "*"
"""Stands for all GPUs among those whose clock may be locked: what was saved in this boot was lost."""
MAX_ABOVE = 2
"""Samples under load above a lock after which something overrides it."""
OVERRIDDEN = "something overrides the lock: the driver, or another program"


@dataclass(frozen=True)
class SmClock:
    """SM clock of one GPU at one moment.

    Attributes:
        gpu: as `PowerDevice.id`.
        now_hz: SM clock, Hz.
        largest_hz: largest SM clock of this GPU, Hz.
        idle: whether the driver calls it idle: never while a process keeps a context open, also one without work.
        at_power_limit: whether its power limit holds the clock down.
        slowed: whether something else but a lock does: heat, the power supply, another GPU.
    """

    gpu: str
    now_hz: float
    largest_hz: float
    idle: bool
    at_power_limit: bool
    slowed: bool


class ClockAction(StrEnum):
    """What to do with a GPU's SM clock.

    Attributes:
        NOTHING: leave it.
        LOCK: lock it to the maximum that is asked for.
        RESET: take the lock away.
    """

    NOTHING = "nothing"
    LOCK = "lock"
    RESET = "reset"


@dataclass(frozen=True)
class LockedClock:
    """What this process knows of one GPU's SM clock.

    Attributes:
        asked_hz: maximum that was asked for when it was locked, Hz; None where this process has not locked it.
        max_hz: supported clock that it was locked to, Hz.
        free_hz: clock under load before that, Hz; infinite where the power limit held it down.
        confirmed: whether the lock was seen to act.
        above: samples under load above the lock since it was last seen to act.
        problem: why the clock is not locked until the driver is loaded anew; empty where it may be.
    """

    asked_hz: float | None = None
    max_hz: float = math.inf
    free_hz: float = 0.0
    confirmed: bool = False
    above: int = 0
    problem: str = ""

    def looked(
        self, sample: SmClock, asked_hz: float | None, *, may_be_locked: bool
    ) -> tuple[LockedClock, ClockAction]:
        """The state after a sample, and what to do.

        Args:
            sample: the clock now.
            asked_hz: maximum that is asked for, Hz; None for none.
            may_be_locked: whether a lock of Joulie's may be in force, also of an earlier process.
        """
        seen = self if self.asked_hz is None else self._watched(sample)
        if asked_hz is None or seen.problem or (may_be_locked and self.asked_hz is None):
            return seen, ClockAction.RESET if may_be_locked else ClockAction.NOTHING
        if self.asked_hz is None:
            seen = replace(self, free_hz=_free_hz(sample))
            return seen, ClockAction.LOCK if seen.free_hz > asked_hz else ClockAction.NOTHING
        if asked_hz == self.asked_hz:
            return seen, ClockAction.LOCK if seen.above > self.above else ClockAction.NOTHING
        # A lock that the clock does not reach without it cannot be confirmed.
        return seen, ClockAction.LOCK if seen.free_hz > asked_hz else ClockAction.RESET

    def locked(self, asked_hz: float, max_hz: float) -> LockedClock:
        """The state once the clock was locked to `max_hz`."""
        same = asked_hz == self.asked_hz
        return replace(
            self,
            asked_hz=asked_hz,
            max_hz=max_hz,
            confirmed=same and self.confirmed,
            above=self.above if same else 0,
        )

    def unlocked(self) -> LockedClock:
        """The state once nothing is locked, or it is not known what is."""
        return LockedClock(problem=self.problem)

    def given_up(self, problem: str) -> LockedClock:
        """The state where no lock is to be tried until the driver is loaded anew."""
        return replace(self, problem=problem)

    def _watched(self, sample: SmClock) -> LockedClock:
        """The state of a locked clock after a sample."""
        if sample.idle:
            return self
        if sample.now_hz > self.max_hz + STEP_HZ:
            above = self.above + 1
            problem = OVERRIDDEN if above >= MAX_ABOVE else self.problem
            return replace(self, above=above, confirmed=False, problem=problem)
        acts = not (sample.at_power_limit or sample.slowed) and self.free_hz > self.max_hz
        return replace(self, above=0, confirmed=True) if acts else self


def _free_hz(sample: SmClock) -> float:
    """What the clock reaches without a lock, by one sample; 0 without load."""
    if sample.idle:
        return 0.0
    return math.inf if sample.at_power_limit else sample.now_hz
