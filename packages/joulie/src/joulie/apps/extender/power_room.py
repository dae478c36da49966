"""Power budgets whose room for pods is used up: nodes that are closed to a pod until there is room again.

The operator says in a PowerBudget's status what is left for pods, and in a NodeTwin's which budgets cover the node. It
goes by what is measured, which says nothing yet of pods that were placed a moment ago. So three things are counted here
beside it: pods that kube-scheduler may be placing, in each budget in which they could end up; pods that are bound and
have not run for long; and which nodes have pods that need full power.

A budget whose status is old closes no node: its limits hold all the same, and whoever writes the status is away.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from joulie.apps.extender.in_flight import Ground, InFlight, Load
from joulie.apps.extender.node_sums import NodeSums
from joulie.domain.capping.admission import SETTLING_S, counted_w, fits, needed_w
from joulie.domain.units import BoolArray, FloatArray, IntArray

STATUS_STALE_S = 180.0
"""Age from which a budget's status does not count, s: the operator writes it at least every minute."""
LAG_S = 5.0
"""How old a status may be when it is written: the operator's watch, its interval, and clocks that differ, s."""


class BudgetRoom(NamedTuple):
    """What a PowerBudget's status says.

    Attributes:
        room_w: what is left for pods, W.
        updated_s: when it was written, s since the epoch.
    """

    room_w: float
    updated_s: float

    def counts(self, now_s: float) -> bool:
        """Whether it is recent enough to hold pods back."""
        return abs(now_s - self.updated_s) <= STATUS_STALE_S


class BoundPod(NamedTuple):
    """A pod on a node.

    Attributes:
        node: name of the node.
        uid: UID of the pod.
        added_w: what it is expected to add to the node, whole W.
        full_power: whether it needs full power.
        running_since_s: since when it runs, s since the epoch; None before.
    """

    node: str
    uid: str
    added_w: int
    full_power: bool
    running_since_s: float | None


@dataclass(frozen=True, eq=False)
class PowerView:
    """The room of budgets at a time; arrays of nodes have shape ``(n_slots,)``.

    Attributes:
        ground: the budgets that count, and those of each node.
        room_w: what they have left for pods, pods that have not run for long counted, W; the last entry is infinite.
        critical: which nodes have pods that need full power.
        drawn_w: power of the nodes, W.
        floor_w: power under their lowest limits, W.
        in_flight: pods that kube-scheduler may be placing; shared by all views.
        now_s: time of the view, s since the epoch.
    """

    ground: Ground
    room_w: FloatArray
    critical: BoolArray
    drawn_w: FloatArray
    floor_w: FloatArray
    in_flight: InFlight
    now_s: float

    def refused(self, uid: str, added_w: FloatArray, slots: IntArray, *, full_power: bool) -> Mapping[int, str]:
        """Nodes that are closed to a pod, as indices of `slots`, with the reason.

        Args:
            uid: its UID: what it was counted with before does not count against it.
            added_w: what it is expected to add to each node, W, shape ``(n_slots,)``.
            slots: of the nodes that are asked about.
            full_power: whether it needs full power.
        """
        load = self.in_flight.besides(uid, self.ground, self.now_s)
        needed = needed_w(added_w[slots], full_power, *self._nodes(load, slots, full_power=full_power))
        left_w = self.room_w - load.needed_w
        of_node = self.ground.of_node[slots]
        left_of_node_w = left_w[of_node]
        closed = np.flatnonzero(~fits(needed, left_of_node_w.min(axis=1)))
        if not closed.size:
            return {}
        tightest = of_node[closed, left_of_node_w[closed].argmin(axis=1)]
        reason = cache(self._reason)
        whole_w = np.rint(needed[closed]).astype(np.int64).tolist()
        texts = [
            reason(budget, float(left_w[budget]), watts)
            for budget, watts in zip(tightest.tolist(), whole_w, strict=True)
        ]
        return dict(zip(closed.tolist(), texts, strict=True))

    def place(self, uid: str, added_w: FloatArray, slots: IntArray, *, full_power: bool) -> None:
        """Count a pod in every budget in which it may end up: it passed the filter on these slots."""
        load = self.in_flight.besides(uid, self.ground, self.now_s)
        added_w = added_w[slots]
        counted = counted_w(added_w, full_power, *self._nodes(load, slots, full_power=full_power))
        self.in_flight.place(uid, self.ground, self.now_s, slots, counted, added_w, full_power=full_power)

    def _nodes(self, load: Load, slots: IntArray, *, full_power: bool) -> tuple[BoolArray, FloatArray, FloatArray]:
        """Which nodes need full power, what they draw, W, and their floor, W, if pods in flight go there."""
        critical, drawn_w = self.critical[slots], self.drawn_w[slots]
        drawn_w = np.where(critical, drawn_w, drawn_w + load.standard_w[slots])
        if not full_power:
            critical = critical | load.critical[slots]
        return critical, drawn_w, self.floor_w[slots]

    def _reason(self, budget: int, left_w: float, needed: int) -> str:
        """In whole watts, so that kube-scheduler's event sums up nodes that are alike."""
        name = self.ground.names[budget]
        if needed <= 0:
            return f"power budget {name} is short of {-left_w:.0f} W for pods that need full power"
        return f"power budget {name} has {max(left_w, 0.0):.0f} W left for pods, and the pod needs {needed} W"


@dataclass
class PowerRoom:
    """What is known of budgets and pods; used from one event loop only.

    Attributes:
        ready: whether all pods are known.
        changes: number of changes so far.
    """

    ready: bool = False
    changes: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    _budgets: dict[str, BudgetRoom] = field(default_factory=dict)
    _covering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _pods: dict[object, BoundPod] = field(default_factory=dict)
    _young: dict[object, BoundPod] = field(default_factory=dict)
    _settles: list[tuple[float, int, object, BoundPod]] = field(default_factory=list)
    _nodes: NodeSums = field(default_factory=NodeSums)
    _seen: set[str] = field(default_factory=set)
    _arrived: list[BoundPod] = field(default_factory=list)
    _critical: tuple[object, BoolArray] | None = None
    _ground: tuple[int, Ground] | None = None
    _membership_changes: int = 0

    def set_budget(self, name: str, room: BudgetRoom | None) -> None:
        """Set what a budget has left; None where it holds no pods back."""
        self.changes += 1
        if room is None:
            self._budgets.pop(name, None)
        else:
            self._budgets[name] = room

    def set_covering(self, node: str, budgets: tuple[str, ...]) -> None:
        """Set the budgets that cover a node."""
        if self._covering.get(node, ()) != budgets:
            self._membership_changes += 1
            if budgets:
                self._covering[node] = budgets
            else:
                self._covering.pop(node, None)

    def set_pod(self, key: object, pod: BoundPod | None, now_s: float) -> None:
        """Set a bound pod; None for one that has ended or is gone.

        Args:
            key: of the pod.
            pod: the pod.
            now_s: time, s since the epoch.
        """
        self.changes += 1
        new = key not in self._young
        self._settle(key)
        old = self._pods.pop(key, None)
        if old is not None and old.full_power:
            self._nodes.add(old.node, full_power_pods=-1)
        if pod is None:
            return
        if pod.full_power:
            since_s = now_s if pod.running_since_s is None else pod.running_since_s
            self._nodes.add(pod.node, full_power_pods=+1, since_s=since_s)
            self._pods[key] = pod
        elif new and self.in_flight.pods:
            self._arrived.append(pod)
        self._seen.add(pod.uid)
        self._young[key] = pod
        self._add_young(pod, +1)
        if pod.running_since_s is not None:
            heapq.heappush(self._settles, (pod.running_since_s + SETTLING_S, self.changes, key, pod))

    def view(
        self,
        slots: Mapping[str, int],
        n_slots: int,
        now_s: float,
        drawn_w: FloatArray,
        floor_w: FloatArray,
        of: object,
    ) -> PowerView | None:
        """The room now; None where no budget counts.

        Args:
            slots: slot by node name.
            n_slots: number of slots.
            now_s: time, s since the epoch.
            drawn_w: power of the nodes, W.
            floor_w: power under their lowest limits, W.
            of: what `slots` belongs to: as long as it is the same, so are they.
        """
        while self._settles and self._settles[0][0] <= now_s:
            _, _, key, pod = heapq.heappop(self._settles)
            if self._young.get(key) is pod:
                self._settle(key)
        rooms = {name: one for name, one in self._budgets.items() if one.counts(now_s)}
        if not rooms or not self.ready:
            self._see(None, slots, now_s)
            return None
        names = tuple(sorted(rooms))
        ground = self._ground_of(names, slots, n_slots, of)
        self._see(ground, slots, now_s)
        nodes = self._nodes.by_slot(slots, n_slots, of)
        critical = nodes.full_power_pods > 0
        self._tell_critical(critical, ground, now_s)
        young_w = np.where(critical, nodes.young_full_w + nodes.young_standard_w, 0)
        # What they will draw, should a pod need it at full power.
        drawn_w = drawn_w + np.where(critical, 0, nodes.young_standard_w)
        room_w = np.array([*(rooms[name].room_w for name in names), math.inf])
        told_s = np.array([*(rooms[name].updated_s - LAG_S for name in names), math.inf])
        of_node = ground.of_node
        young = np.flatnonzero(young_w)
        _take(room_w, of_node[young], young_w[young])
        # A node that is critical since a status was written is one that gives, for that status.
        late = np.flatnonzero(critical & (nodes.since_s >= told_s.min()))
        untold = np.where(told_s[of_node[late]] <= nodes.since_s[late, np.newaxis], of_node[late], len(names))
        _take(room_w, untold, np.maximum(drawn_w[late] - floor_w[late], 0.0))
        return PowerView(ground, room_w, critical, drawn_w, floor_w, self.in_flight, now_s)

    def _see(self, ground: Ground | None, slots: Mapping[str, int], now_s: float) -> None:
        """From now on pods whose binding has been seen count where they are."""
        self.in_flight.seen(self._seen)
        self._seen.clear()
        for pod in self._arrived:
            slot = slots.get(pod.node)
            if ground is not None and slot is not None:
                self.in_flight.arrived(slot, pod.added_w, ground, now_s)
        self._arrived.clear()

    def _tell_critical(self, critical: BoolArray, ground: Ground, now_s: float) -> None:
        """Tell which nodes have to run at full power since the last view."""
        before = self._critical
        known = before is not None and before[0] is ground.roster
        newly = critical & ~before[1] if known and before is not None else critical
        if newly.any() and self.in_flight.pods:
            self.in_flight.became_critical(np.flatnonzero(newly), ground, now_s)
        self._critical = ground.roster, critical

    def tally(self, now_s: float) -> tuple[int, int]:
        """Number of budgets that count, and of those whose status is old."""
        recent = sum(one.counts(now_s) for one in self._budgets.values())
        return recent, len(self._budgets) - recent

    def _ground_of(self, names: tuple[str, ...], slots: Mapping[str, int], n_slots: int, of: object) -> Ground:
        """The budgets of each node, kept until nodes or budgets change."""
        known = self._ground
        if known is not None and known[0] == self._membership_changes:
            ground = known[1]
            if ground.roster is of and ground.names == names:
                return ground
        index = {name: place for place, name in enumerate(names)}
        rows = {
            slots[node]: [index[name] for name in budgets if name in index]
            for node, budgets in self._covering.items()
            if node in slots
        }
        depth = max(map(len, rows.values()), default=0) or 1
        of_node = np.full((n_slots, depth), len(names), dtype=np.int64)
        for slot, budgets in rows.items():
            of_node[slot, : len(budgets)] = budgets
        ground = Ground(names, of_node, of)
        self._ground = self._membership_changes, ground
        return ground

    def _settle(self, key: object) -> None:
        pod = self._young.pop(key, None)
        if pod is not None:
            self._add_young(pod, -1)

    def _add_young(self, pod: BoundPod, sign: int) -> None:
        watts = sign * pod.added_w
        if pod.full_power:
            self._nodes.add(pod.node, young_full_w=watts)
        else:
            self._nodes.add(pod.node, young_standard_w=watts)


def _take(room_w: FloatArray, of_node: IntArray, watts: FloatArray | IntArray) -> None:
    """Take from each budget what its nodes have lost; `of_node` has the budgets of each of these nodes."""
    weights = np.repeat(watts, of_node.shape[1])
    room_w -= np.bincount(of_node.ravel(), weights=weights, minlength=len(room_w))
