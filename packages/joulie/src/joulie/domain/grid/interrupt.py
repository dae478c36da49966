"""When an interruptible Job is paused and when it runs on.

It runs in the best slots that are expected before it must be done. Each pause costs the work since the last checkpoint
and a start, so it is made for a clear gain only, and neither runs nor pauses are short. Source: spec, grid.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from joulie.domain.grid import deferral, windows
from joulie.domain.grid.deferral import Conditions, Goal, Hold, Waiting, duration_text
from joulie.domain.grid.request import GridRequest, Mode
from joulie.domain.grid.signals import Measure
from joulie.domain.quantities import SECONDS_PER_MINUTE

MIN_RUN_S = 30 * SECONDS_PER_MINUTE
"""Minimum time that a Job runs before it is paused, s."""
MIN_PAUSE_S = 15 * SECONDS_PER_MINUTE
"""Minimum time that a Job stays paused, s, unless it must run to finish in time."""
MIN_GAIN = 0.05
"""Minimum gain of a pause, as a share of the objective."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An interruptible Job.

    Attributes:
        request: what it asks.
        held_since_s: since when its delay counts, s since the epoch.
        done_s: how long it has run in all, s.
        paused: whether it is suspended now.
        changed_s: when it was last suspended or let run, s since the epoch.
        done_by_s: when it has to be done, s since the epoch; None if it may take as long as it likes.
    """

    request: GridRequest
    held_since_s: float
    done_s: float
    paused: bool
    changed_s: float
    done_by_s: float | None = None

    @property
    def begun(self) -> bool:
        """Whether it has run at all: until then nothing is interrupted, and waiting costs nothing."""
        return self.done_s > 0.0

    @property
    def left_s(self) -> float:
        """How long it has to run yet, s, as far as the estimate goes."""
        return max(self.request.runtime_s - self.done_s, 0.0)

    @property
    def finish_by_s(self) -> float:
        """When it has to be done, at the latest after its longest delay, s since the epoch."""
        latest_s = self.held_since_s + self.request.max_delay_s + self.request.runtime_s
        return latest_s if self.done_by_s is None else min(latest_s, self.done_by_s)

    @property
    def latest_resume_s(self) -> float:
        """Until when it may be paused, s since the epoch."""
        return self.finish_by_s - self.left_s


@dataclass(frozen=True, slots=True)
class Run:
    """It runs.

    Attributes:
        text: why, in words.
        wake_s: when to decide again, s since the epoch; None: when a signal changes, if ever.
    """

    text: str
    wake_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """It is suspended.

    Attributes:
        text: why, in words.
        wake_s: when to decide again at the latest, s since the epoch.
        held_by: the signals that pause it; its savings are accounted by them.
    """

    text: str
    wake_s: float
    held_by: tuple[Measure, ...] = ()


def decide(job: Progress, conditions: Conditions, now_s: float) -> Run | Pause:
    """Whether a Job that may be interrupted runs now.

    Args:
        job: the Job.
        conditions: carbon intensity and price in its zone.
        now_s: time, s since the epoch.
    """
    request = job.request
    if request.mode is not Mode.INTERRUPTIBLE or not request.interruptible or not request.defer:
        return Run("does not ask to be interrupted")
    if job.left_s <= 0.0:
        return Run(f"has run for the {duration_text(request.runtime_s)} that it was expected to")
    # While it runs, its latest resumption moves on with it: time spent paused is not regained.
    if now_s >= job.latest_resume_s - (MIN_PAUSE_S if job.begun and not job.paused else 0.0):
        return Run("runs on to be done in time")
    if job.begun and not job.paused and now_s < job.changed_s + MIN_RUN_S:
        return Run("has just begun to run", job.changed_s + MIN_RUN_S)
    goal = deferral.expected_goal(request, conditions, now_s)
    wanted = _by_threshold(job, conditions, now_s) if goal is None else _by_slots(job, goal, now_s)
    if job.begun and job.paused and isinstance(wanted, Run) and now_s < job.changed_s + MIN_PAUSE_S:
        return Pause("has just been paused", min(job.changed_s + MIN_PAUSE_S, job.latest_resume_s))
    return wanted


def _by_threshold(job: Progress, conditions: Conditions, now_s: float) -> Run | Pause:
    """Without a forecast: paused while intensity or price are above their limits."""
    request = dataclasses.replace(job.request, mode=Mode.THRESHOLD)
    waiting = Waiting(request, job.latest_resume_s - request.max_delay_s)
    decision = deferral.decide(waiting, conditions, now_s)
    if isinstance(decision, Hold):
        return Pause(decision.text, decision.wake_s, decision.held_by)
    return Run(decision.text)


def _by_slots(job: Progress, goal: Goal, now_s: float) -> Run | Pause:
    series = goal.series
    runs = windows.best_slots(series, now_s, min(job.finish_by_s, series.end_s), job.left_s, MIN_RUN_S)
    at_once = series.mean(now_s, now_s + job.left_s)
    if not runs or at_once is None:
        return Run("no forecast reaches to its end")
    begin_s, end_s = runs[0]
    if begin_s <= now_s:
        return Run(f"one of its best hours, for {duration_text(end_s - now_s)}", end_s)
    gain = deferral.saved_share(at_once, sum(float(series.integral(*run)) for run in runs) / job.left_s)
    if gain < MIN_GAIN and job.begun and not job.paused:
        return Run(f"a pause would save {max(gain, 0.0):.1%}", begin_s)
    text = f"better hours from {duration_text(begin_s - now_s)} on, {gain:.0%} lower for what is left"
    return Pause(text, min(begin_s, job.latest_resume_s), goal.measures)
