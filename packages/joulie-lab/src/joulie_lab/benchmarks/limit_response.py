"""Benchmark of the response of jobs to GPU power limits, its prediction for another GPU, and the live search.

The data are the published sweeps of four GPUs. A GPU's response is predicted from the sweeps of the other three and
compared with its own jobs; the search for limits is replayed on each GPU, taught by the other three without the
network under test. Claims of progress are checked on the jobs of all four (`claims`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import NormalDist

import numpy as np

from joulie.domain.capping.choice import Goal
from joulie.domain.capping.measurements import Sweep, SweptJob
from joulie.domain.capping.prior import POOLED
from joulie.domain.capping.replay import TrueJob, left_out, replay, summarise, true_jobs
from joulie.domain.capping.response import Curve, Response, learn, learn_power
from joulie.domain.units import BoolArray, FloatArray
from joulie_lab.benchmarks import claims
from joulie_lab.benchmarks.results import Figures, Spread, spread

FILES: Mapping[str, str] = {
    "A40": "summary_power_a40.csv",
    "P100": "summary_power_p100.csv",
    "V100": "summary_power_v100.csv",
    "RTX 6000": "summary_power_rtx6000.csv",
}
RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Limit / natural power of the table."""
COMPARED = (0.6, 1.2)
"""Range of limit / natural power in which predictions are compared with measurements."""
INTERVAL = 0.8
"""Share of jobs that a predicted interval is meant to contain: the 10th to the 90th percentile."""
NOISE = 0.02


class Cell(Figures, frozen=True):
    """Jobs at one limit / natural power, interpolated between the limits of each; medians, and spread of throughput."""

    jobs: int
    power: float
    throughput_p10: float
    throughput: float
    throughput_p90: float
    energy: float


class LeftOut(Figures, frozen=True):
    """Prediction for a GPU from the others: errors of the medians over the compared cells, coverage of intervals."""

    measurements: int
    throughput_error: float
    throughput_worst_error: float
    power_error: float
    power_worst_error: float
    throughput_coverage: float
    power_coverage: float


class Search(Figures, frozen=True):
    """The search for limits replayed, over the seeds of the noise; `violations_by_1pct` is the share of jobs."""

    share: Spread
    share_to_1_4: Spread
    saved_pct: Spread
    windows: Spread
    violations: Spread
    violations_by_1pct: Spread
    worst_slowdown: Spread


class Reach(Figures, frozen=True):
    """What is to be had of the oracle's saving within the bound, as shares.

    Attributes:
        shown: by limits no lower, over natural power, than one at which a job of other GPUs and networks kept it.
        three: by the best three limits for all jobs, in hindsight.
    """

    shown: float
    three: float


class GpuResponse(Figures, frozen=True):
    """One GPU: the oracles' saving in percent, cells by ratio, the prediction from others, the search, its reach."""

    jobs: int
    runs: int
    oracle_pct: float
    oracle_to_1_4_pct: float
    cells: Mapping[str, Cell]
    left_out: LeftOut
    exact: Search
    noisy: Search
    reach: Reach


class LimitsResult(Figures, frozen=True):
    """By GPU, and of claims; `prior_error` is the largest difference of the prior from what all sweeps teach."""

    max_slowdown: float
    noise: float
    seeds: tuple[int, ...]
    prior_error: float
    gpus: Mapping[str, GpuResponse]
    claims: claims.Claims


def measure(
    sweeps: Mapping[str, Sequence[SweptJob]],
    seeds: tuple[int, ...],
    on_stage: Callable[[str], None],
    *,
    claimed: slice = slice(None),
    hours: tuple[float, float] = (claims.HONEST_HOURS, claims.LYING_HOURS),
) -> LimitsResult:
    """The response and the search on each GPU.

    Args:
        sweeps: by GPU; two GPUs or more.
        seeds: of the noise.
        on_stage: is told what comes next.
        claimed: jobs of all GPUs whose claims are checked.
        hours: that honest jobs and liars run, h.
    """
    goal = Goal()
    jobs = {gpu: true_jobs(swept) for gpu, swept in sweeps.items()}
    gpus = {}
    for gpu, own in jobs.items():
        on_stage(f"{gpu}: response and search of {len(own)} jobs")
        others = [job for name, found in jobs.items() if name != gpu for job in found]
        gpus[gpu] = _of_gpu(own, others, goal, seeds)
    together = [job for found in jobs.values() for job in found]
    prior_error = _difference(POOLED, learn([job.truth for job in together]))
    checked = claims.measure(together[claimed], hours, on_stage)
    return LimitsResult(goal.max_slowdown, NOISE, seeds, prior_error, gpus, checked)


def _difference(one: Response, other: Response) -> float:
    """Largest difference of what two responses expect of an unknown job, in logarithms."""
    log_ratio, nothing = np.log(RATIOS), np.empty(0)
    pairs = [
        (first.given(log_ratio, nothing, nothing), second.given(log_ratio, nothing, nothing))
        for first, second in ((one.slowdown, other.slowdown), (one.energy, other.energy))
    ]
    return max(float(np.abs(np.subtract(first, second)).max()) for first, second in pairs)


def _of_gpu(own: Sequence[TrueJob], others: Sequence[TrueJob], goal: Goal, seeds: tuple[int, ...]) -> GpuResponse:
    truths = [job.truth for job in own]
    found = {ratio: cell for ratio in RATIOS if (cell := _cell(truths, ratio)) is not None}
    summary = summarise(replay(own, left_out(own, others), goal, 0.0, np.random.default_rng(0)), goal.max_slowdown)
    return GpuResponse(
        jobs=len(own),
        runs=sum(truth.limits_w.size for truth in truths),
        oracle_pct=100.0 * summary.oracle_saved,
        oracle_to_1_4_pct=100.0 * summary.oracle_saved_to_1_4,
        cells={f"{ratio:g}".replace(".", "_"): cell for ratio, cell in found.items()},
        left_out=_left_out(truths, [job.truth for job in others], found),
        exact=_search(own, others, goal, 0.0, (0,)),
        noisy=_search(own, others, goal, NOISE, seeds),
        reach=reach_of(own, others, goal.max_slowdown, summary.oracle_saved),
    )


def _cell(truths: Sequence[Sweep], ratio: float) -> Cell | None:
    """Medians over the jobs whose limits reach on both sides of a ratio; None without one."""
    rows = []
    for truth in truths:
        at = truth.limits_w[::-1] / truth.natural_w
        if at[0] <= ratio <= at[-1]:
            throughput = np.interp(ratio, at, 1.0 / truth.slowdown[::-1])
            power = np.interp(ratio, at, truth.power_w[::-1] / truth.natural_w)
            rows.append((power, throughput, power / throughput))
    if not rows:
        return None
    power, throughput, energy = np.transpose(rows)
    p10, p50, p90 = np.percentile(throughput, (10, 50, 90)).tolist()
    return Cell(len(rows), float(np.median(power)), p10, p50, p90, float(np.median(energy)))


def _left_out(own: Sequence[Sweep], others: Sequence[Sweep], cells: Mapping[float, Cell]) -> LeftOut:
    slowdown, power = learn(others).slowdown, learn_power(others)
    within = [ratio for ratio in cells if COMPARED[0] <= ratio <= COMPARED[1]]
    predicted = np.exp(-_alone(slowdown, np.log(within))[0]), np.exp(_alone(power, np.log(within))[0])
    throughput_error = np.abs(predicted[0] - [cells[ratio].throughput for ratio in within])
    power_error = np.abs(predicted[1] - [cells[ratio].power for ratio in within])
    ratio, log_slowdown, log_power = np.concatenate(
        [
            np.log([truth.limits_w[1:] / truth.natural_w, truth.slowdown[1:], truth.power_w[1:] / truth.natural_w])
            for truth in own
        ],
        axis=1,
    )
    here = (ratio >= np.log(COMPARED[0])) & (ratio <= np.log(COMPARED[1]))
    return LeftOut(
        measurements=int(here.sum()),
        throughput_error=float(np.median(throughput_error)),
        throughput_worst_error=float(throughput_error.max()),
        power_error=float(np.median(power_error)),
        power_worst_error=float(power_error.max()),
        throughput_coverage=_coverage(slowdown, ratio[here], log_slowdown[here]),
        power_coverage=_coverage(power, ratio[here], log_power[here]),
    )


def _alone(curve: Curve, log_ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of a job that was not measured."""
    return curve.given(log_ratio, np.empty(0), np.empty(0))


def _coverage(curve: Curve, log_ratio: FloatArray, value: FloatArray) -> float:
    mean, deviation = _alone(curve, log_ratio)
    return float(np.mean(np.abs(value - mean) <= NormalDist().inv_cdf(0.5 + INTERVAL / 2.0) * deviation))


def reach_of(own: Sequence[TrueJob], others: Sequence[TrueJob], max_slowdown: float, oracle: float) -> Reach:
    """What is to be had of an oracle's saving.

    Args:
        own: jobs of a GPU.
        others: jobs of other GPUs.
        max_slowdown: bound.
        oracle: share of the energy that the best limits save.
    """
    lowest = {
        family: min(
            float((job.truth.limits_w / job.truth.natural_w)[job.truth.slowdown <= max_slowdown].min())
            for job in others
            if job.family != family
        )
        for family in {job.family for job in own}
    }
    limits_w = sorted({float(limit_w) for job in own for limit_w in job.truth.limits_w[1:]})
    shown = [
        _best_saving(job.truth, max_slowdown, job.truth.limits_w >= lowest[job.family] * job.truth.natural_w)
        for job in own
    ]
    three = max(
        float(np.mean([_best_saving(job.truth, max_slowdown, np.isin(job.truth.limits_w, some)) for job in own]))
        for some in combinations(limits_w, min(3, len(limits_w)))
    )
    return Reach(float(np.mean(shown)) / oracle, three / oracle)


def _best_saving(truth: Sweep, max_slowdown: float, offered: BoolArray) -> float:
    """Share of the energy that the best of the offered limits saves; the largest one is always offered."""
    kept = offered & (truth.slowdown <= max_slowdown * (1.0 + 1e-9))
    kept[0] = True
    return 1.0 - float(truth.energy_ratio[kept].min())


def _search(
    own: Sequence[TrueJob], others: Sequence[TrueJob], goal: Goal, noise: float, seeds: tuple[int, ...]
) -> Search:
    responses = left_out(own, others)
    runs = [
        summarise(replay(own, responses, goal, noise, np.random.default_rng(seed)), goal.max_slowdown) for seed in seeds
    ]
    return Search(
        share=spread([run.share for run in runs]),
        share_to_1_4=spread([run.share_to_1_4 for run in runs]),
        saved_pct=spread([100.0 * run.saved for run in runs]),
        windows=spread([run.windows / run.jobs for run in runs]),
        violations=spread([run.over_bound for run in runs]),
        violations_by_1pct=spread([run.over_bound_by_1pct / run.jobs for run in runs]),
        worst_slowdown=spread([run.max_slowdown for run in runs]),
    )
