"""What the extender keeps of a node's objects: facts of its NodeTwin, its power at full load, and hints at its zone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from joulie.domain.accounting.profiles import HardwareProfiles
from joulie.domain.grid.request import GPU_WORKLOAD_TYPES
from joulie.domain.hardware.estimates import TYPICAL_IDLE_SHARE
from joulie.domain.marginal import cpu_max_or_fallback_w, gpu_max_or_fallback_w
from joulie.domain.quantities import finite_number, positive_number
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.shared_gpus import SharedNode

DEFAULT_PROFILES = HardwareProfiles()


@dataclass(frozen=True)
class TwinNumbers:
    """The numbers of a NodeTwin that placement uses.

    Attributes:
        capped_w: power limit in force, W.
        measured_w: measured power, W.
        cooling_stress_pct: cooling stress, 0..100.
        headroom_score: power headroom, 0..100.
        trend_w_per_min: slope of the power, W/min.
        cpu_cap_fraction: CPU cap over maximum CPU power, 0..1.
        gpu_cap_fraction: GPU cap over maximum GPU power, 0..1.

    Raises:
        InvalidQuantityError: one of them is NaN or out of range.
    """

    capped_w: float
    measured_w: float
    cooling_stress_pct: float
    headroom_score: float
    trend_w_per_min: float
    cpu_cap_fraction: float
    gpu_cap_fraction: float

    def __post_init__(self) -> None:
        positive_number("capped_w", self.capped_w)
        finite_number("measured_w", self.measured_w, minimum=0.0)
        finite_number("trend_w_per_min", self.trend_w_per_min)
        for name in ("cooling_stress_pct", "headroom_score"):
            finite_number(name, getattr(self, name), minimum=0.0, maximum=100.0)
        for name in ("cpu_cap_fraction", "gpu_cap_fraction"):
            finite_number(name, getattr(self, name), minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class TwinFacts:
    """Cached facts of a NodeTwin.

    Attributes:
        node_class: the node's class; UNKNOWN if not set.
        numbers: its numbers; None if missing or invalid.
        updated_s: last update by the operator, s since the epoch; None if not set.
        flaw: why the numbers are unusable; empty if they are usable.
        budgets: power budgets in force that cover the node.
    """

    node_class: NodeClass
    numbers: TwinNumbers | None
    updated_s: float | None
    flaw: str = ""
    budgets: tuple[str, ...] = ()


FULL_W_TYPES = ("", *GPU_WORKLOAD_TYPES)
"""Types of GPU workload that a node's power at full load is kept for; without one, GPUs draw their maximum."""


@dataclass(frozen=True)
class LoadFacts:
    """Power of a node at full load; None means unknown.

    Attributes:
        cores: allocatable CPUs.
        cpu_max_w: maximum power of all CPUs, W.
        gpu_max_w: maximum power of one GPU, W.
        gpu_vendor: GPU vendor.
        gpus: number of GPUs.
        gpu_model: model of the GPUs; empty if unknown.
        pue: PUE that the node's annotation says.
        gpu_pue: PUE of GPUs that it says.
        gpu_idle_w: idle power of all GPUs, W.
        gpu_instances: GPUs that pods can request of each device: MIG instances with the strategy ``single``, else 1.
        floor_w: power of all CPUs and GPUs under their lowest limits, W.
    """

    cores: float | None = None
    cpu_max_w: float | None = None
    gpu_max_w: float | None = None
    gpu_vendor: str | None = None
    gpus: float = 0.0
    gpu_model: str = ""
    pue: float | None = None
    gpu_pue: float | None = None
    gpu_idle_w: float = 0.0
    gpu_instances: int = 1
    floor_w: float | None = None

    @property
    def maxima(self) -> tuple[float, float, float]:
        """CPU power (W), cores and power of one GPU (W), with fallbacks for unknown values."""
        cores = self.cores if self.cores is not None and math.isfinite(self.cores) and self.cores > 0.0 else 1.0
        return (
            cpu_max_or_fallback_w(self.cpu_max_w, cores),
            cores,
            gpu_max_or_fallback_w(self.gpu_max_w, self.gpu_vendor),
        )

    @property
    def base_w(self) -> float:
        """Power of the idle node, W: what it draws for being up."""
        cpu_max_w, _, _ = self.maxima
        return TYPICAL_IDLE_SHARE * cpu_max_w + self.gpu_idle_w

    @property
    def shared(self) -> SharedNode | None:
        """The node for SCORING=frugal; None if it says no CPUs, or requests do not say which GPU an instance is of."""
        if self.cores is None or not 0.001 <= self.cores < math.inf or self.gpu_instances != 1:
            return None
        cpu_max_w, _, gpu_max_w = self.maxima
        gpus = int(self.gpus)
        idle_w = self.gpu_idle_w / gpus if gpus else 0.0
        return SharedNode.of(self.cores, cpu_max_w, TYPICAL_IDLE_SHARE * cpu_max_w, gpus, idle_w, gpu_max_w)

    def full_w(self, profiles: HardwareProfiles) -> tuple[float, ...]:
        """Power of the node at full load with PUE by type of GPU workload (`FULL_W_TYPES`), W; NaN if unknown.

        Args:
            profiles: PUEs where the node says none, and the share that a type of workload draws of a GPU's power.
        """
        if self.cpu_max_w is None or (self.gpus > 0.0 and self.gpu_max_w is None):
            return (math.nan,) * len(FULL_W_TYPES)
        cpu_w = self.cpu_max_w * (self.pue or profiles.pue)
        gpu_w = self.gpus * (self.gpu_max_w or 0.0) * (self.gpu_pue or profiles.gpu_pue)
        profile = profiles.gpus.find(self.gpu_model) if self.gpu_model else None
        shares = {} if profile is None else profile.workloads
        return tuple(cpu_w + gpu_w * shares.get(kind, 1.0) for kind in FULL_W_TYPES)


@dataclass(frozen=True)
class ZoneHints:
    """What a Node says about its grid zone.

    Attributes:
        labels: its labels of a zone or region.
        annotations: its annotation of a zone.
        provider_id: ``spec.providerID``.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    provider_id: str
