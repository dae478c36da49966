"""What pods have requested of the nodes, GPU by GPU, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulie.domain.scheduling.scores import NodeAmounts
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import FreeCapacity, PodKind
from joulie_lab.simulation.native.nodes import MAX_PODS, SimNode
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI


class Nodes:
    """The nodes as the scheduler counts them; arrays have shape ``(n_nodes,)``.

    Attributes:
        allocatable: CPU and memory that pods can request.
        requested: CPU and memory that they do.
        counted: the same, with defaults for requests that are missing.
        pods: how many there are.
        gpus: GPUs.
        free_gpus: GPUs that nobody has a share of.
        free_milli: of each GPU, thousandths, shape ``(n_nodes, maximum GPUs of a node)``; 0 beyond a node's own.
        most_free_milli: of the GPU of each node that has most left.
    """

    def __init__(self, nodes: Sequence[SimNode]) -> None:
        """All nodes empty."""
        n_nodes = len(nodes)
        self.allocatable = NodeAmounts.of(
            np.array([node.spec.cores for node in nodes]), np.array([node.memory_gib for node in nodes])
        )
        self.requested = NodeAmounts(*np.zeros((2, n_nodes), dtype=np.int64))
        self.counted = NodeAmounts(*np.zeros((2, n_nodes), dtype=np.int64))
        self.pods: IntArray = np.zeros(n_nodes, dtype=np.int64)
        self.gpus = np.array([node.spec.gpus for node in nodes], dtype=np.int64)
        own = np.arange(self.gpus.max(initial=0)) < self.gpus[:, np.newaxis]
        self.free_milli: IntArray = np.where(own, WHOLE_GPU_MILLI, 0)
        self.free_gpus = self.gpus.copy()
        self.most_free_milli: IntArray = np.where(self.gpus > 0, WHOLE_GPU_MILLI, 0)
        self._resource = np.array([node.gpu_resource for node in nodes], dtype=np.str_)
        self._offers: dict[str, BoolArray] = {}

    def fitting(self, kind: PodKind) -> BoolArray:
        """Nodes with room for one more pod of a kind, shape ``(n_nodes,)``."""
        asked = kind.requests
        found = (
            (self.allocatable.milli_cpu - self.requested.milli_cpu >= asked.milli_cpu)
            & (self.allocatable.memory_bytes - self.requested.memory_bytes >= asked.memory_bytes)
            & (self.pods < MAX_PODS)
        )
        if kind.gpus:
            found &= self.right_gpus(kind)
            if kind.shares_gpu:
                found &= self.most_free_milli >= kind.gpu_milli
            else:
                found &= self.free_gpus >= kind.gpus
        return np.asarray(found)

    def right_gpus(self, kind: PodKind) -> BoolArray:
        """Nodes whose GPUs, if the kind needs any, are requested as it requests them."""
        resource = kind.gpu_resource
        if resource not in self._offers:
            everywhere = np.ones(len(self.gpus), dtype=np.bool_)
            self._offers[resource] = np.asarray(self._resource == resource) if resource else everywhere
        return self._offers[resource]

    def put(self, kind: PodKind, node: int) -> tuple[int, ...]:
        """Take a pod in. Returns the GPUs that it gets: one that is shared already where it needs only a share."""
        self._count(kind, node, 1)
        free = self.free_milli[node]
        if not kind.gpus:
            return ()
        if kind.shares_gpu:
            enough = np.where(free >= kind.gpu_milli, free, WHOLE_GPU_MILLI + 1)
            devices = (int(np.argmin(enough)),)
        else:
            devices = tuple(np.flatnonzero(free == WHOLE_GPU_MILLI)[: kind.gpus].tolist())
        free[list(devices)] -= kind.gpu_milli
        self._recount(node)
        return devices

    def remove(self, kind: PodKind, node: int, devices: tuple[int, ...]) -> None:
        """Let a pod go that had these GPUs."""
        self._count(kind, node, -1)
        if devices:
            self.free_milli[node, list(devices)] += kind.gpu_milli
            self._recount(node)

    def free(self) -> FreeCapacity:
        """What is left."""
        return FreeCapacity(
            milli_cpu=self.allocatable.milli_cpu - self.requested.milli_cpu,
            memory_bytes=self.allocatable.memory_bytes - self.requested.memory_bytes,
            gpu_milli=self.free_milli,
            pods=MAX_PODS - self.pods,
        )

    def _count(self, kind: PodKind, node: int, sign: int) -> None:
        self.pods[node] += sign
        for totals, amounts in ((self.requested, kind.requests), (self.counted, kind.requests.nonzero_requests())):
            for total, amount in zip(totals, amounts, strict=True):
                total[node] += sign * amount

    def _recount(self, node: int) -> None:
        free = self.free_milli[node]
        self.free_gpus[node] = np.count_nonzero(free == WHOLE_GPU_MILLI)
        self.most_free_milli[node] = free.max()
