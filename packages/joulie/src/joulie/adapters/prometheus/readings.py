"""What the exporters say, as values: power of nodes, of pods and of GPUs, each with the time of its samples."""

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
    """Why a series was left out. Every series is either part of a reading or counted under one of these."""

    UNKNOWN_NODE = "unknown-node"
    """No label names a node of the cluster."""
    NOT_FINITE = "not-finite"
    """No sample is a number."""
    NEGATIVE = "negative"
    ABSURD = "absurd"
    """More than any such device draws, or more devices than a node holds."""
    DUPLICATE = "duplicate"
    """The same device over again: a second path to it, a second scrape, the previous run of its exporter."""
    TOO_FEW = "too-few-samples"
    """A counter that was read only once as yet."""


@dataclass(frozen=True)
class NodePower:
    """Power of nodes by one exporter, over the whole cluster. Missing is missing, never zero.

    Attributes:
        cpu: of all CPU packages that the exporter knows, W; a node of which one package could not be read is left out.
        cpu_count: packages that `cpu` sums up, where the exporter tells them apart; else no entry.
        cpu_dynamic: the part of `cpu` that the exporter attributes to work, W; the rest is idle power.
        dram: memory where it is measured, W; never part of `cpu`.
        gpu: of all GPUs that the exporter knows, W; a node of which one GPU could not be read is left out.
        gpu_count: GPUs that `gpu` sums up.
        rejected: series left out, by reason.
    """

    cpu: Mapping[str, Reading] = field(default_factory=dict)
    cpu_count: Mapping[str, int] = field(default_factory=dict)
    cpu_dynamic: Mapping[str, Reading] = field(default_factory=dict)
    dram: Mapping[str, Reading] = field(default_factory=dict)
    gpu: Mapping[str, Reading] = field(default_factory=dict)
    gpu_count: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[Rejection, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PodPower:
    """Power that Kepler attributes to the work of a pod, without idle power; None where it is not measured.

    Attributes:
        cpu_w: CPU packages, W.
        dram_w: memory, W.
        gpu_w: GPUs, W.
    """

    cpu_w: float | None = None
    dram_w: float | None = None
    gpu_w: float | None = None


@dataclass(frozen=True)
class GpuUse:
    """How a pod uses its GPUs: means over them; None where it is not measured.

    Attributes:
        util_pct: time that they are busy, 0..100.
        memory_activity_pct: time that their memory is busy, 0..100.
        devices: GPUs or slices of GPUs that the pod holds.
    """

    util_pct: float | None
    memory_activity_pct: float | None
    devices: int


class Steps(NamedTuple):
    """Times that something is looked at, and what each look is the mean over.

    Attributes:
        start_s: the first, s since the epoch.
        end_s: the last, s since the epoch.
        step_s: between two, s.
        mean_s: time before each that it is the mean over, at least two scrapes, s.
    """

    start_s: float
    end_s: float
    step_s: float
    mean_s: float
