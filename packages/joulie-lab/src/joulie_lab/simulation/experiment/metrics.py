"""Metrics of a run of an experiment: energy, work, slowdown, waits and power."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.policy import WorkloadClass
from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, FloatArray, IntArray, joules_to_kwh
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome, Outcome, OutcomeSeries

REFERENCE_CORE_W = 490.0 / 96.0
"""Weight of CPU work, W per core: the power of the published cluster (docs, honest metrics)."""
REFERENCE_GPU_W = 700.0
"""Weight of GPU work, W per GPU."""
_RAMP_S = 60.0
_HIDDEN_SHARE = 0.01
_BOUND_S = 10.0
"""Minimum duration in bounded slowdown (Feitelson 2001): without it, very short jobs would dominate."""


@dataclass(frozen=True)
class RunMetrics:
    """Metrics of one run; None if a metric is not defined for it.

    Slowdown is a job's time from first run to end, divided by that of the same job alone and uncapped; only completed
    jobs have one. A job that never got a node counts with the time for which it has waited: if there are such jobs, the
    true waits are longer than those reported.

    Attributes:
        duration_h: length of the run, h.
        it_kwh: energy of all nodes, kWh.
        cooling_kwh: energy of the cooling plant, kWh.
        facility_kwh: sum of both, kWh.
        cpu_core_h: CPU work done, core-h at the highest clock.
        gpu_h: GPU work done, GPU-h without a cap.
        work_kwh: CPU and GPU work, weighted with the energy that they took in the published cluster, kWh.
        it_kwh_per_work: IT energy per `work_kwh`.
        facility_kwh_per_work: IT and cooling energy per `work_kwh`.
        mean_kw: mean IT power, kW.
        peak_kw: maximum sampled IT power, kW.
        p99_ramp_kw: 99th percentile of the change of IT power from one minute to the next, kW; None if samples are
            further apart than a minute.
        slowdown_mean: mean slowdown of all jobs.
        slowdown_p95: 95th percentile of the slowdown of all jobs.
        slowdown_mean_performance: mean slowdown of performance jobs.
        slowdown_p95_performance: 95th percentile of the slowdown of performance jobs.
        slowdown_mean_standard: mean slowdown of standard jobs.
        slowdown_p95_standard: 95th percentile of the slowdown of standard jobs.
        slowdown_n_performance: number of performance jobs with a slowdown.
        slowdown_n_standard: number of standard jobs with a slowdown.
        bounded_slowdown_mean: mean bounded slowdown, from submission to end.
        bounded_slowdown_p95: 95th percentile of the bounded slowdown.
        wait_n: number of jobs with a wait; `waiting` of them were still waiting.
        wait_mean_s: mean time from submission to first run, s.
        wait_p95_s: 95th percentile of it, s.
        wait_mean_performance_s: mean wait of performance jobs, s.
        wait_p95_performance_s: 95th percentile of the wait of performance jobs, s.
        makespan_h: end of the last job, h; None if some jobs have not ended.
        eco_node_h: time of nodes under eco caps, node-h.
        capped_node_h: time of nodes slowed by their cap, node-h.
        throttled_node_h: time of thermally throttled nodes, node-h.
        drains: number of drains from performance to eco.
        drain_mean_s: mean length of the drains that ended, s.
        drain_p95_s: 95th percentile of it, s.
        performance_pods_on_eco: maximum number at any sample; must be zero.
        jobs: number of jobs of the trace.
        completed: number of jobs whose work was done.
        running: number of jobs that were running at the end.
        waiting: number of jobs that never got a node.
        unschedulable: number of jobs that no node could hold.
        refused: number of jobs whose pod the API server would reject.
        carbon_kg: emissions, kgCO2eq; None without a carbon intensity.
        cost: cost in the scenario's currency; None without a price.
        busy_gpu_kwh: energy of GPUs while pods held them, kWh; None where it was not measured.
        busy_gpu_h: time for which pods held GPUs, GPU-h; None where it was not measured.
    """

    duration_h: float
    it_kwh: float
    cooling_kwh: float | None
    facility_kwh: float | None
    cpu_core_h: float
    gpu_h: float
    work_kwh: float
    it_kwh_per_work: float | None
    facility_kwh_per_work: float | None
    mean_kw: float
    peak_kw: float
    p99_ramp_kw: float | None
    slowdown_mean: float | None
    slowdown_p95: float | None
    slowdown_mean_performance: float | None
    slowdown_p95_performance: float | None
    slowdown_mean_standard: float | None
    slowdown_p95_standard: float | None
    slowdown_n_performance: int
    slowdown_n_standard: int
    bounded_slowdown_mean: float | None
    bounded_slowdown_p95: float | None
    wait_n: int
    wait_mean_s: float | None
    wait_p95_s: float | None
    wait_mean_performance_s: float | None
    wait_p95_performance_s: float | None
    makespan_h: float | None
    eco_node_h: float
    capped_node_h: float
    throttled_node_h: float
    drains: int
    drain_mean_s: float | None
    drain_p95_s: float | None
    performance_pods_on_eco: int
    jobs: int
    completed: int
    running: int
    waiting: int
    unschedulable: int
    refused: int
    carbon_kg: float | None
    cost: float | None
    busy_gpu_kwh: float | None = None
    busy_gpu_h: float | None = None

    @property
    def unfinished(self) -> int:
        """Number of schedulable jobs whose work was not done."""
        return self.running + self.waiting


def metrics(outcome: Outcome) -> RunMetrics:
    """Compute the metrics of a run."""
    it_kwh = joules_to_kwh(outcome.it_j)
    cooling_kwh = None if outcome.cooling_j is None else joules_to_kwh(outcome.cooling_j)
    facility_kwh = None if cooling_kwh is None else it_kwh + cooling_kwh
    work_kwh = joules_to_kwh(reference_work_j(outcome.jobs))
    series, jobs = outcome.series, outcome.jobs
    performance = [job for job in jobs if job.workload_class == WorkloadClass.PERFORMANCE]
    standard = [job for job in jobs if job.workload_class != WorkloadClass.PERFORMANCE]
    waited_s = _waits_so_far_s(jobs, outcome.duration_s)
    performance_waited_s = _waits_so_far_s(performance, outcome.duration_s)
    drains_s = [drain.end_s - drain.start_s for drain in outcome.drains if drain.end_s is not None]
    return RunMetrics(
        duration_h=outcome.duration_s / SECONDS_PER_HOUR,
        it_kwh=it_kwh,
        cooling_kwh=cooling_kwh,
        facility_kwh=facility_kwh,
        cpu_core_h=sum(job.cpu_units_done for job in jobs) / SECONDS_PER_HOUR,
        gpu_h=sum(job.gpu_units_done for job in jobs) / SECONDS_PER_HOUR,
        work_kwh=work_kwh,
        it_kwh_per_work=_per(it_kwh, work_kwh),
        facility_kwh_per_work=_per(facility_kwh, work_kwh),
        mean_kw=outcome.it_j / outcome.duration_s / WATTS_PER_KW,
        peak_kw=float(series.it_w.max()) / WATTS_PER_KW,
        p99_ramp_kw=_p99_ramp_kw(series),
        slowdown_mean=_mean(slowdowns(jobs)),
        slowdown_p95=_p95(slowdowns(jobs)),
        slowdown_mean_performance=_mean(slowdowns(performance)),
        slowdown_p95_performance=_p95(slowdowns(performance)),
        slowdown_mean_standard=_mean(slowdowns(standard)),
        slowdown_p95_standard=_p95(slowdowns(standard)),
        slowdown_n_performance=len(slowdowns(performance)),
        slowdown_n_standard=len(slowdowns(standard)),
        bounded_slowdown_mean=_mean(_bounded_slowdowns(jobs)),
        bounded_slowdown_p95=_p95(_bounded_slowdowns(jobs)),
        wait_n=len(waited_s),
        wait_mean_s=_mean(waited_s),
        wait_p95_s=_p95(waited_s),
        wait_mean_performance_s=_mean(performance_waited_s),
        wait_p95_performance_s=_p95(performance_waited_s),
        makespan_h=_makespan_h(jobs),
        eco_node_h=_hours(series, series.eco_nodes),
        capped_node_h=_hours(series, series.capped_nodes),
        throttled_node_h=_hours(series, series.throttled_nodes),
        drains=len(outcome.drains),
        drain_mean_s=_mean(drains_s),
        drain_p95_s=_p95(drains_s),
        performance_pods_on_eco=int(series.performance_pods_on_eco.max()),
        jobs=len(jobs),
        **{end.value: sum(job.end is end for job in jobs) for end in JobEnd},
        carbon_kg=None if outcome.carbon_g is None else outcome.carbon_g / 1000.0,
        cost=outcome.cost,
        busy_gpu_kwh=None if outcome.busy_gpu_j is None else joules_to_kwh(outcome.busy_gpu_j),
        busy_gpu_h=None if outcome.busy_gpu_s is None else outcome.busy_gpu_s / SECONDS_PER_HOUR,
    )


def reference_work_j(jobs: Iterable[JobOutcome]) -> float:
    """Work done as one number, J: CPU and GPU work weighted with the power of the published cluster."""
    return sum(REFERENCE_CORE_W * job.cpu_units_done + REFERENCE_GPU_W * job.gpu_units_done for job in jobs)


def slowdowns(jobs: Iterable[JobOutcome]) -> list[float]:
    """Slowdown of each completed job: time from first run to end, divided by the ideal one."""
    return [
        (job.end_s - job.start_s) / job.ideal_s
        for job in jobs
        if job.end is JobEnd.COMPLETED and job.start_s is not None and job.end_s is not None and job.ideal_s > 0.0
    ]


def waits_s(jobs: Iterable[JobOutcome]) -> list[float]:
    """Time from submission to first run of each job that ran, s."""
    return [job.start_s - job.submit_s for job in jobs if job.start_s is not None]


def _waits_so_far_s(jobs: Sequence[JobOutcome], now_s: float) -> list[float]:
    """Waits of jobs that ran, and waits so far of those that still wait, so that starving jobs are counted."""
    ran = waits_s(job for job in jobs if job.end is not JobEnd.WAITING)
    return ran + [now_s - job.submit_s for job in jobs if job.end is JobEnd.WAITING]


def _makespan_h(jobs: Iterable[JobOutcome]) -> float | None:
    ends = [job.end_s for job in jobs if job.end not in {JobEnd.UNSCHEDULABLE, JobEnd.REFUSED}]
    last = [end_s for end_s in ends if end_s is not None]
    return max(last) / SECONDS_PER_HOUR if last and len(last) == len(ends) else None


def _bounded_slowdowns(jobs: Iterable[JobOutcome]) -> list[float]:
    return [
        max(1.0, (job.end_s - job.submit_s) / max(job.ideal_s, _BOUND_S))
        for job in jobs
        if job.end is JobEnd.COMPLETED and job.end_s is not None
    ]


def _p99_ramp_kw(series: OutcomeSeries) -> float | None:
    gaps_s = np.diff(series.time_s)
    # Interpolation between distant samples hides ramps; the 99th percentile tolerates 1 % of the time hidden.
    if gaps_s[gaps_s > _RAMP_S * (1.0 + 1e-9)].sum() > _HIDDEN_SHARE * gaps_s.sum():
        return None
    minutes_s = np.arange(series.time_s[0], series.time_s[-1] + _RAMP_S / 2.0, _RAMP_S)
    if len(minutes_s) < 2:
        return None
    it_w = np.interp(minutes_s, series.time_s, series.it_w)
    return float(np.percentile(np.abs(np.diff(it_w)), 99)) / WATTS_PER_KW


def _hours(series: OutcomeSeries, counts: FloatArray | IntArray) -> float:
    return float(np.trapezoid(counts, series.time_s)) / SECONDS_PER_HOUR


def _per(energy_kwh: float | None, work_kwh: float) -> float | None:
    return None if energy_kwh is None or work_kwh == 0.0 else energy_kwh / work_kwh


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _p95(values: Sequence[float]) -> float | None:
    return float(np.percentile(values, 95)) if values else None
