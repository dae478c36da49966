"""Benchmark of what an owner of identical GPUs saves: fixed limits, Joulie's defaults, a limit for each job.

The plant draws each job's response from a process fitted to measured jobs; the search for limits knows the pooled prior
and the windows that it measures. Savings are paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.simulation.experiment.compare import EQUAL_WORK_PCT, Record
from joulie_lab.simulation.experiment.metrics import RunMetrics
from joulie_lab.simulation.experiment.scenario import Experiment

CLUSTERS = ("all-h100", "all-a100")
MINIMUM_EFFECT_PCT = 0.5
"""Saving below which nothing is claimed, % of the energy for the same work."""
_PRICE_PER_KWH = 0.15


class VariantFigures(Figures, frozen=True):
    """A variant over the seeds; savings against the first variant with the same seed, of energy for the same work.

    Attributes:
        saved_pct: of the energy of all nodes, %.
        busy_saved_pct: of the energy of GPUs while pods held them, %.
        saved_price_per_day: of the price of the nodes' energy, at `price_per_kwh`.
        p95_standard: 95th percentile of the slowdown of standard jobs.
        p95_performance: of performance jobs; None where a seed has none.
        wait_h: mean wait of jobs, h.
        unfinished: jobs that had not ended.
        work_pct: largest difference of completed work from the first variant, %.
    """

    saved_pct: Estimate
    busy_saved_pct: Estimate
    saved_price_per_day: Estimate
    p95_standard: Estimate | None
    p95_performance: Estimate | None
    wait_h: Estimate | None
    unfinished: Estimate
    work_pct: float

    @property
    def claim(self) -> str:
        """What the interval of the saving shows."""
        low, high = (self.saved_pct.mean + sign * (self.saved_pct.half_width or 0.0) for sign in (-1.0, 1.0))
        if self.work_pct > EQUAL_WORK_PCT:
            return "did other work"
        if low >= MINIMUM_EFFECT_PCT:
            return "saves"
        return "costs" if high <= -MINIMUM_EFFECT_PCT else "no effect shown"


class ClusterFigures(Figures, frozen=True):
    """One cluster by variant, with the share of GPU time in which pods held GPUs, under the first variant."""

    description: str
    hours: float
    seeds: Sequence[int]
    baseline: str
    occupancy: Estimate
    busy_share: Estimate
    variants: Mapping[str, VariantFigures]


class OwnersResult(Figures, frozen=True):
    """The result by cluster."""

    price_per_kwh: float
    minimum_effect_pct: float
    clusters: Mapping[str, ClusterFigures]


def summarise(experiments: Mapping[str, tuple[Experiment, Iterable[Record]]]) -> OwnersResult:
    """The figures of finished experiments."""
    found = {name: _cluster(experiment, records) for name, (experiment, records) in experiments.items()}
    return OwnersResult(_PRICE_PER_KWH, MINIMUM_EFFECT_PCT, found)


def _cluster(experiment: Experiment, records: Iterable[Record]) -> ClusterFigures:
    runs = {(record.key.variant, record.key.seed): record.metrics for record in records}
    baseline = experiment.variants[0].name
    gpus = sum(group.count * group.gpus for group in experiment.cluster.groups)
    before = [runs[baseline, seed] for seed in experiment.seeds]
    return ClusterFigures(
        description=experiment.description,
        hours=experiment.hours + experiment.drain_hours,
        seeds=experiment.seeds,
        baseline=baseline,
        occupancy=estimate([run.gpu_h / (gpus * run.duration_h) for run in before]),
        busy_share=estimate([_busy_kwh(run) / run.it_kwh for run in before]),
        variants={
            variant.name: _variant([runs[variant.name, seed] for seed in experiment.seeds], before)
            for variant in experiment.variants
        },
    )


def _variant(runs: Sequence[RunMetrics], before: Sequence[RunMetrics]) -> VariantFigures:
    pairs = list(zip(runs, before, strict=True))

    def saved_pct(energy_kwh: Callable[[RunMetrics], float]) -> Estimate:
        shares = [energy_kwh(run) / run.work_kwh / (energy_kwh(was) / was.work_kwh) for run, was in pairs]
        return estimate(100.0 * (1.0 - np.array(shares)))

    per_day = [24.0 * _PRICE_PER_KWH * (was.it_kwh - run.it_kwh) / run.duration_h for run, was in pairs]
    return VariantFigures(
        saved_pct=saved_pct(lambda run: run.it_kwh),
        busy_saved_pct=saved_pct(_busy_kwh),
        saved_price_per_day=estimate(per_day),
        p95_standard=_known([run.slowdown_p95_standard for run in runs]),
        p95_performance=_known([run.slowdown_p95_performance for run in runs]),
        wait_h=_known([run.wait_mean_s and run.wait_mean_s / SECONDS_PER_HOUR for run in runs]),
        unfinished=estimate([run.running + run.waiting for run in runs]),
        work_pct=max(100.0 * abs(run.work_kwh / was.work_kwh - 1.0) for run, was in pairs),
    )


def _known(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate(known) if len(known) == len(values) else None


def _busy_kwh(run: RunMetrics) -> float:
    assert run.busy_gpu_kwh is not None, "native runs measure it"
    return run.busy_gpu_kwh
