"""Benchmark marginal cluster: marginal placement with nodes that sleep, natively and on a real control plane.

The same jobs run on 60 nodes under four placements, by the functions of the product: the scores of the extender and the
decision of the operator about sleep. What differs between two runs of the same jobs is for how long nodes are awake, so
that energies follow from when each node had power; the power model and the lower bound are those of equal work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

import numpy as np

from joulie.domain.marginal import gpu_coefficient
from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, FloatArray, IntArray
from joulie_lab.benchmarks.equal_work import lower_bound_kwh
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.engine import QueueSettings, simulate
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.scenario_files import load_scenario
from joulie_lab.simulation.trace import WORKLOAD_CLASS_KEY, JobProfile, TraceJob
from joulie_lab.simulation.workload import JobTable, published_jobs, thinned

KEEP: Mapping[str, float] = {
    "small-cpu": 0.02,
    "medium-cpu": 0.06,
    "gpu-training": 1.0 / 70.0,
    "gpu-inference": 0.03,
    "large-cpu": 0.28,
}
"""Thinning of the published workload: the day of equal work in fewer and larger jobs, so that a control plane binds
them all in compressed time."""
LOAD = 0.65
"""Jobs of the published workload per node, as a share: what compression adds to a job must not fill the cluster."""
SEED = 42
"""Of the run that is played on the control plane."""
REPORT_SEEDS = (123, 456, 789, 1337, 2024)
"""Seeds of the native means: nothing was tuned on them."""
BOOT_S = 180.0
"""Time from the power switch to a node that is ready, s: that of equal work."""
DRAIN_H = 2.0
"""Time after the arrivals in which nodes fall asleep, h; jobs that would not end with the arrivals are left out."""
GIB_PER_CORE = 4.0
"""Memory of nodes and jobs, GiB a core, so that cores decide what fits."""
MAX_HOLD_S = 180.0
"""Time for which a job holds its room without running, s, above which the machine did not keep up with the run."""
_PUBLISHED_NODES = 2500
POWER = QueueSettings()
"""Power model of equal work."""


class Way(StrEnum):
    """How nodes are chosen."""

    DEFAULT = "default scheduler"
    MOST_ALLOCATED = "MostAllocated"
    ENERGY = "SCORING=energy"
    MARGINAL = "SCORING=marginal"


@dataclass(frozen=True)
class Pace:
    """How fast the parts act, in simulated time.

    Attributes:
        look_s: interval of the operator's looks at sleeping nodes, s.
        bind_s: time for which kube-scheduler is busy with a pod, s.
        retry_s: time after which it tries a pod again that found no node, at least, s.
        hold_s: time for which a job has its room on a node and does not run, s.
    """

    look_s: float = 10.0
    bind_s: float = 0.0
    retry_s: float = 1.0
    hold_s: float = 0.0


PRODUCT = Pace()
"""SLEEP_INTERVAL's default, and kube-scheduler's shortest backoff."""


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        groups: the nodes: a group without GPUs, and one with.
        jobs: the jobs.
        hours: length of the run, arrivals and drain, h.
        seed: of the jobs.
    """

    groups: tuple[NodeGroup, NodeGroup]
    jobs: JobTable
    hours: float
    seed: int

    @property
    def nodes(self) -> tuple[SimNode, ...]:
        """The nodes, with hardware of the catalogue like that of the model; in the order of the cluster's."""
        return sim_nodes(self.groups)

    @property
    def cluster(self) -> Cluster:
        """Their power, as equal work models it."""
        pools = sorted(load_scenario("equal-work-2500").cluster.pools, key=lambda pool: pool.gpus)
        return Cluster(tuple(replace(pool, count=group.count) for pool, group in zip(pools, self.groups, strict=True)))

    @property
    def end_s(self) -> float:
        """Length of the run, s."""
        return self.hours * SECONDS_PER_HOUR


def plan(seed: int, nodes: tuple[int, int] = (48, 12), hours: float = 24.0) -> Plan:
    """A day on this many nodes without and with GPUs."""
    cpu, gpu = nodes
    groups = (
        NodeGroup(name="cpu", count=cpu, cpu="Intel Xeon Platinum 8468", memory_gib=GIB_PER_CORE * 96),
        NodeGroup(
            name="gpu",
            count=gpu,
            cpu="AMD EPYC 9534",
            memory_gib=GIB_PER_CORE * 128,
            gpu="NVIDIA H100 80GB HBM3",
            gpus=8,
        ),
    )
    share = LOAD * (cpu + gpu) / _PUBLISHED_NODES
    jobs = thinned(published_jobs(seed, hours), {name: share * keep for name, keep in KEEP.items()})
    # Whole seconds, so that the bound rounds nothing up.
    jobs = replace(jobs, duration_s=np.ceil(jobs.duration_s))
    return Plan(
        groups, jobs.select(jobs.arrival_s + jobs.duration_s <= hours * SECONDS_PER_HOUR), hours + DRAIN_H, seed
    )


@dataclass(frozen=True, eq=False)
class Course:
    """What came of a run; times are simulated seconds.

    Attributes:
        start_s: start of each job, s; NaN if it did not start.
        end_s: its end, s; NaN if it did not end.
        node: index of its node; -1 without one.
        awake_s: time for which each node had power, booting included, s.
        wakes: number of times that a node was switched on.
        moves: number of times that a job lost its node.
        redone_s: time for which each job ran beyond its duration, since it was moved, s; None without moves.
    """

    start_s: FloatArray
    end_s: FloatArray
    node: IntArray
    awake_s: FloatArray
    wakes: int
    moves: int = 0
    redone_s: FloatArray | None = None


def awake_s(switched: Sequence[tuple[float, bool]], end_s: float) -> float:
    """Time for which a node had power until the end of a run, s.

    Args:
        switched: when its power was switched, s, and whether on; the first at or before 0.
        end_s: end of the run, s.
    """
    total_s = 0.0
    for (since_s, on), (until_s, _) in zip(switched, [*switched[1:], (end_s, False)], strict=True):
        if on:
            total_s += max(0.0, min(until_s, end_s) - max(since_s, 0.0))
    return total_s


def energy_kwh(of: Plan, awake: FloatArray, redone_s: FloatArray | None = None) -> float:
    """Energy of all nodes over the run, kWh: sleeping nodes, what awake ones add to that, and the work.

    A GPU that a job has draws no idle power. All jobs count whole: those that did not end are listed apart.

    Args:
        of: the run.
        awake: time for which each node had power, s.
        redone_s: time for which each job ran beyond its duration, s; None for none.
    """
    cluster, jobs = of.cluster, of.jobs
    cpu_max_w, idle_gpus_w = (cluster.per_node(name) for name in ("cpu_max_w", "gpu_idle_w"))
    idle_gpus_w = idle_gpus_w * cluster.per_node("gpus")
    base_w = (POWER.awake_fraction - POWER.sleep_fraction) * cpu_max_w + idle_gpus_w
    gpu = max(cluster.pools, key=lambda pool: pool.gpus)
    of_gpu_w = gpu.gpu_max_w * gpu_coefficient(jobs.performance) * jobs.gpu_util - gpu.gpu_idle_w
    job_w = POWER.w_per_core * jobs.cores * jobs.cpu_util + jobs.gpus * of_gpu_w
    joules = POWER.sleep_fraction * cpu_max_w.sum() * of.end_s + base_w @ awake + job_w @ jobs.duration_s
    if redone_s is not None:
        joules += job_w @ redone_s
    return float(joules) / SECONDS_PER_HOUR / WATTS_PER_KW


def bound_kwh(of: Plan) -> float:
    """Energy of ideal packing, kWh; see `lower_bound_kwh`."""
    return lower_bound_kwh(of.cluster, of.jobs, POWER, n_steps=round(of.end_s), step_s=1.0)


class Run(Figures, frozen=True):
    """A run under one placement.

    Attributes:
        kwh: energy.
        above_bound_pct: by how much it is above the lower bound.
        awake_node_hours: hours for which nodes had power.
        median_wait_min: median of the jobs' waits.
        p95_wait_min: 95th percentile.
        mean_wait_min: mean.
        wakes: nodes switched on.
        moves: jobs that lost their node.
        unfinished: jobs that did not end.
    """

    kwh: float
    above_bound_pct: float
    awake_node_hours: float
    median_wait_min: float
    p95_wait_min: float
    mean_wait_min: float
    wakes: int
    moves: int
    unfinished: int


def measured(of: Plan, course: Course) -> Run:
    """The figures of a run."""
    kwh = energy_kwh(of, course.awake_s, course.redone_s)
    wait_min = (course.start_s - of.jobs.arrival_s) / 60.0
    wait_min = np.where(np.isnan(wait_min), (of.end_s - of.jobs.arrival_s) / 60.0, wait_min)
    return Run(
        kwh=kwh,
        above_bound_pct=100.0 * (kwh / bound_kwh(of) - 1.0),
        awake_node_hours=float(course.awake_s.sum()) / SECONDS_PER_HOUR,
        median_wait_min=float(np.median(wait_min)),
        p95_wait_min=float(np.percentile(wait_min, 95.0)),
        mean_wait_min=float(wait_min.mean()),
        wakes=course.wakes,
        moves=course.moves,
        unfinished=int(np.isnan(course.end_s).sum()),
    )


def class_of(of: Plan, job: int) -> str:
    """Class of a job: its namespace, so that the extender learns durations by class, as equal work has it."""
    return str(of.jobs.class_names[of.jobs.job_class[job]])


def trace_jobs(of: Plan) -> tuple[TraceJob, ...]:
    """The jobs as pods, in order of arrival."""
    return tuple(_trace_job(of, job) for job in range(len(of.jobs)))


def _trace_job(of: Plan, job: int) -> TraceJob:
    jobs = of.jobs
    cores, gpus, duration_s = int(jobs.cores[job]), int(jobs.gpus[job]), float(jobs.duration_s[job])
    cpu_share, gpu_share = float(jobs.cpu_util[job]), float(jobs.gpu_util[job])
    return TraceJob(
        job_id=f"job-{job:05d}",
        workload_id=class_of(of, job),
        namespace=class_of(of, job),
        submit_s=float(jobs.arrival_s[job]),
        requests={"cpu": str(cores), "memory": f"{GIB_PER_CORE * cores:g}Gi"}
        | ({"nvidia.com/gpu": str(gpus)} if gpus else {}),
        annotations={WORKLOAD_CLASS_KEY: "performance"} if jobs.performance[job] else {},
        cpu_units=duration_s * cores * cpu_share,
        gpu_units=duration_s * gpus * gpu_share,
        profile=JobProfile(cpu_utilization=cpu_share, gpu_utilization=gpu_share),
    )


class Paced(Figures, frozen=True):
    """How fast the parts of a control plane were, in simulated seconds; see `Pace`."""

    look_s: float
    bind_s: float
    retry_s: float
    hold_s: float


class Saving(Figures, frozen=True):
    """Energy that SCORING=marginal saves against another placement, percent; None where it was not played.

    Attributes:
        native_pct: natively.
        paced_pct: natively, at the pace of the control plane.
        plane_pct: on the control plane, where the machine kept up.
        seeds_pct: natively, over the reported seeds.
    """

    native_pct: float
    paced_pct: float | None
    plane_pct: float | None
    seeds_pct: Estimate


class MarginalClusterResult(Figures, frozen=True):
    """The result, by placement.

    Attributes:
        cpu_nodes: nodes without GPUs.
        gpu_nodes: nodes with GPUs.
        jobs: jobs of the run that is played on the control plane.
        hours: length of a run, h.
        seed: of that run.
        seeds: of the native means.
        time_scale: simulated seconds per second of wall time on the control plane.
        bound_kwh: lower bound.
        always_on_kwh: energy if no node sleeps; then placement makes no difference.
        engine_above_bound_pct: by how much the engine of equal work is above the bound with its `marginal-energy`.
        native: native runs.
        paced: native runs at the pace of the control plane.
        plane: runs on the control plane.
        paces: that pace.
        seeds_above_bound_pct: native runs over the reported seeds, above their bounds.
        seeds_engine_above_bound_pct: the same of the engine.
        saving: what SCORING=marginal saves, by the other placement.
        too_slow: placements whose run on the control plane the machine did not keep up with.
        off_by_points: by how much its saving on the control plane differs from the native one at most, points.
        off_by_points_paced: the same against the native one at that pace.
    """

    cpu_nodes: int
    gpu_nodes: int
    jobs: int
    hours: float
    seed: int
    seeds: Sequence[int]
    time_scale: float
    bound_kwh: float
    always_on_kwh: float
    engine_above_bound_pct: float
    native: Mapping[str, Run]
    paced: Mapping[str, Run]
    plane: Mapping[str, Run]
    paces: Mapping[str, Paced]
    seeds_above_bound_pct: Mapping[str, Estimate]
    seeds_engine_above_bound_pct: Estimate
    saving: Mapping[str, Saving]
    too_slow: Sequence[str]
    off_by_points: float | None = None
    off_by_points_paced: float | None = None


def summarise(
    of: Plan,
    native: Mapping[Way, Course],
    played: Mapping[Way, tuple[Course, Pace]],
    paced: Mapping[Way, Course],
    seeds: Mapping[int, tuple[Plan, Mapping[Way, Course]]],
    time_scale: float,
) -> MarginalClusterResult:
    """All figures of the benchmark.

    Args:
        of: the run that was played on the control plane.
        native: its native courses.
        played: its courses on the control plane, each with its pace; empty without one.
        paced: its native courses at these paces.
        seeds: native courses of the reported seeds.
        time_scale: simulated seconds per second of wall time on the control plane.
    """
    runs = {way.value: measured(of, course) for way, course in native.items()}
    plane = {way.value: measured(of, course) for way, (course, _) in played.items()}
    as_paced = {way.value: measured(of, course) for way, course in paced.items()}
    by_seed = [{way.value: measured(one, course) for way, course in courses.items()} for one, courses in seeds.values()]
    too_slow = [way.value for way, (_, pace) in played.items() if pace.hold_s > MAX_HOLD_S]
    kept_up = {name: run for name, run in plane.items() if name not in too_slow}
    others = [way.value for way in Way if way is not Way.MARGINAL]

    def saved_pct(found: Mapping[str, Run], other: str) -> float | None:
        return _saving_pct(found, other) if {Way.MARGINAL.value, other} <= found.keys() else None

    saving = {
        other: Saving(
            native_pct=_saving_pct(runs, other),
            paced_pct=saved_pct(as_paced, other),
            plane_pct=saved_pct(kept_up, other),
            seeds_pct=estimate([_saving_pct(one, other) for one in by_seed]),
        )
        for other in others
    }
    cpu, gpu = of.groups
    return MarginalClusterResult(
        cpu_nodes=cpu.count,
        gpu_nodes=gpu.count,
        jobs=len(of.jobs),
        hours=of.hours,
        seed=of.seed,
        seeds=list(seeds),
        time_scale=time_scale,
        bound_kwh=bound_kwh(of),
        always_on_kwh=energy_kwh(of, np.full(cpu.count + gpu.count, of.end_s)),
        engine_above_bound_pct=engine_above_bound_pct(of),
        native=runs,
        paced=as_paced,
        plane=plane,
        paces={way.value: Paced(**asdict(pace)) for way, (_, pace) in played.items()},
        seeds_above_bound_pct={way.value: estimate([one[way.value].above_bound_pct for one in by_seed]) for way in Way},
        seeds_engine_above_bound_pct=estimate([engine_above_bound_pct(one) for one, _ in seeds.values()]),
        saving=saving,
        too_slow=too_slow,
        off_by_points=_off_by([(one.native_pct, one.plane_pct) for one in saving.values()]),
        off_by_points_paced=_off_by([(one.paced_pct, one.plane_pct) for one in saving.values()]),
    )


def _saving_pct(runs: Mapping[str, Run], other: str) -> float:
    return 100.0 * (1.0 - runs[Way.MARGINAL.value].kwh / runs[other].kwh)


def _off_by(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    known = [abs(one - other) for one, other in pairs if one is not None and other is not None]
    return max(known, default=None)


def engine_above_bound_pct(of: Plan) -> float:
    """Energy of the same jobs in the engine of equal work, whose sleeping nodes are candidates like all others."""
    played = simulate(of.cluster, of.jobs, "marginal-energy", n_steps=round(60 * of.hours), seed=of.seed, queue=POWER)
    kwh = float(played.series.it_w.mean()) * of.hours / WATTS_PER_KW
    return 100.0 * (kwh / bound_kwh(of) - 1.0)
