"""Which pods run where and since when: what SCORING=marginal knows of the nodes beside their hardware.

Pods come one by one, as a watch reports them; sums are kept as whole numbers, so that adding and subtracting leaves no
rounding error. The ends of pods teach how long those of the same workload run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.lifetimes import LifeTables
from joulie.domain.quantities import SECONDS_PER_MINUTE, finite_number
from joulie.domain.scoring.energy import EnergyPolicy
from joulie.domain.scoring.marginal_placement import busy_or_idle_min
from joulie.domain.units import FloatArray, IntArray, positive

_MILLI = 1000
_POLICY = EnergyPolicy()
_FIRST_CAPACITY = 256
NO_PODS = 0
"""Index of the node that stands for all without a pod."""
_REFRESH_MIN = 5.0 / 60.0
"""Interval at which it is estimated until when nodes are busy, min: 5 s."""
_LEARN_MIN = 10.0 / 60.0
"""Interval at which ages of running pods are learned from, min: 10 s."""
_CORES, _GPUS, _JOBS = range(3)
_EMPTY_SINCE, _BUSY_UNTIL = range(2)
_NODE, _ROW = range(2)


class LifeClass(NamedTuple):
    """Pods whose durations are alike.

    Attributes:
        workload: of which workload they are.
        service: whether they run until they are replaced.
        gpu: whether they request GPUs.
    """

    workload: Hashable
    service: bool
    gpu: bool

    @property
    def group(self) -> int:
        """Group of classes that says how long a workload of which nothing is known takes."""
        return 2 * self.service + self.gpu


_N_GROUPS = 4


@dataclass(frozen=True)
class PlacedPod:
    """A pod on a node.

    Attributes:
        node: node name.
        cores: requested cores.
        gpus: requested GPUs.
        life: pods that it is like; None for one that keeps no node from resting, such as a DaemonSet's.
        started_s: since when it runs, s since the epoch; None if it is yet to start.
        stated_min: duration that its owner states, min; None without one.
    """

    node: str
    cores: float
    gpus: float
    life: LifeClass | None
    started_s: float | None
    stated_min: float | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "gpus"):
            finite_number(name, getattr(self, name), minimum=0.0)


@dataclass(frozen=True, eq=False)
class OccupancyView:
    """A snapshot by index of node; arrays have shape ``(n_nodes,)``.

    Attributes:
        used_cores: cores that pods have requested.
        used_gpus: GPUs that pods have requested.
        busy_min: minutes for which the node would be up anyway, see `busy_or_idle_min`.
    """

    used_cores: FloatArray
    used_gpus: FloatArray
    busy_min: FloatArray


class Occupancy:
    """The pods of all nodes, and what is learned from their ends. Used from one event loop only.

    Args:
        minute_s: length of a minute, s; shorter where nodes are simulated faster than in real time.

    Attributes:
        index: index by name of the nodes that have or had pods; `NO_PODS` stands for all others.
        index_changes: changes so far of `index`.
        lifetimes: what is known of durations.
    """

    def __init__(self, minute_s: float = SECONDS_PER_MINUTE) -> None:
        self._minute_s = positive("minute_s", minute_s)
        self.index: dict[str, int] = {}
        self.index_changes = 0
        self._n_nodes = NO_PODS + 1
        self._free_nodes: list[int] = []
        self._deleted: set[str] = set()
        self.lifetimes = LifeTables(_POLICY.prior_mean_min, _POLICY.prior_weight_min, groups=_N_GROUPS)
        self._pods: dict[Hashable, tuple[int, PlacedPod]] = {}
        self._learned_s = -np.inf
        # By index of node: milli-cores, milli-GPUs, pods that keep it up and all pods; since when it is empty; until
        # when it is expected to be busy.
        self._sums = np.zeros((4, _FIRST_CAPACITY), np.int64)
        self._times_s = np.full((2, _FIRST_CAPACITY), -np.inf)
        # By slot of pod: node and row of its life table, which is -1 in a free slot; start and stated duration.
        self._places = np.full((2, _FIRST_CAPACITY), -1, np.int64)
        self._times_of_pods = np.full((2, _FIRST_CAPACITY), np.nan)
        self._free = list(range(_FIRST_CAPACITY - 1, -1, -1))

    @property
    def refresh_s(self) -> float:
        """Interval at which `refresh` is due, s."""
        return float(_REFRESH_MIN * self._minute_s)

    def set_pod(self, key: Hashable, pod: PlacedPod | None, now_s: float) -> None:
        """Set or, with None, remove a pod; one that is removed has ended now."""
        before = self._pods.get(key)
        if before is not None:
            if pod is not None and before[1] == pod:
                return
            self._remove(key, before, now_s, ended=pod is None)
        if pod is not None:
            self._add(key, pod, now_s)

    def forget(self, node: str) -> None:
        """A node was deleted; it is kept for as long as there are pods on it."""
        index = self.index.get(node)
        if index is None:
            return
        if self._sums[:, index].any():
            self._deleted.add(node)
            return
        self._deleted.discard(node)
        self._times_s[:, self.index.pop(node)] = -np.inf
        self._free_nodes.append(index)
        self.index_changes += 1

    def refresh(self, now_s: float) -> None:
        """Estimate anew until when each node is busy; at intervals, learn from the ages of running pods.

        It takes milliseconds with 100,000 pods, so it is not part of each view.
        """
        running = np.flatnonzero(self._places[_ROW] >= 0)
        if abs(now_s - self._learned_s) >= _LEARN_MIN * self._minute_s:
            self.lifetimes.update(self._places[_ROW, running], self._ages_min(running, now_s))
            self._learned_s = now_s
        self._times_s[_BUSY_UNTIL] = -np.inf
        left_min = self._left_min(running, now_s)
        np.maximum.at(self._times_s[_BUSY_UNTIL], self._places[_NODE, running], now_s + left_min * self._minute_s)

    def left_min(self, now_s: float) -> dict[Hashable, float]:
        """How long each pod that keeps its node up is expected to run yet, min."""
        slots = {key: slot for key, (slot, _) in self._pods.items() if slot >= 0}
        left_min = self._left_min(np.fromiter(slots.values(), np.int64, len(slots)), now_s)
        return dict(zip(slots, left_min.tolist(), strict=True))

    def _ages_min(self, slots: IntArray, now_s: float) -> FloatArray:
        return np.asarray(np.maximum(0.0, (now_s - self._times_of_pods[0, slots]) / self._minute_s))

    def _left_min(self, slots: IntArray, now_s: float) -> FloatArray:
        ages_min = self._ages_min(slots, now_s)
        # A pod that outlives the duration that was stated for it is expected to go on as others of its age do.
        stated_left_min = self._times_of_pods[1, slots] - ages_min
        known_min = self.lifetimes.remaining_min(self._places[_ROW, slots], ages_min)
        return np.where(stated_left_min > 0.0, stated_left_min, known_min)

    def view(self, now_s: float) -> OccupancyView:
        """What pods have requested by node, and for how long nodes are expected to be up."""
        n_nodes = self._n_nodes
        milli_cores, milli_gpus, n_jobs, _ = self._sums[:, :n_nodes]
        empty_since_s, busy_until_s = self._times_s[:, :n_nodes]
        empty_min, busy_min = (
            np.maximum(0.0, seconds / self._minute_s) for seconds in (now_s - empty_since_s, busy_until_s - now_s)
        )
        up_min = busy_or_idle_min(busy_min, empty_min, n_jobs)
        return OccupancyView(milli_cores / _MILLI, milli_gpus / _MILLI, up_min)

    def duration_min(self, life: LifeClass, stated_min: float | None) -> float:
        """Expected duration of a pod that is yet to start, min."""
        return self.lifetimes.expected_min(life, life.group) if stated_min is None else stated_min

    def _add(self, key: Hashable, pod: PlacedPod, now_s: float) -> None:
        index, slot = self._index_of(pod.node), -1
        if pod.life is not None:
            slot = self._new_slot()
            self._places[:, slot] = index, self.lifetimes.started(pod.life, pod.life.group)
            started_s = now_s if pod.started_s is None else pod.started_s
            self._times_of_pods[:, slot] = started_s, np.nan if pod.stated_min is None else pod.stated_min
            expected_s = now_s + self.duration_min(pod.life, pod.stated_min) * self._minute_s
            self._times_s[_BUSY_UNTIL, index] = max(expected_s, self._times_s[_BUSY_UNTIL, index])
        self._pods[key] = slot, pod
        self._count(index, pod, +1)

    def _remove(self, key: Hashable, before: tuple[int, PlacedPod], now_s: float, *, ended: bool) -> None:
        slot, pod = before
        index = self.index[pod.node]
        del self._pods[key]
        self._count(index, pod, -1)
        if pod.life is not None:
            self._end(slot, index, now_s, ended=ended)
        if pod.node in self._deleted:
            self.forget(pod.node)

    def _end(self, slot: int, index: int, now_s: float, *, ended: bool) -> None:
        lifetime_min = max(0.0, now_s - self._times_of_pods[0, slot]) / self._minute_s
        self.lifetimes.ended(int(self._places[_ROW, slot]), lifetime_min if ended else None)
        if self._sums[_JOBS, index] == 0:
            self._times_s[:, index] = now_s, -np.inf
        self._places[:, slot] = -1
        self._free.append(slot)

    def _count(self, index: int, pod: PlacedPod, sign: int) -> None:
        self._sums[:, index] += sign * np.array(
            [round(pod.cores * _MILLI), round(pod.gpus * _MILLI), pod.life is not None, 1]
        )

    def _index_of(self, node: str) -> int:
        index = self.index.get(node)
        if index is None:
            index = self.index[node] = self._free_nodes.pop() if self._free_nodes else self._n_nodes
            self.index_changes += 1
            self._n_nodes = max(self._n_nodes, index + 1)
            if self._n_nodes > self._sums.shape[1]:
                self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)], axis=1)
                self._times_s = np.concatenate([self._times_s, np.full_like(self._times_s, -np.inf)], axis=1)
        return index

    def _new_slot(self) -> int:
        if not self._free:
            size = self._places.shape[1]
            self._places = np.concatenate([self._places, np.full_like(self._places, -1)], axis=1)
            self._times_of_pods = np.concatenate(
                [self._times_of_pods, np.full_like(self._times_of_pods, np.nan)], axis=1
            )
            self._free.extend(range(2 * size - 1, size - 1, -1))
        return self._free.pop()
