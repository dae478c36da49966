"""Reference implementation in plain NumPy: scores all nodes for each job with the domain's own functions.

Slow and simple. The compiled engine is tested against it, job by job, and its speed is measured against it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulie.domain.marginal import CPU_LOAD, gpu_coefficient
from joulie.domain.units import FloatArray
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.engine.layout import (
    PUBLISHED_BUSY_FRACTION,
    PUBLISHED_EMPTY_FRACTION,
    QueueSettings,
    whole_steps,
)
from joulie_lab.simulation.engine.play import EngineResult, summarise
from joulie_lab.simulation.engine.reference_energy import EnergyState, NodeView
from joulie_lab.simulation.placement import Demand, Fleet, Placement, place, place_at_random
from joulie_lab.simulation.results import RunSeries
from joulie_lab.simulation.schedulers import BY_ENERGY, SCORERS, engine_rules
from joulie_lab.simulation.workload import JobTable

RING = 10


def simulate_plain(
    cluster: Cluster,
    jobs: JobTable,
    scheduler: str,
    *,
    n_steps: int,
    step_s: float = 60.0,
    seed: int,
    queue: QueueSettings | None = None,
) -> EngineResult:
    """Like `engine.simulate`, in plain NumPy; arguments and results are the same.

    Raises:
        UnknownSchedulerError: no scheduler of that name.
    """
    return _PlainRun(cluster, jobs, scheduler, n_steps, step_s, seed, queue).run()


@dataclass
class _Node:
    jobs: list[int] = field(default_factory=list)
    asleep: bool = False
    empty_steps: int = 0


class _PlainRun:
    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        scheduler: str,
        n_steps: int,
        step_s: float,
        seed: int,
        queue: QueueSettings | None,
    ) -> None:
        spec = engine_rules(scheduler)
        self.jobs, self.n_steps, self.step_s, self.queue = jobs, n_steps, step_s, queue
        self.scheduler = scheduler
        self.rng = np.random.default_rng(seed + 2)
        for name in ("cores", "gpus", "cpu_max_w", "gpu_max_w", "gpu_idle_w", "peak_w"):
            setattr(self, name, cluster.per_node(name))
        self.cores: FloatArray
        self.gpus: FloatArray
        self.cpu_max_w: FloatArray
        self.gpu_max_w: FloatArray
        self.gpu_idle_w: FloatArray
        self.peak_w: FloatArray
        self.free_cores, self.free_gpus = self.cores.copy(), self.gpus.copy()
        n = cluster.n_nodes
        self.nodes = [_Node(asleep=queue is not None) for _ in range(n)]
        self.power_w = np.array([self._power_w(node) for node in range(n)])
        self.rings: deque[FloatArray] = deque(maxlen=RING)
        self.totals_w: deque[float] = deque(maxlen=RING)
        self.first_step = whole_steps(jobs.arrival_s, step_s)
        self.length = whole_steps(jobs.duration_s, step_s)
        self.start_step = np.full(len(jobs), -1, np.int32)
        self.wakes = 0
        self.plan: EnergyState | None = None
        if spec.family == BY_ENERGY:
            self.plan = EnergyState(spec, cluster, jobs, self.length, step_s, queue)

    def run(self) -> EngineResult:
        n = self.n_steps
        series = RunSeries(
            np.arange(n, dtype=np.float64) * self.step_s, np.zeros(n), *(np.zeros(n, np.int64) for _ in range(5))
        )
        waiting: list[int] = []
        arrived = 0
        for step in range(n):
            self._end_jobs(step)
            fleet = self._observe()
            if self.plan is not None:
                self.plan.observe([node.jobs for node in self.nodes], self.start_step, self.power_w, step)
            last = int(np.searchsorted(self.first_step, step, side="right"))
            series.arrived[step] = last - arrived
            waiting += range(arrived, last)
            arrived = last
            left = sorted(job for job in self._ordered(waiting, step) if not self._try_place(fleet, job, step))
            if self.queue is None:
                series.dropped[step] = len(left)
                left = []
            waiting = left
            series.it_w[step] = self.power_w.sum()
            series.running[step] = sum(len(node.jobs) for node in self.nodes)
            series.waiting[step] = len(waiting)
            series.awake_nodes[step] = sum(not node.asleep for node in self.nodes)
            if self.plan is not None:
                self.plan.add_waiting_time(float(series.it_w[step]), len(waiting))
        return summarise(
            self.jobs,
            series,
            self.start_step,
            self.first_step,
            self.length,
            self.step_s,
            self.wakes if self.queue is not None else None,
        )

    def _ordered(self, waiting: list[int], step: int) -> list[int]:
        """The waiting jobs in the order in which to try them."""
        plan = self.plan
        if plan is None or not plan.energy_rules.governed:
            return waiting
        return sorted(waiting, key=lambda job: (plan.is_deferrable(job, step - int(self.first_step[job])), job))

    def _end_jobs(self, step: int) -> None:
        for index, node in enumerate(self.nodes):
            left = [job for job in node.jobs if self.start_step[job] + self.length[job] > step]
            if len(left) < len(node.jobs):
                if self.plan is not None:
                    for job in node.jobs:
                        if job not in left:
                            self.plan.record_end(job)
                node.jobs = left
                self.free_cores[index] = self.cores[index] - sum(int(self.jobs.cores[job]) for job in left)
                self.free_gpus[index] = self.gpus[index] - sum(int(self.jobs.gpus[job]) for job in left)
            if not node.jobs and not node.asleep:
                node.empty_steps += 1
            if self.queue is not None and not node.jobs and not node.asleep:
                node.asleep = node.empty_steps > np.ceil(self.queue.sleep_after_min * 60.0 / self.step_s)
            self.power_w[index] = self._power_w(index)

    def _power_w(self, index: int) -> float:
        node = self.nodes[index]
        cpu_max_w = float(self.cpu_max_w[index])
        if node.asleep and self.queue is not None:
            return cpu_max_w * self.queue.sleep_fraction
        cpu_w = gpu_w = 0.0
        for job in node.jobs:
            cores, util = int(self.jobs.cores[job]), float(self.jobs.cpu_util[job])
            if self.queue is not None:
                cpu_w += self.queue.w_per_core * cores * util
            else:
                cpu_w += cpu_max_w * CPU_LOAD * (cores / float(self.cores[index])) * util
            gpus = int(self.jobs.gpus[job])
            if gpus > 0:
                coefficient = float(gpu_coefficient(self.jobs.performance[job]))
                gpu_w += gpus * float(self.gpu_max_w[index]) * coefficient * float(self.jobs.gpu_util[job])
        if self.queue is not None:
            power_w = cpu_w + self.queue.awake_fraction * cpu_max_w
        else:
            power_w = cpu_w + (PUBLISHED_BUSY_FRACTION if node.jobs else PUBLISHED_EMPTY_FRACTION) * cpu_max_w
        if self.gpus[index] > 0.0:
            power_w += gpu_w + float(self.gpu_idle_w[index]) * float(self.free_gpus[index])
        return power_w

    def _observe(self) -> Fleet:
        """Sample the power of this step and return a snapshot of the nodes; its trends are valid for the whole step."""
        self.rings.append(self.power_w.copy())
        self.totals_w.append(float(self.power_w.sum()))
        minutes = self.step_s / 60.0
        return Fleet(
            cores=self.cores,
            gpus=self.gpus,
            free_cores=self.free_cores,
            free_gpus=self.free_gpus,
            cpu_max_w=self.cpu_max_w,
            gpu_max_w=self.gpu_max_w,
            measured_w=self.power_w,
            capped_w=self.peak_w,
            tdp_w=self.peak_w,
            trend_w_per_min=_slope(np.array(self.rings)) / minutes,
            cluster_trend_w_per_min=float(_slope(np.array(self.totals_w)) / minutes),
        )

    def _try_place(self, fleet: Fleet, job: int, step: int) -> bool:
        """Place a job if it fits and is not held; allocation and power of its node are updated at once."""
        demand = Demand(int(self.jobs.cores[job]), int(self.jobs.gpus[job]), bool(self.jobs.performance[job]))
        placement = self._decide(fleet, demand, job)
        if placement.node is None:
            return False
        node = self.nodes[placement.node]
        plan, waited_steps = self.plan, step - int(self.first_step[job])
        if plan is not None and plan.energy_rules.governed:
            n_arrived = int(np.searchsorted(self.first_step, step, side="right"))
            if plan.governor_holds(self._view(), job, placement.node, waited_steps, n_arrived):
                return False
        start = step
        if node.asleep and self.queue is not None:
            node.asleep = False
            start += int(np.ceil(self.queue.wake_min * 60.0 / self.step_s))
            self.wakes += 1
        if plan is not None:
            plan.record_start(job, placement.node, not node.jobs, start - step)
        node.empty_steps = 0
        node.jobs.append(job)
        self.start_step[job] = start
        self.free_cores[placement.node] -= demand.cores
        self.free_gpus[placement.node] -= demand.gpus
        self.power_w[placement.node] = self._power_w(placement.node)
        self.rings[-1][placement.node] = self.power_w[placement.node]
        return True

    def _decide(self, fleet: Fleet, demand: Demand, job: int) -> Placement:
        if self.plan is not None:
            return self.plan.place(fleet, self._view(), job)
        if self.scheduler == "random":
            return place_at_random(fleet, demand, self.rng)
        return place(fleet, demand, SCORERS[self.scheduler])

    def _view(self) -> NodeView:
        empty = np.array([not node.jobs for node in self.nodes])
        at_rest = empty if self.queue is None else np.array([node.asleep for node in self.nodes])
        # Counted from the step that found the node empty, which is the first of `empty_steps`.
        minutes = np.array([max(0, node.empty_steps - 1) for node in self.nodes]) * (self.step_s / 60.0)
        return NodeView(at_rest, empty, minutes)


def _slope(samples: npt.NDArray[np.float64]) -> FloatArray:
    """Least-squares slope per step along the first axis; 0 for fewer than two samples and for equal ones."""
    count = len(samples)
    if count < 2:
        return np.zeros(samples.shape[1:])
    mean = samples.sum(axis=0) / count
    numerator = np.zeros(samples.shape[1:])
    denominator = 0.0
    for step, sample in enumerate(samples):
        offset = step - (count - 1) / 2.0
        numerator += offset * (sample - mean)
        denominator += offset**2
    return np.where(np.all(samples == samples[0], axis=0), 0.0, numerator / denominator)
