"""Benchmark equal work: all schedulers run the same jobs, nodes may sleep, and no job is dropped.

Energies are compared with a lower bound that no scheduler can reach: all work packed without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.marginal import gpu_coefficient
from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, FloatArray
from joulie_lab.benchmarks.parity import scaled
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import SCHEDULERS, QueueSettings
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.scenario_files import load_scenario
from joulie_lab.simulation.workload import JobTable, published_jobs, thinned

PARITY_SEED = 42
"""Seed of the published figures; apart from the seeds that are reported."""
REPORT_SEEDS = (123, 456, 789, 1337, 2024, 9999, 31415, 271828)
"""Held-out seeds of the reported means: nothing may be tuned on them."""

_ORDER = ("most-allocated", "gpu-most-allocated", "least-allocated", "pwr", "random", "joulie")
_REFERENCES = ("joulie", "least-allocated", "most-allocated")
_SMALL_SHARE = 0.1
METRICS = ("it_kwh", "std_kw", "p99_ramp_kw", "peak_kw", "mean_wait_min", "p99_wait_min", "wakes", "unfinished")
"""Figures of a run that are reported."""


@dataclass(frozen=True)
class EqualWorkPlan:
    """Size of the benchmark: a scenario in mode queue, and the reported seeds."""

    scenario: Scenario
    seeds: tuple[int, ...]


def schedulers() -> tuple[str, ...]:
    """The schedulers of the benchmark: those of the published comparison, and every marginal-energy policy."""
    return (*_ORDER, *(name for name in SCHEDULERS if name.startswith("marginal-energy")))


def full_plan() -> EqualWorkPlan:
    """The benchmark as defined."""
    return EqualWorkPlan(_with_schedulers(load_scenario("equal-work-2500")), REPORT_SEEDS)


def small_plan() -> EqualWorkPlan:
    """A tenth of the cluster under a tenth of the load, two seeds."""
    scenario = load_scenario("equal-work-2500", [f"workload.published.rate={_SMALL_SHARE}"])
    cluster = scaled(scenario.cluster, round(scenario.cluster.n_nodes * _SMALL_SHARE))
    return EqualWorkPlan(_with_schedulers(scenario.model_copy(update={"cluster": cluster})), REPORT_SEEDS[:2])


def _with_schedulers(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"schedulers": schedulers()})


def jobs_of(scenario: Scenario, seed: int) -> JobTable:
    """The thinned workload of a seed."""
    published = scenario.workload.published
    assert published is not None
    return thinned(published_jobs(seed, scenario.hours, published.rate), dict(published.keep.items()))


def lower_bound_kwh(cluster: Cluster, jobs: JobTable, queue: QueueSettings, *, n_steps: int, step_s: float) -> float:
    """Energy of ideal packing, kWh: a lower bound for all schedulers of the benchmark.

    Every node sleeps for the whole run; jobs add their dynamic power for their time, rounded up to steps; and nodes are
    awake, above sleep, only as full ones: GPU nodes for the GPU-hours over their GPUs, CPU nodes for the core-hours
    that do not fit beside the GPU jobs of those nodes. No gaps, no waking, no idle GPU. Source: the definition of
    benchmark B2 ("ideal packing").

    Args:
        cluster: one pool without GPUs and one with.
        jobs: all jobs of the run.
        queue: power of awake and sleeping nodes.
        n_steps: steps of the run, drain included.
        step_s: length of a step, s.

    Raises:
        ValueError: the cluster has other pools.
    """
    cpu, gpu = _cpu_and_gpu_pool(cluster)
    hours = np.ceil(jobs.duration_s / step_s) * (step_s / SECONDS_PER_HOUR)
    with_gpus = jobs.gpus > 0
    coefficient = gpu_coefficient(jobs.performance)
    dynamic_w = queue.w_per_core * jobs.cores * jobs.cpu_util + jobs.gpus * gpu.gpu_max_w * coefficient * jobs.gpu_util
    core_hours = jobs.cores * hours
    gpu_node_hours = float(jobs.gpus @ hours) / gpu.gpus
    cores_beside_gpu_jobs = gpu_node_hours * gpu.cores - float(core_hours[with_gpus].sum())
    cpu_node_hours = max(0.0, float(core_hours[~with_gpus].sum()) - cores_beside_gpu_jobs) / cpu.cores
    asleep_w = queue.sleep_fraction * float(cluster.per_node("cpu_max_w").sum())
    awake_fraction = queue.awake_fraction - queue.sleep_fraction
    watt_hours = (
        asleep_w * n_steps * step_s / SECONDS_PER_HOUR
        + float(dynamic_w @ hours)
        + awake_fraction * (gpu_node_hours * gpu.cpu_max_w + cpu_node_hours * cpu.cpu_max_w)
    )
    return watt_hours / WATTS_PER_KW


def _cpu_and_gpu_pool(cluster: Cluster) -> tuple[NodePool, NodePool]:
    ordered = sorted(cluster.pools, key=lambda pool: pool.gpus)
    if len(ordered) != 2 or ordered[0].gpus > 0 or ordered[1].gpus == 0:
        raise ValueError("the lower bound is defined for one pool of nodes without GPUs and one with")
    return ordered[0], ordered[1]


def bound_of_seed_kwh(scenario: Scenario, seed: int) -> float:
    """`lower_bound_kwh` of the jobs of a seed."""
    return lower_bound_kwh(
        scenario.cluster,
        jobs_of(scenario, seed),
        scenario.queue,
        n_steps=scenario.n_steps,
        step_s=scenario.step_s,
    )


class Work(Figures, frozen=True):
    """Energy, waiting times and ramps of a scheduler for the work, over the seeds.

    ``ramp_not_above_most_allocated`` counts seeds, since a mean may hide one on which the ramp is worse.
    """

    it_kwh: Estimate
    std_kw: Estimate
    p99_ramp_kw: Estimate
    peak_kw: Estimate
    mean_wait_min: Estimate
    p99_wait_min: Estimate
    wakes: Estimate
    unfinished: Estimate
    above_bound_pct: Estimate
    ramp_above_most_allocated_pct: Estimate
    ramp_not_above_most_allocated: int
    saving_pct: Mapping[str, Estimate]


class EqualWorkResult(Figures, frozen=True):
    """The result, by scheduler: on the seed of the published figures, and over the reported seeds."""

    seeds: Sequence[int]
    bound_kwh: Estimate
    parity: Mapping[str, RunRecord]
    reported: Mapping[str, Work]


def summarise(records: Iterable[RunRecord], bounds_kwh: Mapping[int, float], seeds: Sequence[int]) -> EqualWorkResult:
    """All figures of the benchmark.

    Args:
        records: a run for each scheduler and seed, those of the published figures' seed included where they were made.
        bounds_kwh: lower bound by seed.
        seeds: the seeds to report.
    """
    by_scheduler: dict[str, dict[int, RunRecord]] = {}
    for record in records:
        by_scheduler.setdefault(record.scheduler, {})[record.seed] = record
    reported = {name: [runs[seed] for seed in seeds] for name, runs in by_scheduler.items()}
    bound_kwh = np.array([bounds_kwh[seed] for seed in seeds])
    reference_ramp_kw = _values(reported["most-allocated"], "p99_ramp_kw")
    return EqualWorkResult(
        seeds=list(seeds),
        bound_kwh=estimate(bound_kwh),
        parity={name: runs[PARITY_SEED] for name, runs in by_scheduler.items() if PARITY_SEED in runs},
        reported={
            name: Work(
                **{metric: estimate(_values(runs, metric)) for metric in METRICS},
                above_bound_pct=_more_pct(_values(runs, "it_kwh"), bound_kwh),
                ramp_above_most_allocated_pct=_more_pct(_values(runs, "p99_ramp_kw"), reference_ramp_kw),
                ramp_not_above_most_allocated=int((_values(runs, "p99_ramp_kw") <= reference_ramp_kw).sum()),
                saving_pct={
                    other: _less_pct(_values(runs, "it_kwh"), _values(reported[other], "it_kwh"))
                    for other in _REFERENCES
                },
            )
            for name, runs in reported.items()
        },
    )


def _values(runs: Sequence[RunRecord], metric: str) -> FloatArray:
    return np.array([getattr(run, metric) for run in runs], dtype=np.float64)


def _more_pct(value: FloatArray, reference: FloatArray) -> Estimate:
    """By how much the values exceed their references, seed by seed, percent."""
    return estimate((value / reference - 1.0) * 100.0)


def _less_pct(value: FloatArray, reference: FloatArray) -> Estimate:
    """By how much the values fall short of their references, seed by seed, percent."""
    return estimate((1.0 - value / reference) * 100.0)
