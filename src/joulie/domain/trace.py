"""Jobs of a trace: what was asked for when, how much work it is, how hard it uses the hardware.

Source: spec, simulator, workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joulie.domain.quantities import finite_number


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

    def __post_init__(self) -> None:
        finite_number("submitTimeOffsetSec", self.submit_s, minimum=0.0)
        finite_number("work.cpuUnits", self.cpu_units, minimum=0.0)
        finite_number("work.gpuUnits", self.gpu_units, minimum=0.0)
        if self.cpu_units > 0.0 and self.profile.cpu_utilization == 0.0:
            raise ValueError("work.cpuUnits without workloadProfile.cpuUtilization: it would never end")
        if self.gpu_units > 0.0 and self.profile.gpu_utilization == 0.0:
            raise ValueError("work.gpuUnits without workloadProfile.gpuUtilization: it would never end")
