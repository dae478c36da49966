"""Measurements of a workload, and its classification. Source: seed, WorkloadProfile Guide; spec, profiles."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.policy import WorkloadClass
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level


@dataclass(frozen=True)
class Hints:
    """Annotations of a workload; None where one is not set.

    Attributes:
        workload_class: performance or standard.
        reschedulable: whether its pods may be restarted elsewhere.
        cpu_sensitivity: to CPU caps.
        gpu_sensitivity: to GPU caps.
    """

    workload_class: WorkloadClass | None = None
    reschedulable: bool | None = None
    cpu_sensitivity: Level | None = None
    gpu_sensitivity: Level | None = None

    @property
    def any(self) -> bool:
        """Whether any is set."""
        return self != Hints()


@dataclass(frozen=True)
class EnergyUse:
    """Energy of a workload over the measurement window, as Kepler attributes it.

    Attributes:
        package_j: CPU packages, J.
        dram_j: memory, J; None where it is not measured.
        gpu_j: GPUs, J; None where it is not measured.
    """

    package_j: float
    dram_j: float | None = None
    gpu_j: float | None = None


@dataclass(frozen=True)
class Use:
    """Measured usage of a workload over the measurement window; None where it was not measured.

    Attributes:
        cpu_util_pct: CPU time over what it requests, 0..100.
        memory_pressure_pct: working set over what it requests, 0..100.
        gpu_util_pct: of the GPUs that it holds, 0..100; None without GPUs.
        holds_gpus: whether it holds GPUs; without `gpu_util_pct` they were not measured, and are not classified.
        gpu_memory_activity_pct: share of time that the GPUs' memory was busy, 0..100.
        energy: by Kepler.
    """

    cpu_util_pct: float | None = None
    memory_pressure_pct: float | None = None
    gpu_util_pct: float | None = None
    holds_gpus: bool = False
    gpu_memory_activity_pct: float | None = None
    energy: EnergyUse | None = None

    @property
    def measured(self) -> bool:
        """Whether a utilisation was measured."""
        return self.cpu_util_pct is not None or self.gpu_util_pct is not None


@dataclass(frozen=True)
class CpuProfile:
    """How a workload uses CPUs; None where it is not known.

    Attributes:
        intensity: how hard.
        bound: what limits it.
        avg_utilization_pct: 0..100.
        cap_sensitivity: how much a cap slows it.
    """

    intensity: Level | None = None
    bound: CpuBound | None = None
    avg_utilization_pct: float | None = None
    cap_sensitivity: Level | None = None


@dataclass(frozen=True)
class GpuProfile:
    """How a workload uses GPUs; None where it is not known.

    Attributes:
        intensity: how hard.
        bound: what limits it.
        avg_utilization_pct: 0..100.
        cap_sensitivity: how much a cap slows it.
    """

    intensity: GpuLevel | None = None
    bound: GpuBound | None = None
    avg_utilization_pct: float | None = None
    cap_sensitivity: GpuLevel | None = None


@dataclass(frozen=True)
class Classification:
    """The classifier's conclusion on a workload.

    Attributes:
        workload_class: performance only where annotated.
        reschedulable: None where not annotated.
        cpu: use of CPUs.
        gpu: use of GPUs.
        reason: which measurements and annotations led to this, for people.
        confidence: how much data there was, 0..1.
    """

    workload_class: WorkloadClass
    reschedulable: bool | None
    cpu: CpuProfile
    gpu: GpuProfile
    reason: str
    confidence: float
