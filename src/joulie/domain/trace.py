"""Jobs of a trace: what was asked for when, how much work it is, how hard it uses the hardware.

Source: spec, simulator, workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from joulie.domain.quantities import finite_number
from joulie.domain.resource_quantity import parse_quantity

GPU_MILLI_KEY = "alibabacloud.com/gpu-milli"
"""Annotation of a pod that needs only a share of its one GPU, in thousandths; that of the traces which have it."""
GPU_RESOURCE_VENDORS: Mapping[str, str] = {"nvidia.com/gpu": "NVIDIA", "amd.com/gpu": "AMD"}
_BYTES_PER_GIB = 1024.0**3


@dataclass(frozen=True)
class JobShape:
    """What a job requests, as numbers.

    Attributes:
        cores: CPU cores.
        memory_gib: memory, GiB.
        gpus: whole GPUs that it occupies; 1 for one that it shares.
        gpu_share: of each of them, above 0 and up to 1; below 1 only for a single GPU.
        gpu_resource: the extended resource that it asks for, empty without GPUs.
    """

    cores: float = 0.0
    memory_gib: float = 0.0
    gpus: int = 0
    gpu_share: float = 1.0
    gpu_resource: str = ""


@dataclass(frozen=True)
class JobProfile:
    """How hard a job uses what it requests; all of them shares, 0..1.

    Attributes:
        cpu_utilization: of its cores.
        gpu_utilization: of its GPUs.
        memory_intensity: of its work.
        io_intensity: of its work.
        cpu_feed_intensity_gpu: how far its GPU work waits for its CPU work.
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
    """One pod's worth of a workload.

    Attributes:
        job_id: unique in the trace; part of the pod's name.
        workload_id: the workload that it belongs to, itself where it stands alone.
        workload_type: family, for reports.
        role: of the pod in its workload (launcher, worker, ps, trial).
        gang: whether the pods of the workload advance only together.
        submit_s: when it is submitted, s after the start of the trace.
        namespace: namespace of the pod.
        requests: resource requests as Kubernetes quantities.
        annotations: of the pod.
        node_selector: of the pod.
        affinity: of the pod, as Kubernetes writes it; None without one.
        priority_class: of the pod; empty for the default.
        cpu_units: CPU work, core-seconds at the highest clock.
        gpu_units: GPU work, GPU-seconds without a cap.
        cpu_class: what bounds its CPU work: compute_bound, memory_bound, io_bound or mixed.
        gpu_class: what bounds its GPU work: compute_bound, memory_bound, bandwidth_bound or mixed.
        profile: how hard it uses what it requests.
        cpu_sensitivity: to caps on CPUs: high, medium or low; empty where nobody says.
        gpu_sensitivity: to caps on GPUs.
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

    def __post_init__(self) -> None:
        finite_number("submitTimeOffsetSec", self.submit_s, minimum=0.0)
        finite_number("work.cpuUnits", self.cpu_units, minimum=0.0)
        finite_number("work.gpuUnits", self.gpu_units, minimum=0.0)
        if self.cpu_units > 0.0 and self.profile.cpu_utilization == 0.0:
            raise ValueError("work.cpuUnits without workloadProfile.cpuUtilization: it would never end")
        if self.gpu_units > 0.0 and self.profile.gpu_utilization == 0.0:
            raise ValueError("work.gpuUnits without workloadProfile.gpuUtilization: it would never end")

    @cached_property
    def shape(self) -> JobShape:
        """What it requests, as numbers.

        Raises:
            ValueError: a request is no quantity, is negative, asks for parts of GPUs or for two kinds of them.
        """
        amounts = {name: finite_number(name, parse_quantity(text), minimum=0.0) for name, text in self.requests.items()}
        kinds = [name for name in GPU_RESOURCE_VENDORS if amounts.get(name, 0.0) > 0.0]
        if len(kinds) > 1:
            raise ValueError(f"requests {' and '.join(kinds)}: a pod can have one kind of GPU")
        gpus = amounts[kinds[0]] if kinds else 0.0
        if gpus != int(gpus):
            raise ValueError(f"requests {gpus:g} {kinds[0]}: whole GPUs only; a share is said by {GPU_MILLI_KEY}")
        return JobShape(
            cores=amounts.get("cpu", 0.0),
            memory_gib=amounts.get("memory", 0.0) / _BYTES_PER_GIB,
            gpus=int(gpus),
            gpu_share=self._gpu_share(int(gpus)),
            gpu_resource=kinds[0] if kinds else "",
        )

    def _gpu_share(self, gpus: int) -> float:
        milli = self.annotations.get(GPU_MILLI_KEY)
        if milli is None or gpus != 1:
            return 1.0
        return finite_number(GPU_MILLI_KEY, parse_quantity(milli), minimum=1.0, maximum=1000.0) / 1000.0
