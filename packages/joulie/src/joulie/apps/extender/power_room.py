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
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.admission import SETTLING_S, counted_w, fits, needed_w
from joulie.domain.units import BoolArray, FloatArray, IntArray

STATUS_STALE_S = 180.0
"""Age from which a budget's status does not count, s: the operator writes it at least every minute."""
LAG_S = 5.0
"""How old a status may be when it is written: the operator's watch, its interval, and clocks that differ, s."""
PLACING_S = 30.0
"""How long a pod that passed the filter counts unless it is bound before, s."""
MAX_PLACING = 1024
"""Pods that are counted so; kube-scheduler places one at a time and binds a few dozen."""


class BudgetRoom(NamedTuple):
    """What a PowerBudget's status says.

    Attributes:
        room_w: what is left for pods, W.
        updated_s: when it was written, s since the epoch.
    """

    room_w: float
    updated_s: float


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


class _OfNode(NamedTuple):
    """Sums over the pods of a node."""

    full_power_pods: int = 0
    young_full_w: int = 0
    young_standard_w: int = 0


_NO_PODS = _OfNode()


@dataclass(frozen=True)
class _Placing:
    """A pod that passed the filter."""

    until_s: float
    needed_w: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class PowerView:
    """The room of budgets at a time; arrays of nodes have shape ``(n_slots,)``.

    Attributes:
        names: names of the budgets that count.
        room_w: what they have left for pods, pods that have not run for long counted, W; the last entry is infinite.
        of_node: indices of the budgets of each node, shape ``(n_slots, depth)``; the last of `room_w` for none.
        critical: which nodes have pods that need full power.
        drawn_w: power of the nodes, W.
        floor_w: power under their lowest limits, W.
        placing: pods that kube-scheduler may be placing, by UID; shared by all views.
        now_s: time of the view, s since the epoch.
    """

    names: tuple[str, ...]
    room_w: FloatArray
    of_node: IntArray
    critical: BoolArray
    drawn_w: FloatArray
    floor_w: FloatArray
    placing: dict[str, _Placing]
    now_s: float

    def refused(self, uid: str, added_w: FloatArray, *, full_power: bool) -> Mapping[int, str]:
        """Slots of the nodes that are closed to a pod, with the reason.

        Args:
            uid: its UID: what it was counted with before does not count against it.
            added_w: what it is expected to add to each node, W, shape ``(n_slots,)``.
            full_power: whether it needs full power.
        """
        needed = needed_w(added_w, full_power, self.critical, self.drawn_w, self.floor_w)
        left_w = self._left_w(uid)
        of_node_w = left_w[self.of_node]
        closed = np.flatnonzero(~fits(needed, of_node_w.min(axis=1)))
        tightest = self.of_node[closed, of_node_w[closed].argmin(axis=1)]
        return {
            slot: _reason(self.names[budget], float(left_w[budget]), float(needed[slot]))
            for slot, budget in zip(closed.tolist(), tightest.tolist(), strict=True)
        }

    def place(self, uid: str, added_w: FloatArray, slots: IntArray, *, full_power: bool) -> None:
        """Count a pod in every budget in which it may end up: it passed the filter on these slots."""
        counted = counted_w(added_w, full_power, self.critical, self.drawn_w, self.floor_w)
        most_w = np.zeros(self.room_w.shape)
        of_node = self.of_node[slots]
        np.maximum.at(most_w, of_node.ravel(), np.repeat(counted[slots], of_node.shape[1]))
        by_budget = {self.names[index]: float(most_w[index]) for index in np.flatnonzero(most_w[:-1] > 0.0).tolist()}
        self.placing.pop(uid, None)
        if by_budget:
            self.placing[uid] = _Placing(self.now_s + PLACING_S, by_budget)
            if len(self.placing) > MAX_PLACING:
                del self.placing[next(iter(self.placing))]

    def _left_w(self, uid: str) -> FloatArray:
        left_w = self.room_w.copy()
        index = {name: place for place, name in enumerate(self.names)}
        for other, one in self.placing.items():
            if other != uid and one.until_s > self.now_s:
                for name, watts in one.needed_w.items():
                    if name in index:
                        left_w[index[name]] -= watts
        return left_w


def _reason(budget: str, left_w: float, needed: float) -> str:
    """In whole watts, so that kube-scheduler's event sums up nodes that are alike."""
    if needed <= 0.0:
        return f"power budget {budget} is short of {-left_w:.0f} W for pods that need full power"
    return f"power budget {budget} has {max(left_w, 0.0):.0f} W left for pods, and the pod needs {needed:.0f} W"


@dataclass
class PowerRoom:
    """What is known of budgets and pods; used from one event loop only.

    Attributes:
        ready: whether all pods are known.
        changes: number of changes so far.
    """

    ready: bool = False
    changes: int = 0
    _budgets: dict[str, BudgetRoom] = field(default_factory=dict)
    _covering: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _pods: dict[object, BoundPod] = field(default_factory=dict)
    _young: dict[object, BoundPod] = field(default_factory=dict)
    _settles: list[tuple[float, int, object, BoundPod]] = field(default_factory=list)
    _nodes: dict[str, _OfNode] = field(default_factory=dict)
    _critical_since_s: dict[str, float] = field(default_factory=dict)
    _placing: dict[str, _Placing] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _membership: tuple[object, int, tuple[str, ...], IntArray] | None = None
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
        self._settle(key)
        old = self._pods.pop(key, None)
        if old is not None and old.full_power:
            self._add(old.node, _OfNode(-1))
            if old.node not in self._nodes or not self._nodes[old.node].full_power_pods:
                self._critical_since_s.pop(old.node, None)
        if pod is None:
            return
        if pod.full_power:
            self._add(pod.node, _OfNode(1))
            since_s = now_s if pod.running_since_s is None else pod.running_since_s
            self._critical_since_s.setdefault(pod.node, since_s)
            self._pods[key] = pod
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
        for uid in self._seen:
            self._placing.pop(uid, None)  # from now on it counts where it is
        self._seen.clear()
        rooms = {name: one.room_w for name, one in self._budgets.items() if self.counts(name, now_s)}
        if not rooms or not self.ready:
            return None
        names = tuple(sorted(rooms))
        of_node = self._members(names, slots, n_slots, of)
        critical, young_w, drawn_w = np.zeros(n_slots, dtype=np.bool_), np.zeros(n_slots), drawn_w.copy()
        for node, one in self._nodes.items():
            slot = slots.get(node)
            if slot is None:
                continue
            critical[slot] = one.full_power_pods > 0
            if one.full_power_pods:
                young_w[slot] = one.young_full_w + one.young_standard_w
            else:
                drawn_w[slot] += one.young_standard_w  # what it will draw, should a pod need it at full power
        room_w = np.array([*(rooms[name] for name in names), math.inf])
        np.subtract.at(room_w, of_node.ravel(), np.repeat(young_w, of_node.shape[1]))
        told_s = np.array([*(self._budgets[name].updated_s - LAG_S for name in names), math.inf])
        earliest_s = float(told_s.min())
        for node, since_s in self._critical_since_s.items():
            slot = slots.get(node)
            if slot is not None and since_s >= earliest_s:
                # The status still takes the node for one that gives.
                untold = of_node[slot][told_s[of_node[slot]] <= since_s]
                room_w[untold] -= max(float(drawn_w[slot] - floor_w[slot]), 0.0)
        return PowerView(names, room_w, of_node, critical, drawn_w, floor_w, self._placing, now_s)

    def counts(self, name: str, now_s: float) -> bool:
        """Whether a budget's status is recent enough to hold pods back."""
        return abs(now_s - self._budgets[name].updated_s) <= STATUS_STALE_S

    def tally(self, now_s: float) -> tuple[int, int]:
        """Number of budgets that count, and of those whose status is old."""
        recent = sum(self.counts(name, now_s) for name in self._budgets)
        return recent, len(self._budgets) - recent

    def _members(self, names: tuple[str, ...], slots: Mapping[str, int], n_slots: int, of: object) -> IntArray:
        """`PowerView.of_node`, kept until nodes or budgets change."""
        known = self._membership
        if known is not None and known[0] is of and known[1:3] == (self._membership_changes, names):
            return known[3]
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
        self._membership = of, self._membership_changes, names, of_node
        return of_node

    def _settle(self, key: object) -> None:
        pod = self._young.pop(key, None)
        if pod is not None:
            self._add_young(pod, -1)

    def _add_young(self, pod: BoundPod, sign: int) -> None:
        watts = sign * pod.added_w
        self._add(pod.node, _OfNode(0, watts, 0) if pod.full_power else _OfNode(0, 0, watts))

    def _add(self, node: str, more: _OfNode) -> None:
        found = self._nodes.get(node, _NO_PODS)
        total = _OfNode(*map(sum, zip(found, more, strict=True)))
        if any(total):
            self._nodes[node] = total
        else:
            self._nodes.pop(node, None)
