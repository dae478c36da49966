"""Builds the state arrays of a run from a cluster, its jobs and a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.lifetimes import bin_edges_min
from joulie.domain.marginal import GPU_COEFFICIENT_PERFORMANCE, GPU_COEFFICIENT_STANDARD
from joulie.domain.scoring.energy import EnergyPolicy
from joulie.domain.units import SECONDS_PER_MINUTE, FloatArray, InvalidQuantityError, non_negative
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.compiled import compiled
from joulie_lab.simulation.engine import schedulers, state
from joulie_lab.simulation.engine.index import empty_bitsets, empty_trees
from joulie_lab.simulation.placement import Demand
from joulie_lab.simulation.schedulers import BY_CLASS, BY_ENERGY, EngineRules, engine_rules
from joulie_lab.simulation.workload import JobTable

Steps = npt.NDArray[np.int32]

PUBLISHED_BUSY_FRACTION = 0.10
PUBLISHED_EMPTY_FRACTION = 0.05
"""Base power of a node with and without jobs in the published experiment, as a share of its CPU maximum."""


@dataclass(frozen=True)
class QueueSettings:
    """Mode queue: jobs wait instead of being dropped, and empty nodes sleep (benchmark B2).

    Attributes:
        sleep_after_min: time until a node without jobs falls asleep, min.
        wake_min: time from placement to start for a job that wakes a node, min.
        awake_fraction: base power of an awake node, as a share of its CPU maximum.
        sleep_fraction: power of a sleeping node, as a share of its CPU maximum; its GPUs are off.
        w_per_core: power of a fully used core above the base, W.
    """

    sleep_after_min: float = 10.0
    wake_min: float = 3.0
    awake_fraction: float = 0.25
    sleep_fraction: float = 0.03
    w_per_core: float = 6.0

    def __post_init__(self) -> None:
        for name in ("sleep_after_min", "wake_min", "awake_fraction", "sleep_fraction", "w_per_core"):
            non_negative(name, getattr(self, name))


def lay_out(
    cluster: Cluster,
    jobs: JobTable,
    scheduler: str,
    n_steps: int,
    step_s: float,
    seed: int,
    queue: QueueSettings | None,
) -> state.Run:
    """Build the state of a run before its first step; `kernel.prepare` fills the indexes.

    Raises:
        UnknownSchedulerError: no scheduler of that name.
        InvalidQuantityError: more distinct requests than the engine supports.
    """
    spec = engine_rules(scheduler)
    pools = _pools(cluster)
    shapes, shape_of_job = _shapes(cluster, jobs, scheduler, spec)
    rules = node_rules(spec, queue, step_s)
    order = _class_order(cluster, pools, scheduler, spec)
    n_nodes, n_jobs = cluster.n_nodes, len(jobs)
    scratch = state.Scratch(
        active_list=np.zeros(n_nodes, np.int32),
        touched_list=np.zeros(n_nodes + len(cluster.pools), np.int32),
        touched=np.zeros(n_nodes, np.bool_),
        waiting=np.zeros(n_jobs, np.int32),
        refused_step=np.full(len(shapes.cores), -1, np.int32),
        cluster_ring_w=np.zeros(state.RING),
        stack=np.zeros(64, np.int64),
        counters=np.zeros(state.N_COUNTERS, np.int64),
    )
    scratch.counters[state.AWAKE] = 0 if rules.queueing else n_nodes
    return state.Run(
        pools=pools,
        shapes=shapes,
        jobs=state.Jobs(
            whole_steps(jobs.arrival_s, step_s),
            whole_steps(jobs.duration_s, step_s),
            shape_of_job,
            jobs.cpu_util,
            jobs.gpu_util,
        ),
        rules=rules,
        energy_rules=energy_rules(spec, cluster, rules),
        order=order,
        nodes=_nodes(cluster, pools, rules),
        links=state.Links(
            next_on_node=np.full(n_jobs, -1, np.int32),
            next_ending=np.full(n_jobs, -1, np.int32),
            node_of_job=np.full(n_jobs, -1, np.int32),
            end_step=np.zeros(n_jobs, np.int32),
            ending_head=np.full(n_steps + 1, -1, np.int32),
            next_to_sleep=np.full(n_nodes, -1, np.int32),
            sleep_head=np.full(n_steps + 1, -1, np.int32),
        ),
        scratch=scratch,
        indexes=_indexes(cluster, pools, order),
        energy=_energy_state(spec, cluster, jobs, rules),
        record=state.Record(
            it_w=np.zeros(n_steps),
            arrived=np.zeros(n_steps, np.int64),
            dropped=np.zeros(n_steps, np.int64),
            running=np.zeros(n_steps, np.int64),
            waiting=np.zeros(n_steps, np.int64),
            awake_nodes=np.zeros(n_steps, np.int64),
            start_step=np.full(n_jobs, -1, np.int32),
        ),
        rng=np.random.default_rng(seed + 2),
    )


def whole_steps(seconds: FloatArray, step_s: float) -> Steps:
    """Times in steps, rounded up, shape of `seconds`.

    For arrivals this is the first step at which the job is present; for durations, the number of steps it runs.
    """
    steps = np.empty(len(seconds), np.int32)
    _fill_whole_steps(seconds, step_s, steps)
    return steps


@compiled
def _fill_whole_steps(seconds: FloatArray, step_s: float, steps: Steps) -> None:
    for row in range(len(seconds)):
        count = int(np.ceil(seconds[row] / step_s))
        # The division may round across an integer, so the result is corrected by multiplication.
        if (count - 1) * step_s >= seconds[row]:
            count -= 1
        elif count * step_s < seconds[row]:
            count += 1
        steps[row] = count


def _pools(cluster: Cluster) -> state.Pools:
    pools = cluster.pools
    has_gpus = np.array([pool.gpus > 0 for pool in pools])
    gpu_view = np.where(has_gpus, len(pools) + np.cumsum(has_gpus) - 1, -1)
    sizes = [(pool.cores + 1) * (pool.gpus + 1) for pool in pools]
    return state.Pools(
        start=cluster.pool_starts(),
        cores=np.array([pool.cores for pool in pools], np.int64),
        gpus=np.array([pool.gpus for pool in pools], np.int64),
        cpu_max_w=np.array([pool.cpu_max_w for pool in pools], np.float64),
        gpu_max_w=np.array([pool.gpu_max_w for pool in pools], np.float64),
        gpu_idle_w=np.array([pool.gpu_idle_w for pool in pools], np.float64),
        peak_w=np.array([pool.peak_w for pool in pools], np.float64),
        cpu_view=np.arange(len(pools), dtype=np.int64),
        gpu_view=gpu_view.astype(np.int64),
        class_base=np.cumsum([0, *sizes[:-1]], dtype=np.int64),
    )


def _shapes(
    cluster: Cluster, jobs: JobTable, name: str, spec: EngineRules
) -> tuple[state.Shapes, npt.NDArray[np.int16]]:
    """The distinct requests, and the index of each job's request."""
    gpu_base = int(jobs.gpus.max(initial=0)) + 1
    code = (jobs.cores.astype(np.int64) * gpu_base + jobs.gpus) * 2 + jobs.performance
    present = np.zeros(int(code.max(initial=0)) + 1, np.bool_)
    present[code] = True
    codes = np.flatnonzero(present)
    if len(codes) > np.iinfo(np.int16).max:
        raise InvalidQuantityError(
            "jobs", f"{len(codes)} distinct requests exceed the engine's maximum of {np.iinfo(np.int16).max}"
        )
    number = np.zeros(len(present), np.int16)
    number[codes] = np.arange(len(codes), dtype=np.int16)
    cores, gpus, performance = codes // 2 // gpu_base, codes // 2 % gpu_base, codes % 2 == 1
    marginal = np.stack([schedulers.marginal_by_shape_w(pool, cores, gpus, performance) for pool in cluster.pools])
    preference = np.zeros((len(cluster.pools), len(codes), 2))
    if spec.family == BY_CLASS:
        for index, pool in enumerate(cluster.pools):
            for shape, request in enumerate(zip(cores, gpus, performance, strict=True)):
                demand = Demand(float(request[0]), float(request[1]), bool(request[2]))
                preference[index, shape] = schedulers.preference(name, pool, demand)
    offset = schedulers.key_offset(spec, cluster, marginal)
    return state.Shapes(cores, gpus, performance, marginal, offset, preference), number[code]


def node_rules(spec: EngineRules, queue: QueueSettings | None, step_s: float) -> state.Rules:
    """The scheduler's parameters and the node power model of the mode."""
    settings = queue or QueueSettings()
    queueing = queue is not None
    return state.Rules(
        family=spec.family,
        trend=spec.trend,
        trend_low=spec.trend_low,
        trend_high=spec.trend_high,
        gpu_penalty=spec.gpu_penalty,
        packs_by_power=spec.packs_by_power,
        busy_fraction=settings.awake_fraction if queueing else PUBLISHED_BUSY_FRACTION,
        empty_fraction=settings.awake_fraction if queueing else PUBLISHED_EMPTY_FRACTION,
        w_per_core=settings.w_per_core if queueing else 0.0,
        gpu_performance_coeff=GPU_COEFFICIENT_PERFORMANCE,
        gpu_standard_coeff=GPU_COEFFICIENT_STANDARD,
        step_min=step_s / SECONDS_PER_MINUTE,
        queueing=queueing,
        sleep_after_steps=int(np.ceil(settings.sleep_after_min * 60.0 / step_s)),
        wake_steps=int(np.ceil(settings.wake_min * 60.0 / step_s)),
        sleep_fraction=settings.sleep_fraction,
    )


def _class_order(cluster: Cluster, pools: state.Pools, name: str, spec: EngineRules) -> state.ClassOrder:
    """Rank the allocation classes by view; only used by family BY_CLASS."""
    n_views = len(pools.cpu_view) + int(np.count_nonzero(pools.gpu_view >= 0))
    free = [np.indices((pool.cores + 1, pool.gpus + 1)).reshape(2, -1) for pool in cluster.pools]
    free_cores, free_gpus = np.concatenate(free, axis=1)
    n_classes = len(free_cores) if spec.family == BY_CLASS else 0
    score = np.full((n_views, n_classes), -np.inf)
    if n_classes > 0:
        for index, pool in enumerate(cluster.pools):
            first = int(pools.class_base[index])
            own = slice(first, first + free[index].shape[1])
            for view, with_gpus in ((pools.cpu_view[index], False), (pools.gpu_view[index], True)):
                if view >= 0:
                    score[view, own] = schedulers.class_score(name, pool, free_cores[own], free_gpus[own], with_gpus)
    by_rank = np.argsort(-score, axis=1, kind="stable").astype(np.int32)
    rank = np.argsort(by_rank, axis=1, kind="stable").astype(np.int32)
    return state.ClassOrder(score, rank, by_rank, free_cores.astype(np.int64), free_gpus.astype(np.int64))


def _nodes(cluster: Cluster, pools: state.Pools, rules: state.Rules) -> state.Nodes:
    n = cluster.n_nodes
    pool = np.repeat(np.arange(len(cluster.pools), dtype=np.int32), [entry.count for entry in cluster.pools])
    return state.Nodes(
        pool=pool,
        free_cores=pools.cores[pool],
        free_gpus=pools.gpus[pool],
        power_w=np.zeros(n),
        cpu_sum_w=np.zeros(n),
        gpu_sum_w=np.zeros(n),
        first_job=np.full(n, -1, np.int32),
        last_job=np.full(n, -1, np.int32),
        ring_w=np.zeros((n, state.RING)),
        steady_steps=np.full(n, state.RING, np.int64),
        trend_w_per_min=np.zeros(n),
        trend_points=np.zeros(n),
        active=np.zeros(n, np.bool_),
        asleep=np.full(n, rules.queueing, np.bool_),
        empty_step=np.zeros(n, np.int64),
        sleep_scheduled=np.zeros(n, np.bool_),
        standby=np.zeros(n, np.bool_),
    )


def _indexes(cluster: Cluster, pools: state.Pools, order: state.ClassOrder) -> state.Indexes:
    n_classes = order.score.shape[1]
    counts = np.array([pool.count for pool in cluster.pools], np.int64)
    with_gpus = pools.gpu_view >= 0
    return state.Indexes(
        trees=empty_trees(np.concatenate((counts, counts[with_gpus]))),
        classes=empty_bitsets(n_classes, int(counts.max())),
        occupied=empty_bitsets(len(order.score), n_classes),
        members=np.zeros(n_classes, np.int64),
        standby=empty_bitsets(len(counts), int(counts.max())),
    )


def energy_rules(spec: EngineRules, cluster: Cluster, rules: state.Rules) -> state.EnergyRules:
    """`EnergyPolicy` for this cluster; without a queue, no node wakes and no job can be held."""
    policy = EnergyPolicy()
    peak_w = cluster.peak_w
    return state.EnergyRules(
        governed=spec.governed and rules.queueing,
        oracle=spec.oracle,
        wake_stay_min=policy.wake_stay_min if rules.queueing else 0.0,
        wake_min=rules.wake_steps * rules.step_min if rules.queueing else 0.0,
        cores_per_gpu=policy.cores_per_gpu,
        prior_mean_min=policy.prior_mean_min,
        prior_weight_min=policy.prior_weight_min,
        heavy_w=policy.heavy_fraction * peak_w,
        limits=(
            policy.rise_fraction * peak_w,
            policy.fill_fraction * peak_w,
            policy.hold_limit_min,
            policy.wait_budget_min,
            policy.wake_budget_min,
            policy.wake_hold_min,
        ),
    )


def base_w(cluster: Cluster, rules: state.Rules) -> FloatArray:
    """Base power of a node with jobs above a node at rest, by pool, W; the jobs' own power comes on top."""
    at_rest = rules.sleep_fraction if rules.queueing else rules.empty_fraction
    idle_gpus = 1.0 if rules.queueing else 0.0  # asleep, the GPUs are off too
    return np.array(
        [
            (rules.busy_fraction - at_rest) * pool.cpu_max_w + idle_gpus * pool.gpus * pool.gpu_idle_w
            for pool in cluster.pools
        ]
    )


def surcharge_w_per_core(cluster: Cluster, base: FloatArray) -> float:
    """Base power per core of the cheapest pool without GPUs, W; 0 if all nodes have GPUs."""
    costs = [base[index] / pool.cores for index, pool in enumerate(cluster.pools) if pool.gpus == 0]
    return float(min(costs, default=0.0))


def _energy_state(spec: EngineRules, cluster: Cluster, jobs: JobTable, rules: state.Rules) -> state.EnergyState:
    """Initial state of `marginal-energy`, without any observations; empty arrays for the other schedulers."""
    policy = EnergyPolicy()
    used = spec.family == BY_ENERGY
    edges_min = bin_edges_min()
    n_bins = len(edges_min) - 1
    n_classes = len(jobs.class_names) if used else 0
    n_nodes = cluster.n_nodes if used else 0
    base = base_w(cluster, rules)
    minutes = np.arange(int(edges_min[-1]))
    return state.EnergyState(
        edges_min=edges_min,
        bin_of_minute=(np.searchsorted(edges_min, minutes, side="right") - 1).astype(np.int32),
        ends=np.zeros((n_classes, n_bins)),
        at_risk_min=np.zeros((n_classes, n_bins)),
        hazard_per_min=np.zeros((n_classes, n_bins)),
        remaining_at_edge_min=np.zeros((n_classes, n_bins)),
        ended=np.zeros(n_classes),
        cpu_util_sum=np.zeros(n_classes),
        gpu_util_sum=np.zeros(n_classes),
        job_class=jobs.job_class,
        base_w=base,
        stranded_gpu_w=policy.stranded_gpu * base / np.maximum(1, [pool.gpus for pool in cluster.pools]),
        surcharge_w_per_core=policy.gpu_node_surcharge * surcharge_w_per_core(cluster, base),
        busy_min=np.zeros(n_nodes),
        up=np.zeros(n_nodes, np.int32),
        is_up=np.zeros(n_nodes, np.bool_),
        resting=empty_bitsets(len(cluster.pools), n_nodes),
        gauges=np.zeros(state.N_GAUGES),
        merged=np.zeros(len(jobs) if spec.governed else 0, np.int32),
    )
