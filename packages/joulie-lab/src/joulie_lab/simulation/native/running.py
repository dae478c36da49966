"""Progress of running jobs, and their completion times at current rates.

A job's rate of work changes only when the load or clock of its node does, so nothing is computed between such changes:
each job stores its remaining work at the last change, its rate since then, and its completion time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.live.jobs import Demands, activity, demands_of
from joulie_lab.simulation.live.nodes import FleetLoad
from joulie_lab.simulation.native.kernels import ends_of, load_of, rates_of, rerate
from joulie_lab.simulation.native.pods import SimPod

_NO_NODE = -1
_INITIAL_SLOTS = 64
_END_TOLERANCE_S = 1e-6


class RunningJobs:
    """Running pods, one slot each in arrays of shape ``(n_slots,)`` that grow as needed.

    Args:
        n_nodes: number of nodes.
        n_devices: maximum number of GPUs of a node.
        gang_sizes: number of members by gang.
    """

    def __init__(self, n_nodes: int, n_devices: int, gang_sizes: Mapping[str, int]) -> None:
        self._gang_sizes = gang_sizes
        self._rated_at = np.ones((n_nodes, 1 + n_devices))
        self._n_devices = n_devices
        self._wanted: BoolArray = np.zeros(n_nodes + 1, dtype=np.bool_)
        self._marked: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self._sums = np.zeros((3, n_nodes)), np.zeros((6, n_nodes, n_devices))
        self._present: dict[str, set[int]] = {}
        self._done: dict[str, int] = {}
        self._slot_of: dict[int, int] = {}
        self._pod: list[SimPod | None] = []
        self._free: list[int] = []
        self._demands = np.zeros((len(Demands._fields), 0))
        self._node: IntArray = np.zeros(0, dtype=np.int64)
        self._devices: IntArray = np.zeros((0, n_devices), dtype=np.int64)
        self._left = np.zeros((2, 0))
        self._rate = np.zeros((2, 0))
        self._since_s = np.zeros(0)
        self._end_s = np.zeros(0)
        self._works: BoolArray = np.zeros(0, dtype=np.bool_)
        self._stale: BoolArray = np.zeros(0, dtype=np.bool_)
        self._next_end_s: float | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def next_end_s(self) -> float:
        """Time at which the next job completes, s; inf if none will."""
        if self._next_end_s is None:
            self._next_end_s = float(self._end_s.min(initial=np.inf))
        return self._next_end_s

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """Start a pod on a node with these of its GPUs; the caller must call `rerate` afterwards."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._demands[:, slot] = demands_of(pod.shape.cores, float(pod.shape.gpus), activity(pod.job))
        self._pod[slot], self._slot_of[pod.index] = pod, slot
        self._node[slot] = node
        self._devices[slot] = _NO_NODE
        self._devices[slot, : len(devices)] = devices
        self._left[:, slot] = pod.job.cpu_units, pod.job.gpu_units
        self._rate[:, slot], self._since_s[slot] = 0.0, now_s
        self._end_s[slot] = np.inf
        self._works[slot] = True
        self._stale[slot] = True
        if pod.gang is not None:
            self._present.setdefault(pod.gang, set()).add(slot)
            self._update_gang(pod.gang)

    def done(self, now_s: float) -> list[SimPod]:
        """Pods whose work is done by now, in order of submission."""
        if self.next_end_s > now_s + _END_TOLERANCE_S:
            return []
        slots = np.flatnonzero(self._end_s <= now_s + _END_TOLERANCE_S)
        found = [pod for slot in slots.tolist() if (pod := self._pod[slot]) is not None]
        return sorted(found, key=lambda pod: pod.index)

    def finish(self, pod: SimPod) -> None:
        """Remove a pod whose work is done from its node; the caller must call `rerate` afterwards."""
        slot = self._slot_of.pop(pod.index)
        self._pod[slot] = None
        self._node[slot] = _NO_NODE
        self._end_s[slot] = np.inf
        self._works[slot] = False
        self._stale[slot] = False
        self._next_end_s = None
        self._free.append(slot)
        if pod.gang is not None:
            self._present[pod.gang].discard(slot)
            self._done[pod.gang] = self._done.get(pod.gang, 0) + 1

    def work_left(self, pod: SimPod, now_s: float) -> tuple[float, float]:
        """Remaining CPU and GPU work of a running pod."""
        slot = self._slot_of[pod.index]
        done = self._rate[:, slot] * (now_s - self._since_s[slot])
        cpu, gpu = np.maximum(self._left[:, slot] - done, 0.0).tolist()
        return cpu, gpu

    def missing_members(self, gang: str) -> int:
        """Number of members of a gang that are neither running nor done."""
        return self._gang_sizes[gang] - len(self._present.get(gang, ())) - self._done.get(gang, 0)

    def load(self, nodes: IntArray, cores: FloatArray, load: FleetLoad) -> None:
        """Bring the load of some nodes up to date; see `Demands.load`.

        Args:
            nodes: indices of the nodes.
            cores: cores of all nodes.
            load: load of all nodes; changed.
        """
        load_of(
            nodes,
            self._node,
            self._demands,
            self._devices,
            cores,
            self._marked,
            *self._sums,
            load.cpu_util,
            load.memory_intensity,
            load.io_intensity,
            load.gpu_busy,
            load.gpu_util,
            load.gpu_memory_share,
            load.gpu_deviation,
        )

    def advance(self, nodes: IntArray, now_s: float, frequency: FloatArray, gpu_throughput: FloatArray) -> None:
        """Advance the jobs of some nodes to now, at the mean operating points since their last update.

        Args:
            nodes: indices of the nodes.
            now_s: time since the start of the run, s.
            frequency: mean clock of all nodes, as a share of the highest.
            gpu_throughput: mean rate of GPU work of all nodes' GPUs, as a share of the uncapped rate.
        """
        slots = self._slots_on(nodes)
        rates = self._rates(slots, frequency, gpu_throughput)
        self._advance(slots, rates, now_s)
        ends_of(slots, rates, self._left, self._works, now_s, self._end_s)
        self._stale[slots] = True
        self._next_end_s = None

    def catch_up(self, nodes: IntArray, now_s: float) -> None:
        """Advance the jobs of some nodes to now at their stored rates, before these rates begin to change."""
        slots = self._slots_on(nodes)
        self._advance(slots, self._rate[:, slots], now_s)

    def rerate(
        self, nodes: IntArray, now_s: float, frequency: FloatArray, gpu_throughput: FloatArray, gpu_speed: FloatArray
    ) -> None:
        """Recompute rates and completion times after operating points may have changed.

        Args:
            nodes: indices of the nodes whose operating points may have changed.
            now_s: time since the start of the run, s.
            frequency: clock of all nodes, as a share of the highest.
            gpu_throughput: rate of GPU work of all nodes' GPUs, as a share of the uncapped rate.
            gpu_speed: speed of each node's GPUs, a factor on it.
        """
        self._next_end_s = rerate(
            nodes,
            self._node,
            self._demands,
            self._devices,
            self._works,
            frequency,
            gpu_throughput,
            gpu_speed,
            now_s,
            self._marked,
            self._rated_at,
            self._stale,
            self._left,
            self._rate,
            self._since_s,
            self._end_s,
        )

    def _rates(self, slots: IntArray, frequency: FloatArray, gpu_throughput: FloatArray) -> FloatArray:
        """CPU and GPU work that jobs do in a second at these operating points, shape ``(2, n_slots)``."""
        rates = np.empty((2, len(slots)))
        rates_of(slots, self._node, self._demands, self._devices, self._works, frequency, gpu_throughput, rates)
        return rates

    def _advance(self, slots: IntArray, rates: FloatArray, now_s: float) -> None:
        self._left[:, slots] = np.maximum(self._left[:, slots] - rates * (now_s - self._since_s[slots]), 0.0)
        self._since_s[slots] = now_s

    def _slots_on(self, nodes: IntArray) -> IntArray:
        if len(nodes) == 1:
            return np.flatnonzero(self._node == nodes[0])
        self._wanted[nodes] = True
        # The last entry is that of slots without a pod, whose node is -1.
        slots = np.flatnonzero(self._wanted[self._node])
        self._wanted[nodes] = False
        return slots

    def _update_gang(self, gang: str) -> None:
        complete = self.missing_members(gang) <= 0
        for slot in self._present[gang]:
            self._works[slot] = complete
            self._stale[slot] |= complete

    def _grow(self) -> None:
        old = len(self._pod)
        added = max(old, _INITIAL_SLOTS)
        self._pod += [None] * added
        self._free = list(range(old + added - 1, old - 1, -1))
        self._demands = np.concatenate([self._demands, np.zeros((len(self._demands), added))], axis=1)
        self._node = np.append(self._node, np.full(added, _NO_NODE))
        self._devices = np.concatenate([self._devices, np.full((added, self._n_devices), _NO_NODE)])
        self._left = np.concatenate([self._left, np.zeros((2, added))], axis=1)
        self._rate = np.concatenate([self._rate, np.zeros((2, added))], axis=1)
        self._since_s = np.append(self._since_s, np.zeros(added))
        self._end_s = np.append(self._end_s, np.full(added, np.inf))
        self._works = np.append(self._works, np.zeros(added, dtype=np.bool_))
        self._stale = np.append(self._stale, np.zeros(added, dtype=np.bool_))
