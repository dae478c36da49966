"""What every source of jobs says, in one form, and how it becomes pods; what sources leave open is assumed by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from joulie.domain.accounting.profiles import label_form
from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.catalogue import Quality
from joulie.domain.hardware.resolve import GPU_MODEL_KEY
from joulie.domain.quantities import finite_number
from joulie_lab.simulation.trace import GPU_MILLI_KEY, WORKLOAD_CLASS_KEY, JobProfile, TraceJob

_MIB_PER_GIB = 1024.0
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MAX_NAME = 180
"""Leaves room for the number of a pod."""
_MOST_PODS = 100_000
"""Of a job: a mistaken cell must not fill the memory."""
UNDER_HALF_A_SECOND_S = 0.5
"""Run time of a job that ran for 0 s by a clock of whole seconds."""


class TraceSourceError(ValueError):
    """A source that cannot be read at all; the message names the file."""


@dataclass(frozen=True)
class ImportProblem:
    """A line that is no job, though it should be one.

    Attributes:
        place: file and line.
        reason: what is wrong with it.
    """

    place: str
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """A sound line that becomes no job, by what it says itself.

    Attributes:
        place: file and line.
        reason: why; one of a few, so that they can be counted.
    """

    place: str
    reason: str


@dataclass(frozen=True)
class Assumptions:
    """What is taken for granted where a source does not say.

    The utilisations are the middle of what the generator draws for CPU jobs and for training on one GPU.

    Attributes:
        cpu_utilization: of the cores of a job without GPUs.
        gpu_job_cpu_utilization: of the cores of a job with GPUs.
        gpu_utilization: of its GPUs.
        memory_intensity: of the work.
        io_intensity: of the work.
        cpu_class: what bounds CPU work.
        gpu_class: what bounds GPU work.
        cores_per_gpu: cores of a job with GPUs.
        memory_gib_per_core: memory, GiB a core.
        widest_pod_cores: a wider job without GPUs becomes a gang of equal pods.
        gpu_resource: extended resource of the GPUs.
    """

    cpu_utilization: float = 0.6
    gpu_job_cpu_utilization: float = 0.3
    gpu_utilization: float = 0.5
    memory_intensity: float = 0.0
    io_intensity: float = 0.0
    cpu_class: str = "mixed"
    gpu_class: str = "mixed"
    cores_per_gpu: float = 6.0
    memory_gib_per_core: float = 4.0
    widest_pod_cores: int = 64
    gpu_resource: str = "nvidia.com/gpu"

    def as_metadata(self) -> dict[str, Any]:
        """For the metadata line of a trace."""
        return asdict(self)


DEFAULTS = Assumptions()


@dataclass(frozen=True, slots=True)
class SourcePods:
    """Equal pods of a job; None is what the source does not say.

    Attributes:
        count: of them.
        cores: of each.
        gpus: of each; below 1 it is a share of one.
        memory_gib: of each, GiB.
        role: in the job.
        cpu_utilization: of its cores.
        gpu_utilization: of its GPUs.
    """

    count: int = 1
    cores: float | None = None
    gpus: float = 0.0
    memory_gib: float | None = None
    role: str = ""
    cpu_utilization: float | None = None
    gpu_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class SourceJob:
    """A job as a source has it.

    Attributes:
        place: file and line.
        name: the source's own.
        submit_s: s, by the source's clock.
        duration_s: how long it ran, s.
        pods: at least one.
        kind: family, for reports.
        performance: whether it must not be slowed.
        gpu_models: it runs on these alone, as the source names them; empty for any.
    """

    place: str
    name: str
    submit_s: float
    duration_s: float
    pods: tuple[SourcePods, ...]
    kind: str = ""
    performance: bool = False
    gpu_models: tuple[str, ...] = ()


Parsed = SourceJob | ImportProblem | LeftOut
Item = TraceJob | ImportProblem | LeftOut


def by_submission(items: Iterable[Parsed], *, from_first: bool) -> Iterator[Parsed]:
    """Jobs in order of submission, after what became none.

    Args:
        items: in any order.
        from_first: count time from the first submission.
    """
    jobs: list[SourceJob] = []
    for item in items:
        if isinstance(item, SourceJob):
            jobs.append(item)
        else:
            yield item
    jobs.sort(key=lambda job: job.submit_s)
    zero_s = jobs[0].submit_s if jobs and from_first else 0.0
    for job in jobs:
        yield replace(job, submit_s=job.submit_s - zero_s) if zero_s else job


def trace_jobs(items: Iterable[Parsed], assumed: Assumptions = DEFAULTS) -> Iterator[Item]:
    """The pods of all jobs; a job that cannot be one, or whose name was there before, is a problem."""
    names = _Names()
    for item in items:
        if not isinstance(item, SourceJob):
            yield item
            continue
        name = job_name(item.name)
        try:
            pods = _pods(item, name, assumed)
            names.take(name, len(pods))
        except ValueError as error:
            yield ImportProblem(item.place, str(error))
            continue
        yield from pods


class _Names:
    """The names that jobs have, and with them those of the pods of gangs, which are not kept one by one."""

    def __init__(self) -> None:
        self._pods_of: dict[str, int] = {}

    def take(self, name: str, pods: int) -> None:
        """Give a job its name.

        Raises:
            ValueError: the job, or a pod, would have a name that another has.
        """
        gang, _, number = name.rpartition("-")
        is_number = number.isdecimal() and number == str(int(number))
        of_gang = is_number and int(number) < self._pods_of.get(gang, 1) > 1
        of_pod = pods > 1 and any(f"{name}-{index}" in self._pods_of for index in range(pods))
        if name in self._pods_of or of_gang or of_pod:
            raise ValueError(f"job {name} is there twice")
        self._pods_of[name] = pods


def job_name(name: str) -> str:
    """A source's name as the name of a pod."""
    return _NOT_IN_NAMES.sub("-", name.lower())[:_MAX_NAME].strip("-") or "job"


def gpu_model_name(model: str) -> str:
    """What nodes call a GPU that a source names: the catalogue's name, the source's own where another stands in."""
    match = BUILTIN_CATALOGUE.gpu(model)
    return match.model.key if match.model is not None and match.quality is Quality.EXACT else model


def _pods(job: SourceJob, name: str, assumed: Assumptions) -> list[TraceJob]:
    finite_number("time of submission", job.submit_s, minimum=0.0)
    if not job.duration_s > 0.0 or math.isinf(job.duration_s):
        raise ValueError(f"it ran for {job.duration_s:g} s: a job needs a run time above 0")
    pods = [one for several in job.pods for one in _fitting(several, assumed)]
    count = sum(one.count for one in pods)
    if count > _MOST_PODS:
        raise ValueError(f"it would be {count:,} pods, more than {_MOST_PODS:,}")
    gang = count > 1
    affinity = _affinity(job.gpu_models) if job.gpu_models else None
    made: list[TraceJob] = []
    for one in pods:
        for _ in range(one.count):
            job_id = f"{name}-{len(made)}" if gang else name
            made.append(_pod(job, one, assumed, job_id=job_id, workload_id=name, gang=gang, affinity=affinity))
    return made


def _fitting(pods: SourcePods, assumed: Assumptions) -> Sequence[SourcePods]:
    """The same without what is unknown, and no pod wider than one may be."""
    if pods.count < 1:
        raise ValueError(f"{pods.count} pods: a job needs at least one")
    gpus = finite_number("GPUs", pods.gpus, minimum=0.0)
    cores = assumed.cores_per_gpu * gpus if pods.cores is None else finite_number("cores", pods.cores, minimum=0.0)
    if cores == 0.0 and gpus == 0.0:
        raise ValueError("it asks for neither cores nor GPUs")
    memory_gib = assumed.memory_gib_per_core * cores if pods.memory_gib is None else pods.memory_gib
    finite_number("memory", memory_gib, minimum=0.0)
    whole = replace(pods, cores=cores, memory_gib=memory_gib)
    parts = 1 if gpus else math.ceil(cores / assumed.widest_pod_cores)
    if parts <= 1:
        return [whole]
    narrow, wider = divmod(math.ceil(cores), parts)
    split = ((narrow + 1, wider), (narrow, parts - wider))
    return [
        replace(whole, count=count * pods.count, cores=float(width), memory_gib=memory_gib * width / cores)
        for width, count in split
        if count
    ]


def _pod(
    job: SourceJob,
    pod: SourcePods,
    assumed: Assumptions,
    *,
    job_id: str,
    workload_id: str,
    gang: bool,
    affinity: dict[str, Any] | None,
) -> TraceJob:
    cores, memory_gib = pod.cores or 0.0, pod.memory_gib or 0.0
    milli = max(1, round(pod.gpus * 1000.0)) if 0.0 < pod.gpus < 1.0 else 1000
    gpus = math.ceil(pod.gpus)
    cpu_util = pod.cpu_utilization
    if cpu_util is None:
        cpu_util = assumed.gpu_job_cpu_utilization if gpus else assumed.cpu_utilization
    gpu_util = assumed.gpu_utilization if pod.gpu_utilization is None else pod.gpu_utilization
    requests = {"cpu": _cpu_quantity(cores)}
    if memory_gib:
        requests["memory"] = f"{math.ceil(memory_gib * _MIB_PER_GIB)}Mi"
    if gpus:
        requests[assumed.gpu_resource] = str(gpus)
    annotations = {WORKLOAD_CLASS_KEY: "performance"} if job.performance else {}
    if milli < 1000:
        annotations[GPU_MILLI_KEY] = str(milli)
    made = TraceJob(
        job_id=job_id,
        workload_id=workload_id,
        submit_s=job.submit_s,
        requests=requests,
        cpu_units=job.duration_s * cores * cpu_util,
        gpu_units=job.duration_s * gpus * milli / 1000.0 * gpu_util,
        workload_type=job.kind,
        role=pod.role,
        gang=gang,
        annotations=annotations,
        affinity=affinity,
        cpu_class=assumed.cpu_class,
        gpu_class=assumed.gpu_class,
        profile=JobProfile(
            cpu_utilization=cpu_util,
            gpu_utilization=gpu_util if gpus else 0.0,
            memory_intensity=assumed.memory_intensity,
            io_intensity=assumed.io_intensity,
        ),
    )
    _ = made.ideal_s  # refuses requests and run times that no trace can have
    return made


def _cpu_quantity(cores: float) -> str:
    milli = math.ceil(round(cores * 1000.0, 6))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def _affinity(models: Sequence[str]) -> dict[str, Any]:
    values = [label_form(gpu_model_name(model)) for model in models]
    term = {"matchExpressions": [{"key": GPU_MODEL_KEY, "operator": "In", "values": values}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
