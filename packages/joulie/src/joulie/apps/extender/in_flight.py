"""Pods that have passed the filter and are not known to be bound: kube-scheduler may be placing them.

Which node such a pod ends up on is not known yet. So it counts in each budget with the most that it may need there. One
that needs full power and one that does not may end up on the same node: until that is known, one of them counts with
the watts of both, or each with its own, wherever both may go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray

PLACING_S = 30.0
"""How long a pod that passed the filter counts unless it is bound before, s."""
MAX_PLACING = 1024
"""Pods that are counted so; kube-scheduler places one at a time and binds a few dozen."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What sums over pods refer to: a view's budgets and nodes.

    Attributes:
        names: names of the budgets that count.
        of_node: indices of the budgets of each node, shape ``(n_slots, depth)``; ``len(names)`` for none.
        roster: the same for as long as slots are of the same nodes.
    """

    names: tuple[str, ...]
    of_node: IntArray
    roster: object

    def same(self, other: Ground) -> bool:
        """Whether sums over both are alike."""
        return self.roster is other.roster and self.names == other.names and self.of_node.shape == other.of_node.shape


class _Pod(NamedTuple):
    """A pod that is being placed, in whole W, so that adding and subtracting leaves no rounding error.

    Attributes:
        until_s: until when it counts.
        ground: what the arrays refer to.
        needed_w: in each budget, shape ``(n_budgets + 1,)``.
        slots: where it may go.
        added_w: what it adds to each of these.
        full_power: whether it needs full power.
    """

    until_s: float
    ground: Ground
    needed_w: IntArray
    slots: IntArray
    added_w: IntArray
    full_power: bool


@dataclass
class _Sums:
    """Over all pods in flight, on one ground.

    Attributes:
        needed_w: by budget.
        standard_w: by slot, what pods that need not run at full power may add there.
        full_power: by slot, number of pods that need it.
    """

    ground: Ground
    needed_w: IntArray
    standard_w: IntArray
    full_power: IntArray

    @classmethod
    def on(cls, ground: Ground) -> _Sums:
        """Without any pod."""
        n_slots = len(ground.of_node)
        return cls(ground, np.zeros(len(ground.names) + 1, np.int64), *np.zeros((2, n_slots), np.int64))

    def count(self, pod: _Pod, sign: int) -> None:
        """Add a pod, or take it away."""
        self.needed_w += sign * pod.needed_w
        if pod.full_power:
            self.full_power[pod.slots] += sign
        else:
            self.standard_w[pod.slots] += sign * pod.added_w


class Load(NamedTuple):
    """What the pods in flight are expected to need, one left out.

    Attributes:
        needed_w: of each budget, W, shape ``(n_budgets + 1,)``.
        standard_w: what pods that need not run at full power may add to each node, W, shape ``(n_slots,)``.
        critical: where one may go that needs full power, shape ``(n_slots,)``.
    """

    needed_w: IntArray
    standard_w: IntArray
    critical: BoolArray


@dataclass
class InFlight:
    """The pods that are being placed; used from one event loop only."""

    pods: dict[str, _Pod] = field(default_factory=dict)
    _sums: _Sums | None = None

    def seen(self, uids: Iterable[str]) -> None:
        """Forget pods that are bound: they count where they are."""
        for uid in uids:
            self._forget(uid)

    def besides(self, uid: str, ground: Ground, now_s: float) -> Load:
        """What all pods but one count.

        Args:
            uid: of the one that does not.
            ground: what arrays of the answer refer to.
            now_s: time, s since the epoch.
        """
        sums = self._on(ground, now_s)
        own = self.pods.get(uid)
        if own is None:
            return Load(sums.needed_w, sums.standard_w, sums.full_power > 0)
        others = _Sums(ground, sums.needed_w.copy(), sums.standard_w.copy(), sums.full_power.copy())
        others.count(own, -1)
        return Load(others.needed_w, others.standard_w, others.full_power > 0)

    def place(
        self,
        uid: str,
        ground: Ground,
        now_s: float,
        slots: IntArray,
        counted: FloatArray,
        added_w: FloatArray,
        *,
        full_power: bool,
    ) -> None:
        """Count a pod from now on.

        Args:
            uid: its UID.
            ground: what arrays refer to.
            now_s: time, s since the epoch.
            slots: where it may go.
            counted: what it needs of the budgets of each of these, W.
            added_w: what it adds to each of these, W.
            full_power: whether it needs full power.
        """
        sums = self._on(ground, now_s)
        self._forget(uid)
        covered = (ground.of_node[slots] < len(ground.names)).any(axis=1)
        if not covered.any():
            return
        needed_w = np.zeros(len(ground.names) + 1, np.int64)
        _raise(needed_w, ground.of_node[slots], _whole(counted))
        pod = _Pod(now_s + PLACING_S, ground, needed_w, slots[covered], _whole(added_w[covered]), full_power)
        self.pods[uid] = pod
        sums.count(pod, +1)
        if len(self.pods) > MAX_PLACING:
            self._forget(next(iter(self.pods)))

    def arrived(self, slot: int, watts: int, ground: Ground, now_s: float) -> None:
        """A pod that need not run at full power is on a node now: one that needs it and may go there has it beside it.

        Args:
            slot: of the node.
            watts: what it adds there.
            ground: what `slot` refers to.
            now_s: time, s since the epoch.
        """
        self._on(ground, now_s)
        of_node = [index for index in ground.of_node[slot].tolist() if index < len(ground.names)]
        for uid, pod in list(self.pods.items()):
            if pod.full_power and (pod.slots == slot).any():
                needed_w = pod.needed_w.copy()
                needed_w[of_node] += watts
                self._replace(uid, pod._replace(needed_w=needed_w))

    def became_critical(self, slots: IntArray, ground: Ground, now_s: float) -> None:
        """Nodes have to run at full power now: pods that need not, and may go there, count with what they add."""
        self._on(ground, now_s)
        newly = np.zeros(len(ground.of_node), dtype=np.bool_)
        newly[slots] = True
        for uid, pod in list(self.pods.items()):
            hit = newly[pod.slots]
            if not pod.full_power and hit.any():
                needed_w = pod.needed_w.copy()
                _raise(needed_w, ground.of_node[pod.slots[hit]], pod.added_w[hit])
                self._replace(uid, pod._replace(needed_w=needed_w))

    def _on(self, ground: Ground, now_s: float) -> _Sums:
        """The sums on a ground, without pods that are no longer waited for."""
        while self.pods and (first := next(iter(self.pods.items())))[1].until_s <= now_s:
            self._forget(first[0])
        if self._sums is None or not self._sums.ground.same(ground):
            self._sums = _Sums.on(ground)
            for uid, pod in self.pods.items():
                self.pods[uid] = moved = _moved(pod, ground)
                self._sums.count(moved, +1)
        return self._sums

    def _replace(self, uid: str, pod: _Pod) -> None:
        if self._sums is not None:
            self._sums.count(self.pods[uid], -1)
            self._sums.count(pod, +1)
        self.pods[uid] = pod

    def _forget(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None and self._sums is not None:
            self._sums.count(pod, -1)


def _moved(pod: _Pod, ground: Ground) -> _Pod:
    """A pod on another ground. Where slots are of other nodes it may be anywhere."""
    index = {name: place for place, name in enumerate(pod.ground.names)}
    needed_w = np.array([*(pod.needed_w[index[name]] if name in index else 0 for name in ground.names), 0], np.int64)
    moved = pod._replace(ground=ground, needed_w=needed_w)
    if pod.ground.roster is ground.roster:
        return moved
    slots = np.arange(len(ground.of_node))
    return moved._replace(slots=slots, added_w=np.full(len(slots), pod.added_w.max()))


def _raise(needed_w: IntArray, of_node: IntArray, watts: IntArray) -> None:
    """Let each budget have at least the watts on each of its nodes; those without a budget count for none."""
    np.maximum.at(needed_w, of_node.ravel(), np.repeat(watts, of_node.shape[1]))
    needed_w[-1] = 0


def _whole(watts: FloatArray) -> IntArray:
    """Rounded up."""
    return np.ceil(watts - 1e-6).astype(np.int64)
