"""The search for the limits of one running job over two knobs: the power limit of its GPUs, then their SM clock.

A power limit goes first, since it can be read back. A maximum of the SM clock is tried where power limits do not reach:
the smallest one is held, or none is below what the job draws without any. Never both at once: one cause, one effect.

The search for a clock is that for a power limit (`domain.capping.live`), without a prior, over clock / largest clock.
Its limits are that share of the job's power limit, W, so that windows, bounds and verdicts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulie.domain.capping.choice import Goal, Hold, Reason, Trial, next_step
from joulie.domain.capping.held_out import NO_HOLDOUT, NOT_HELD_OUT, HeldOut, Holdout
from joulie.domain.capping.live import MAX_FAILURES, JobGpus, LiveJob, Pace
from joulie.domain.capping.response import Response
from joulie.domain.capping.trials import Trials, natural_w

CLOCK_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Maxima of the SM clock that are tried, as shares of the largest."""
SAME_CLOCK_HZ = 15e6
"""Clocks closer than this are one, Hz: GPUs lock to the next supported clock below."""


@dataclass(frozen=True)
class TunedJob:
    """The search for the limits of one job; a value, as `LiveJob` is.

    Attributes:
        power: the search for its power limit; at its own limit while there is one for a clock.
        clock: the search for its clock; None without one.
        start_share: clock that an earlier run was held at, as a share of the largest; None without one.
        spent: whether the clock was searched to an end on these GPUs.
    """

    power: LiveJob
    clock: LiveJob | None = None
    start_share: float | None = None
    spent: bool = False

    @classmethod
    def found(
        cls,
        job: JobGpus,
        start_w: float | None,
        start_share: float | None = None,
        held_out: HeldOut = NOT_HELD_OUT,
    ) -> TunedJob:
        """A job seen for the first time, with the limits that an earlier run was held at and what its holdout said."""
        return cls(LiveJob.found(job, start_w, held_out), start_share=start_share)

    @property
    def active(self) -> LiveJob:
        """The search that goes on now."""
        return self.power if self.clock is None else self.clock

    @property
    def job(self) -> JobGpus:
        """Its GPUs."""
        return self.power.job

    @property
    def limit_w(self) -> float:
        """Power limit that it is to have, W."""
        return self.power.limit_w

    @property
    def clock_share(self) -> float:
        """Maximum of the SM clock that it is to have, as a share of the largest."""
        return 1.0 if self.clock is None else self.clock.limit_w / self.clock.job.baseline_w

    @property
    def max_sm_hz(self) -> float | None:
        """The same, Hz; None for none."""
        clocks, share = self.job.clocks, self.clock_share
        return None if clocks is None or share >= 1.0 else share * clocks.largest_hz

    @property
    def limited(self) -> bool:
        """Whether it is to have less than its own limit, or than the largest clock."""
        return self.active.limited

    def due_s(self, pace: Pace) -> float | None:
        """When a window is complete, s; None where none is running."""
        return self.active.due_s(pace)

    def observed(self, job: JobGpus, now_s: float) -> TunedJob:
        """The state after another look; see `LiveJob.observed`."""
        clocks = job.clocks
        if self.clock is None and clocks is not None and clocks.in_force_hz != clocks.largest_hz:
            job = replace(job, in_force_w=None)  # the clock of a search that has ended is not reset yet
        power = self.power.observed(job, now_s)
        seen = replace(self, power=power, spent=self.spent and job.gpus == self.job.gpus)
        if self.clock is None:
            return seen
        if power.trials is not self.power.trials:  # begun anew: with another power limit, clocks do something else
            held = self.clock_share if self.clock.limited and isinstance(self.clock.step, Hold) else self.start_share
            return TunedJob(power, start_share=held)
        if job.clocks is None or job.clocks.largest_hz != self._largest_hz:
            return seen._without_clock("its clock cannot be locked any more")
        clock = self.clock.observed(_clock_view(power, self.clock.limit_w), now_s)
        return seen._without_clock(clock.problem) if clock.failures else replace(seen, clock=clock)

    def measured(
        self,
        power_w: float | None,
        progress_per_s: float | None,
        response: Response,
        goal: Goal,
        now_s: float,
        holdout: Holdout = NO_HOLDOUT,
        name: str = "",
        counted_per_s: float | None = None,
    ) -> TunedJob:
        """The state after a window under the present limits; see `LiveJob.measured`."""
        if self.clock is None:
            power = self.power.measured(power_w, progress_per_s, response, goal, now_s, holdout, name, counted_per_s)
            seen = replace(self, power=power)
            return seen._with_clock(goal, now_s) if seen._is_for_clock else seen
        clock = self.clock.measured(power_w, progress_per_s, None, goal, now_s, holdout, name, counted_per_s)
        if clock.problem == Reason.CONTRADICTED:
            seen = replace(self, power=replace(self.power, step=clock.step))
            return seen._without_clock(clock.problem)
        if clock.failures:
            return self._without_clock(clock.problem)
        if isinstance(clock.step, Hold) and not self._beats_power(clock.step):
            step = self.power.step
            limit_w = self.power.limit_w if step is None else step.limit_w
            power = replace(self.power, limit_w=limit_w, since_s=None, asked_s=now_s)
            return replace(self, power=power, clock=None, start_share=None, spent=True)
        return replace(self, power=replace(self.power, asked_s=now_s), clock=clock)

    @property
    def _largest_hz(self) -> float | None:
        return None if self.job.clocks is None else self.job.clocks.largest_hz

    @property
    def _is_for_clock(self) -> bool:
        """Whether the clock is to be tried now."""
        power, step, baseline_w = self.power, self.power.step, self.job.baseline_w
        if self.spent or self.job.clocks is None or power.problem or power.failures >= MAX_FAILURES:
            return False
        drawn_w = natural_w(power.trials.windows, baseline_w)
        if drawn_w is None or step is None:
            return False
        smallest_w = min(self.job.limits_w)
        if smallest_w >= drawn_w:
            # A limit there acts within bursts at most, and what it seems to save may be noise: a clock says more.
            return isinstance(step, Hold) or step.limit_w < baseline_w
        if isinstance(step, Trial):
            return self.start_share is not None and step.limit_w < baseline_w
        return step.limit_w == smallest_w

    def _beats_power(self, held: Hold) -> bool:
        """Whether a clock saves more than the power limit that would be held instead."""
        step = self.power.step
        instead = step.saving or 0.0 if isinstance(step, Hold) else 0.0
        return (held.saving or 0.0) > max(instead, 0.0)

    def _with_clock(self, goal: Goal, now_s: float) -> TunedJob:
        """The state with a search for a clock, which knows the windows at the job's own limit."""
        baseline_w = self.job.baseline_w
        power = replace(self.power, limit_w=baseline_w, since_s=None, held_out=NOT_HELD_OUT)
        view = _clock_view(power, baseline_w)
        windows = tuple(window for window in self.power.trials.windows if window.limit_w == baseline_w)
        trials = Trials(windows, _nearest_w(self.start_share, view.limits_w))
        step = next_step(trials, None, view.limits_w, goal)
        # Where a clock was held before, that is what the evidence is of.
        held_out = NOT_HELD_OUT if self.start_share is None else self.power.held_out
        last_progress = self.power.last_progress
        clock = LiveJob(view, trials, step.limit_w, step, asked_s=now_s, last_progress=last_progress, held_out=held_out)
        return replace(self, power=power, clock=clock)

    def _without_clock(self, problem: str) -> TunedJob:
        """The state at the job's own limits after a clock failed; the search for its power limit goes on from there."""
        power = replace(self.power, problem=problem, since_s=None)  # its window would reach back under the clock
        return replace(self, power=power, clock=None, start_share=None, spent=True)


def _clock_view(power: LiveJob, limit_w: float) -> JobGpus:
    """A job's GPUs as the search for a clock sees them.

    Args:
        power: their power limit, which must be the job's own.
        limit_w: clock that they are to have, as a share of the largest, times that power limit.
    """
    job, in_force_w = power.job, None
    clocks = job.clocks
    if clocks is not None and clocks.in_force_hz is not None and power.since_s is not None:
        found_w = clocks.in_force_hz / clocks.largest_hz * job.baseline_w
        same_w = SAME_CLOCK_HZ / clocks.largest_hz * job.baseline_w
        in_force_w = limit_w if abs(found_w - limit_w) <= same_w else found_w
    return replace(job, min_w=0.0, in_force_w=in_force_w, shares=CLOCK_SHARES, clocks=None)


def _nearest_w(share: float | None, limits_w: Sequence[float]) -> float | None:
    """The limit next to a share of the largest, below it."""
    if share is None:
        return None
    return min(limits_w[1:], key=lambda limit_w: abs(limit_w - share * limits_w[0]))
