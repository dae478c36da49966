"""The common form of jobs from all sources, and their conversion to pods; missing values are explicit assumptions."""

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
"""Maximum length of a job's name; leaves space for the number of a pod."""
_MAX_PODS = 100_000
"""Maximum number of pods of a job, so that an invalid cell cannot exhaust the memory."""
UNDER_HALF_A_SECOND_S = 0.5
"""Runtime of a job with a recorded runtime of 0 s, on a clock of whole seconds."""


class TraceSourceError(ValueError):
    """Unreadable source; the message names the file."""


@dataclass(frozen=True)
class ImportProblem:
    """Invalid line of a source.

    Attributes:
        place: file and line.
        reason: what is wrong.
    """

    place: str
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """Valid line that is excluded, such as a job that never ran.

    Attributes:
        place: file and line.
        reason: why, from a small set of reasons, so that they can be counted.
    """

    place: str
    reason: str


@dataclass(frozen=True)
class Assumptions:
    """Assumptions for values that a source does not have.

    The utilisations are the means of the generator's draws for CPU jobs and for training on one GPU.

    Attributes:
        cpu_utilization: utilisation of the cores of a job without GPUs.
        gpu_job_cpu_utilization: utilisation of the cores of a job with GPUs.
        gpu_utilization: utilisation of the GPUs.
        memory_intensity: memory intensity of the work.
        io_intensity: I/O intensity of the work.
        cpu_class: bottleneck of CPU work.
        gpu_class: bottleneck of GPU work.
        cores_per_gpu: cores per GPU of a job with GPUs.
        memory_gib_per_core: memory per core, GiB.
        widest_pod_cores: maximum cores of a pod; a wider job without GPUs becomes a gang of equal pods.
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
        """The assumptions for the metadata line of a trace."""
        return asdict(self)


DEFAULTS = Assumptions()


@dataclass(frozen=True, slots=True)
class SourcePods:
    """Identical pods of a job; None for values that the source does not have.

    Attributes:
        count: number of pods.
        cores: cores of each pod.
        gpus: GPUs of each pod; a value below 1 is a share of one GPU.
        memory_gib: memory of each pod, GiB.
        role: role in the job.
        cpu_utilization: utilisation of the cores.
        gpu_utilization: utilisation of the GPUs.
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
    """A job of a source.

    Attributes:
        place: file and line.
        name: the source's name of the job.
        submit_s: submission time by the source's clock, s.
        duration_s: runtime, s.
        pods: its pods, at least one.
        kind: family of workloads, for reports.
        performance: whether it is of class performance.
        gpu_models: allowed GPU models, by the source's names; empty for any.
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
    """Sort jobs by submission; problems and excluded lines come first.

    Args:
        items: jobs, problems and excluded lines in any order.
        from_first: whether times are made relative to the first submission.
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
    """The pods of all jobs; an invalid job or a duplicate name becomes an `ImportProblem`."""
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
    """Set of used job names, including the pod names of gangs, which are not stored individually."""

    def __init__(self) -> None:
        self._pods_of: dict[str, int] = {}

    def take(self, name: str, pods: int) -> None:
        """Reserve the name of a job.

        Raises:
            ValueError: the name of the job or of one of its pods is already used.
        """
        gang, _, number = name.rpartition("-")
        is_number = number.isdecimal() and number == str(int(number))
        of_gang = is_number and int(number) < self._pods_of.get(gang, 1) > 1
        of_pod = pods > 1 and any(f"{name}-{index}" in self._pods_of for index in range(pods))
        if name in self._pods_of or of_gang or of_pod:
            raise ValueError(f"duplicate job name {name}")
        self._pods_of[name] = pods


def job_name(name: str) -> str:
    """Convert a source's job name to a valid pod name."""
    return _NOT_IN_NAMES.sub("-", name.lower())[:_MAX_NAME].strip("-") or "job"


def gpu_model_name(model: str) -> str:
    """Model name on nodes for a source's GPU: the catalogue's name if it matches exactly, else the source's."""
    match = BUILTIN_CATALOGUE.gpu(model)
    return match.model.key if match.model is not None and match.quality is Quality.EXACT else model


def _pods(job: SourceJob, name: str, assumed: Assumptions) -> list[TraceJob]:
    finite_number("time of submission", job.submit_s, minimum=0.0)
    if not job.duration_s > 0.0 or math.isinf(job.duration_s):
        raise ValueError(f"it ran for {job.duration_s:g} s: the runtime must be above 0")
    pods = [one for several in job.pods for one in _fitting(several, assumed)]
    count = sum(one.count for one in pods)
    if count > _MAX_PODS:
        raise ValueError(f"{count:,} pods are more than the maximum of {_MAX_PODS:,}")
    gang = count > 1
    affinity = _affinity(job.gpu_models) if job.gpu_models else None
    made: list[TraceJob] = []
    for one in pods:
        for _ in range(one.count):
            job_id = f"{name}-{len(made)}" if gang else name
            made.append(_pod(job, one, assumed, job_id=job_id, workload_id=name, gang=gang, affinity=affinity))
    return made


def _fitting(pods: SourcePods, assumed: Assumptions) -> Sequence[SourcePods]:
    """Fill in assumptions for unknown values, and split pods that are too wide."""
    if pods.count < 1:
        raise ValueError(f"{pods.count} pods: the number must be at least 1")
    gpus = finite_number("GPUs", pods.gpus, minimum=0.0)
    cores = assumed.cores_per_gpu * gpus if pods.cores is None else finite_number("cores", pods.cores, minimum=0.0)
    if cores == 0.0 and gpus == 0.0:
        raise ValueError("requests neither cores nor GPUs")
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
    _ = made.ideal_s  # raises for invalid requests and runtimes
    return made


def _cpu_quantity(cores: float) -> str:
    milli = math.ceil(round(cores * 1000.0, 6))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def _affinity(models: Sequence[str]) -> dict[str, Any]:
    values = [label_form(gpu_model_name(model)) for model in models]
    term = {"matchExpressions": [{"key": GPU_MODEL_KEY, "operator": "In", "values": values}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
