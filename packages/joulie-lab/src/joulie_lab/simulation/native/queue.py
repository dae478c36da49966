"""Queue of pending pods: by priority, then in order of arrival; retried only where something changed.

If a pod of one kind is unschedulable, so are all others of that kind. So pods wait in one FIFO per kind, and only its
head is tried. A FIFO is tried when it gets its first pod, or when a node changed (a pod left it, or its class changed)
that has enough free capacity for its head.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from joulie_lab.simulation.native.kinds import KindTable
from joulie_lab.simulation.native.pods import SimPod


class PendingQueue:
    """Pending pods, in one FIFO per kind, under the row of the kind in the table.

    Args:
        kinds: the kinds of pods.
    """

    def __init__(self, kinds: KindTable) -> None:
        self._kinds = kinds
        self._fifos: dict[int, deque[SimPod]] = {}
        self._new: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SimPod]:
        """Pending pods, kind by kind."""
        for fifo in self._fifos.values():
            yield from fifo

    def add(self, pod: SimPod) -> None:
        """Queue a pod. It is tried at once only if no other pod of its kind is pending."""
        row = self._kinds.row(pod.kind)
        if row not in self._fifos:
            self._new.add(row)
            self._fifos[row] = deque()
        self._fifos[row].append(pod)
        self._count += 1

    def schedule(self, changed: Sequence[int], place: Callable[[SimPod], bool]) -> None:
        """Try the heads of all FIFOs that may be schedulable now, by priority and then by arrival.

        Args:
            changed: nodes that have more free capacity, or admit more pods, than when they were tried last.
            place: places a pod on a node; returns False if no node is feasible.
        """
        if not self._fifos:
            return
        new, self._new = self._new, set()
        tried = new.union(self._fitting(self._fifos, changed)) if changed else new
        heads = [self._head(row) for row in tried]
        heapq.heapify(heads)
        while heads:
            *_, row = heapq.heappop(heads)
            if not place(self._fifos[row][0]):
                continue
            self._fifos[row].popleft()
            self._count -= 1
            if self._fifos[row]:
                heapq.heappush(heads, self._head(row))
            else:
                del self._fifos[row]
            if heads and changed:
                # Most heads wanted the capacity that this one took.
                fitting = new.union(self._fitting([row for *_, row in heads], changed))
                heads = [head for head in heads if head[-1] in fitting]
                heapq.heapify(heads)

    def _fitting(self, rows: Collection[int], changed: Sequence[int]) -> list[int]:
        found: list[int] = self._kinds.fitting(np.fromiter(rows, np.int64, len(rows)), changed).tolist()
        return found

    def _head(self, row: int) -> tuple[int, int, int]:
        pod = self._fifos[row][0]
        return -pod.kind.priority, pod.index, row
