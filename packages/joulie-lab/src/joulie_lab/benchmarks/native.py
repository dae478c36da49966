"""Benchmark native: CPU time of native runs, and its growth with jobs and nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.policy import PolicySettings, StaticPartition
from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.experiment.outcome import JobEnd
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
_SEED = 1


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        nodes: of the smallest run.
        jobs: likewise.
        rounds: each run is made so often, and the fastest counts: other work on the machine only adds.
    """

    nodes: int
    jobs: int
    rounds: int


FULL = Plan(nodes=250, jobs=1000, rounds=2)
SMALL = Plan(nodes=50, jobs=50, rounds=2)


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


class NativeResult(Figures, frozen=True):
    """The result, by scheduler and size; growth is in the CPU time of the smallest run."""

    runs: Mapping[str, Mapping[str, Cost]]
    growth: Mapping[str, Mapping[str, float]]


def measure(plan: Plan, cpu_time_s: Clock, on_stage: OnStage) -> NativeResult:
    """CPU time of each size, without Joulie and with extender and `static_partition`.

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
    return NativeResult(runs, growth)


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
    completed = sum(one.end is JobEnd.COMPLETED for one in outcome.jobs)
    return Cost(len(setup.nodes), len(jobs), completed, cpu_s, cpu_s / (len(jobs) + completed) * 1e6)
