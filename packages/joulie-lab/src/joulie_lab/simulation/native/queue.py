"""Pods that wait for a node: by priority, then in order of arrival, and tried again only where something changed.

Pods of one kind fail alike, so they wait in one line and only its head is tried. A line is tried when it is new, or
when a node changed (a pod left it, it opened to a class) that has room for it now.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import PodKind
from joulie_lab.simulation.native.capacity import Nodes
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI

_FIRST_LINES = 64


class WaitingLines:
    """The pods that wait, a line a kind.

    Args:
        nodes: what they wait for.
        admitted: nodes that the words of a kind and its class admit now, shape ``(n_nodes,)``.
    """

    def __init__(self, nodes: Nodes, admitted: Callable[[PodKind], BoolArray]) -> None:
        self._nodes = nodes
        self._admitted = admitted
        self._line_of: dict[PodKind, int] = {}
        self._kinds: list[PodKind] = []
        self._lines: list[deque[SimPod]] = []
        self._needs: IntArray = np.zeros((4, _FIRST_LINES), dtype=np.int64)
        self._waiting: BoolArray = np.zeros(_FIRST_LINES, dtype=np.bool_)
        self._new: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SimPod]:
        """The pods that wait, line by line."""
        for line in self._lines:
            yield from line

    def add(self, pod: SimPod) -> None:
        """A pod arrives. Where others of its kind wait already, it fails as they did."""
        line = self._line_of.get(pod.kind)
        if line is None:
            line = self._open(pod.kind)
        if not self._lines[line]:
            self._new.add(line)
        self._lines[line].append(pod)
        self._waiting[line] = True
        self._count += 1

    def placed(self, changed: Sequence[int], place: Callable[[SimPod], bool]) -> None:
        """Try the heads of all lines that may find room now, the first of all first.

        Args:
            changed: nodes that have more room, or admit more, than when they were tried last.
            place: puts a pod on a node; False where none has room.
        """
        lines = self._new | self._hopeful(changed)
        self._new = set()
        heads = [self._head(line) for line in lines]
        heapq.heapify(heads)
        while heads:
            *_, line = heapq.heappop(heads)
            if not place(self._lines[line][0]):
                continue
            self._lines[line].popleft()
            self._count -= 1
            if self._lines[line]:
                heapq.heappush(heads, self._head(line))
            else:
                self._waiting[line] = False

    def _head(self, line: int) -> tuple[int, int, int]:
        pod = self._lines[line][0]
        return -pod.kind.priority, pod.index, line

    def _hopeful(self, changed: Sequence[int]) -> set[int]:
        """Lines that would fit one of these nodes."""
        waiting = np.flatnonzero(self._waiting)
        if not len(waiting):
            return set()
        nodes = self._nodes
        found: set[int] = set()
        cpu, memory, gpus, milli = self._needs[:, waiting]
        for node in changed:
            fits = (
                (nodes.allocatable.milli_cpu[node] - nodes.requested.milli_cpu[node] >= cpu)
                & (nodes.allocatable.memory_bytes[node] - nodes.requested.memory_bytes[node] >= memory)
                & np.where(milli < WHOLE_GPU_MILLI, nodes.most_free_milli[node] >= milli, nodes.free_gpus[node] >= gpus)
            )
            # The rest of the rule is looked up only for those that the numbers let through.
            found.update(line for line in waiting[fits].tolist() if self._may_use(self._kinds[line], node))
        return found

    def _may_use(self, kind: PodKind, node: int) -> bool:
        return bool(self._admitted(kind)[node] and self._nodes.right_gpus(kind)[node])

    def _open(self, kind: PodKind) -> int:
        line = len(self._lines)
        if line == self._needs.shape[1]:
            self._needs = np.concatenate([self._needs, np.zeros_like(self._needs)], axis=1)
            self._waiting = np.concatenate([self._waiting, np.zeros_like(self._waiting)])
        self._needs[:, line] = (*kind.requests, kind.gpus, kind.gpu_milli)
        self._line_of[kind] = line
        self._kinds.append(kind)
        self._lines.append(deque())
        return line
