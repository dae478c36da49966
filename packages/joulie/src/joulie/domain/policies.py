"""The built-in policies, and the registry that names them.

All of them order nodes by density, highest first, name as the tie-break, so a plan does not depend on the order in
which nodes were listed. Source: spec, control loop, operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from joulie.domain.energy_split import CapChoice, DeviceCaps, split_caps
from joulie.domain.hardware.resolve import ResolvedHardware
from joulie.domain.policy import Cap, ClusterSnapshot, Plan, Policy, PolicyNode, PolicySettings, Profile, ProfileCaps


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
