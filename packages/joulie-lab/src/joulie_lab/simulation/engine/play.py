"""Runs the engine: builds the state, drives the compiled loop, and sums up the work done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.marginal import GPU_COEFFICIENT_PERFORMANCE, GPU_COEFFICIENT_STANDARD
from joulie.domain.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, BoolArray, FloatArray, joules_to_kwh
from joulie_lab.simulation.cluster import Cluster
from joulie_lab.simulation.compiled import compiled
from joulie_lab.simulation.engine.kernel import advance, prepare
from joulie_lab.simulation.engine.layout import QueueSettings, Steps, lay_out
from joulie_lab.simulation.engine.state import WAKES
from joulie_lab.simulation.results import RunSeries
from joulie_lab.simulation.workload import JobTable

Counts = npt.NDArray[np.int16]

USEFUL_W_PER_CORE = 490.0 / 96.0
USEFUL_W_PER_GPU = 700.0
"""Weights of useful work: power of a core and of a GPU of the published cluster at full utilisation, W."""


@dataclass(frozen=True)
class EngineResult:
    """Result of an engine run.

    Attributes:
        series: time series, one row per step.
        core_hours: cores x duration of the jobs that started.
        gpu_hours: GPUs x duration of the jobs that started.
        useful_work_kwh: utilisation-weighted work over the minutes that the jobs ran within the run
            (`USEFUL_W_PER_CORE`, `USEFUL_W_PER_GPU`).
        wait_min: time from arrival (rounded up to a step) to start of every started job, min; None in mode drop.
        wakes: number of times that a sleeping node was woken; None in mode drop.
        unfinished: number of jobs that arrived and had not ended by the last step; None in mode drop.
    """

    series: RunSeries
    core_hours: float
    gpu_hours: float
    useful_work_kwh: float
    wait_min: FloatArray | None
    wakes: int | None
    unfinished: int | None


def simulate(
    cluster: Cluster,
    jobs: JobTable,
    scheduler: str,
    *,
    n_steps: int,
    step_s: float = 60.0,
    seed: int,
    queue: QueueSettings | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> EngineResult:
    """Simulate `jobs` on `cluster` under a scheduler.

    Args:
        cluster: the nodes.
        jobs: jobs sorted by arrival.
        scheduler: one of `SCHEDULERS`.
        n_steps: number of steps to simulate.
        step_s: length of a step, s. Trends are per step, as published (a step of 60 s makes them W/min).
        seed: seed of the scheduler's own draws (random).
        queue: None drops jobs that do not fit, as published; otherwise jobs wait and nodes sleep.
        on_progress: called with (steps done, total steps) about a hundred times per run.

    Raises:
        UnknownSchedulerError: no scheduler of that name.
    """
    session = Session(cluster, jobs, scheduler, n_steps=n_steps, step_s=step_s, seed=seed, queue=queue)
    session.run(on_progress)
    return session.result()


class Session:
    """One run of the engine; `advance` simulates some of its steps."""

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
        self._state = lay_out(cluster, jobs, scheduler, n_steps, step_s, seed, queue)
        prepare(self._state)

    def advance(self, first: int, last: int) -> None:
        """Simulate the steps ``first <= step < last``; earlier steps must have been simulated before."""
        advance(self._state, first, last)

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Simulate all steps of a new session; calls `on_progress` about a hundred times (steps done, total steps)."""
        n_steps = self._n_steps
        chunk = n_steps if on_progress is None else max(1, n_steps // 100)
        for first in range(0, n_steps, chunk):
            last = min(n_steps, first + chunk)
            self.advance(first, last)
            if on_progress is not None:
                on_progress(last, n_steps)

    @property
    def it_w(self) -> FloatArray:
        """IT power by step, W; zero for steps that are not simulated yet."""
        return self._state.record.it_w

    def result(self) -> EngineResult:
        """The result of the finished run."""
        record, jobs = self._state.record, self._state.jobs
        series = RunSeries(
            time_s=np.arange(self._n_steps, dtype=np.float64) * self._step_s,
            it_w=record.it_w,
            arrived=record.arrived,
            dropped=record.dropped,
            running=record.running,
            waiting=record.waiting,
            awake_nodes=record.awake_nodes,
        )
        wakes = int(self._state.scratch.counters[WAKES]) if self._state.rules.queueing else None
        return summarise(self._jobs, series, record.start_step, jobs.first_step, jobs.length_steps, self._step_s, wakes)


def summarise(
    jobs: JobTable,
    series: RunSeries,
    start_step: Steps,
    arrival_step: Steps,
    length: Steps,
    step_s: float,
    wakes: int | None,
) -> EngineResult:
    """Sum up a run from the start step of each job, which is -1 for jobs that never started."""
    n_steps = len(series.it_w)
    totals = np.zeros(4)
    _count_work(
        start_step,
        length,
        n_steps,
        (jobs.duration_s, jobs.cores, jobs.gpus, jobs.performance, jobs.cpu_util, jobs.gpu_util),
        totals,
    )
    core_s, gpu_s, useful_w_steps, ended = totals.tolist()
    wait_min = None
    if wakes is not None:
        started = start_step >= 0
        wait_steps = (start_step[started] - arrival_step[started]).astype(np.float64)
        wait_min = wait_steps * (step_s / SECONDS_PER_MINUTE)
    return EngineResult(
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
    """Sum up core-seconds, GPU-seconds, useful watts x steps within the run, and the number of ended jobs."""
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
