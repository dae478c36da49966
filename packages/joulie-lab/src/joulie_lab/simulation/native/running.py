"""Jobs that run: how far each one is, and when it will be done if nothing changes.

Rates of work change only when a node's load or clock does, so between such moments nothing is computed at all: each job
has its work left at its last change, its rate since then, and its end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.live.fleet import FleetLoad
from joulie_lab.simulation.live.jobs import Demands, activity, demands_of, time_to_do
from joulie_lab.simulation.native.pods import SimPod

_NOWHERE = -1
_FIRST_SLOTS = 64
_LAST_MOMENT_S = 1e-6


class RunningJobs:
    """The pods on nodes, a slot each in arrays of shape ``(n_slots,)`` that grow.

    Args:
        n_nodes: number of nodes.
        n_devices: GPUs of the node with the most.
        gang_sizes: members by gang.
    """

    def __init__(self, n_nodes: int, n_devices: int, gang_sizes: Mapping[str, int]) -> None:
        self._gang_sizes = gang_sizes
        self._rated_at = np.ones((n_nodes, 1 + n_devices))
        self._n_devices = n_devices
        self._present: dict[str, set[int]] = {}
        self._done: dict[str, int] = {}
        self._slot_of: dict[int, int] = {}
        self._pod: list[SimPod | None] = []
        self._free: list[int] = []
        self._demands = Demands(*np.zeros((len(Demands._fields), 0)))
        self._node: IntArray = np.zeros(0, dtype=np.int64)
        self._devices: IntArray = np.zeros((0, n_devices), dtype=np.int64)
        self._left = np.zeros((2, 0))
        self._rate = np.zeros((2, 0))
        self._since_s = np.zeros(0)
        self._end_s = np.zeros(0)
        self._works: BoolArray = np.zeros(0, dtype=np.bool_)
        self._stale: set[int] = set()

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def next_end_s(self) -> float:
        """When the next job is done; inf if none will be."""
        return float(self._end_s.min(initial=np.inf))

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """A pod begins on a node with these of its GPUs; `rerate` must follow."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        row = demands_of(pod.shape.cores, float(pod.shape.gpus), activity(pod.job))
        for column, value in zip(self._demands, row, strict=True):
            column[slot] = value
        self._pod[slot], self._slot_of[pod.index] = pod, slot
        self._node[slot] = node
        self._devices[slot] = _NOWHERE
        self._devices[slot, : len(devices)] = devices
        self._left[:, slot] = pod.job.cpu_units, pod.job.gpu_units
        self._rate[:, slot], self._since_s[slot] = 0.0, now_s
        self._end_s[slot] = np.inf
        self._works[slot] = True
        self._stale.add(slot)
        if pod.gang is not None:
            self._present.setdefault(pod.gang, set()).add(slot)
            self._update_gang(pod.gang)

    def done(self, now_s: float) -> list[SimPod]:
        """The pods whose work is done by now, in order of submission."""
        slots = np.flatnonzero(self._end_s <= now_s + _LAST_MOMENT_S)
        found = [pod for slot in slots.tolist() if (pod := self._pod[slot]) is not None]
        return sorted(found, key=lambda pod: pod.index)

    def finish(self, pod: SimPod) -> None:
        """A pod whose work is done leaves its node; `rerate` must follow."""
        slot = self._slot_of.pop(pod.index)
        self._pod[slot] = None
        self._node[slot] = _NOWHERE
        self._end_s[slot] = np.inf
        self._works[slot] = False
        self._stale.discard(slot)
        self._free.append(slot)
        if pod.gang is not None:
            self._present[pod.gang].discard(slot)
            self._done[pod.gang] = self._done.get(pod.gang, 0) + 1

    def work_left(self, pod: SimPod, now_s: float) -> tuple[float, float]:
        """CPU and GPU work that a running pod has left."""
        slot = self._slot_of[pod.index]
        done = self._rate[:, slot] * (now_s - self._since_s[slot])
        cpu, gpu = np.maximum(self._left[:, slot] - done, 0.0).tolist()
        return cpu, gpu

    def missing_members(self, gang: str) -> int:
        """Members of a gang that neither run nor are done."""
        return self._gang_sizes[gang] - len(self._present.get(gang, ())) - self._done.get(gang, 0)

    def load(self, nodes: IntArray, cores: FloatArray) -> FleetLoad:
        """What runs on some nodes; see `Demands.load`.

        Args:
            nodes: which ones, sorted.
            cores: their cores.
        """
        slots = self._slots_on(nodes)
        place = np.searchsorted(nodes, self._node[slots])
        return self._demands_of(slots).load(place, cores, self._devices[slots], self._n_devices)

    def advance(self, nodes: IntArray, now_s: float, frequency: FloatArray, gpu_throughput: FloatArray) -> None:
        """Bring the jobs of some nodes up to now, which had these mean operating points since their last change.

        Args:
            nodes: which ones.
            now_s: s after the start of the run.
            frequency: mean clock, of all nodes.
            gpu_throughput: mean rate of GPU work, of all nodes' GPUs.
        """
        slots = self._slots_on(nodes)
        rates = self._rates(slots, frequency, gpu_throughput)
        self._advance(slots, rates, now_s)
        self._end_s[slots] = self._ends_s(slots, rates, now_s)
        self._stale.update(slots.tolist())

    def catch_up(self, nodes: IntArray, now_s: float) -> None:
        """Bring the jobs of some nodes up to now at their rates, before these begin to change."""
        slots = self._slots_on(nodes)
        self._advance(slots, self._rate[:, slots], now_s)

    def rerate(self, nodes: IntArray, now_s: float, frequency: FloatArray, gpu_throughput: FloatArray) -> None:
        """Work goes on at these operating points, of all nodes.

        Args:
            nodes: where they may have changed.
            now_s: s after the start of the run.
            frequency: clock of all nodes.
            gpu_throughput: rate of GPU work of all nodes' GPUs.
        """
        points = np.column_stack((frequency[nodes], gpu_throughput[nodes]))
        moved = nodes[(points != self._rated_at[nodes]).any(axis=1)]
        self._rated_at[nodes] = points
        if len(moved):
            self._stale.update(self._slots_on(moved).tolist())
        if not self._stale:
            return
        slots = np.array(sorted(self._stale), dtype=np.int64)
        self._stale.clear()
        self._advance(slots, self._rate[:, slots], now_s)
        rates = self._rates(slots, frequency, gpu_throughput)
        self._rate[:, slots] = rates
        self._end_s[slots] = self._ends_s(slots, rates, now_s)

    def _rates(self, slots: IntArray, frequency: FloatArray, gpu_throughput: FloatArray) -> FloatArray:
        """CPU and GPU work that jobs get done in a second at these operating points, shape ``(2, n_slots)``."""
        node = self._node[slots]
        # All GPUs of a pod do the same work under the same limit. Of a pod without any the rate means nothing.
        throughput = gpu_throughput[node, self._devices[slots, 0]]
        return np.stack(self._demands_of(slots).rates(frequency[node], throughput)) * self._works[slots]

    def _ends_s(self, slots: IntArray, rates: FloatArray, now_s: float) -> FloatArray:
        """When jobs are done at these rates; inf for those that do not work."""
        needs_s = time_to_do((self._left[0, slots], self._left[1, slots]), (rates[0], rates[1]))
        return np.asarray(now_s + np.where(self._works[slots], needs_s, np.inf))

    def _advance(self, slots: IntArray, rates: FloatArray, now_s: float) -> None:
        self._left[:, slots] = np.maximum(self._left[:, slots] - rates * (now_s - self._since_s[slots]), 0.0)
        self._since_s[slots] = now_s

    def _slots_on(self, nodes: IntArray) -> IntArray:
        if len(nodes) == 1:
            return np.flatnonzero(self._node == nodes[0])
        return np.flatnonzero(np.isin(self._node, nodes))

    def _demands_of(self, slots: IntArray) -> Demands:
        return Demands._make(column[slots] for column in self._demands)

    def _update_gang(self, gang: str) -> None:
        complete = self.missing_members(gang) <= 0
        for slot in self._present[gang]:
            self._works[slot] = complete
        if complete:
            self._stale.update(self._present[gang])

    def _grow(self) -> None:
        old = len(self._pod)
        added = max(old, _FIRST_SLOTS)
        self._pod += [None] * added
        self._free = list(range(old + added - 1, old - 1, -1))
        self._demands = Demands._make(np.append(column, np.zeros(added)) for column in self._demands)
        self._node = np.append(self._node, np.full(added, _NOWHERE))
        self._devices = np.concatenate([self._devices, np.full((added, self._n_devices), _NOWHERE)])
        self._left = np.concatenate([self._left, np.zeros((2, added))], axis=1)
        self._rate = np.concatenate([self._rate, np.zeros((2, added))], axis=1)
        self._since_s = np.append(self._since_s, np.zeros(added))
        self._end_s = np.append(self._end_s, np.full(added, np.inf))
        self._works = np.append(self._works, np.zeros(added, dtype=np.bool_))
