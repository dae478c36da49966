"""Queue of pending pods: by priority, then in order of arrival; retried only where something changed.

If a pod of one kind is unschedulable, so are all others of that kind. So pods wait in one FIFO per kind, and only its
head is tried. A FIFO is tried when it gets its first pod, or when a node changed (a pod left it, or its class changed)
that has enough free capacity for its head.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import PodKind
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI

_INITIAL_FIFOS = 64


class PendingQueue:
    """Pending pods, in one FIFO per kind.

    Args:
        capacity: capacity of the nodes.
        allowed: nodes that the rules and class of a kind admit now, shape ``(n_nodes,)``.
    """

    def __init__(self, capacity: NodeCapacity, allowed: Callable[[PodKind], BoolArray]) -> None:
        self._capacity = capacity
        self._allowed = allowed
        self._fifo_of: dict[PodKind, int] = {}
        self._kinds: list[PodKind] = []
        self._fifos: list[deque[SimPod]] = []
        self._needs: IntArray = np.zeros((4, _INITIAL_FIFOS), dtype=np.int64)
        self._waiting: BoolArray = np.zeros(_INITIAL_FIFOS, dtype=np.bool_)
        self._new: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SimPod]:
        """Pending pods, kind by kind."""
        for fifo in self._fifos:
            yield from fifo

    def add(self, pod: SimPod) -> None:
        """Queue a pod. It is tried at once only if no other pod of its kind is pending."""
        fifo = self._fifo_of.get(pod.kind)
        if fifo is None:
            fifo = self._new_fifo(pod.kind)
        if not self._fifos[fifo]:
            self._new.add(fifo)
        self._fifos[fifo].append(pod)
        self._waiting[fifo] = True
        self._count += 1

    def schedule(self, changed: Sequence[int], place: Callable[[SimPod], bool]) -> None:
        """Try the heads of all FIFOs that may be schedulable now, by priority and then by arrival.

        Args:
            changed: nodes that have more free capacity, or admit more pods, than when they were tried last.
            place: places a pod on a node; returns False if no node is feasible.
        """
        fifos = self._new | self._may_fit(changed)
        self._new = set()
        heads = [self._head(fifo) for fifo in fifos]
        heapq.heapify(heads)
        while heads:
            *_, fifo = heapq.heappop(heads)
            if not place(self._fifos[fifo][0]):
                continue
            self._fifos[fifo].popleft()
            self._count -= 1
            if self._fifos[fifo]:
                heapq.heappush(heads, self._head(fifo))
            else:
                self._waiting[fifo] = False

    def _head(self, fifo: int) -> tuple[int, int, int]:
        pod = self._fifos[fifo][0]
        return -pod.kind.priority, pod.index, fifo

    def _may_fit(self, changed: Sequence[int]) -> set[int]:
        """FIFOs whose head fits one of these nodes."""
        waiting = np.flatnonzero(self._waiting)
        if not len(waiting):
            return set()
        nodes = self._capacity
        found: set[int] = set()
        cpu, memory, gpus, milli = self._needs[:, waiting]
        for node in changed:
            fits = (
                (nodes.allocatable.milli_cpu[node] - nodes.requested.milli_cpu[node] >= cpu)
                & (nodes.allocatable.memory_bytes[node] - nodes.requested.memory_bytes[node] >= memory)
                & np.where(milli < WHOLE_GPU_MILLI, nodes.max_free_milli[node] >= milli, nodes.free_gpus[node] >= gpus)
            )
            # Rules and GPU resource are checked only for kinds whose requests fit.
            found.update(fifo for fifo in waiting[fits].tolist() if self._may_use(self._kinds[fifo], node))
        return found

    def _may_use(self, kind: PodKind, node: int) -> bool:
        return bool(self._allowed(kind)[node] and self._capacity.has_gpu_resource(kind)[node])

    def _new_fifo(self, kind: PodKind) -> int:
        fifo = len(self._fifos)
        if fifo == self._needs.shape[1]:
            self._needs = np.concatenate([self._needs, np.zeros_like(self._needs)], axis=1)
            self._waiting = np.concatenate([self._waiting, np.zeros_like(self._waiting)])
        self._needs[:, fifo] = (*kind.requests, kind.gpus, kind.gpu_milli)
        self._fifo_of[kind] = fifo
        self._kinds.append(kind)
        self._fifos.append(deque())
        return fifo
