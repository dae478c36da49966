"""Runs a scenario with a scheduler and a seed: make the jobs, simulate, compute the cooling, write the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, BoolArray, FloatArray, IntArray, joules_to_kwh
from joulie_lab.simulation import cooling as plants
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.cooling_plant import CoolingPlant
from joulie_lab.simulation.engine import EngineResult, QueueSettings, Session, simulate
from joulie_lab.simulation.jobs import JobColumns, JobTableError, JobTableSpec
from joulie_lab.simulation.results import CoolingSeries, Run, RunRecord
from joulie_lab.simulation.scenario import Cooling, Scenario, Workload
from joulie_lab.simulation.workload import JobTable, published_jobs, thinned

Clock = Callable[[], float]
"""Monotonic clock, s (``time.perf_counter``)."""
JobReader = Callable[[JobTableSpec], JobColumns]
"""Reads a job table from a file; raises `JobTableError`."""
PlantFactory = Callable[[Cooling, float], CoolingPlant | None]
"""Creates the cooling plant of one run, or None without cooling; raises `CoolingPlantError`."""
AnyInts = npt.NDArray[np.integer[Any]]
OnProgress = Callable[[int, int], None]
"""Called with (steps done, total steps)."""

PROGRESS_STEPS = 100
_SETTLING_H = 2.0
_QUEUE_WINDOW_END_H = 24.0
_CLASSES_MAX = np.iinfo(np.int8).max


@dataclass(frozen=True)
class Jobs:
    """The jobs of a seed.

    Attributes:
        table: jobs that arrive within the scenario's hours.
        late: number of jobs in the file that arrive after the scenario's hours and are not part of the run.
        seconds: wall time to generate or read the jobs, s.
    """

    table: JobTable
    late: int
    seconds: float


def built_in_plant(cooling: Cooling, peak_w: float) -> CoolingPlant | None:
    """The built-in plant of a scenario: the linear proxy, the DX plant, or None without cooling.

    Args:
        cooling: cooling section of the scenario.
        peak_w: power of all nodes at full load, W.

    Raises:
        ValueError: the plant is an FMU, which needs an adapter.
    """
    if cooling.fmu is not None:
        raise ValueError("an FMU is run by its adapter; pass open_plant to the Runner")
    if cooling.dx is not None:
        return plants.DxPlant(cooling.dx)
    if cooling.linear is not None:
        return plants.LinearPlant(cooling.linear.rated_it_w or peak_w)
    return None


class Runner:
    """Makes the runs of one scenario; the schedulers of a seed share its jobs."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        clock: Clock,
        read_jobs: JobReader | None = None,
        open_plant: PlantFactory = built_in_plant,
    ) -> None:
        """Create a runner.

        Args:
            scenario: the scenario to run.
            clock: clock for `RunRecord.seconds`.
            read_jobs: reader for CSV and Parquet workloads; only needed for those.
            open_plant: creates the cooling plant of each run.
        """
        self.scenario = scenario
        self._clock = clock
        self._read_jobs = read_jobs
        self._open_plant = open_plant
        self._jobs: tuple[int, Jobs] | None = None

    def jobs(self, seed: int) -> Jobs:
        """The jobs of `seed`; the jobs of the last seed are cached.

        Raises:
            JobTableError: the scenario's job table cannot be used.
        """
        if self._jobs is None or self._jobs[0] != seed:
            warm_up()
            self._jobs = None  # two seeds' jobs at once would double the memory
            self._jobs = (seed, self._make_jobs(seed))
        return self._jobs[1]

    def run(self, scheduler: str, seed: int, on_progress: OnProgress | None = None) -> Run:
        """Make one run.

        Args:
            scheduler: one of `joulie_lab.simulation.engine.SCHEDULERS`.
            seed: seed of the jobs and of the scheduler's draws; the weather uses ``seed + 1``, as published.
            on_progress: called with the number of steps done.

        Raises:
            UnknownSchedulerError: no such scheduler.
            JobTableError: the scenario's job table cannot be used.
            CoolingPlantError: the plant cannot be used or failed during the run.
        """
        scenario = self.scenario
        # Opened first, so that an unusable plant is reported before the long simulation.
        plant = self._open_plant(scenario.cooling, scenario.cluster.peak_w)
        jobs = self.jobs(seed)
        start = self._clock()
        session = Session(
            scenario.cluster,
            jobs.table,
            scheduler,
            n_steps=scenario.n_steps,
            step_s=scenario.step_s,
            seed=seed,
            queue=scenario.queue if scenario.mode == "queue" else None,
        )
        if plant is None:
            session.run(on_progress)
            cooled = None
        else:
            outdoor_k = scenario.climate.outdoor_k(scenario.n_steps, scenario.step_s, np.random.default_rng(seed + 1))
            if scenario.cooling.coupling == "in-loop":
                cooled = _cool_in_loop(session, plant, outdoor_k, scenario.step_s, on_progress)
            else:
                session.run(on_progress)
                cooled = plants.run_plant(plant, session.it_w, outdoor_k, scenario.step_s)
        played = session.result()
        seconds = jobs.seconds + self._clock() - start
        record = _record(
            scenario, scheduler, seed, n_jobs=len(jobs.table), played=played, cooled=cooled, seconds=seconds
        )
        return Run(record, played.series, cooled, played.wait_min)

    def _make_jobs(self, seed: int) -> Jobs:
        start = self._clock()
        workload, hours = self.scenario.workload, self.scenario.hours
        late = 0
        if workload.published is not None:
            table = published_jobs(seed, hours, workload.published.rate)
            if workload.published.keep:
                table = thinned(table, dict(workload.published.keep.items()))
            if self.scenario.mode == "queue":
                _refuse_unplaceable_draws(table, self.scenario.cluster)
        else:
            if self._read_jobs is None:
                raise JobTableError("a workload from a file needs a reader; pass read_jobs to the Runner")
            columns = self._read_jobs(workload.table())
            if self.scenario.mode == "queue":
                _refuse_unplaceable(columns, self.scenario.cluster, workload.split_at_cores)
            within = columns.arrival_s < hours * SECONDS_PER_HOUR
            late = int(np.count_nonzero(~within))
            table = _job_table(columns, within, workload)
        return Jobs(table, late, self._clock() - start)


@cache
def warm_up() -> None:
    """Compile the engine by a run of a few jobs, so that compilation is not part of any timed run."""
    cluster = Cluster((NodePool("warm-up", 1, 128, 500.0, 8, 700.0, 100.0),))
    jobs = published_jobs(0, 0.01)
    for queue in (None, QueueSettings()):
        simulate(cluster, jobs, "joulie", n_steps=2, seed=0, queue=queue)


def _cool_in_loop(
    session: Session, plant: CoolingPlant, outdoor_k: FloatArray, step_s: float, on_progress: OnProgress | None
) -> CoolingSeries:
    """Advance the session and the plant alternately, one step at a time."""
    n_steps = len(outdoor_k)

    def it_w() -> Iterator[float]:
        for step in range(n_steps):
            session.advance(step, step + 1)
            if on_progress is not None and (step + 1) % PROGRESS_STEPS == 0:
                on_progress(step + 1, n_steps)
            yield float(session.it_w[step])

    return plants.co_simulate(plant, it_w(), outdoor_k, step_s)


def _job_table(columns: JobColumns, within: BoolArray, workload: Workload) -> JobTable:
    """The jobs of a file in order of arrival, with jobs above `split_at_cores` split."""
    if len(columns.class_names) > _CLASSES_MAX:
        raise JobTableError(
            f"{workload.table().path}: {len(columns.class_names)} classes, at most {_CLASSES_MAX} are"
            " supported; name a coarser column under workload.columns.class, or none"
        )
    unknown = [name for name in workload.performance_classes if name not in columns.class_names]
    if unknown:
        raise JobTableError(
            f"workload.performance_classes: no job is of class {unknown[0]!r}; classes are"
            f" {', '.join(columns.class_names)}"
        )
    rows = np.flatnonzero(within)
    rows = rows[np.argsort(columns.arrival_s[rows], kind="stable")]
    cores, gpus = columns.cores[rows], columns.gpus[rows]
    if workload.split_at_cores is not None:
        parts = -(-cores // workload.split_at_cores)
        cores, gpus = _split_evenly(cores, parts), _split_evenly(gpus, parts)
        rows = np.repeat(rows, parts)
    performs = np.array([name in workload.performance_classes for name in columns.class_names])
    return JobTable(
        arrival_s=columns.arrival_s[rows],
        duration_s=columns.duration_s[rows],
        cores=cores.astype(np.int16),
        gpus=gpus.astype(np.int16),
        performance=performs[columns.job_class[rows]],
        cpu_util=columns.cpu_util[rows],
        gpu_util=columns.gpu_util[rows],
        job_class=columns.job_class[rows].astype(np.int8),
        class_names=columns.class_names,
    )


def _split_evenly(amount: IntArray, parts: IntArray) -> IntArray:
    """Split each amount into the given number of integer parts that differ by at most one, shape ``(parts.sum(),)``."""
    each, larger = np.repeat(amount // parts, parts), np.repeat(amount % parts, parts)
    index = np.arange(len(each)) - np.repeat(np.cumsum(parts) - parts, parts)
    return each + (index < larger)


def _refuse_unplaceable(columns: JobColumns, cluster: Cluster, split_at_cores: int | None) -> None:
    """Reject a job table with jobs that fit no empty node: in mode queue they would wait for ever."""
    parts = np.ones(len(columns), dtype=np.int64) if split_at_cores is None else -(-columns.cores // split_at_cores)
    fits = _fits_a_node(-(-columns.cores // parts), -(-columns.gpus // parts), cluster)
    if not np.all(fits):
        job = int(np.flatnonzero(~fits)[0])
        gpu_part = f" and {columns.gpus[job]} GPUs" if columns.gpus[job] else ""
        raise JobTableError(
            f"{columns.place}{columns.line[job]}: a job of {columns.cores[job]} cores{gpu_part} fits no node and would"
            f" wait for ever ({np.count_nonzero(~fits)} such jobs); add larger nodes, or set workload.split_at_cores"
        )


def _refuse_unplaceable_draws(table: JobTable, cluster: Cluster) -> None:
    """Reject generated jobs that fit no empty node."""
    fits = _fits_a_node(table.cores, table.gpus, cluster)
    if not np.all(fits):
        job = int(np.flatnonzero(~fits)[0])
        raise JobTableError(
            f"cluster: {np.count_nonzero(~fits)} of the {len(table)} jobs fit no node and would wait for ever, such as"
            f" one of {table.cores[job]} cores and {table.gpus[job]} GPUs; add larger nodes, or drop the class"
            f" {table.class_names[table.job_class[job]]} with workload.published.keep"
        )


def _fits_a_node(cores: AnyInts, gpus: AnyInts, cluster: Cluster) -> BoolArray:
    """Whether each request fits an empty node of any pool, shape of `cores`."""
    fits = np.zeros(len(cores), dtype=np.bool_)
    for pool in cluster.pools:
        fits |= (cores <= pool.cores) & (gpus <= pool.gpus)
    return fits


def _record(
    scenario: Scenario,
    scheduler: str,
    seed: int,
    *,
    n_jobs: int,
    played: EngineResult,
    cooled: CoolingSeries | None,
    seconds: float,
) -> RunRecord:
    series, step_s = played.series, scenario.step_s
    power_kw = series.it_w / WATTS_PER_KW
    settled = round(_SETTLING_H * SECONDS_PER_HOUR / step_s)
    queueing = scenario.mode == "queue"
    window_end = round(_QUEUE_WINDOW_END_H * SECONDS_PER_HOUR / step_s)
    window_kw = power_kw[settled:window_end] if queueing else power_kw
    settled_kw = power_kw[settled : scenario.n_arrival_steps]
    dropped = int(series.dropped.sum())
    it_kwh = joules_to_kwh(float(series.it_w.sum()) * step_s)
    waits = played.wait_min if played.wait_min is not None and len(played.wait_min) else None
    cooling_kwh = None if cooled is None else plants.cooling_energy_kwh(cooled, step_s)
    return RunRecord(
        scenario=scenario.name,
        scheduler=scheduler,
        seed=seed,
        hours=scenario.hours,
        jobs=n_jobs,
        arrived=int(series.arrived.sum()),
        dropped=dropped,
        mean_kw=float(power_kw.mean()),
        peak_kw=float(power_kw.max()),
        std_kw=float(np.std(window_kw, ddof=1)),
        std_after_2h_kw=float(np.std(settled_kw, ddof=1)) if len(settled_kw) > 1 else None,
        p99_ramp_kw=float(np.percentile(np.abs(np.diff(window_kw)), 99)),
        it_kwh=it_kwh,
        cooling_kwh=cooling_kwh,
        facility_kwh=None if cooling_kwh is None else it_kwh + cooling_kwh,
        mean_pue=None if cooled is None else plants.mean_pue(series.it_w, cooled.cooling_w),
        mean_cop=None if cooled is None else plants.mean_cop(cooled),
        core_hours=played.core_hours,
        gpu_hours=played.gpu_hours,
        kwh_per_job=it_kwh / (n_jobs - dropped) if n_jobs > dropped else None,
        useful_work_kwh=played.useful_work_kwh,
        mean_wait_min=None if waits is None else float(waits.mean()),
        p99_wait_min=None if waits is None else float(np.percentile(waits, 99)),
        wakes=played.wakes,
        unfinished=played.unfinished,
        seconds=seconds,
    )
