"""Benchmark of what owners of identical GPUs, of mixed GPUs and of CPUs alone save, against what they have already.

The plant draws each job's response from a process fitted to measured jobs; the search for limits knows the pooled prior
and the windows that it measures. Savings are paired by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.units import SECONDS_PER_HOUR, FloatArray
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.simulation.experiment.compare import EQUAL_WORK_PCT, Record
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.metrics import RunMetrics
from joulie_lab.simulation.experiment.plan import run_keys
from joulie_lab.simulation.experiment.scenario import Experiment, Variant

BASELINE = "kube"
DEFAULT = "default"
ORACLE = "best"
_BOUND = "ENERGY_SLOWDOWN_BOUND_"
_ENERGY = {"POLICY_TYPE": "energy_per_work"}
_NO_ECO_CAPS = {"CPU_ECO_CAP_PCT_OF_MAX": "100", "GPU_ECO_CAP_PCT_OF_MAX": "100"}


def _with_and_without_caps(
    name: str, description: str, operator: dict[str, str], uncapped: dict[str, str], scheduler: str = "joulie"
) -> tuple[Variant, Variant]:
    """A policy, and what its classes of nodes and its placement do without its caps."""
    return (
        Variant(name=name, description=description, scheduler=scheduler, operator=operator),
        Variant(
            name=f"{name}-uncapped",
            description=f"{name} without its caps",
            scheduler=scheduler,
            operator=operator | uncapped,
            without_caps=name,
        ),
    )


VARIANTS = (
    Variant(name=BASELINE, description="kube-scheduler's default profile", joulie=False, scheduler="kube"),
    Variant(name="packed", description="MostAllocated packing", joulie=False, scheduler="gpu-most-allocated"),
    Variant(name="pwr", description="placement by added power", joulie=False, scheduler="pwr"),
    Variant(name="pl-80", description="nvidia-smi -pl, 80 %", joulie=False, scheduler="kube", gpu_limit_pct=80.0),
    Variant(name="pl-70", description="nvidia-smi -pl, 70 %", joulie=False, scheduler="kube", gpu_limit_pct=70.0),
    Variant(name="node-wide", description="POLCA's rule", joulie=False, scheduler="kube", gpu_scheme="node-wide"),
    *_with_and_without_caps("halves", "half of the nodes at 60 %", {"POLICY_TYPE": "static_partition"}, _NO_ECO_CAPS),
    *_with_and_without_caps("queue", "nodes at 60 % by demand", {"POLICY_TYPE": "queue_aware_v1"}, _NO_ECO_CAPS),
    *_with_and_without_caps(
        "energy",
        "caps of nodes by energy per work, placement by energy",
        _ENERGY,
        {_BOUND + "STANDARD": "1", _BOUND + "PERFORMANCE": "1"},
        scheduler="joulie-energy",
    ),
    *(
        Variant(
            name=f"energy-{percent}",
            description=f"energy, with a slowdown of {percent} % for standard jobs",
            scheduler="joulie-energy",
            operator={**_ENERGY, _BOUND + "STANDARD": f"1.{percent:02}"},
        )
        for percent in (2, 25)
    ),
    Variant(name=DEFAULT, description="Joulie in mode enforce, nothing else set"),
    Variant(
        name="per-job",
        description="default, and performance jobs take part",
        operator={"GPU_LIMITS_PERFORMANCE": "true"},
    ),
    Variant(name=ORACLE, description="best limits of standard jobs", joulie=False, scheduler="kube", gpu_scheme="best"),
)
"""What is compared; the first is the baseline."""


class Part(NamedTuple):
    """A cluster under one set of assumptions.

    Attributes:
        cluster: shipped experiment.
        seeds: of the runs, looked at for no other purpose.
        variants: by name.
        sets: overrides of the experiment.
    """

    cluster: str
    seeds: tuple[int, ...]
    variants: tuple[str, ...]
    sets: tuple[str, ...] = ()

    def experiment(self) -> Experiment:
        """The experiment to run."""
        usual = load_experiment(self.cluster, self.sets)
        chosen = tuple(each for each in VARIANTS if each.name in self.variants)
        return usual.model_copy(update={"variants": chosen, "seeds": self.seeds})


_TRAINING = "workload.generate.families."
_LONG = (
    "hours=3",
    "drain_hours=9",
    "workload.repeats=0.65",
    "workload.generate.arrivals.workloads_per_hour=90",
    _TRAINING + "single_gpu_training.duration={median_s: 3600, sigma: 1.35, min_s: 900, max_s: 28800}",
    _TRAINING + "distributed_training.duration={median_s: 5400, sigma: 1.35, min_s: 1200, max_s: 28800}",
    _TRAINING + "parameter_server_training.duration={median_s: 4500, sigma: 1.35, min_s: 900, max_s: 28800}",
    _TRAINING + "hpo_experiment.duration={median_s: 3600, sigma: 1.35, min_s: 1200, max_s: 28800}",
)
"""Training as long as in the traces that the generator follows, up to 8 h, instead of minutes."""
_IDLE = "physics={idle_states: [%s], gpu_throughput: [measured]}"
_MEASURED_IDLE = _IDLE % "measured"
_PINNED = "gpu_work=pinned"
_EVERY = ("kube", "packed", "pwr", "pl-80", "pl-70", "node-wide", "halves", "default", "best")
_MIXED = ("kube", "packed", "pwr", "energy", "default", "best")
_FEW = ("kube", "default", "best")


def _eight(first: int) -> tuple[int, ...]:
    return tuple(range(first, first + 8))


MAIN: Mapping[str, Part] = {
    "all-h100": Part("all-h100", _eight(3101), (*_EVERY, "per-job")),
    "all-a100": Part("all-a100", _eight(3201), (*_EVERY, "per-job")),
    "h100-41": Part("h100-41", _eight(3301), _EVERY, (*_LONG, _MEASURED_IDLE)),
    "hetero-41": Part("hetero-41", _eight(3401), (*_EVERY, "energy"), (*_LONG, _MEASURED_IDLE, _PINNED)),
    "cpu-only-40": Part(
        "cpu-only-40",
        _eight(3501),
        ("kube", "packed", "pwr", "halves", "energy", "default"),
        ("hours=3", "drain_hours=4", _MEASURED_IDLE),
    ),
}
"""The table: GPUs that nobody holds draw what users read, and jobs on mixed GPUs name their model."""
ASSUMPTIONS: Mapping[str, Part] = {
    "all-h100, idle power of the catalogue": Part("all-h100", _eight(3101)[:4], _FEW, (_IDLE % "none",)),
    "all-h100, deep idle of managed nodes alone (published)": Part(
        "all-h100", _eight(3101)[:4], _FEW, (_IDLE % "managed",)
    ),
    "all-h100, no workload recurs": Part("all-h100", _eight(3101)[:4], _FEW, ("workload.repeats=0",)),
    "hetero-41, jobs free, a GPU-hour is the same work everywhere": Part(
        "hetero-41", _eight(3401)[:4], _MIXED, (*_LONG, _MEASURED_IDLE)
    ),
    "hetero-41, jobs free, GPUs have their own speeds": Part(
        "hetero-41", _eight(3401)[:4], _MIXED, (*_LONG, _MEASURED_IDLE, "gpu_work=speeds", "drain_hours=30")
    ),
}
"""What assumptions do to the saving, on a part of the seeds and variants."""
_PAIRS = ("kube", "halves", "halves-uncapped", "queue", "queue-uncapped", "energy", "energy-uncapped")
_POLICIES = ("kube", "halves", "energy", "default")
CAUSES: Mapping[str, Part] = {
    "hetero-41, jobs free": Part(
        "hetero-41", _eight(3401), (*_PAIRS, "energy-2", "energy-25"), (*_LONG, _MEASURED_IDLE)
    ),
    "h100-41": Part("h100-41", _eight(3301), _PAIRS, (*_LONG, _MEASURED_IDLE)),
    "cpu-only-40": Part("cpu-only-40", _eight(3501), _PAIRS, ("hours=3", "drain_hours=4", _MEASURED_IDLE)),
    "hetero-41, jobs free, deep idle of managed nodes alone (published)": Part(
        "hetero-41", _eight(3401), _POLICIES, (*_LONG, _IDLE % "managed")
    ),
    "hetero-41, jobs free, GPU curves as published": Part(
        "hetero-41",
        _eight(3401),
        _POLICIES,
        (*_LONG, "physics={idle_states: [measured], gpu_throughput: [published]}"),
    ),
}
"""Policies that cap nodes, with and without their caps, and under the assumptions of the published simulation."""
SMALL: Mapping[str, Part] = {
    "all-h100": Part(
        "all-h100",
        (1, 2),
        ("kube", "pl-70", "node-wide", "halves", "default", "best"),
        (
            "hours=3",
            "drain_hours=5",
            _TRAINING + "single_gpu_training.duration={median_s: 7200, sigma: 0.5, min_s: 3600, max_s: 14400}",
        ),
    )
}
MINIMUM_EFFECT_PCT = 0.5
"""Saving below which nothing is claimed, % of the energy for the same work."""
_PRICE_PER_KWH = 0.15


class VariantFigures(Figures, frozen=True):
    """A variant over the seeds; savings against the first variant with the same seed, of energy for the same work.

    Attributes:
        saved_pct: of the energy of all nodes, %.
        busy_saved_pct: of the energy of GPUs while pods held them, %; None without GPUs.
        saved_price_per_day: of the price of the nodes' energy, at `price_per_kwh`.
        p95_standard: 95th percentile of the slowdown of standard jobs.
        p95_performance: of performance jobs; None where a seed has none.
        wait_h: mean wait of jobs, h.
        unfinished: jobs that had not ended.
        work_pct: largest difference of completed work from the first variant, %.
        performance_pods_on_eco: pods that need full power and ran on capped nodes; None in results of earlier versions.
        saved_by_placement_pct: of `saved_pct`, what the variant saves without its caps; None where that was not run.
        saved_by_caps_pct: the rest of it.
    """

    saved_pct: Estimate
    busy_saved_pct: Estimate | None
    saved_price_per_day: Estimate
    p95_standard: Estimate | None
    p95_performance: Estimate | None
    wait_h: Estimate | None
    unfinished: Estimate
    work_pct: float
    performance_pods_on_eco: Estimate | None = None
    saved_by_placement_pct: Estimate | None = None
    saved_by_caps_pct: Estimate | None = None

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
    """One cluster by variant, with the share of GPU time in which pods held GPUs, under the first variant.

    Attributes:
        description: of the experiment.
        hours: length of a run, h.
        seeds: of the runs.
        baseline: name of the first variant.
        occupancy: share of GPU time in which pods held the GPU, of core time without GPUs.
        busy_share: share of the nodes' energy that GPUs draw while pods hold them.
        variants: by name.
        jobs: number of jobs.
    """

    description: str
    hours: float
    seeds: Sequence[int]
    baseline: str
    occupancy: Estimate | None
    busy_share: Estimate
    variants: Mapping[str, VariantFigures]
    jobs: Estimate | None = None


class OwnersResult(Figures, frozen=True):
    """The result by cluster."""

    price_per_kwh: float
    minimum_effect_pct: float
    clusters: Mapping[str, ClusterFigures]
    assumptions: Mapping[str, ClusterFigures] = {}
    causes: Mapping[str, ClusterFigures] = {}


def result_of(
    clusters: Mapping[str, ClusterFigures],
    assumptions: Mapping[str, ClusterFigures] | None = None,
    causes: Mapping[str, ClusterFigures] | None = None,
) -> OwnersResult:
    """The result, with what was settled before any run."""
    return OwnersResult(_PRICE_PER_KWH, MINIMUM_EFFECT_PCT, clusters, assumptions or {}, causes or {})


def summarise(experiment: Experiment, records: Iterable[Record]) -> ClusterFigures:
    """The figures of a finished experiment.

    Args:
        experiment: the experiment.
        records: of its runs; those of other assumptions, which share its folder, are left out.
    """
    keys = set(run_keys(experiment))
    runs = {(record.key.variant, record.key.seed): record.metrics for record in records if record.key in keys}
    baseline = experiment.variants[0].name
    gpus = sum(group.count * group.gpus for group in experiment.cluster.groups)
    before = [runs[baseline, seed] for seed in experiment.seeds]
    twins = {variant.without_caps: variant.name for variant in experiment.variants if variant.without_caps}

    def of(variant: str) -> list[RunMetrics]:
        return [runs[variant, seed] for seed in experiment.seeds]

    return ClusterFigures(
        description=experiment.description,
        hours=experiment.hours + experiment.drain_hours,
        seeds=experiment.seeds,
        baseline=baseline,
        occupancy=_known([run.busy_gpu_h and run.busy_gpu_h / (gpus * run.duration_h) for run in before if gpus]),
        busy_share=estimate([_busy_kwh(run) / run.it_kwh for run in before]),
        jobs=estimate([run.jobs for run in before]),
        variants={
            variant.name: _variant(of(variant.name), before, of(twins[variant.name]) if variant.name in twins else None)
            for variant in experiment.variants
        },
    )


def _saved_pct(
    runs: Sequence[RunMetrics], before: Sequence[RunMetrics], energy_kwh: Callable[[RunMetrics], float]
) -> FloatArray:
    """Energy per work saved against other runs, % of theirs, by seed."""
    pairs = zip(runs, before, strict=True)
    shares = [energy_kwh(run) / run.work_kwh / (energy_kwh(was) / was.work_kwh) for run, was in pairs]
    return 100.0 * (1.0 - np.array(shares))


def _variant(
    runs: Sequence[RunMetrics], before: Sequence[RunMetrics], uncapped: Sequence[RunMetrics] | None = None
) -> VariantFigures:
    pairs = list(zip(runs, before, strict=True))
    saved_pct = _saved_pct(runs, before, _it_kwh)
    by_placement_pct = None if uncapped is None else _saved_pct(uncapped, before, _it_kwh)

    per_day = [24.0 * _PRICE_PER_KWH * (was.it_kwh - run.it_kwh) / run.duration_h for run, was in pairs]
    return VariantFigures(
        saved_pct=estimate(saved_pct),
        busy_saved_pct=estimate(_saved_pct(runs, before, _busy_kwh)) if all(map(_busy_kwh, before)) else None,
        saved_price_per_day=estimate(per_day),
        p95_standard=_known([run.slowdown_p95_standard for run in runs]),
        p95_performance=_known([run.slowdown_p95_performance for run in runs]),
        wait_h=_known([run.wait_mean_s and run.wait_mean_s / SECONDS_PER_HOUR for run in runs]),
        unfinished=estimate([run.unfinished + run.unschedulable for run in runs]),
        work_pct=max(100.0 * abs(run.work_kwh / was.work_kwh - 1.0) for run, was in pairs),
        performance_pods_on_eco=_known([run.performance_pods_on_eco for run in runs]),
        saved_by_placement_pct=None if by_placement_pct is None else estimate(by_placement_pct),
        saved_by_caps_pct=None if by_placement_pct is None else estimate(saved_pct - by_placement_pct),
    )


def _known(values: Sequence[float | None]) -> Estimate | None:
    """The estimate where each seed has a value; without GPUs there is none."""
    known = [value for value in values if value is not None]
    return estimate(known) if known and len(known) == len(values) else None


def _it_kwh(run: RunMetrics) -> float:
    return run.it_kwh


def _busy_kwh(run: RunMetrics) -> float:
    assert run.busy_gpu_kwh is not None, "native runs measure it"
    return run.busy_gpu_kwh
