"""Benchmark native: CPU time of native runs, and its growth with jobs and nodes.

The plain formulas, which the compiled loops are held against, are timed beside these on a large cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from joulie.domain.policies import POLICIES, StaticPartition
from joulie.domain.policy import PolicySettings
from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.benchmarks.recorded_week import Plan as ClusterPlan
from joulie_lab.benchmarks.recorded_week import Plant
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.experiment.outcome import JobEnd, Outcome
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.runtime import Setup, run
from joulie_lab.simulation.schedulers import JOULIE, KUBE
from joulie_lab.simulation.trace import WORKLOAD_CLASS_KEY, JobProfile, TraceJob

Clock = Callable[[], float]
"""CPU time of this process, s."""
OnStage = Callable[[str], None]

_CORES_PER_NODE = 64
_LOAD = 0.5
"""Share of the cluster's cores that jobs ask for in the mean, on as many nodes as they were made for."""
_MEAN_CORES, _MEAN_S = 8.5, 1800.0
_DRAIN_S = 4.0 * SECONDS_PER_HOUR
_SAME_END_S = 1e-6
NO_POLICY = "none"
POLICY_NAMES = (NO_POLICY, "static_partition", "queue_aware_v1", "energy_per_work")
_SEED = 1


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        nodes: of the smallest run.
        jobs: likewise.
        rounds: each run is made so often, and the fastest counts: other work on the machine only adds.
        beside: the large cluster that is run both ways; its arrivals are those of 100,000 pods a week.
    """

    nodes: int
    jobs: int
    rounds: int
    beside: ClusterPlan


FULL = Plan(250, 1000, 2, ClusterPlan(1000, 5, 0.0, 325.0, 1))
SMALL = Plan(50, 50, 2, ClusterPlan(50, 2, 0.0, 20.0, 1))


class Size(NamedTuple):
    """A run by its size, in that of the smallest one."""

    nodes: int = 1
    jobs: int = 1
    rate: int = 1
    """Jobs an hour. More jobs at the same rate are a longer trace."""


SIZES = {
    "once": Size(),
    "jobs_x_2": Size(jobs=2),
    "jobs_x_4": Size(jobs=4),
    "nodes_x_2": Size(nodes=2),
    "nodes_x_4": Size(nodes=4),
    "both_x_2": Size(nodes=2, jobs=2, rate=2),
}
_CONTROLS = {KUBE: None, JOULIE: Control(StaticPartition(PolicySettings(static_hp_frac=0.5)))}


class Cost(Figures, frozen=True):
    """CPU time of a run."""

    nodes: int
    jobs: int
    completed: int
    cpu_s: float
    us_per_event: float


class Beside(Figures, frozen=True):
    """CPU time of an arrival or end by the plain formulas and by compiled loops, on the same jobs."""

    events: int
    plain_us: float
    compiled_us: float
    times_faster: float
    other_ends: int
    """Jobs that ran on another node or ended at another time (by more than 1e-6 s): must be none."""


class NativeResult(Figures, frozen=True):
    """The result, by scheduler and size; growth is in the CPU time of the smallest run."""

    runs: Mapping[str, Mapping[str, Cost]]
    growth: Mapping[str, Mapping[str, float]]
    beside_plain: Mapping[str, Beside]


Growth = tuple[Mapping[str, Mapping[str, Cost]], Mapping[str, Mapping[str, float]]]


def growth_of(plan: Plan, cpu_time_s: Clock, on_stage: OnStage) -> Growth:
    """CPU time of each size, without Joulie and with extender and `static_partition`, and its growth.

    Args:
        plan: what is run.
        cpu_time_s: CPU time of this process, s.
        on_stage: told what is run next.
    """
    runs: dict[str, dict[str, Cost]] = {}
    for scheduler in _CONTROLS:
        for name, size in SIZES.items():
            on_stage(f"{scheduler}, {name.replace('_', ' ')}")
            found = [_timed(plan, size, scheduler, cpu_time_s) for _ in range(plan.rounds)]
            runs.setdefault(scheduler, {})[name] = min(found, key=lambda one: one.cpu_s)
    growth = {
        scheduler: {name: own[name].cpu_s / own["once"].cpu_s for name in SIZES if name != "once"}
        for scheduler, own in runs.items()
    }
    return runs, growth


def beside_plain(plan: ClusterPlan, policy: str, cpu_time_s: Clock) -> Beside:
    """Run a policy on the large cluster both ways; without power management for `NO_POLICY`."""
    plant, managed = Plant(plan), policy != NO_POLICY
    jobs = plant.jobs
    setup = Setup(
        nodes=plant.nodes,
        duration_s=plan.hours * SECONDS_PER_HOUR,
        control=Control(POLICIES[policy](PolicySettings())) if managed else None,
        scheduler=JOULIE if managed else KUBE,
        seed=_SEED,
        n_samples=100,
    )

    def timed(*, compiled: bool) -> tuple[float, Outcome]:
        before_s = cpu_time_s()
        outcome = run(replace(setup, compiled=compiled), jobs)
        return cpu_time_s() - before_s, outcome

    timed(compiled=True)  # compiles what is not in the cache
    (compiled_s, ours), (plain_s, theirs) = timed(compiled=True), timed(compiled=False)
    events = len(jobs) + _completed(theirs)
    other = sum(
        one.node != its.node or abs((one.end_s or 0.0) - (its.end_s or 0.0)) > _SAME_END_S
        for one, its in zip(ours.jobs, theirs.jobs, strict=True)
    )
    return Beside(events, plain_s / events * 1e6, compiled_s / events * 1e6, plain_s / compiled_s, other)


def made_jobs(count: int, per_hour: float) -> list[TraceJob]:
    """Jobs that come by chance at a steady rate, a fifth of them of class performance."""
    rng = np.random.default_rng(_SEED)
    submit_s = np.cumsum(rng.exponential(SECONDS_PER_HOUR / per_hour, count))
    cores, length_s = rng.integers(1, 17, count), rng.exponential(_MEAN_S, count)
    return [
        TraceJob(
            job_id=f"{number}",
            workload_id=f"{number}",
            submit_s=float(submit_s[number]),
            requests={"cpu": f"{cores[number]}", "memory": f"{cores[number]}Gi"},
            annotations={WORKLOAD_CLASS_KEY: "performance"} if number % 5 == 0 else {},
            cpu_units=float(cores[number] * length_s[number]),
            profile=JobProfile(cpu_utilization=1.0),
        )
        for number in range(count)
    ]


def _timed(plan: Plan, size: Size, scheduler: str, cpu_time_s: Clock) -> Cost:
    per_hour = size.rate * plan.nodes * _CORES_PER_NODE * _LOAD / _MEAN_CORES * SECONDS_PER_HOUR / _MEAN_S
    jobs = made_jobs(plan.jobs * size.jobs, per_hour)
    group = NodeGroup(
        name="node", count=plan.nodes * size.nodes, cpu="AMD EPYC 9534", sockets=1, cores=float(_CORES_PER_NODE)
    )
    setup = Setup(
        nodes=sim_nodes([group]),
        duration_s=jobs[-1].submit_s + _DRAIN_S,
        control=_CONTROLS[scheduler],
        scheduler=scheduler,
        n_samples=100,
    )
    before_s = cpu_time_s()
    outcome = run(setup, jobs)
    cpu_s = cpu_time_s() - before_s
    completed = _completed(outcome)
    return Cost(len(setup.nodes), len(jobs), completed, cpu_s, cpu_s / (len(jobs) + completed) * 1e6)


def _completed(outcome: Outcome) -> int:
    return sum(one.end is JobEnd.COMPLETED for one in outcome.jobs)
