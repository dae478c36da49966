"""Statistics of a trace: arrivals, sizes, durations, mix and offered load, computed without keeping the jobs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.trace import TraceJob

ARRIVAL_BINS = 48


@dataclass(frozen=True)
class Spread:
    """Mean, quantiles and maximum of a distribution, in the unit of its values."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class FamilyDescription:
    """Statistics of the jobs of one family, that is of one workload type.

    Attributes:
        family: name of the family; empty if the trace names none.
        jobs: number of jobs (pods).
        workloads: number of workloads.
        gangs: number of workloads whose pods advance only together.
        performance_jobs: number of jobs of class performance.
        mean_cores: mean number of requested cores of a job.
        mean_gpus: mean number of requested GPUs of a job; a shared GPU counts its share.
        duration_s: durations of jobs that run alone and uncapped, s.
        core_hours: requested cores x duration, core-h.
        gpu_hours: requested GPUs x duration, GPU-h.
    """

    family: str
    jobs: int
    workloads: int
    gangs: int
    performance_jobs: int
    mean_cores: float
    mean_gpus: float
    duration_s: Spread
    core_hours: float
    gpu_hours: float


@dataclass(frozen=True)
class Load:
    """Offered load: cores or GPUs that jobs would hold if each started on submission and ran alone and uncapped.

    Attributes:
        mean: mean over the time from the first submission to the last; None if all jobs are submitted at once.
        peak: maximum at any time.
    """

    mean: float | None
    peak: float


@dataclass(frozen=True)
class TraceDescription:
    """Statistics of a trace.

    Attributes:
        jobs: number of jobs (pods).
        workloads: number of workloads.
        gangs: number of workloads whose pods advance only together.
        largest_gang: number of pods of the largest gang.
        performance_jobs: number of jobs of class performance.
        shared_gpu_jobs: number of jobs that need only a share of their GPU.
        first_submit_s: first submission, s after the start of the trace; None without jobs.
        last_submit_s: last submission, likewise.
        arrivals: number of jobs submitted in each of 48 equal parts of the time between the first and last submission.
        peak_hour_jobs: maximum number of jobs submitted within an hour of the trace.
        gpus_of_jobs: number of jobs by number of GPUs.
        gpu_resources: number of jobs by extended resource of their GPUs.
        duration_s: durations of jobs that run alone and uncapped, s; None without jobs.
        core_hours: requested cores x duration, core-h.
        gpu_hours: requested GPUs x duration, GPU-h; a shared GPU counts its share.
        cores: offered load, cores.
        gpus: offered load, GPUs.
        families: statistics by family, that with the most jobs first.
    """

    jobs: int
    workloads: int
    gangs: int
    largest_gang: int
    performance_jobs: int
    shared_gpu_jobs: int
    first_submit_s: float | None
    last_submit_s: float | None
    arrivals: tuple[int, ...]
    peak_hour_jobs: int
    gpus_of_jobs: dict[int, int]
    gpu_resources: dict[str, int]
    duration_s: Spread | None
    core_hours: float
    gpu_hours: float
    cores: Load
    gpus: Load
    families: tuple[FamilyDescription, ...]


@dataclass(frozen=True)
class TraceColumns:
    """Columns of the jobs of a trace, for plots; arrays of shape ``(n_jobs,)``.

    Attributes:
        submit_s: submission time, s after the start of the trace.
        duration_s: duration alone and uncapped, s.
        cores: requested cores.
        gpus: requested GPUs; a shared GPU counts its share.
        family: index into `families`.
        families: names of the families.
    """

    submit_s: FloatArray
    duration_s: FloatArray
    cores: FloatArray
    gpus: FloatArray
    family: IntArray
    families: tuple[str, ...]


@dataclass
class _Family:
    index: int
    workloads: set[str] = field(default_factory=set)
    gangs: set[str] = field(default_factory=set)
    performance_jobs: int = 0


class TraceCounter:
    """Accumulates the statistics of a trace, in about 40 bytes a job and the names of the workloads."""

    def __init__(self) -> None:
        self._submit_s, self._duration_s, self._cores, self._gpus = (array("d") for _ in range(4))
        self._family = array("q")
        self._families: dict[str, _Family] = {}
        self._gang_sizes: Counter[str] = Counter()
        self._gpus_of_jobs: Counter[int] = Counter()
        self._gpu_resources: Counter[str] = Counter()
        self._shared = 0

    @classmethod
    def from_jobs(cls, jobs: Iterable[TraceJob]) -> TraceCounter:
        """Count all of `jobs`."""
        counter = cls()
        for job in jobs:
            counter.add(job)
        return counter

    def add(self, job: TraceJob) -> None:
        """Count a job."""
        family = self._families.setdefault(job.workload_type, _Family(len(self._families)))
        family.workloads.add(job.workload_id)
        if job.gang:
            family.gangs.add(job.workload_id)
            self._gang_sizes[job.workload_id] += 1
        family.performance_jobs += job.is_performance
        shape = job.shape
        self._gpus_of_jobs[shape.gpus] += 1
        if shape.gpus:
            self._gpu_resources[shape.gpu_resource] += 1
        self._shared += shape.gpu_share < 1.0
        self._submit_s.append(job.submit_s)
        self._duration_s.append(job.ideal_s)
        self._cores.append(shape.cores)
        self._gpus.append(shape.gpus * shape.gpu_share)
        self._family.append(family.index)

    def columns(self) -> TraceColumns:
        """Columns of the counted jobs."""
        return TraceColumns(
            submit_s=np.array(self._submit_s, dtype=np.float64),
            duration_s=np.array(self._duration_s, dtype=np.float64),
            cores=np.array(self._cores, dtype=np.float64),
            gpus=np.array(self._gpus, dtype=np.float64),
            family=np.array(self._family, dtype=np.int64),
            families=tuple(self._families),
        )

    def description(self) -> TraceDescription:
        """Statistics of the counted jobs."""
        columns = self.columns()
        submit_s, duration_s = columns.submit_s, columns.duration_s
        jobs = len(submit_s)
        first_s, last_s = (float(submit_s.min()), float(submit_s.max())) if jobs else (0.0, 0.0)
        arrivals, _ = np.histogram(submit_s, bins=ARRIVAL_BINS, range=(first_s, max(last_s, first_s + 1.0)))
        _, by_hour = np.unique(submit_s // SECONDS_PER_HOUR, return_counts=True)
        families = [self._family_description(name, columns) for name in self._families]
        return TraceDescription(
            jobs=jobs,
            workloads=len(set().union(*(family.workloads for family in self._families.values()))),
            gangs=len(self._gang_sizes),
            largest_gang=max(self._gang_sizes.values(), default=0),
            performance_jobs=sum(family.performance_jobs for family in families),
            shared_gpu_jobs=self._shared,
            first_submit_s=first_s if jobs else None,
            last_submit_s=last_s if jobs else None,
            arrivals=tuple(arrivals.tolist()),
            peak_hour_jobs=int(by_hour.max(initial=0)),
            gpus_of_jobs=dict(sorted(self._gpus_of_jobs.items())),
            gpu_resources=dict(sorted(self._gpu_resources.items())),
            duration_s=_spread(duration_s) if jobs else None,
            core_hours=_hours(columns.cores, duration_s),
            gpu_hours=_hours(columns.gpus, duration_s),
            cores=_load(columns, columns.cores),
            gpus=_load(columns, columns.gpus),
            families=tuple(sorted(families, key=lambda family: (-family.jobs, family.family))),
        )

    def _family_description(self, name: str, columns: TraceColumns) -> FamilyDescription:
        family = self._families[name]
        own: BoolArray = columns.family == family.index
        duration_s = columns.duration_s[own]
        return FamilyDescription(
            family=name,
            jobs=int(own.sum()),
            workloads=len(family.workloads),
            gangs=len(family.gangs),
            performance_jobs=family.performance_jobs,
            mean_cores=float(columns.cores[own].mean()),
            mean_gpus=float(columns.gpus[own].mean()),
            duration_s=_spread(duration_s),
            core_hours=_hours(columns.cores[own], duration_s),
            gpu_hours=_hours(columns.gpus[own], duration_s),
        )


def offered_load(columns: TraceColumns, amounts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Load over time if each job started on submission and ran alone and uncapped.

    Args:
        columns: columns of the jobs.
        amounts: cores or GPUs of each job, shape ``(n_jobs,)``.

    Returns:
        Times, s, ascending, and the load from each of them on; both of shape ``(2 * n_jobs,)``.
    """
    times_s = np.concatenate((columns.submit_s, columns.submit_s + columns.duration_s))
    changes = np.concatenate((amounts, -amounts))
    order = np.lexsort((changes, times_s))  # at equal times, jobs end before others start
    return times_s[order], np.cumsum(changes[order])


def _load(columns: TraceColumns, amounts: FloatArray) -> Load:
    if not len(amounts):
        return Load(None, 0.0)
    times_s, amount = offered_load(columns, amounts)
    first_s, last_s = float(columns.submit_s.min()), float(columns.submit_s.max())
    lasting_s = np.diff(np.minimum(times_s, last_s), append=last_s)
    mean = float(amount @ lasting_s) / (last_s - first_s) if last_s > first_s else None
    return Load(mean, float(amount.max()))


def _hours(amounts: FloatArray, duration_s: FloatArray) -> float:
    return float(amounts @ duration_s) / SECONDS_PER_HOUR


def _spread(values: FloatArray) -> Spread:
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99)).tolist()
    return Spread(float(values.mean()), p50, p90, p99, float(values.max()))
