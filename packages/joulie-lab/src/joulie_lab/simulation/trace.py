"""Jobs of a trace: submission time, requests, amount of work, and how it uses the hardware.

Source: spec, simulator, workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from joulie.domain.quantities import finite_number
from joulie.domain.resource_quantity import parse_quantity
from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.scheduling.scores import PodAmounts
from joulie.domain.workload import Level

WORKLOAD_CLASS_KEY = "joulie.io/workload-class"
"""Annotation with the pod's workload class; `performance` for a pod that must not be slowed."""
GPU_MILLI_KEY = "alibabacloud.com/gpu-milli"
"""Annotation of a pod that needs only a share of its one GPU, in thousandths; the name that Alibaba's traces use."""
GPU_RESOURCE_VENDORS: Mapping[str, str] = {"nvidia.com/gpu": "NVIDIA", "amd.com/gpu": "AMD"}
WHOLE_GPU_MILLI = 1000
CPU_CLASSES = ("compute_bound", "memory_bound", "io_bound", "mixed")
GPU_CLASSES = ("compute_bound", "memory_bound", "bandwidth_bound", "mixed")
_BYTES_PER_GIB = 1024.0**3
_MAX_TIME_S = 1e11
"""About 3,000 years: a longer time is a mistake, and sums of such times would overflow."""
_MAX_QUANTITY = 2.0**63
"""Maximum value of a Kubernetes quantity."""


@dataclass(frozen=True)
class TraceMetadata:
    """A line that is not a job but describes jobs: their source, or the workload that they belong to.

    Attributes:
        values: fields of the line, as in the file, without its type.
    """

    values: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class JobShape:
    """Resource requests of a job, as numbers.

    Attributes:
        cores: CPU cores.
        memory_gib: memory, GiB.
        gpus: number of GPUs; 1 for a shared GPU.
        gpu_share: share of each GPU, above 0 and up to 1; below 1 only for a single GPU.
        gpu_resource: extended resource of the GPUs; empty without GPUs.
    """

    cores: float = 0.0
    memory_gib: float = 0.0
    gpus: int = 0
    gpu_share: float = 1.0
    gpu_resource: str = ""

    @property
    def amounts(self) -> PodAmounts:
        """CPU and memory in the units of Kubernetes."""
        return PodAmounts.of(self.cores, self.memory_gib)


@dataclass(frozen=True)
class JobProfile:
    """How a job uses the resources that it requests; all values are shares, 0..1.

    Attributes:
        cpu_utilization: utilisation of its cores.
        gpu_utilization: utilisation of its GPUs.
        memory_intensity: memory intensity of its work.
        io_intensity: I/O intensity of its work.
        cpu_feed_intensity_gpu: how much its GPU work depends on its CPU work.
    """

    cpu_utilization: float = 0.5
    gpu_utilization: float = 0.0
    memory_intensity: float = 0.0
    io_intensity: float = 0.0
    cpu_feed_intensity_gpu: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            finite_number(name, value, minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class TraceJob:
    """A job of a trace: one pod of a workload.

    Attributes:
        job_id: identifier, unique in the trace; part of the pod's name.
        workload_id: workload that it belongs to; its own identifier for a single pod.
        workload_type: family of the workload, for reports.
        role: role of the pod in its workload (launcher, worker, ps, trial).
        gang: whether the pods of the workload advance only together.
        submit_s: submission time, s after the start of the trace.
        namespace: namespace of the pod.
        requests: resource requests as Kubernetes quantities.
        annotations: annotations of the pod.
        node_selector: node selector of the pod.
        affinity: affinity of the pod, in Kubernetes' form; None without one.
        priority_class: PriorityClass of the pod; empty for the default.
        cpu_units: CPU work, core-seconds at the highest clock.
        gpu_units: GPU work, uncapped GPU-seconds; a shared GPU counts its share.
        cpu_class: what bounds its CPU work: compute_bound, memory_bound, io_bound or mixed.
        gpu_class: what bounds its GPU work: compute_bound, memory_bound, bandwidth_bound or mixed.
        profile: how it uses the resources that it requests.
        cpu_sensitivity: sensitivity to CPU caps: high, medium or low; empty if unknown.
        gpu_sensitivity: sensitivity to GPU caps, likewise.
        owner: what is the same for all runs of a workload that recurs, such as its CronJob; empty where none does.
    """

    job_id: str
    workload_id: str
    submit_s: float
    requests: Mapping[str, str] = field(hash=False)
    cpu_units: float
    gpu_units: float = 0.0
    workload_type: str = ""
    role: str = ""
    gang: bool = False
    namespace: str = "default"
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    node_selector: Mapping[str, str] = field(default_factory=dict, hash=False)
    affinity: Mapping[str, Any] | None = field(default=None, hash=False)
    priority_class: str = ""
    cpu_class: str = "mixed"
    gpu_class: str = "mixed"
    profile: JobProfile = JobProfile()
    cpu_sensitivity: str = ""
    gpu_sensitivity: str = ""
    owner: str = ""

    def __post_init__(self) -> None:
        finite_number("submitTimeOffsetSec", self.submit_s, minimum=0.0, maximum=_MAX_TIME_S)
        finite_number("work.cpuUnits", self.cpu_units, minimum=0.0)
        finite_number("work.gpuUnits", self.gpu_units, minimum=0.0)
        if self.cpu_units > 0.0 and self.profile.cpu_utilization == 0.0:
            raise ValueError("work.cpuUnits without workloadProfile.cpuUtilization: the job would never end")
        if self.gpu_units > 0.0 and self.profile.gpu_utilization == 0.0:
            raise ValueError("work.gpuUnits without workloadProfile.gpuUtilization: the job would never end")
        _require_one_of("workloadClass.cpu", self.cpu_class, CPU_CLASSES)
        _require_one_of("workloadClass.gpu", self.gpu_class, GPU_CLASSES)
        _require_one_of("sensitivity.cpu", self.cpu_sensitivity, ("", *Level))
        _require_one_of("sensitivity.gpu", self.gpu_sensitivity, ("", *Level))

    @cached_property
    def shape(self) -> JobShape:
        """Its resource requests, as numbers.

        Raises:
            ValueError: a request is not a quantity, is negative, asks for a fraction of a GPU, or for two kinds.
        """
        amounts = {
            name: finite_number(name, parse_quantity(text), minimum=0.0, maximum=_MAX_QUANTITY)
            for name, text in self.requests.items()
        }
        kinds = [name for name in GPU_RESOURCE_VENDORS if amounts.get(name, 0.0) > 0.0]
        if len(kinds) > 1:
            raise ValueError(f"requests {' and '.join(kinds)}: a pod can have one kind of GPU")
        gpus = amounts[kinds[0]] if kinds else 0.0
        if gpus != int(gpus):
            raise ValueError(f"requests {gpus:g} {kinds[0]}: whole GPUs only; request a share by {GPU_MILLI_KEY}")
        return JobShape(
            cores=amounts.get("cpu", 0.0),
            memory_gib=amounts.get("memory", 0.0) / _BYTES_PER_GIB,
            gpus=int(gpus),
            gpu_share=self._gpu_share(int(gpus)),
            gpu_resource=kinds[0] if kinds else "",
        )

    @property
    def known_as(self) -> str:
        """What tells it from workloads that behave in another way."""
        return self.owner or self.workload_id

    @property
    def is_performance(self) -> bool:
        """Whether its class is performance; every other job is standard."""
        return self.annotations.get(WORKLOAD_CLASS_KEY) == "performance"

    @cached_property
    def node_rules(self) -> NodeRules:
        """Its node selector and affinity.

        Raises:
            NodeAffinityError: Kubernetes would reject its affinity.
        """
        return NodeRules.parse(self.node_selector, self.affinity)

    @cached_property
    def ideal_s(self) -> float:
        """Duration when it runs alone, without caps and throttling, s; 0 without work.

        Raises:
            ValueError: it has work for a resource that it does not request, so that it would never end; it would take
                more than 3,000 years; or see `shape`.
        """
        cores = self.shape.cores * self.profile.cpu_utilization
        gpus = self.shape.gpus * self.shape.gpu_share * self.profile.gpu_utilization
        alone_s = max(_quotient("cpuUnits", self.cpu_units, cores), _quotient("gpuUnits", self.gpu_units, gpus))
        return finite_number("duration of its work, s", alone_s, minimum=0.0, maximum=_MAX_TIME_S)

    def _gpu_share(self, gpus: int) -> float:
        milli = self.annotations.get(GPU_MILLI_KEY)
        if milli is None or gpus == 0:
            return 1.0
        share = finite_number(GPU_MILLI_KEY, parse_quantity(milli), minimum=1.0, maximum=1000.0) / 1000.0
        if gpus > 1 and share < 1.0:
            raise ValueError(f"{GPU_MILLI_KEY}: {milli} of {gpus} GPUs: only one GPU can be shared")
        return share


TraceLine = TraceJob | TraceMetadata


def _require_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(filter(None, known))}")


def _quotient(name: str, units: float, per_s: float) -> float:
    if units > 0.0 and per_s == 0.0:
        raise ValueError(f"work.{name} of a job that does not request the resource: the job would never end")
    return units / per_s if units > 0.0 else 0.0
