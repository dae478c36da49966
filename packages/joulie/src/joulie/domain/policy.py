"""Policies: which nodes run at full power and which under caps.

A policy maps a frozen snapshot of the cluster to a plan. All of them order nodes by density, highest first, name as the
tie-break, so a plan does not depend on the order in which nodes were listed. Source: spec, control loop, operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from joulie.domain.energy_split import CapChoice, DeviceCaps, EnergyBounds, split_caps
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
class FullPower:
    """All nodes at full power, for limits of single GPUs by what their jobs bear (`joulie.domain.capping.live`).

    The default: caps of nodes either slow standard work beyond 5 % or save nothing measurable (design record 0031).
    """

    settings: PolicySettings
    uses_time: ClassVar[bool] = False

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        nodes = snapshot.by_density()
        return _plan(FULL_POWER, nodes, {node.name for node in nodes})


@dataclass(frozen=True)
class StaticPartition:
    """A fixed share of performance nodes: ``round(N * STATIC_HP_FRAC)``."""

    settings: PolicySettings
    uses_time: ClassVar[bool] = False

    def demanded(self, snapshot: ClusterSnapshot) -> tuple[int, float | None]:
        """See `Policy`."""
        return _share(_n_shared(snapshot), self.settings.static_hp_frac), None

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        return _filled("static_partition", snapshot, self.demanded(snapshot)[0])


@dataclass(frozen=True)
class QueueAware:
    """Performance nodes in proportion to the demand.

    ``max(round(N * QUEUE_HP_BASE_FRAC), ceil(P / QUEUE_PERF_PER_HP_NODE))``, clamped to QUEUE_HP_MIN..QUEUE_HP_MAX. It
    rises with the demand at once and falls with hysteresis, see `joulie.domain.hysteresis`.
    """

    settings: PolicySettings
    uses_time: ClassVar[bool] = False

    def demanded(self, snapshot: ClusterSnapshot) -> tuple[int, float | None]:
        """See `Policy`."""
        return _demanded(snapshot, self.settings)

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        hp, due_s = self.demanded(snapshot)
        return replace(_filled("queue_aware_v1", snapshot, hp), due_s=due_s)


@dataclass(frozen=True)
class RuleSwap:
    """For debugging: in each interval one of the two densest nodes is eco, in turn, and all others are performance.

    Where its turn would take the last performance node of a family, the other of the two is eco instead, if it can be.
    """

    settings: PolicySettings

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        nodes = snapshot.by_density()
        pair = nodes[:2]
        if pair:
            turn = int(snapshot.now_s // self.settings.rule_swap_interval_s) % len(pair)
            in_turn = [*pair[turn:], *pair[:turn]]
            families = [node.family for node in nodes]
            eco = next((node for node in in_turn if families.count(node.family) > 1), in_turn[0])
            performance = {node.name for node in nodes} - {eco.name}
        else:
            performance = set()
        return _plan("rule_swap_v1", nodes, performance)


@dataclass(frozen=True)
class EnergyPerWork:
    """Performance nodes by demand, and caps with the minimum energy per work within bounds of slowdown.

    The number of performance nodes is that of `queue_aware_v1`. After one node of each family they are shared out over
    the kinds of nodes that pods can ask for (a GPU vendor, or no GPU), so that no kind runs out of them; within a kind
    those come first on which eco caps would save the smallest share.
    """

    settings: PolicySettings
    uses_time: ClassVar[bool] = False
    _known: dict[ResolvedHardware, _FamilyCaps] = field(default_factory=dict, init=False, repr=False, compare=False)
    """For the hardware of the last snapshot: choosing caps takes milliseconds, a plan far less."""

    def demanded(self, snapshot: ClusterSnapshot) -> tuple[int, float | None]:
        """See `Policy`."""
        return _demanded(snapshot, self.settings)

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """See `Policy.plan`."""
        nodes = snapshot.by_density()
        chosen = self._choose(nodes)
        # Sorting keeps the order by density among nodes that eco caps do the same for.
        ranked = sorted(nodes, key=lambda node: -chosen[node.name].eco_gain if node.name in chosen else -1.0)
        floor, rest = _one_of_each_family(ranked)
        hp, due_s = self.demanded(snapshot)
        kinds: dict[str, list[PolicyNode]] = {}
        for node in rest:
            kinds.setdefault(_kind(node), []).append(node)
        shares = _apportioned(max(0, hp - len(floor)), [len(members) for members in kinds.values()])
        performance = {node.name for node in floor[:hp]}
        for members, share in zip(kinds.values(), shares, strict=True):
            performance |= {node.name for node in members[:share]}
        caps = {name: found.caps for name, found in chosen.items()}
        return replace(_plan("energy_per_work", nodes, performance), caps=MappingProxyType(caps), due_s=due_s)

    def _choose(self, nodes: Sequence[PolicyNode]) -> dict[str, _FamilyCaps]:
        """The caps of each node whose hardware is known, by name."""
        # Hashing hardware is expensive: an object that nodes share is hashed once. The snapshot keeps them alive.
        shared = {id(node.hardware): node.hardware for node in nodes if node.hardware is not None}
        found = {each: self._known.get(each) or self._family_caps(each) for each in set(shared.values())}
        self._known.clear()
        self._known.update(found)
        by_id = {key: found[hardware] for key, hardware in shared.items()}
        return {node.name: by_id[id(node.hardware)] for node in nodes if node.hardware is not None}

    def _family_caps(self, hardware: ResolvedHardware) -> _FamilyCaps:
        split = split_caps(hardware, self.settings.catalogue, self.settings.energy)
        by_profile = {Profile.PERFORMANCE: _profile_caps(split.performance), Profile.ECO: _profile_caps(split.eco)}
        return _FamilyCaps(split.eco_gain, MappingProxyType(by_profile))


class _FamilyCaps(NamedTuple):
    """What `EnergyPerWork` chose for nodes with one kind of hardware."""

    eco_gain: float
    caps: Mapping[Profile, ProfileCaps]


def _kind(node: PolicyNode) -> str:
    """What pods ask for to get such a node: GPUs of a vendor, or none."""
    gpu = None if node.hardware is None else node.hardware.gpu
    return "" if gpu is None else gpu.vendor or "GPU"


def _apportioned(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` shared out by size, no share above its size: whole parts first, then by the largest remainder."""
    everything = sum(sizes)
    wanted = min(total, everything)
    exact = [Fraction(wanted * size, everything or 1) for size in sizes]
    shares = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: (shares[index] - exact[index], index))
    for index in by_remainder[: wanted - sum(shares)]:
        shares[index] += 1
    return shares


def _profile_caps(chosen: DeviceCaps) -> ProfileCaps:
    return ProfileCaps(_cap(chosen.cpu), _cap(chosen.gpu))


def _cap(choice: CapChoice | None) -> Cap | None:
    return None if choice is None else Cap(choice.percent)


PolicyFactory = Callable[[PolicySettings], Policy]

FULL_POWER = "full_power"
"""The default policy."""
POLICIES: Mapping[str, PolicyFactory] = MappingProxyType(
    {
        FULL_POWER: FullPower,
        "static_partition": StaticPartition,
        "queue_aware_v1": QueueAware,
        "rule_swap_v1": RuleSwap,
        "energy_per_work": EnergyPerWork,
    }
)


def _share(n_nodes: int, fraction: float) -> int:
    """``round(n * fraction)``, halves up, in decimal: 50 x 0.29 is 14.5 and not the 14.499... of binary floats."""
    return int((n_nodes * Decimal(repr(float(fraction)))).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def _n_shared(snapshot: ClusterSnapshot) -> int:
    """Number of nodes that shares are of."""
    return len(snapshot.nodes) + snapshot.unavailable


def _demanded(snapshot: ClusterSnapshot, settings: PolicySettings) -> tuple[int, float | None]:
    """Performance nodes by the settings of `queue_aware_v1`, and when they change by time alone, s since the epoch."""
    base = _share(_n_shared(snapshot), settings.queue_hp_base_frac)
    band = math.ceil(settings.hysteresis.band * settings.queue_perf_per_hp_node)

    def needed(demand: int) -> int:
        by_demand = -(-demand // settings.queue_perf_per_hp_node)
        return min(max(base, by_demand, settings.queue_hp_min), settings.queue_hp_max)

    demand = snapshot.performance_demand
    hp, held_s = settings.hysteresis.held(needed(demand), needed(demand + band), snapshot.previous)
    return hp, None if held_s is None else snapshot.now_s + held_s


def _filled(policy: str, snapshot: ClusterSnapshot, hp: int) -> Plan:
    """`hp` performance nodes: first the densest of each family while they last, then by density."""
    nodes = snapshot.by_density()
    floor, rest = _one_of_each_family(nodes)
    return _plan(policy, nodes, {node.name for node in [*floor, *rest][:hp]})


def _one_of_each_family(nodes: Sequence[PolicyNode]) -> tuple[list[PolicyNode], list[PolicyNode]]:
    """The first node of each family, and the rest, both in their order."""
    families: set[str] = set()
    floor: list[PolicyNode] = []
    rest: list[PolicyNode] = []
    for node in nodes:
        (rest if node.family in families else floor).append(node)
        families.add(node.family)
    return floor, rest


def _plan(policy: str, nodes: Sequence[PolicyNode], performance: set[str]) -> Plan:
    profiles = {node.name: Profile.PERFORMANCE if node.name in performance else Profile.ECO for node in nodes}
    return Plan(policy, MappingProxyType(profiles))


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


@dataclass(frozen=True)
class ProfileCaps:
    """The caps of one profile.

    Attributes:
        cpu: cap of one CPU package; None where a plan leaves it to the administrator.
        gpu: cap of one GPU; None where a plan leaves it to the administrator.
        gpu_model_w: absolute caps of one GPU by model, W, which go before `gpu` (GPU_MODEL_CAPS_JSON). Names are
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
