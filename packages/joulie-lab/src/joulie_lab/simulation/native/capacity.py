"""Capacity of the nodes: what pods have requested, GPU by GPU, and what is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from joulie.domain.scheduling.scores import NodeAmounts
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import FreeCapacity, PodKind
from joulie_lab.simulation.native.nodes import MAX_PODS, SimNode
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI


class NodeCapacity:
    """Capacity and requests of all nodes, as the scheduler counts them; arrays have shape ``(n_nodes,)``.

    Attributes:
        allocatable: allocatable CPU and memory.
        requested: CPU and memory requested by the pods on each node.
        nonzero_requested: the same, with kube-scheduler's defaults for missing requests.
        pods: number of pods.
        gpus: number of GPUs.
        free_gpus: number of GPUs of which no pod has a share.
        free_milli: free share of each GPU, thousandths, shape ``(n_nodes, maximum GPUs of a node)``; 0 where a node
            has no such GPU.
        max_free_milli: free share of each node's GPU with the largest free share, thousandths.
        sizes: `allocatable` as one array, shape ``(2, n_nodes)``.
        used: `requested` as one array.
        nonzero_used: `nonzero_requested` as one array.
    """

    def __init__(self, nodes: Sequence[SimNode]) -> None:
        """Start with all nodes empty."""
        n_nodes = len(nodes)
        self.allocatable = NodeAmounts.of(
            np.array([node.spec.cores for node in nodes]), np.array([node.memory_gib for node in nodes])
        )
        self.sizes: IntArray = np.stack(self.allocatable)
        self.used: IntArray = np.zeros((2, n_nodes), dtype=np.int64)
        self.nonzero_used: IntArray = np.zeros((2, n_nodes), dtype=np.int64)
        self.requested, self.nonzero_requested = NodeAmounts(*self.used), NodeAmounts(*self.nonzero_used)
        self.pods: IntArray = np.zeros(n_nodes, dtype=np.int64)
        self.gpus = np.array([node.spec.gpus for node in nodes], dtype=np.int64)
        own = np.arange(self.gpus.max(initial=0)) < self.gpus[:, np.newaxis]
        self.free_milli: IntArray = np.where(own, WHOLE_GPU_MILLI, 0)
        self.free_gpus = self.gpus.copy()
        self.max_free_milli: IntArray = np.where(self.gpus > 0, WHOLE_GPU_MILLI, 0)
        self._resource = np.array([node.gpu_resource for node in nodes], dtype=np.str_)
        self._has_resource: dict[str, BoolArray] = {}
        self._changed: set[int] = set()

    def feasible(self, kind: PodKind) -> BoolArray:
        """Nodes with enough free capacity for one more pod of a kind, shape ``(n_nodes,)``."""
        requests = kind.requests
        found = (
            (self.allocatable.milli_cpu - self.requested.milli_cpu >= requests.milli_cpu)
            & (self.allocatable.memory_bytes - self.requested.memory_bytes >= requests.memory_bytes)
            & (self.pods < MAX_PODS)
        )
        if kind.gpus:
            found &= self.has_gpu_resource(kind)
            if kind.shares_gpu:
                found &= self.max_free_milli >= kind.gpu_milli
            else:
                found &= self.free_gpus >= kind.gpus
        return np.asarray(found)

    def has_gpu_resource(self, kind: PodKind) -> BoolArray:
        """Nodes that offer the extended resource by which the kind requests GPUs; all nodes if it requests none."""
        resource = kind.gpu_resource
        if resource not in self._has_resource:
            everywhere = np.ones(len(self.gpus), dtype=np.bool_)
            self._has_resource[resource] = np.asarray(self._resource == resource) if resource else everywhere
        return self._has_resource[resource]

    def allocate(self, kind: PodKind, node: int) -> tuple[int, ...]:
        """Count a pod's requests on a node, and assign its GPUs.

        A pod that needs a share of a GPU gets it from the GPU with the smallest free share that is large enough.

        Returns:
            Indices of the assigned GPUs.
        """
        self._count(kind, node, 1)
        if not kind.gpus:
            return ()
        free: list[int] = self.free_milli[node].tolist()
        if kind.shares_gpu:
            enough = [one if one >= kind.gpu_milli else WHOLE_GPU_MILLI + 1 for one in free]
            devices: tuple[int, ...] = (enough.index(min(enough)),)
        else:
            devices = tuple(device for device, one in enumerate(free) if one == WHOLE_GPU_MILLI)[: kind.gpus]
        self._give(node, free, devices, -kind.gpu_milli)
        return devices

    def release(self, kind: PodKind, node: int, devices: tuple[int, ...]) -> None:
        """Release the requests and GPUs of a pod that leaves its node."""
        self._count(kind, node, -1)
        if devices:
            self._give(node, self.free_milli[node].tolist(), devices, kind.gpu_milli)

    def mark_changed(self, nodes: Iterable[int]) -> None:
        """Note nodes that may admit other pods than before, such as those whose class changed."""
        self._changed.update(nodes)

    def take_changed(self) -> list[int]:
        """Nodes that changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def free(self) -> FreeCapacity:
        """Free capacity of all nodes."""
        return FreeCapacity(
            milli_cpu=self.allocatable.milli_cpu - self.requested.milli_cpu,
            memory_bytes=self.allocatable.memory_bytes - self.requested.memory_bytes,
            gpu_milli=self.free_milli,
            pods=MAX_PODS - self.pods,
        )

    def _count(self, kind: PodKind, node: int, sign: int) -> None:
        self._changed.add(node)
        self.pods[node] += sign
        for totals, amounts in (
            (self.requested, kind.requests),
            (self.nonzero_requested, kind.requests.nonzero_requests()),
        ):
            for total, amount in zip(totals, amounts, strict=True):
                total[node] += sign * amount

    def _give(self, node: int, free: list[int], devices: tuple[int, ...], milli: int) -> None:
        """Add to the free share of some GPUs of a node; plain lists, for NumPy is slow on a handful of numbers."""
        for device in devices:
            free[device] += milli
        self.free_milli[node] = free
        self.free_gpus[node] = free.count(WHOLE_GPU_MILLI)
        self.max_free_milli[node] = max(free)
