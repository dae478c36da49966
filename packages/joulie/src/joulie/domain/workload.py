"""The vocabulary of workload profiles. This module needs no numpy. Source: seed, WorkloadProfile Guide."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """A level of intensity or sensitivity."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class GpuLevel(StrEnum):
    """A level of GPU intensity; none without GPUs."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


class CpuBound(StrEnum):
    """What limits the CPU part of a workload."""

    COMPUTE = "compute"
    MEMORY = "memory"
    IO = "io"
    MIXED = "mixed"


class GpuBound(StrEnum):
    """What limits the GPU part of a workload."""

    COMPUTE = "compute"
    MEMORY = "memory"
    MIXED = "mixed"
    NONE = "none"


class SlicingMode(StrEnum):
    """How GPUs can be shared."""

    MIG = "mig"
    TIME_SLICING = "time-slicing"
    NONE = "none"
