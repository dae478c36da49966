"""Benchmark parity: exact reproduction of the published figures, and the speed of the engine.

The engine is compared with the plain NumPy reference, which scores all nodes for each job, on the first hours of the
same run; both must make the same placements. The growth curves show the cost of a run by number of nodes and jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.engine import EngineResult, simulate
from joulie_lab.simulation.engine.reference import simulate_plain
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.runner import Clock, Runner, warm_up
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.scenario_files import load_scenario
from joulie_lab.simulation.workload import published_jobs

OnStage = Callable[[str], None]
"""Called with a description of each measurement before it starts."""

SEED = 42
SCHEDULERS = ("most-allocated", "joulie-legacy", "t10", "t25-adap")
GROWTH_SCHEDULERS = ("most-allocated", "t25-adap")


@dataclass(frozen=True)
class ParityPlan:
    """Size of the benchmark.

    Attributes:
        scenario: shipped scenario of the figures.
        repeats: number of repetitions of timed runs; the fastest counts, as others include noise of the machine.
        plain_hours: first hours of the run that plain NumPy simulates, too, h.
        node_counts: cluster sizes of the growth curve.
        job_shares: arrival rates of the growth curve, relative to the scenario's.
        growth_hours: length of the runs of the growth curve, h.
        plain_growth_hours: length of plain NumPy runs at each cluster size, h.
    """

    scenario: str
    repeats: int
    plain_hours: float
    node_counts: tuple[int, ...]
    job_shares: tuple[float, ...]
    growth_hours: float
    plain_growth_hours: float


FULL = ParityPlan(
    scenario="published-2500",
    repeats=3,
    plain_hours=2.0,
    node_counts=(1_000, 2_500, 10_000, 40_000),
    job_shares=(0.25, 0.5, 0.75, 1.0),
    growth_hours=48.0,
    plain_growth_hours=0.1,
)
SMALL = ParityPlan(
    scenario="quick",
    repeats=1,
    plain_hours=1.0,
    node_counts=(100, 250, 1_000),
    job_shares=(0.5, 1.0),
    growth_hours=4.0,
    plain_growth_hours=0.1,
)


class Speed(Figures, frozen=True):
    """Speed of the engine and of plain NumPy on the same first hours."""

    hours: float
    jobs: int
    fast_s: float
    plain_s: float
    ratio: float
    largest_relative_power_difference: float
    differing_drops: int


class Cost(Figures, frozen=True):
    """Cost of a run."""

    scheduler: str
    jobs: int
    dropped: int
    seconds: float
    us_per_job: float


class CostByNodes(Cost, frozen=True):
    """Cost of a run by cluster size, and of a job with plain NumPy."""

    nodes: int
    plain_us_per_job: float


class CostByJobs(Cost, frozen=True):
    """Cost of a run by share of the jobs."""

    share: float


class Growth(Figures, frozen=True):
    """Size of the largest cluster and cost of a job on it, relative to the smallest."""

    nodes: float
    cost: float
    plain_cost: float


class ParityResult(Figures, frozen=True):
    """The result, by scheduler."""

    figures: Mapping[str, RunRecord]
    speed: Mapping[str, Speed]
    growth_with_nodes: Sequence[CostByNodes]
    growth_with_jobs: Sequence[CostByJobs]
    growth: Mapping[str, Growth]


def measure(plan: ParityPlan, clock: Clock, on_stage: OnStage) -> ParityResult:
    """All figures of the benchmark.

    Args:
        plan: `FULL` or `SMALL`.
        clock: measures the seconds.
        on_stage: told what is measured next.
    """
    on_stage("compiling (once an installation)")
    warm_up()
    scenario = load_scenario(plan.scenario)
    figures = {}
    for name in SCHEDULERS:
        on_stage(f"{scenario.name}, {name}")
        figures[name] = fastest_run(scenario, name, plan.repeats, clock)
    speed = {}
    for name in SCHEDULERS:
        on_stage(f"{name}, the plain NumPy way, {plan.plain_hours:g} h")
        speed[name] = against_plain(scenario, name, plan, clock)
    nodes = _growth_with_nodes(scenario, plan, clock, on_stage)
    jobs = _growth_with_jobs(scenario, plan, clock, on_stage)
    return ParityResult(figures, speed, nodes, jobs, {name: _growth(nodes, name) for name in GROWTH_SCHEDULERS})


def fastest_run(scenario: Scenario, scheduler: str, repeats: int, clock: Clock) -> RunRecord:
    """The fastest of equal runs, each with its own job generation."""
    records = [Runner(scenario, clock=clock).run(scheduler, SEED).record for _ in range(repeats)]
    return min(records, key=lambda record: record.seconds)


def against_plain(scenario: Scenario, scheduler: str, plan: ParityPlan, clock: Clock) -> Speed:
    """The engine and the plain way on the first hours of the same run: seconds, their ratio, differences of results."""
    fast_s, fast = _timed(simulate, scenario, scheduler, plan.plain_hours, clock, plan.repeats)
    plain_s, plain = _timed(simulate_plain, scenario, scheduler, plan.plain_hours, clock)
    fast_w, plain_w = fast.series.it_w, plain.series.it_w
    return Speed(
        hours=plan.plain_hours,
        jobs=int(plain.series.arrived.sum()),
        fast_s=fast_s,
        plain_s=plain_s,
        ratio=plain_s / fast_s,
        largest_relative_power_difference=float(np.max(np.abs(fast_w - plain_w) / plain_w)),
        differing_drops=int(np.count_nonzero(fast.series.dropped != plain.series.dropped)),
    )


def scaled(cluster: Cluster, n_nodes: int) -> Cluster:
    """The cluster with `n_nodes` nodes, its pools in the same proportion; the first pool takes what rounding leaves."""
    counts = [max(1, round(pool.count * n_nodes / cluster.n_nodes)) for pool in cluster.pools[1:]]
    counts.insert(0, n_nodes - sum(counts))
    return Cluster(tuple(replace(pool, count=count) for pool, count in zip(cluster.pools, counts, strict=True)))


def _timed(
    how: Callable[..., EngineResult], scenario: Scenario, scheduler: str, hours: float, clock: Clock, repeats: int = 1
) -> tuple[float, EngineResult]:
    """Seconds of the fastest of `repeats` plays without their job generation, and its result."""
    jobs = published_jobs(SEED, hours, _rate(scenario))
    n_steps = round(hours * SECONDS_PER_HOUR / scenario.step_s)
    seconds = []
    for _ in range(repeats):
        start = clock()
        played = how(scenario.cluster, jobs, scheduler, n_steps=n_steps, step_s=scenario.step_s, seed=SEED)
        seconds.append(clock() - start)
    return min(seconds), played


def _growth_with_nodes(scenario: Scenario, plan: ParityPlan, clock: Clock, on_stage: OnStage) -> list[CostByNodes]:
    rows = []
    for n_nodes in plan.node_counts:
        for name in GROWTH_SCHEDULERS:
            on_stage(f"{n_nodes:,} nodes, {name}")
            sized = scenario.model_copy(
                update={"cluster": scaled(scenario.cluster, n_nodes), "hours": plan.growth_hours}
            )
            run = fastest_run(sized, name, plan.repeats, clock)
            plain_s, plain = _timed(simulate_plain, sized, name, plan.plain_growth_hours, clock)
            rows.append(
                CostByNodes(
                    **_cost(name, run),
                    nodes=n_nodes,
                    plain_us_per_job=plain_s / max(1, int(plain.series.arrived.sum())) * 1e6,
                )
            )
    return rows


def _growth_with_jobs(scenario: Scenario, plan: ParityPlan, clock: Clock, on_stage: OnStage) -> list[CostByJobs]:
    rows = []
    for share in plan.job_shares:
        for name in GROWTH_SCHEDULERS:
            on_stage(f"{share:g} of the jobs, {name}")
            published = scenario.workload.published
            assert published is not None
            workload = scenario.workload.model_copy(
                update={"published": published.model_copy(update={"rate": published.rate * share})}
            )
            sized = scenario.model_copy(update={"workload": workload, "hours": plan.growth_hours})
            rows.append(CostByJobs(**_cost(name, fastest_run(sized, name, plan.repeats, clock)), share=share))
    return rows


def _cost(scheduler: str, run: RunRecord) -> dict[str, Any]:
    return {
        "scheduler": scheduler,
        "jobs": run.arrived,
        "dropped": run.dropped,
        "seconds": run.seconds,
        "us_per_job": run.seconds / max(1, run.arrived) * 1e6,
    }


def _growth(rows: Sequence[CostByNodes], scheduler: str) -> Growth:
    """How the cost of a job grows from the smallest to the largest cluster."""
    own = [row for row in rows if row.scheduler == scheduler]
    first, last = own[0], own[-1]
    return Growth(
        last.nodes / first.nodes,
        last.us_per_job / first.us_per_job,
        last.plain_us_per_job / first.plain_us_per_job,
    )


def _rate(scenario: Scenario) -> float:
    assert scenario.workload.published is not None
    return scenario.workload.published.rate
