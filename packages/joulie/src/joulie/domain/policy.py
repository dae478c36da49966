"""Policies: which nodes run at full power and which under caps.

A policy maps a frozen snapshot of the cluster to a plan; those that come with Joulie are in `joulie.domain.policies`.
Source: spec, control loop, operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from joulie.domain.energy_split import EnergyBounds
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange, Catalogue, normalised
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.hysteresis import Hysteresis, PreviousPlan
from joulie.domain.units import finite, positive

MIN_CONFIDENCE = 0.5
"""A workload profile below this counts as a hint only, unless a setting says otherwise."""


class Profile(StrEnum):
    """The power profile of a node."""

    PERFORMANCE = "performance"
    ECO = "eco"


class WorkloadClass(StrEnum):
    """The class that a pod's annotation gives it."""

    PERFORMANCE = "performance"
    STANDARD = "standard"


class PowerConstraint(StrEnum):
    """What a pod's scheduling constraints on the power-profile label admit."""

    GENERAL = "general"
    PERFORMANCE_ONLY = "performance-only"
    ECO_ONLY = "eco-only"
    UNKNOWN = "unknown"
    """A shape that cannot be read."""


class Intensity(StrEnum):
    """How hard a workload uses its hardware, from its profile."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class PodPhase(StrEnum):
    """Where a pod is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class PodDemand:
    """A pod as the policy's demand sees it.

    Attributes:
        phase: pending pods count as running ones do.
        workload_class: from the annotation; None where there is none, and the constraint decides.
        constraint: the older signal.
        intensity: from the pod's profile, None without one.
        confidence: of that profile, 0..1.
        min_confidence: that it needs, or the profile counts as a hint only.
        schedulable: whether it could run now or soon: neither held by a scheduling gate nor on its way out.
    """

    phase: PodPhase
    workload_class: WorkloadClass | None = None
    constraint: PowerConstraint = PowerConstraint.GENERAL
    intensity: Intensity | None = None
    confidence: float = 0.0
    min_confidence: float = MIN_CONFIDENCE
    schedulable: bool = True

    @property
    def weight(self) -> int:
        """Weight in the demand for performance nodes: 2 where known to be of high intensity, else 1."""
        if self.phase is PodPhase.FINISHED or not self.schedulable or not self._wants_performance:
            return 0
        return 2 if self.intensity is Intensity.HIGH and self.confidence >= self.min_confidence else 1

    @property
    def _wants_performance(self) -> bool:
        if self.workload_class is not None:
            return self.workload_class is WorkloadClass.PERFORMANCE
        return self.constraint is PowerConstraint.PERFORMANCE_ONLY


def performance_demand(pods: Iterable[PodDemand]) -> int:
    """Weighted count of the performance pods, pending and running."""
    return sum(pod.weight for pod in pods)


@dataclass(frozen=True)
class PolicyNode:
    """A node that may be planned.

    Attributes:
        name: unique in the cluster.
        family: GPU model, else CPU model, else any name for "unknown".
        density: `joulie.domain.twin.hardware_density`, 0..100.
        hardware: its devices; None where they are unknown.
    """

    name: str
    family: str
    density: float
    hardware: ResolvedHardware | None = None


@dataclass(frozen=True)
class ClusterSnapshot:
    """Input of a policy.

    Attributes:
        nodes: eligible nodes, in any order.
        performance_demand: see `performance_demand`.
        now_s: time of the snapshot, s since the epoch.
        unavailable: number of eligible nodes that cannot run pods and so are not among `nodes`: shares count them, or
            an outage would cap the nodes that are left.
        previous: the plan before; None for the first.
    """

    nodes: tuple[PolicyNode, ...]
    performance_demand: int
    now_s: float
    unavailable: int = 0
    previous: PreviousPlan | None = None

    def __post_init__(self) -> None:
        finite("now_s", self.now_s)
        finite("performance_demand", self.performance_demand, minimum=0.0)
        finite("unavailable", self.unavailable, minimum=0.0)
        finite("density", [node.density for node in self.nodes], minimum=0.0, maximum=100.0)
        if len({node.name for node in self.nodes}) != len(self.nodes):
            names = [node.name for node in self.nodes]
            twice = sorted(name for name in set(names) if names.count(name) > 1)
            raise ValueError(f"nodes listed twice: {', '.join(twice)}")

    def by_density(self) -> list[PolicyNode]:
        """The nodes, densest first, name as the tie-break."""
        return sorted(self.nodes, key=lambda node: (-node.density, node.name))


@dataclass(frozen=True)
class Plan:
    """A policy's decision.

    Attributes:
        policy: name of the policy.
        profiles: profile by node name, in density order.
        caps: caps by profile, by name of the nodes that have others than the administrator's. Both profiles are
            there, since a node keeps the caps of performance while it drains.
        due_s: when the plan changes if all but the time stays the same, s since the epoch; None for never.
    """

    policy: str
    profiles: Mapping[str, Profile]
    caps: Mapping[str, Mapping[Profile, ProfileCaps]] = field(default_factory=dict)
    due_s: float | None = None

    @property
    def performance_nodes(self) -> int:
        """Number of performance nodes."""
        return sum(profile is Profile.PERFORMANCE for profile in self.profiles.values())


class Policy(Protocol):
    """Snapshot in, plan out: every node of the snapshot gets a profile, and nothing but the snapshot decides.

    A policy whose plans do not depend on the time of the snapshot, except at the time that they are due, may say so by
    an attribute ``uses_time = False``: a simulation then asks it again only when something else changed. One whose
    plans for the same nodes differ only by the number of performance nodes may tell that number, and when it changes by
    time alone, by a method ``demanded(snapshot)``: a simulation then makes each plan once.
    """

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """Decide the profiles."""
        ...


class PolicySettingsError(ValueError):
    """An invalid policy setting; the message names it."""


class UnknownPolicyError(ValueError):
    """A POLICY_TYPE that is not registered."""


@dataclass(frozen=True)
class PolicySettings:
    """Settings of the built-in policies; the defaults are the documented ones.

    Attributes:
        static_hp_frac: STATIC_HP_FRAC, share of nodes.
        queue_hp_base_frac: QUEUE_HP_BASE_FRAC, share of nodes.
        queue_hp_min: QUEUE_HP_MIN, nodes.
        queue_hp_max: QUEUE_HP_MAX, nodes.
        queue_perf_per_hp_node: QUEUE_PERF_PER_HP_NODE, weighted pods that one performance node serves.
        hysteresis: QUEUE_HOLD and QUEUE_HYSTERESIS.
        rule_swap_interval_s: seconds between two swaps.
        energy: what `energy_per_work` must keep to.
        catalogue: known hardware.
    """

    static_hp_frac: float = 0.50
    queue_hp_base_frac: float = 0.60
    queue_hp_min: int = 1
    queue_hp_max: int = 1_000_000
    queue_perf_per_hp_node: int = 10
    hysteresis: Hysteresis = field(default_factory=Hysteresis)
    rule_swap_interval_s: float = 60.0
    energy: EnergyBounds = field(default_factory=EnergyBounds)
    catalogue: Catalogue = BUILTIN_CATALOGUE

    def __post_init__(self) -> None:
        for name, fraction in (
            ("STATIC_HP_FRAC", self.static_hp_frac),
            ("QUEUE_HP_BASE_FRAC", self.queue_hp_base_frac),
        ):
            if not 0.0 <= fraction <= 1.0:
                raise PolicySettingsError(f"{name} must be within 0..1, got {fraction}")
        if not 0 <= self.queue_hp_min <= self.queue_hp_max:
            raise PolicySettingsError(
                f"QUEUE_HP_MIN must be within 0..QUEUE_HP_MAX ({self.queue_hp_max}), got {self.queue_hp_min}"
            )
        if self.queue_perf_per_hp_node < 1:
            raise PolicySettingsError(f"QUEUE_PERF_PER_HP_NODE must be at least 1, got {self.queue_perf_per_hp_node}")
        if not (math.isfinite(self.rule_swap_interval_s) and self.rule_swap_interval_s > 0.0):
            raise PolicySettingsError(f"the swap interval must be above 0 s, got {self.rule_swap_interval_s}")


@dataclass(frozen=True)
class Cap:
    """A cap as a profile states it: absolute watts, which win, or a percentage of the device's base.

    Attributes:
        percent: percent of the base, 0 (exclusive) to 100.
        watts: W; None where the percentage counts.
    """

    percent: float = 100.0
    watts: float | None = None

    def __post_init__(self) -> None:
        positive("percent", finite("percent", self.percent, maximum=100.0))
        if self.watts is not None:
            positive("watts", self.watts)

    def for_device(self, limits: CapRange) -> float:
        """The cap of one device in watts, within what the device accepts."""
        if self.watts is not None:
            return limits.clamped(self.watts)
        return limits.from_percent(self.percent)


NO_CAP = Cap()
"""Lifts a cap: a device has the limit that was found before, which may be above its base."""


@dataclass(frozen=True)
class ProfileCaps:
    """The caps of one profile.

    Attributes:
        cpu: cap of one CPU package; None where a plan leaves it to the administrator.
        gpu: cap of one GPU; None where a plan leaves it to the administrator.
        gpu_model_w: absolute caps of one GPU by model, W; take precedence over `gpu` (GPU_MODEL_CAPS_JSON). Names are
            compared whole, after normalisation, first with what the device calls itself, then with the catalogue's
            key: a GPU outside the catalogue has only the former.
    """

    cpu: Cap | None
    gpu: Cap | None
    gpu_model_w: Mapping[str, float] = field(default_factory=dict, hash=False)

    def gpu_cap(self, *names: str | None) -> Cap | None:
        """The cap of one GPU by its names, the most specific first; None is a name that nobody gave."""
        by_name = {normalised(name): watts for name, watts in self.gpu_model_w.items()}
        for name in names:
            watts = None if name is None else by_name.get(normalised(name))
            if watts is not None:
                return Cap(watts=watts)
        return self.gpu


DEFAULT_CAPS: Mapping[Profile, ProfileCaps] = MappingProxyType(
    {
        Profile.PERFORMANCE: ProfileCaps(cpu=Cap(100.0), gpu=Cap(100.0)),
        Profile.ECO: ProfileCaps(cpu=Cap(60.0), gpu=Cap(60.0)),
    }
)
"""Documented defaults: 100 and 60 percent of the base for both."""
