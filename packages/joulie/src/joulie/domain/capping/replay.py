"""Replays the search for limits on recorded sweeps, where the best limit is known.

A job's recorded sweep is taken as the truth about it: a window at a limit shows the recorded power and progress, with a
random error, and the limit that is held saves what the sweep says. The search knows the windows that it asked for and a
`Response` of other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.capping.choice import Goal, Hold, next_step
from joulie.domain.capping.measurements import Sweep, SweptJob, sweep_of
from joulie.domain.capping.response import Response, learn
from joulie.domain.capping.trials import Trials, Window

ACTS_BELOW = 1.4
"""Limit / natural power from which an oracle's saving is scatter between runs, and not an effect of the limit."""


@dataclass(frozen=True, eq=False)
class TrueJob:
    """A job whose response to limits is known.

    Attributes:
        name: of the job.
        family: jobs of the same family are not known to a search (held out).
        truth: its sweep.
    """

    name: str
    family: str
    truth: Sweep

    def best_saving(self, max_slowdown: float, below: float = np.inf) -> float:
        """Share of the energy that the best limit saves.

        Args:
            max_slowdown: bound.
            below: largest limit / natural power beside that of the baseline.
        """
        truth = self.truth
        kept = (truth.slowdown <= max_slowdown * (1.0 + 1e-9)) & (truth.limits_w <= below * truth.natural_w)
        kept[0] = True
        return 1.0 - float(truth.energy_ratio[kept].min())


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where the search for one job ended.

    Attributes:
        job: the job.
        limit_w: limit held, W.
        saving: share of the energy for the same work, by the job's sweep.
        slowdown: time for the same work over that at the baseline, by the job's sweep.
        windows: number of windows measured, the baseline's included.
        tried_w: limits tried beside the baseline, W, in order.
    """

    job: TrueJob
    limit_w: float
    saving: float
    slowdown: float
    windows: int
    tried_w: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Outcome of many jobs, each of which counts alike. Savings are shares of the energy for the same work.

    Attributes:
        jobs: number of jobs.
        oracle_saved: mean saving of the best limit within the bound.
        oracle_saved_to_1_4: the same among limits up to `ACTS_BELOW` of natural power.
        saved: mean saving of the limits that were held.
        share: saved / oracle_saved; 1 where there is nothing to save.
        share_to_1_4: saved / oracle_saved_to_1_4, likewise.
        windows: number of windows measured for all jobs together.
        over_bound: jobs whose slowdown exceeds the bound.
        over_bound_by_1pct: jobs that exceed it by more than a further 1 %.
        max_slowdown: of the slowest job.
    """

    jobs: int
    oracle_saved: float
    oracle_saved_to_1_4: float
    saved: float
    share: float
    share_to_1_4: float
    windows: int
    over_bound: int
    over_bound_by_1pct: int
    max_slowdown: float


def summarise(outcomes: Sequence[Outcome], max_slowdown: float) -> Summary:
    """Summary of at least one outcome, beside the oracle within `max_slowdown`."""
    saved = float(np.mean([one.saving for one in outcomes]))
    oracle = float(np.mean([one.job.best_saving(max_slowdown) for one in outcomes]))
    oracle_to_1_4 = float(np.mean([one.job.best_saving(max_slowdown, ACTS_BELOW) for one in outcomes]))
    excess = np.array([one.slowdown for one in outcomes]) / max_slowdown
    return Summary(
        jobs=len(outcomes),
        oracle_saved=oracle,
        oracle_saved_to_1_4=oracle_to_1_4,
        saved=saved,
        share=saved / oracle if oracle > 0.0 else 1.0,
        share_to_1_4=saved / oracle_to_1_4 if oracle_to_1_4 > 0.0 else 1.0,
        windows=sum(one.windows for one in outcomes),
        over_bound=int(np.sum(excess > 1.0 + 1e-9)),
        over_bound_by_1pct=int(np.sum(excess > 1.01)),
        max_slowdown=float(excess.max() * max_slowdown),
    )


def true_jobs(swept: Sequence[SweptJob]) -> list[TrueJob]:
    """Jobs with a usable measurement, of which those with one limit only have nothing to save."""
    found = ((job, sweep_of(job.measurements)) for job in swept)
    return [TrueJob(job.name, job.family, sweep) for job, sweep in found if sweep is not None]


def left_out(tested: Sequence[TrueJob], teachers: Sequence[TrueJob]) -> dict[str, Response]:
    """Response learned from the other families of the teachers, by family of the tested jobs.

    Raises:
        InvalidQuantityError: for one of them no other family has a job with two limits.
    """
    return {
        family: learn(job.truth for job in teachers if job.family != family)
        for family in sorted({job.family for job in tested})
    }


def replay(
    jobs: Sequence[TrueJob], responses: Mapping[str, Response], goal: Goal, noise: float, rng: np.random.Generator
) -> list[Outcome]:
    """Search the limit of each job.

    Args:
        jobs: tested.
        responses: of other jobs, by the family that they leave out.
        goal: what to keep.
        noise: standard deviation of a window's power and of its progress, as a share; 0 replays the sweep exactly.
        rng: draws these errors.
    """
    return [_replayed(job, responses[job.family], goal, noise, rng) for job in jobs]


def _replayed(job: TrueJob, response: Response, goal: Goal, noise: float, rng: np.random.Generator) -> Outcome:
    limits_w = job.truth.limits_w.tolist()
    trials = Trials()
    windows = 0
    while not isinstance(step := next_step(trials, response, limits_w, goal), Hold):
        trials = trials.measured(_window(job.truth, limits_w.index(step.limit_w), noise, rng))
        windows += 1
    place = limits_w.index(step.limit_w)
    tried_w = dict.fromkeys(window.limit_w for window in trials.windows if window.limit_w < limits_w[0])
    return Outcome(
        job,
        step.limit_w,
        1.0 - float(job.truth.energy_ratio[place]),
        float(job.truth.slowdown[place]),
        windows,
        tuple(tried_w),
    )


def _window(truth: Sweep, place: int, noise: float, rng: np.random.Generator) -> Window:
    power, progress = np.exp(noise * rng.standard_normal(2)).tolist()
    return Window(
        float(truth.limits_w[place]), float(truth.power_w[place]) * power, progress / float(truth.time_s[place])
    )
