"""`marginal-energy` in plain NumPy: the cost of a job on every node, computed with the domain's functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain import lifetimes
from joulie.domain.marginal import CPU_LOAD, gpu_coefficient
from joulie.domain.scoring import energy
from joulie.domain.units import BoolArray, FloatArray
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.engine.energy import UTIL_PRIOR
from joulie_lab.simulation.engine.layout import (
    QueueSettings,
    Steps,
    base_w,
    energy_rules,
    node_rules,
    surcharge_w_per_core,
)
from joulie_lab.simulation.placement import Demand, Fleet, Placement, fits
from joulie_lab.simulation.schedulers import EngineRules
from joulie_lab.simulation.workload import JobTable


@dataclass
class NodeView:
    """Node states beside `Fleet` that a placement needs; every array has shape ``(n_nodes,)``."""

    at_rest: BoolArray
    empty: BoolArray
    empty_min: FloatArray


class EnergyState:
    """Learned statistics and expected node states of the policy during one run."""

    def __init__(
        self,
        spec: EngineRules,
        cluster: Cluster,
        jobs: JobTable,
        length_steps: Steps,
        step_s: float,
        queue: QueueSettings | None,
    ) -> None:
        self.rules = node_rules(spec, queue, step_s)
        self.energy_rules = energy_rules(spec, cluster, self.rules)
        self.jobs, self.length_steps, self.cluster = jobs, length_steps, cluster
        self.pool = np.repeat(np.arange(len(cluster.pools)), [pool.count for pool in cluster.pools])
        base = base_w(cluster, self.rules)
        self.base_w = base[self.pool]
        gpus = np.array([pool.gpus for pool in cluster.pools], dtype=np.float64)
        policy = energy.EnergyPolicy()
        self.stranded_gpu_w = (policy.stranded_gpu * base / np.maximum(1.0, gpus))[self.pool]
        self.surcharge_w_per_core = policy.gpu_node_surcharge * surcharge_w_per_core(cluster, base)
        self.edges_min = lifetimes.bin_edges_min()
        shape = (len(jobs.class_names), len(self.edges_min) - 1)
        self.ends, self.at_risk_min = np.zeros(shape), np.zeros(shape)
        self.ended, self.cpu_util_sum, self.gpu_util_sum = (np.zeros(shape[0]) for _ in range(3))
        self.busy_min = np.zeros(cluster.n_nodes)
        self.waited_min = self.now_w = 0.0
        self.before_w: float | None = None

    def record_at_risk(self, job: int, age_steps: int) -> None:
        """Record that a job was at risk of ending in the step before it reached `age_steps`."""
        if age_steps >= 1:
            age_min = (age_steps - 1) * self.rules.step_min
            self.at_risk_min[self.jobs.job_class[job], self._bin(age_min)] += self.rules.step_min

    def record_end(self, job: int) -> None:
        """Record the lifetime and the utilisation of a job that has ended."""
        job_class, length = self.jobs.job_class[job], int(self.length_steps[job])
        self.record_at_risk(job, length)
        self.ends[job_class, self._bin((length - 1) * self.rules.step_min)] += 1.0
        self.ended[job_class] += 1.0
        self.cpu_util_sum[job_class] += self.jobs.cpu_util[job]
        self.gpu_util_sum[job_class] += self.jobs.gpu_util[job]

    def observe(self, running: list[list[int]], start_step: Steps, power_w: FloatArray, step: int) -> None:
        """Update life tables and expected busy times; `running` has the jobs of each node."""
        for jobs in running:
            for job in jobs:
                self.record_at_risk(job, step - int(start_step[job]))
        rules = self.energy_rules
        self.hazard = np.asarray(
            lifetimes.hazard_per_min(self.ends, self.at_risk_min, rules.prior_mean_min, rules.prior_weight_min)
        )
        self.remaining_min = np.empty_like(self.hazard)
        self.remaining_min[:, -1] = 1.0 / self.hazard[:, -1]
        for which in range(self.hazard.shape[1] - 2, -1, -1):
            width_min = float(self.edges_min[which + 1] - self.edges_min[which])
            self.remaining_min[:, which] = lifetimes.mean_remaining_min(
                width_min, self.hazard[:, which], self.remaining_min[:, which + 1]
            )
        self.now_w = float(power_w.sum())
        for node, jobs in enumerate(running):
            ages = [(step - int(start_step[job])) * self.rules.step_min for job in jobs]
            left = [self._left_min(job, age_min) for job, age_min in zip(jobs, ages, strict=True)]
            self.busy_min[node] = max(left, default=0.0)

    def place(self, fleet: Fleet, view: NodeView, job: int) -> Placement:
        """Choose the node with the minimum added energy; ties go to the fullest node, then the lowest index."""
        demand = Demand(int(self.jobs.cores[job]), int(self.jobs.gpus[job]), bool(self.jobs.performance[job]))
        candidates = np.flatnonzero(fits(fleet, demand))
        if len(candidates) == 0:
            return Placement(None, (), 0)
        cost = self._cost_w_min(fleet, view, job, demand)
        per_gpu = fleet.cores / np.maximum(1.0, fleet.gpus)
        rank = np.asarray(energy.packing_rank(fleet.free_cores, fleet.free_gpus, per_gpu))
        order = np.lexsort((candidates, rank[candidates], cost[candidates]))
        node = int(candidates[order[0]])
        return Placement(node, (-float(cost[node]), -float(rank[node])), len(candidates))

    def governor_holds(self, view: NodeView, job: int, node: int, waited_steps: int, n_arrived: int) -> bool:
        """Whether the ramp governor delays the job; if not, its power is added to the present power."""
        job_w = self.power_w(job, int(self.pool[node]))
        rise_w = job_w - self.cluster.pools[self.pool[node]].gpu_idle_w * int(self.jobs.gpus[job])
        wakes = bool(view.at_rest[node])
        if wakes:
            rise_w += float(self.base_w[node])
        step_min = self.rules.step_min
        held = energy.may_hold(
            waited_steps * step_min,
            (self.waited_min + step_min) / n_arrived,
            self.now_w,
            rise_w,
            self.now_w if self.before_w is None else self.before_w,
            job_w >= self.energy_rules.heavy_w,
            wakes,
            self.energy_rules.limits,
        )
        if not held:
            self.now_w += rise_w
        return held

    def is_deferrable(self, job: int, waited_steps: int) -> bool:
        """Whether the governor considers the job after the others."""
        if waited_steps * self.rules.step_min >= self.energy_rules.limits[2]:
            return False
        able = [index for index, pool in enumerate(self.cluster.pools) if pool.gpus >= self.jobs.gpus[job]]
        return self.power_w(job, able[0] if able else 0) >= self.energy_rules.heavy_w

    def record_start(self, job: int, node: int, was_empty: bool, delay_steps: int) -> None:
        """Record a placed job; its node is expected to be busy at least for its duration."""
        delay_min = delay_steps * self.rules.step_min
        self.waited_min += delay_min
        busy_min = 0.0 if was_empty else float(self.busy_min[node])
        self.busy_min[node] = max(busy_min, self.duration_min(job) + delay_min)

    def add_waiting_time(self, power_w: float, n_waiting: int) -> None:
        """Add one step of waiting time for each job in the queue, and remember the power of the step."""
        self.before_w = power_w
        self.waited_min += n_waiting * self.rules.step_min

    def duration_min(self, job: int) -> float:
        """Expected duration of a job that has not started."""
        if self.energy_rules.oracle:
            return float(self.length_steps[job] * self.rules.step_min)
        return float(self.remaining_min[self.jobs.job_class[job], 0])

    def power_w(self, job: int, pool_index: int) -> float:
        """Expected power of a job from the mean utilisation of its class so far, W."""
        pool, job_class = self.cluster.pools[pool_index], self.jobs.job_class[job]
        cores, gpus = int(self.jobs.cores[job]), int(self.jobs.gpus[job])
        cpu_util = (self.cpu_util_sum[job_class] + UTIL_PRIOR) / (self.ended[job_class] + 1.0)
        gpu_util = (self.gpu_util_sum[job_class] + UTIL_PRIOR) / (self.ended[job_class] + 1.0)
        if self.rules.w_per_core > 0.0:
            cpu_w = self.rules.w_per_core * cores * cpu_util
        else:
            cpu_w = pool.cpu_max_w * CPU_LOAD * (cores / pool.cores) * cpu_util
        coefficient = float(gpu_coefficient(self.jobs.performance[job]))
        return float(cpu_w + gpus * pool.gpu_max_w * coefficient * gpu_util)

    def _cost_w_min(self, fleet: Fleet, view: NodeView, job: int, demand: Demand) -> FloatArray:
        rules, duration_min = self.energy_rules, self.duration_min(job)
        busy_min = np.where(
            view.at_rest,
            -(rules.wake_min + rules.wake_stay_min),
            np.where(view.empty, -view.empty_min, self.busy_min),
        )
        by_pool_w = np.array([self.power_w(job, index) for index in range(len(self.cluster.pools))])
        return np.asarray(
            energy.marginal_cost_w_min(
                self.base_w,
                busy_min,
                np.where(view.at_rest, by_pool_w[self.pool] * rules.wake_min, 0.0),
                np.where(fleet.gpus > 0.0, 1.0, 0.0),
                fleet.free_cores,
                fleet.free_gpus,
                self.stranded_gpu_w,
                self.surcharge_w_per_core,
                rules.cores_per_gpu,
                duration_min,
                float(demand.cores),
                float(demand.gpus),
            )
        )

    def _bin(self, age_min: float) -> int:
        """Index of the age bin; ages are truncated to whole minutes."""
        return min(int(np.searchsorted(self.edges_min, int(age_min), side="right")) - 1, self.ends.shape[1] - 1)

    def _left_min(self, job: int, age_min: float) -> float:
        if self.energy_rules.oracle:
            return float(self.length_steps[job] * self.rules.step_min - age_min)
        job_class = self.jobs.job_class[job]
        if age_min <= 0.0:
            return float(self.remaining_min[job_class, 0] - age_min)
        which = self._bin(age_min)
        if which == self.ends.shape[1] - 1:
            return float(self.remaining_min[job_class, which])
        return float(
            lifetimes.mean_remaining_min(
                float(self.edges_min[which + 1] - age_min),
                float(self.hazard[job_class, which]),
                float(self.remaining_min[job_class, which + 1]),
            )
        )
