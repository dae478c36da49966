"""A run from its inputs: state laid out, the compiled loop driven, work counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.marginal import GPU_COEFFICIENT_PERFORMANCE, GPU_COEFFICIENT_STANDARD
from joulie.domain.scoring.placement import Demand
from joulie.domain.units import (
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    BoolArray,
    FloatArray,
    InvalidQuantityError,
    joules_to_kwh,
    non_negative,
)
from joulie.simulation.cluster import Cluster
from joulie.simulation.compiled import compiled
from joulie.simulation.engine import schedulers, state
from joulie.simulation.engine.index import empty_bitsets, empty_trees
from joulie.simulation.engine.kernel import advance, prepare
from joulie.simulation.results import RunSeries
from joulie.simulation.workload import JobTable

Steps = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int16]

USEFUL_W_PER_CORE = 490.0 / 96.0
USEFUL_W_PER_GPU = 700.0
"""Weights of useful work: what a core and a GPU of the published cluster draw at full utilisation."""


@dataclass(frozen=True)
class QueueSettings:
    """Mode queue: jobs wait instead of being dropped, and empty nodes sleep (benchmark B2).

    Attributes:
        sleep_after_min: minutes that a node stays awake without a job.
        wake_min: minutes from placement to start for the job that wakes a node.
        awake_fraction: base power of an awake node over its CPU maximum.
        sleep_fraction: power of a sleeping node over its CPU maximum; its GPUs are off.
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


@dataclass(frozen=True)
class Play:
    """What a run did.

    Attributes:
        series: time series, one row a step.
        core_hours: cores x duration of the jobs that started.
        gpu_hours: GPUs x duration of the jobs that started.
        useful_work_kwh: utilisation-weighted work over the minutes that the jobs ran within the run
            (`USEFUL_W_PER_CORE`, `USEFUL_W_PER_GPU`).
        wait_min: minutes from arrival (rounded up to a step) to start, of every job that started; None in mode drop.
        wakes: how often a sleeping node was woken; None in mode drop.
        unfinished: jobs that arrived and had not ended by the last step; None in mode drop.
    """

    series: RunSeries
    core_hours: float
    gpu_hours: float
    useful_work_kwh: float
    wait_min: FloatArray | None
    wakes: int | None
    unfinished: int | None


def play(
    cluster: Cluster,
    jobs: JobTable,
    scheduler: str,
    *,
    n_steps: int,
    step_s: float = 60.0,
    seed: int,
    queue: QueueSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Play:
    """Run `jobs` through `cluster` under a scheduler.

    Args:
        cluster: the nodes.
        jobs: sorted by arrival.
        scheduler: one of `SCHEDULERS`.
        n_steps: steps to play.
        step_s: length of a step, s. Trends are per step, as published (a step of 60 s makes them W/min).
        seed: of the scheduler's own draws (random).
        queue: None drops what does not fit, as published; else jobs wait and nodes sleep.
        on_progress: called with (steps done, steps in all) some hundred times a run.

    Raises:
        UnknownSchedulerError: no scheduler of that name.
    """
    session = Session(cluster, jobs, scheduler, n_steps=n_steps, step_s=step_s, seed=seed, queue=queue)
    session.run(on_progress)
    return session.result()


class Session:
    """The state of one run; `advance` plays some of its steps."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        scheduler: str,
        *,
        n_steps: int,
        step_s: float,
        seed: int,
        queue: QueueSettings | None,
    ) -> None:
        self._jobs = jobs
        self._n_steps = n_steps
        self._step_s = step_s
        spec = schedulers.scheduler(scheduler)
        self._rng = np.random.default_rng(seed + 2)
        self._pools = _pools(cluster)
        self._shapes, shape_of_job = _shapes(cluster, jobs, scheduler, spec)
        self._compiled_jobs = state.Jobs(
            whole_steps(jobs.arrival_s, step_s),
            whole_steps(jobs.duration_s, step_s),
            shape_of_job,
            jobs.cpu_util,
            jobs.gpu_util,
        )
        self._rules = _rules(spec, queue, step_s)
        self._order = _class_order(cluster, self._pools, scheduler, spec)
        self._nodes = _nodes(cluster, self._pools, self._rules)
        n_nodes = cluster.n_nodes
        n_jobs = len(jobs)
        self._links = state.Links(
            next_on_node=np.full(n_jobs, -1, np.int32),
            next_ending=np.full(n_jobs, -1, np.int32),
            node_of_job=np.full(n_jobs, -1, np.int32),
            end_step=np.zeros(n_jobs, np.int32),
            ending_head=np.full(n_steps + 1, -1, np.int32),
            next_dozing=np.full(n_nodes, -1, np.int32),
            dozing_head=np.full(n_steps + 1, -1, np.int32),
        )
        self._scratch = state.Scratch(
            active_list=np.zeros(n_nodes, np.int32),
            touched_list=np.zeros(n_nodes + len(cluster.pools), np.int32),
            touched=np.zeros(n_nodes, np.bool_),
            waiting=np.zeros(n_jobs, np.int32),
            refused_step=np.full(len(self._shapes.cores), -1, np.int32),
            cluster_ring_w=np.zeros(state.RING),
            stack=np.zeros(64, np.int64),
            counters=np.zeros(state.N_COUNTERS, np.int64),
        )
        self._scratch.counters[state.AWAKE] = 0 if queue is not None else n_nodes
        self._indexes = _indexes(cluster, self._pools, self._order)
        self._record = state.Record(
            it_w=np.zeros(n_steps),
            arrived=np.zeros(n_steps, np.int64),
            dropped=np.zeros(n_steps, np.int64),
            running=np.zeros(n_steps, np.int64),
            waiting=np.zeros(n_steps, np.int64),
            awake_nodes=np.zeros(n_steps, np.int64),
            start_step=np.full(n_jobs, -1, np.int32),
        )
        prepare(self._pools, self._rules, self._order, self._nodes, self._indexes)

    def advance(self, first: int, last: int) -> None:
        """Play the steps ``first <= step < last``; the steps before must have been played."""
        advance(
            self._pools,
            self._shapes,
            self._compiled_jobs,
            self._rules,
            self._order,
            self._nodes,
            self._links,
            self._scratch,
            self._indexes,
            self._record,
            self._rng,
            first,
            last,
        )

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Play all steps of a fresh session, some hundred times telling (steps done, steps in all)."""
        n_steps = self._n_steps
        chunk = n_steps if on_progress is None else max(1, n_steps // 100)
        for first in range(0, n_steps, chunk):
            last = min(n_steps, first + chunk)
            self.advance(first, last)
            if on_progress is not None:
                on_progress(last, n_steps)

    @property
    def it_w(self) -> FloatArray:
        """IT power by step, W; zero where not played yet."""
        return self._record.it_w

    def result(self) -> Play:
        """Count up the run."""
        record = self._record
        series = RunSeries(
            time_s=np.arange(self._n_steps, dtype=np.float64) * self._step_s,
            it_w=record.it_w,
            arrived=record.arrived,
            dropped=record.dropped,
            running=record.running,
            waiting=record.waiting,
            awake_nodes=record.awake_nodes,
        )
        wakes = int(self._scratch.counters[state.WAKES]) if self._rules.queueing else None
        jobs = self._compiled_jobs
        return summarise(self._jobs, series, record.start_step, jobs.first_step, jobs.length_steps, self._step_s, wakes)


def summarise(
    jobs: JobTable,
    series: RunSeries,
    start_step: Steps,
    arrival_step: Steps,
    length: Steps,
    step_s: float,
    wakes: int | None,
) -> Play:
    """Count what a run did from the start step of each job, -1 where it never started."""
    n_steps = len(series.it_w)
    totals = np.zeros(4)
    _count_work(
        start_step,
        length,
        n_steps,
        (jobs.duration_s, jobs.cores, jobs.gpus, jobs.performance, jobs.cpu_util, jobs.gpu_util),
        totals,
    )
    core_s, gpu_s, useful_w_steps, ended = totals
    wait_min = None
    if wakes is not None:
        started = start_step >= 0
        wait_steps = (start_step[started] - arrival_step[started]).astype(np.float64)
        wait_min = wait_steps * (step_s / SECONDS_PER_MINUTE)
    return Play(
        series=series,
        core_hours=core_s / SECONDS_PER_HOUR,
        gpu_hours=gpu_s / SECONDS_PER_HOUR,
        useful_work_kwh=joules_to_kwh(useful_w_steps * step_s),
        wait_min=wait_min,
        wakes=wakes,
        unfinished=int(series.arrived.sum()) - int(ended) if wakes is not None else None,
    )


@compiled
def _count_work(
    start_step: Steps,
    length: Steps,
    n_steps: int,
    jobs: tuple[FloatArray, Counts, Counts, BoolArray, FloatArray, FloatArray],
    totals: FloatArray,
) -> None:
    """Add up core seconds, GPU seconds, useful watts x steps within the run, and jobs that ended."""
    duration_s, cores, gpus, performance, cpu_util, gpu_util = jobs
    for job in range(len(start_step)):
        start = start_step[job]
        if start < 0:
            continue
        end = start + length[job]
        coefficient = GPU_COEFFICIENT_PERFORMANCE if performance[job] else GPU_COEFFICIENT_STANDARD
        useful_w = (
            USEFUL_W_PER_CORE * cores[job] * cpu_util[job] + USEFUL_W_PER_GPU * coefficient * gpus[job] * gpu_util[job]
        )
        totals[0] += cores[job] * duration_s[job]
        totals[1] += gpus[job] * duration_s[job]
        totals[2] += useful_w * max(0, min(end, n_steps) - start)
        totals[3] += end <= n_steps


def whole_steps(seconds: FloatArray, step_s: float) -> Steps:
    """Smallest number of steps that covers each time, shape of `seconds`.

    For arrivals this is the first step at which the job is there; for durations, how many steps it runs.
    """
    steps = np.empty(len(seconds), np.int32)
    _fill_whole_steps(seconds, step_s, steps)
    return steps


@compiled
def _fill_whole_steps(seconds: FloatArray, step_s: float, steps: Steps) -> None:
    for row in range(len(seconds)):
        count = int(np.ceil(seconds[row] / step_s))
        # The division may round across a whole number: multiplication decides.
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
    cluster: Cluster, jobs: JobTable, name: str, spec: schedulers.Scheduler
) -> tuple[state.Shapes, npt.NDArray[np.int16]]:
    """The distinct requests, and which of them each job is."""
    gpu_base = int(jobs.gpus.max(initial=0)) + 1
    code = (jobs.cores.astype(np.int64) * gpu_base + jobs.gpus) * 2 + jobs.performance
    present = np.zeros(int(code.max(initial=0)) + 1, np.bool_)
    present[code] = True
    codes = np.flatnonzero(present)
    if len(codes) > np.iinfo(np.int16).max:
        raise InvalidQuantityError(
            "jobs", f"{len(codes)} different requests are more than the engine's {np.iinfo(np.int16).max}"
        )
    number = np.zeros(len(present), np.int16)
    number[codes] = np.arange(len(codes), dtype=np.int16)
    cores, gpus, performance = codes // 2 // gpu_base, codes // 2 % gpu_base, codes % 2 == 1
    marginal = np.stack([schedulers.marginal_by_shape_w(pool, cores, gpus, performance) for pool in cluster.pools])
    preference = np.zeros((len(cluster.pools), len(codes), 2))
    if spec.family == state.BY_CLASS:
        for index, pool in enumerate(cluster.pools):
            for shape, request in enumerate(zip(cores, gpus, performance, strict=True)):
                demand = Demand(float(request[0]), float(request[1]), bool(request[2]))
                preference[index, shape] = schedulers.preference(name, pool, demand)
    offset = schedulers.key_offset(spec, cluster, marginal)
    return state.Shapes(cores, gpus, performance, marginal, offset, preference), number[code]


def _rules(spec: schedulers.Scheduler, queue: QueueSettings | None, step_s: float) -> state.Rules:
    settings = queue or QueueSettings()
    queueing = queue is not None
    return state.Rules(
        family=spec.family,
        trend=spec.trend,
        trend_low=spec.trend_low,
        trend_high=spec.trend_high,
        gpu_penalty=spec.gpu_penalty,
        packs_by_power=spec.packs_by_power,
        busy_fraction=settings.awake_fraction if queueing else 0.10,
        empty_fraction=settings.awake_fraction if queueing else 0.05,
        w_per_core=settings.w_per_core if queueing else 0.0,
        gpu_performance_coeff=GPU_COEFFICIENT_PERFORMANCE,
        gpu_standard_coeff=GPU_COEFFICIENT_STANDARD,
        step_min=step_s / SECONDS_PER_MINUTE,
        queueing=queueing,
        sleep_after_steps=int(np.ceil(settings.sleep_after_min * 60.0 / step_s)),
        wake_steps=int(np.ceil(settings.wake_min * 60.0 / step_s)),
        sleep_fraction=settings.sleep_fraction,
    )


def _class_order(cluster: Cluster, pools: state.Pools, name: str, spec: schedulers.Scheduler) -> state.ClassOrder:
    """Rank the classes of allocation by view; other families than BY_CLASS have no use for them."""
    n_views = len(pools.cpu_view) + int(np.count_nonzero(pools.gpu_view >= 0))
    free = [np.indices((pool.cores + 1, pool.gpus + 1)).reshape(2, -1) for pool in cluster.pools]
    free_cores, free_gpus = np.concatenate(free, axis=1)
    n_classes = len(free_cores) if spec.family == state.BY_CLASS else 0
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
        still_steps=np.full(n, state.RING, np.int64),
        trend_w_per_min=np.zeros(n),
        trend_points=np.zeros(n),
        active=np.zeros(n, np.bool_),
        asleep=np.full(n, rules.queueing, np.bool_),
        empty_step=np.zeros(n, np.int64),
        dozing=np.zeros(n, np.bool_),
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
