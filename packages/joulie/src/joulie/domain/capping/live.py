"""One running job under the search for its power limit: when a window counts, and which limit comes next.

A job is the pods of one workload on GPUs of one kind. `observed` follows what happens to it from one look to the next,
`measured` adds a window. Both return a new state; whoever holds the state sets `limit_w` on the job's GPUs and asks the
meters once `due_s` is past. Whatever the meters say, a job whose progress cannot be told, or cannot be believed, is
back at its own limit after one window.

A power budget may bound the limits of the job's GPUs. A window counts only while that ceiling is not below the limit
under trial. Where it stays below, the search begins anew beneath it, and where it rises above the baseline of such a
search too: the job may have more power now, so its slowdown is to be measured against more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.domain.capping.choice import Goal, Hold, Reason, Trial, next_step
from joulie.domain.capping.held_out import NO_HOLDOUT, NOT_HELD_OUT, NOT_PAYING, HeldOut, Holdout
from joulie.domain.capping.plausibility import changed, contradicted, lowest_w
from joulie.domain.capping.response import Response
from joulie.domain.capping.trials import Trials, Window
from joulie.domain.usage import PodKey

_SHARES = tuple(float(share) for share in np.round(np.arange(1.0, 0.39, -0.05), 2))
"""Limits that are tried, as shares of the job's own limit."""
PATIENCE_S = 300.0
"""Time without a window after which a limit that is not in force on all of a job's GPUs, or whose pods come and go, is
withdrawn, s."""
MAX_FAILURES = 3
"""Failures after which a job is left at its own limit until its GPUs change."""
STUCK_REPEATS = 2
"""Repetitions of a rate to the last digit after which its signal is taken to be stuck."""
_LEAST, _MOST = 1e-9, 1e15
_SAME_W = 1.0
"""Limits closer than this are one limit, W: devices round."""
NO_PROGRESS = "its progress cannot be measured"
NOT_IN_FORCE = "the limit is not in force on all of its GPUs"


@dataclass(frozen=True)
class JobClocks:
    """The SM clocks of a job's GPUs.

    Attributes:
        largest_hz: largest clock, Hz.
        in_force_hz: maximum that all of them are seen to be locked to, Hz, the largest where none is locked; None where
            they differ or it is not known.
    """

    largest_hz: float
    in_force_hz: float | None


@dataclass(frozen=True)
class JobGpus:
    """The GPUs that a job holds now, all of one kind.

    Attributes:
        pods: pods of the job.
        gpus: node and ID of each GPU, and the pod that holds it.
        baseline_w: limit that they had before Joulie's first write, or a smaller upper bound, W.
        min_w: smallest limit that they accept, W.
        in_force_w: limit that all of them have by their agents' reports, W; None where they differ or it is not known.
        ceiling_w: lowest bound of power budgets on any of them since the look before, W; infinite for none.
        clocks: their SM clocks; None where these may not be locked.
        shares: limits that are tried, as shares of the baseline, from 1 down.
    """

    pods: frozenset[PodKey]
    gpus: tuple[tuple[str, str, PodKey], ...]
    baseline_w: float
    min_w: float
    in_force_w: float | None
    ceiling_w: float = math.inf
    clocks: JobClocks | None = None
    shares: tuple[float, ...] = _SHARES

    @property
    def bounded_w(self) -> float:
        """Limit that all of them may have, W: the baseline, or the ceiling where that is lower."""
        return min(self.baseline_w, max(self.ceiling_w, self.min_w))

    @property
    def limits_w(self) -> Sequence[float]:
        """Limits that may be set, W, from the baseline down, in whole watts below it."""
        below = {float(round(share * self.baseline_w)) for share in self.shares[1:]}
        return [self.baseline_w, *sorted((limit for limit in below if limit >= self.min_w), reverse=True)]


@dataclass(frozen=True)
class Pace:
    """When a window counts.

    Attributes:
        settling_s: time after a limit came into force that does not count, s.
        window_s: length of a window, s.
    """

    settling_s: float = 30.0
    window_s: float = 180.0


@dataclass(frozen=True)
class LiveJob:
    """The search for the limit of one job.

    Attributes:
        job: its GPUs; the baseline is that of this search, at most the ceiling at its beginning.
        trials: what was measured.
        limit_w: limit that it is to have, W.
        step: why; None before the first window.
        since_s: since when that limit is in force on the same GPUs, s; None where it is not yet.
        last_progress: progress in the window before, 1/s.
        repeats: windows in a row before it with the very same progress.
        asked_s: when it was measured last, or its limit was withdrawn, s.
        failures: windows under a limit whose progress was not measured or not believed, and limits that did not come
            into force.
        problem: why the step is not followed; empty where it is.
        held_out: windows at random without the limit that is held.
    """

    job: JobGpus
    trials: Trials
    limit_w: float
    step: Trial | Hold | None = None
    since_s: float | None = None
    last_progress: float | None = None
    repeats: int = 0
    asked_s: float = 0.0
    failures: int = 0
    problem: str = ""
    held_out: HeldOut = NOT_HELD_OUT

    @classmethod
    def found(cls, job: JobGpus, start_w: float | None, held_out: HeldOut = NOT_HELD_OUT) -> LiveJob:
        """A job seen for the first time.

        Args:
            job: its GPUs.
            start_w: limit that an earlier run was held at, W; None for none.
            held_out: what its holdout has said.
        """
        return cls(replace(job, baseline_w=job.bounded_w), Trials(start_w=start_w), job.bounded_w, held_out=held_out)

    @property
    def limited(self) -> bool:
        """Whether it is to have less than its own limit."""
        return self.limit_w < self.job.baseline_w

    @property
    def left_alone(self) -> bool:
        """Whether it is at its own limit for this window only, by chance."""
        return self.held_out.drawn is True

    @property
    def _doubted(self) -> bool:
        """Whether its progress contradicted its GPUs in the window before: it lies, or has changed just then."""
        return self.problem == Reason.CONTRADICTED

    def due_s(self, pace: Pace) -> float | None:
        """When a window under this limit is complete, s; None where none is running."""
        return None if self.since_s is None else self.since_s + pace.settling_s + pace.window_s

    def observed(self, job: JobGpus, now_s: float) -> LiveJob:
        """The state after another look: a window runs while the limit is in force on the same GPUs of the same pods."""
        baseline_w = self.job.baseline_w
        if job.min_w != self.job.min_w or job.baseline_w < baseline_w or job.bounded_w > baseline_w + _SAME_W:
            return self._anew(job, now_s)
        seen = replace(self, job=replace(job, baseline_w=baseline_w))
        if job.gpus != self.job.gpus:
            # Pods came or went: what was measured still holds for each, but the running window does not.
            seen = replace(seen, since_s=None, last_progress=None, failures=0)
        elif job.bounded_w < self.limit_w - _SAME_W:
            waited = now_s - self.asked_s > PATIENCE_S or not self.trials.windows
            return self._anew(job, now_s) if waited else replace(seen, since_s=None)
        elif job.in_force_w is not None and abs(job.in_force_w - self.limit_w) <= _SAME_W:
            return replace(seen, since_s=now_s if self.since_s is None else self.since_s)
        if self.limited and now_s - self.asked_s > PATIENCE_S:
            # Its agent has yet to raise a limit that a ceiling held down: that is no failure.
            bounded = self.job.bounded_w < self.limit_w - _SAME_W
            return self._anew(job, now_s) if bounded else seen._withdrawn(NOT_IN_FORCE, now_s)
        return replace(seen, since_s=None)

    def measured(
        self,
        power_w: float | None,
        progress_per_s: float | None,
        response: Response | None,
        goal: Goal,
        now_s: float,
        holdout: Holdout = NO_HOLDOUT,
        name: str = "",
        counted_per_s: float | None = None,
    ) -> LiveJob:
        """The state after a window under the present limit; the next window begins now.

        Args:
            power_w: average power of a GPU, W; None where it was not measured.
            progress_per_s: average progress of a pod, 1/s; None where it was not measured.
            response: of other jobs; None where it is not known.
            goal: what must be kept.
            now_s: end of the window, s.
            holdout: what is left alone once a limit is held.
            name: of the job, for the draws.
            counted_per_s: work that a GPU counted by itself, 1/s; None where it was not measured.
        """
        repeats = self.repeats + 1 if progress_per_s == self.last_progress else 0
        progress = None if repeats >= STUCK_REPEATS else _usable(progress_per_s)
        seen = replace(self, last_progress=progress_per_s, repeats=repeats)
        knows = any(window.progress_per_s is not None for window in self.trials.windows)
        power_w = _usable(power_w)
        if power_w is None or (progress is None and knows):
            problem = self.problem if self._doubted else NO_PROGRESS
            return seen._withdrawn(problem, now_s, failed=progress_per_s != 0.0 or not self._has_run)
        window = Window(self.limit_w, power_w, progress, _usable(counted_per_s))
        seen = replace(
            seen, trials=self.trials.measured(window), held_out=self.held_out.measured(window, holdout), since_s=now_s
        )
        if self.failures >= MAX_FAILURES:
            return seen
        baseline_w, known = self.job.baseline_w, response is not None
        if self._doubted:
            if not changed(seen.trials.windows, baseline_w):
                return replace(seen, failures=MAX_FAILURES)
            seen = replace(seen, trials=Trials(seen.trials.windows[-1:], seen.trials.start_w))
        if self.limited and contradicted(seen.trials.windows, baseline_w, limits_power=known):
            free = Hold(baseline_w, Reason.CONTRADICTED, None, None, 1.0)
            return replace(seen, step=free, held_out=NOT_HELD_OUT)._withdrawn(Reason.CONTRADICTED, now_s)
        if holdout.withdraws and seen.held_out.stopped_paying(holdout):
            last = replace(seen.held_out, drawn=None, expected=None)
            return replace(seen._withdrawn(NOT_PAYING, now_s), failures=MAX_FAILURES, held_out=last)
        smallest_w = lowest_w(seen.trials.windows, baseline_w) if known else 0.0
        offered_w = [limit_w for limit_w in self.job.limits_w if limit_w == baseline_w or limit_w >= smallest_w]
        return seen._stepped(next_step(seen.trials, response, offered_w, goal), now_s, holdout, name)

    def _stepped(self, step: Trial | Hold, now_s: float, holdout: Holdout, name: str) -> LiveJob:
        """The state under the next limit; a window at the held one may be left alone."""
        baseline_w = self.job.baseline_w
        # Beneath a budget the job could not be left alone.
        free = holdout if self.job.bounded_w >= baseline_w - _SAME_W else NO_HOLDOUT
        drawn = self.held_out.drawn_for(step, self.trials.windows, baseline_w, f"{name}/{now_s:.0f}", free)
        limit_w = baseline_w if drawn.drawn else step.limit_w
        since_s = now_s if limit_w == self.limit_w else None
        return replace(self, limit_w=limit_w, step=step, since_s=since_s, asked_s=now_s, problem="", held_out=drawn)

    def _anew(self, job: JobGpus, now_s: float) -> LiveJob:
        """The beginning of a search with another baseline; a limit that was held is tried first."""
        held = isinstance(self.step, Hold) and (self.limited or self.left_alone)
        held_w = self.step.limit_w if held and self.step is not None else None
        failures = self.failures if job.gpus == self.job.gpus else 0
        return replace(LiveJob.found(job, held_w or self.trials.start_w), asked_s=now_s, failures=failures)

    @property
    def _has_run(self) -> bool:
        """Whether it has made progress under this limit: where it then makes none, it is the job that paused."""
        windows = self.trials.windows
        return any(window.limit_w == self.limit_w and window.progress_per_s is not None for window in windows)

    def _withdrawn(self, problem: str, now_s: float, *, failed: bool = True) -> LiveJob:
        """The state at the job's own limit, where no other may be held."""
        return replace(
            self,
            limit_w=self.job.baseline_w,
            since_s=None if self.limited else now_s,
            asked_s=now_s,
            failures=self.failures + (self.limited and failed),
            problem=problem,
            held_out=replace(self.held_out, drawn=None, latest=None),
        )


def _usable(value: float | None) -> float | None:
    """A plausible measurement; None for anything else."""
    return value if value is not None and _LEAST <= value <= _MOST else None
