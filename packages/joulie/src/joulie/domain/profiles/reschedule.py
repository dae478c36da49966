"""The rescheduler's decision: which pods should move, and which of them to evict now.

Only a pod that says that it may be restarted is ever moved, and only while another node has capacity for it: a move
reserves its target's capacity before the next one is considered. kube-scheduler chooses the node in the end; the target
only proves that one fits. Source: spec, control loop, optional rescheduler.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import numpy as np

from joulie.domain.drain import SchedulableClass
from joulie.domain.quantities import finite_number, positive_number
from joulie.domain.scoring.formulas import headroom_pct, projected_headroom_pct
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie.domain.workload import Level

MAX_PODS = 32
"""Maximum number of pods of one node that a cycle considers."""
MAX_RECOMMENDED = 1000
"""Maximum number of moves that a cycle recommends beyond its evictions, the most urgent first."""
_RESOURCES = ("cpu_cores", "memory_gib", "gpus")
_ROUNDING = 1e-9
"""Requests are sums of decimals: tolerance when they are compared with what is free."""
_SENSITIVITY = {None: 0, Level.LOW: 0, Level.MEDIUM: 1, Level.HIGH: 2}


@dataclass(frozen=True)
class RescheduleSettings:
    """When and how much to move.

    Attributes:
        cooling_stress_pct: a node above this is under stress, 0..100.
        psu_stress_pct: a node whose rack is above this is under stress, 0..100.
        headroom_pct: a node with less power left below its limit is under stress, percent of the limit; 0 never, since
            a busy eco node has none by design.
        margin_pct: how far from stress a target must stay once it has the pod, percent points.
        max_per_node: pods to evict from one node in one cycle.
        max_per_cycle: pods to evict in one cycle in all.
        min_age_s: younger pods stay, so that none is moved around, s.

    Raises:
        InvalidQuantityError: a setting is NaN, infinite or out of range.
    """

    cooling_stress_pct: float = 90.0
    psu_stress_pct: float = 90.0
    headroom_pct: float = 0.0
    margin_pct: float = 10.0
    max_per_node: int = 1
    max_per_cycle: int = 10
    min_age_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("cooling_stress_pct", "psu_stress_pct", "headroom_pct", "margin_pct"):
            finite_number(name, getattr(self, name), minimum=0.0, maximum=100.0)
        for name in ("max_per_node", "max_per_cycle", "min_age_s"):
            finite_number(name, getattr(self, name), minimum=0.0)


class Cause(StrEnum):
    """Why pods should leave a node, as metrics name it."""

    DRAINING = "draining"
    COOLING_STRESS = "cooling-stress"
    PSU_STRESS = "psu-stress"
    HEADROOM = "headroom"


class EvictionReason(NamedTuple):
    """Why pods should leave a node: a cause from a fixed list, and a sentence for people."""

    cause: Cause
    reason: str


class Workload(NamedTuple):
    """The top owner of some pods, or a pod without one."""

    namespace: str
    kind: str
    name: str


@dataclass(frozen=True)
class MovablePod:
    """A running pod, as the rescheduler sees it.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        workload: what it belongs to.
        power_w: what it draws, measured or estimated, W.
        cpu_cores: requested cores.
        memory_gib: requested memory, GiB.
        gpus: requested GPUs.
        gpu_vendor: of these; None without.
        reschedulable: from annotation or profile; only True lets it be moved.
        performance: whether its class, or its scheduling constraint, is performance.
        sensitivity: the higher of those to CPU and GPU caps; None where unknown.
        age_s: since it started, s.
        daemon: whether a DaemonSet owns it.
        mirror: whether it is a static pod of the kubelet.
        terminating: whether it is on its way out already.
        admitted: nodes that its selector, affinity and tolerations admit; None for all.

    Raises:
        InvalidQuantityError: a power or request is NaN, infinite or negative.
    """

    namespace: str
    name: str
    workload: Workload
    power_w: float
    cpu_cores: float = 0.0
    memory_gib: float = 0.0
    gpus: float = 0.0
    gpu_vendor: str | None = None
    reschedulable: bool | None = None
    performance: bool = False
    sensitivity: Level | None = None
    age_s: float = 0.0
    daemon: bool = False
    mirror: bool = False
    terminating: bool = False
    admitted: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for name in ("power_w", *_RESOURCES):
            finite_number(name, getattr(self, name), minimum=0.0)


@dataclass(frozen=True)
class NodeLoad:
    """Power and stress of a node, from its twin.

    Attributes:
        capped_w: power limit in force, W.
        measured_w: power now, W.
        cooling_stress_pct: 0..100.
        psu_stress_pct: of its rack, or of the cluster where it has none, 0..100.
        psu_capacity_w: power that this stress is a share of, W; None where no limit is known.

    Raises:
        InvalidQuantityError: a number is NaN, infinite or out of range.
    """

    capped_w: float
    measured_w: float
    cooling_stress_pct: float
    psu_stress_pct: float
    psu_capacity_w: float | None

    def __post_init__(self) -> None:
        positive_number("capped_w", self.capped_w)
        finite_number("measured_w", self.measured_w, minimum=0.0)
        finite_number("cooling_stress_pct", self.cooling_stress_pct, minimum=0.0, maximum=100.0)
        finite_number("psu_stress_pct", self.psu_stress_pct, minimum=0.0, maximum=100.0)
        if self.psu_capacity_w is not None:
            positive_number("psu_capacity_w", self.psu_capacity_w)

    @property
    def psu_limit_w(self) -> float:
        """The capacity, infinite where no limit is known."""
        return math.inf if self.psu_capacity_w is None else self.psu_capacity_w


@dataclass(frozen=True)
class NodeState:
    """A node, as the rescheduler sees it.

    Attributes:
        name: of the node.
        schedulable: what the scheduler may put on it.
        load: None where the twin has no fresh scores: then it is neither stressed nor a target.
        accepts_pods: ready, and neither cordoned nor reserved nor about to go.
        rack: what its PSU stress is about; None for the whole cluster.
        free_cpu_cores: allocatable cores less requests.
        free_memory_gib: the same of memory, GiB.
        free_gpus: the same of GPUs.
        gpu_vendor: of its GPUs; None without.
        free_pods: pods that it takes yet.
        pods: that run on it.

    Raises:
        InvalidQuantityError: what is free is NaN or infinite.
    """

    name: str
    schedulable: SchedulableClass
    load: NodeLoad | None = None
    accepts_pods: bool = True
    rack: str | None = None
    free_cpu_cores: float = 0.0
    free_memory_gib: float = 0.0
    free_gpus: float = 0.0
    gpu_vendor: str | None = None
    free_pods: int = 0
    pods: tuple[MovablePod, ...] = ()

    def __post_init__(self) -> None:
        for name in ("free_cpu_cores", "free_memory_gib", "free_gpus", "free_pods"):
            finite_number(name, getattr(self, name))


@dataclass(frozen=True)
class Recommendation:
    """A workload that should leave its node, and why."""

    node: str
    workload: Workload
    cause: Cause
    reason: str


@dataclass(frozen=True)
class Eviction:
    """A pod to evict now, and why.

    Attributes:
        namespace: of the pod.
        pod: its name.
        workload: what it belongs to.
        node: where it runs.
        target: a node with room for it, which kube-scheduler may or may not choose.
        cause: why, from a fixed list.
        reason: why, for people.
    """

    namespace: str
    pod: str
    workload: Workload
    node: str
    target: str
    cause: Cause
    reason: str


@dataclass(frozen=True)
class ReschedulePlan:
    """The decision of one cycle.

    Attributes:
        recommendations: what should leave, also beyond what is evicted now; by node.
        evictions: what to evict now.
    """

    recommendations: tuple[Recommendation, ...] = ()
    evictions: tuple[Eviction, ...] = ()


def plan_rescheduling(nodes: Iterable[NodeState], settings: RescheduleSettings) -> ReschedulePlan:
    """Plan moves of pods away from nodes that are under stress or drain.

    Draining nodes go first, then the others, the most stressed first. From a draining node everything that may be moved
    leaves, performance pods first; from a stressed one as much as ends the stress, standard pods first, then the more
    sensitive to caps, then the more power. The order in which nodes and pods are listed decides nothing.

    Args:
        nodes: all nodes of the cluster, names unique.
        settings: thresholds and limits.
    """
    ordered = sorted(nodes, key=lambda node: node.name)
    racks = _racks(ordered)
    sources = [source for node in ordered if (source := _Source.of(node, racks, settings)) is not None]
    sources.sort(key=lambda source: (not source.draining, -source.excess_pct()))
    leaving = {source.node.name for source in sources}
    targets = _Targets([node for node in ordered if node.name not in leaving], racks, settings)
    evictions: list[Eviction] = []
    for source in sources:
        limit = min(settings.max_per_node, settings.max_per_cycle - len(evictions))
        evictions += _shed(source, targets, limit)
    # Only now, so that recommendations take no capacity from evictions.
    more = (move for source in sources for move in _shed(source, targets, MAX_PODS))
    recommended = [*evictions, *islice(more, MAX_RECOMMENDED)]
    reasons = {(move.node, move.workload): EvictionReason(move.cause, move.reason) for move in reversed(recommended)}
    recommendations = [Recommendation(node, workload, *why) for (node, workload), why in sorted(reasons.items())]
    return ReschedulePlan(tuple(recommendations), tuple(evictions))


def _shed(source: _Source, targets: _Targets, limit: int) -> Iterator[Eviction]:
    """Move up to `limit` pods off a node until it is out of stress; pods without a target stay."""
    while limit > 0 and source.waiting and (why := source.eviction_reason()) is not None:
        pod = source.waiting.pop(0)
        target = targets.best(pod, source.rack)
        if target is not None:
            source.give(pod)
            where = targets.take(target, pod)
            limit -= 1
            yield Eviction(pod.namespace, pod.name, pod.workload, source.node.name, where, *why)


@dataclass
class _Rack:
    """PSU stress of a rack, or of the whole cluster, while moves are booked."""

    index: int
    psu_stress_pct: float = 0.0

    def add(self, more_w: float, capacity_w: float) -> None:
        self.psu_stress_pct += more_w / capacity_w * 100.0


def _racks(nodes: Sequence[NodeState]) -> dict[str | None, _Rack]:
    racks: dict[str | None, _Rack] = {}
    for node in nodes:
        rack = racks.setdefault(node.rack, _Rack(len(racks)))
        if node.load is not None:
            rack.psu_stress_pct = max(rack.psu_stress_pct, node.load.psu_stress_pct)
    return racks


@dataclass
class _Source:
    """A node that should shed pods, as moves are booked; its load is unknown where a node drains without a twin."""

    node: NodeState
    rack: _Rack
    settings: RescheduleSettings
    cooling_stress_pct: float = 0.0
    measured_w: float = 0.0
    waiting: list[MovablePod] = field(default_factory=list)

    @classmethod
    def of(cls, node: NodeState, racks: Mapping[str | None, _Rack], settings: RescheduleSettings) -> _Source | None:
        """None for a node that is not under stress."""
        source = cls(node, racks[node.rack], settings)
        if node.load is not None:
            source.cooling_stress_pct, source.measured_w = node.load.cooling_stress_pct, node.load.measured_w
        if source.eviction_reason() is None:
            return None
        source.waiting = sorted((pod for pod in node.pods if _may_be_moved(pod, settings)), key=source._turn)[:MAX_PODS]
        return source

    @property
    def draining(self) -> bool:
        return self.node.schedulable is SchedulableClass.DRAINING

    def eviction_reason(self) -> EvictionReason | None:
        """Why pods should leave; None where the node is not under stress, or its load is unknown."""
        limits = self.settings
        if self.draining:
            return EvictionReason(Cause.DRAINING, "the node is draining")
        if self.node.load is None:
            return None
        if self.cooling_stress_pct > limits.cooling_stress_pct:
            reason = f"cooling stress {self.cooling_stress_pct:.0f}%, above {limits.cooling_stress_pct:g}%"
            return EvictionReason(Cause.COOLING_STRESS, reason)
        if self.rack.psu_stress_pct > limits.psu_stress_pct:
            reason = f"PSU stress {self.rack.psu_stress_pct:.0f}%, above {limits.psu_stress_pct:g}%"
            return EvictionReason(Cause.PSU_STRESS, reason)
        headroom_pct = self._headroom_pct(self.node.load)
        if headroom_pct < limits.headroom_pct:
            return EvictionReason(Cause.HEADROOM, f"power headroom {headroom_pct:.0f}%, below {limits.headroom_pct:g}%")
        return None

    def excess_pct(self) -> float:
        """How far beyond its thresholds the node is, percent points; 0 where nothing is known of it."""
        if self.node.load is None:
            return 0.0
        return max(
            self.cooling_stress_pct - self.settings.cooling_stress_pct,
            self.rack.psu_stress_pct - self.settings.psu_stress_pct,
            self.settings.headroom_pct - self._headroom_pct(self.node.load),
        )

    def give(self, pod: MovablePod) -> None:
        """Book a pod that leaves."""
        load = self.node.load
        if load is None:
            return
        left = max(0.0, 1.0 - pod.power_w / self.measured_w) if self.measured_w > 0.0 else 1.0
        self.cooling_stress_pct *= left
        self.measured_w *= left
        self.rack.add(-pod.power_w, load.psu_limit_w)

    def _headroom_pct(self, load: NodeLoad) -> float:
        return float(projected_headroom_pct(load.capped_w, self.measured_w, 0.0))

    def _turn(self, pod: MovablePod) -> tuple[bool, int, float, str, str]:
        """Which pod goes first: a draining node keeps no performance pods, a stressed one keeps them longest."""
        first = pod.performance is self.draining
        return (not first, -_SENSITIVITY[pod.sensitivity], -pod.power_w, pod.namespace, pod.name)


def _may_be_moved(pod: MovablePod, settings: RescheduleSettings) -> bool:
    stays = pod.daemon or pod.mirror or pod.terminating
    return pod.reschedulable is True and not stays and pod.age_s >= settings.min_age_s


class _Targets:
    """The nodes that may get pods, while moves are booked: what one pod takes is not given away twice.

    Draining nodes are sources and so never among them.

    Arrays have shape ``(n_targets,)``.
    """

    def __init__(
        self, nodes: Sequence[NodeState], racks: Mapping[str | None, _Rack], settings: RescheduleSettings
    ) -> None:
        known = [(node, node.load) for node in nodes if node.load is not None and node.accepts_pods]
        self._settings = settings
        # Power that did not fit, by rack and kind of pod: capacity only shrinks within a cycle. (PSU stress of a rack
        # may fall, which the next cycle uses.)
        self._does_not_fit_w: dict[tuple[int, tuple[object, ...]], float] = {}
        self._racks = list(racks.values())
        self._names = [node.name for node, _ in known]
        self._index = {name: index for index, name in enumerate(self._names)}
        self._vendor = np.array([node.gpu_vendor or "" for node, _ in known])
        self._eco: BoolArray = np.array([node.schedulable is SchedulableClass.ECO for node, _ in known], dtype=np.bool_)
        self._rack: IntArray = np.array([racks[node.rack].index for node, _ in known], dtype=np.int64)
        self._free_pods = _array(node.free_pods for node, _ in known)
        self._free = {
            resource: _array(getattr(node, f"free_{resource}") for node, _ in known) for resource in _RESOURCES
        }
        self._capped_w = _array(load.capped_w for _, load in known)
        self._measured_w = _array(load.measured_w for _, load in known)
        self._cooling_pct = _array(load.cooling_stress_pct for _, load in known)
        self._psu_capacity_w = _array(load.psu_limit_w for _, load in known)

    def best(self, pod: MovablePod, source: _Rack) -> int | None:
        """The node for a pod: eco before performance for standard ones, then the most headroom, then the first name."""
        shape = (pod.performance, *(getattr(pod, resource) for resource in _RESOURCES), pod.gpu_vendor, pod.admitted)
        if pod.power_w >= self._does_not_fit_w.get((source.index, shape), math.inf):
            return None
        candidates = self._fits(pod) & self._stays_well(pod.power_w, source)
        if not candidates.any():
            self._does_not_fit_w[source.index, shape] = pod.power_w
            return None
        preferred = candidates & self._eco if not pod.performance else candidates
        chosen = preferred if preferred.any() else candidates
        return int(np.argmax(np.where(chosen, self._headroom_pct(pod.power_w), -np.inf)))

    def take(self, index: int, pod: MovablePod) -> str:
        """Book a pod that comes, and say to which node."""
        self._cooling_pct[index] = self._cooling_with(pod.power_w)[index]
        self._measured_w[index] += pod.power_w
        self._racks[self._rack[index]].add(pod.power_w, float(self._psu_capacity_w[index]))
        self._free_pods[index] -= 1.0
        for resource, free in self._free.items():
            free[index] -= getattr(pod, resource)
        return self._names[index]

    def _fits(self, pod: MovablePod) -> BoolArray:
        fits: BoolArray = self._free_pods >= 1.0
        for resource, free in self._free.items():
            fits &= free >= getattr(pod, resource) - _ROUNDING
        if pod.performance:
            fits &= ~self._eco
        if pod.gpus > 0.0 and pod.gpu_vendor is not None:
            fits &= self._vendor == pod.gpu_vendor
        if pod.admitted is not None:
            admitted = np.zeros(len(self._names), dtype=np.bool_)
            admitted[[self._index[name] for name in pod.admitted if name in self._index]] = True
            fits &= admitted
        return fits

    def _stays_well(self, more_w: float, source: _Rack) -> BoolArray:
        """Nodes that stay clear of stress by the margin with that much more power from the source's rack."""
        limits = self._settings
        # Within a rack a move changes nothing for its PSU.
        other_rack = (self._rack != source.index).astype(np.float64)
        psu_pct = np.array([rack.psu_stress_pct for rack in self._racks])[self._rack]
        psu_pct += other_rack * more_w / self._psu_capacity_w * 100.0
        well: BoolArray = psu_pct <= limits.psu_stress_pct - other_rack * limits.margin_pct
        well &= self._cooling_with(more_w) <= limits.cooling_stress_pct - limits.margin_pct
        well &= self._headroom_pct(more_w) >= limits.headroom_pct + limits.margin_pct
        return well

    def _cooling_with(self, more_w: float) -> FloatArray:
        """Cooling stress with that much more power, to which it is proportional, percent."""
        return self._cooling_pct * (1.0 + more_w / np.maximum(self._measured_w, 1.0))

    def _headroom_pct(self, more_w: float) -> FloatArray:
        return np.asarray(headroom_pct(self._capped_w, self._measured_w, more_w))


def _array(values: Iterable[float]) -> FloatArray:
    return np.fromiter(values, dtype=np.float64)
