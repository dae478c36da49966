"""Readings from exporters: power and usage of nodes, pods and GPUs, with the times of their samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.gpu_holders import GpuDevice
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey, PodUsage

__all__ = ["GpuDevice", "GpuUse", "NodePower", "PodKey", "PodPower", "PodUsage", "Rejection", "Steps"]


class Rejection(StrEnum):
    """Why a series was left out. Every series is either part of a reading or counted under one of these reasons."""

    UNKNOWN_NODE = "unknown-node"
    """No label names a node of the cluster."""
    NOT_FINITE = "not-finite"
    """The series has no finite sample."""
    NEGATIVE = "negative"
    ABSURD = "absurd"
    """The value, or the number of devices of a node, exceeds its plausible maximum."""
    DUPLICATE = "duplicate"
    """Another series of the same device: a second path to it, a second scrape, or the previous run of its exporter."""
    TOO_FEW = "too-few-samples"
    """A counter with fewer than two usable samples."""
    OTHER_ZONE = "other-zone"
    """A zone of Kepler's hwmon backend that is neither a package nor memory, as far as its name says."""
    SHARED = "shared"
    """A meter of several nodes, whose shares are unknown."""


@dataclass(frozen=True)
class NodePower:
    """Power by node from one exporter, over the whole cluster. A missing value has no entry and is never zero.

    Attributes:
        cpu: power of all CPU packages, W; nodes with an unreadable package are left out.
        cpu_count: number of packages in `cpu`; no entry if the exporter does not tell packages apart.
        cpu_dynamic: the part of `cpu` that the exporter attributes to work, W; the rest is idle power.
        dram: memory power, W; never part of `cpu`.
        gpu: power of all GPUs, W; nodes with an unreadable GPU are left out.
        gpu_count: number of GPUs in `gpu`.
        whole: power of the whole server, W, of exporters that cannot separate its parts.
        rejected: number of series left out, by reason.
    """

    cpu: Mapping[str, Reading] = field(default_factory=dict)
    cpu_count: Mapping[str, int] = field(default_factory=dict)
    cpu_dynamic: Mapping[str, Reading] = field(default_factory=dict)
    dram: Mapping[str, Reading] = field(default_factory=dict)
    gpu: Mapping[str, Reading] = field(default_factory=dict)
    gpu_count: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, Reading] = field(default_factory=dict)
    rejected: Mapping[Rejection, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PodPower:
    """Power that Kepler attributes to the work of a pod, without idle power; None if not measured.

    Attributes:
        cpu_w: power of the CPU packages, W.
        dram_w: memory power, W.
        gpu_w: power of the GPUs, W.
    """

    cpu_w: float | None = None
    dram_w: float | None = None
    gpu_w: float | None = None


@dataclass(frozen=True)
class GpuUse:
    """GPU usage of a pod, mean over the GPUs that it holds; None if not measured.

    Attributes:
        util_pct: share of time that they are busy, 0..100.
        memory_activity_pct: share of time that their memory is busy, 0..100.
        devices: number of GPUs or slices of GPUs that the pod holds.
    """

    util_pct: float | None
    memory_activity_pct: float | None
    devices: int


class Steps(NamedTuple):
    """Evaluation times of a range query, and the window over which each value is averaged.

    Attributes:
        start_s: first time, s since the epoch.
        end_s: last time, s since the epoch.
        step_s: time between two values, s.
        mean_s: averaging window before each time, at least two scrapes long, s.
    """

    start_s: float
    end_s: float
    step_s: float
    mean_s: float
