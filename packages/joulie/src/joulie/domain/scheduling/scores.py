"""kube-scheduler's scores of nodes, to the integer: LeastAllocated (NodeResourcesFit) and BalancedAllocation.

As Kubernetes 1.36 computes them with its default configuration, which weighs CPU and memory alike; extended resources
are not scored. The other default plugins give all nodes the same for pods without preferences. Source:
k8s.io/kubernetes, pkg/scheduler, framework/plugins/noderesources and prioritizeNodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulie.domain.units import FloatArray, IntArray

MAX_NODE_SCORE = 100
MAX_EXTENDER_PRIORITY = 10
EXTENDER_POINTS = MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY
"""What one point of an extender's priority counts among the scores of plugins."""
DEFAULT_MILLI_CPU_REQUEST = 100
"""What a pod without a CPU request counts for where LeastAllocated looks at the sum of requests."""
DEFAULT_MEMORY_REQUEST_BYTES = 200 * 1024 * 1024
_BYTES_PER_GIB = 1024**3


class PodAmounts(NamedTuple):
    """What a pod requests: CPU in thousandths of a core, memory in bytes."""

    milli_cpu: int
    memory_bytes: int

    @classmethod
    def of(cls, cores: float, memory_gib: float) -> PodAmounts:
        """From cores and GiB, in integers as Kubernetes counts: floats would leave a node a millionth short."""
        return cls(round(cores * 1000.0), round(memory_gib * _BYTES_PER_GIB))

    def plus(self, other: PodAmounts, sign: int = 1) -> PodAmounts:
        """With another pod's, or with sign -1 without them."""
        return PodAmounts(self.milli_cpu + sign * other.milli_cpu, self.memory_bytes + sign * other.memory_bytes)

    def nonzero_requests(self) -> PodAmounts:
        """With the default for a request that is missing."""
        return PodAmounts(
            self.milli_cpu or DEFAULT_MILLI_CPU_REQUEST, self.memory_bytes or DEFAULT_MEMORY_REQUEST_BYTES
        )


NOTHING = PodAmounts(0, 0)


class NodeAmounts(NamedTuple):
    """CPU in thousandths of a core and memory in bytes, arrays of shape ``(n_nodes,)``."""

    milli_cpu: IntArray
    memory_bytes: IntArray

    @classmethod
    def of(cls, cores: FloatArray, memory_gib: FloatArray) -> NodeAmounts:
        """From cores and GiB of each node; see `PodAmounts.of`."""
        return cls(np.rint(cores * 1000.0).astype(np.int64), np.rint(memory_gib * _BYTES_PER_GIB).astype(np.int64))

    def at(self, nodes: IntArray) -> NodeAmounts:
        """Of some of the nodes."""
        return NodeAmounts(self.milli_cpu[nodes], self.memory_bytes[nodes])

    def plus(self, pod: PodAmounts) -> NodeAmounts:
        """With one more pod on each node."""
        return NodeAmounts(self.milli_cpu + pod.milli_cpu, self.memory_bytes + pod.memory_bytes)


def least_allocated(requested: NodeAmounts, allocatable: NodeAmounts) -> IntArray:
    """NodeResourcesFit's score: the mean of what is left of CPU and memory, percent, shape ``(n_nodes,)``.

    Args:
        requested: by all pods of the node and the new one, each with `PodAmounts.nonzero_requests`.
        allocatable: of the node; a resource of which it has nothing is not counted.
    """
    total, resources = np.zeros((2, len(allocatable.milli_cpu)), dtype=np.int64)
    for asked, size in zip(requested, allocatable, strict=True):
        left = (size - asked) * MAX_NODE_SCORE // np.maximum(size, 1)
        total += np.where((size > 0) & (asked <= size), left, 0)
        resources += size > 0
    return total // np.maximum(resources, 1)


def balanced_allocation(pod: PodAmounts, requested: NodeAmounts, allocatable: NodeAmounts) -> IntArray:
    """NodeResourcesBalancedAllocation's score, 50..100: how much the pod evens out the shares in use.

    0 for all nodes where the pod requests neither CPU nor memory: the plugin leaves such pods alone.

    Args:
        pod: what the new pod requests.
        requested: by the pods of the node, without it.
        allocatable: of the node.
    """
    if pod == NOTHING:
        return np.zeros(len(allocatable.milli_cpu), dtype=np.int64)
    after, before = _evenness(requested.plus(pod), allocatable), _evenness(requested, allocatable)
    half = MAX_NODE_SCORE // 2
    return half + (half + after - before) // 2


def default_scores(pod: PodAmounts, requested: NodeAmounts, counted: NodeAmounts, allocatable: NodeAmounts) -> IntArray:
    """The sum of both scores, as kube-scheduler's default configuration weighs them, shape ``(n_nodes,)``.

    Args:
        pod: what the new pod requests.
        requested: by the pods of the node, without it.
        counted: the same, each with `PodAmounts.nonzero_requests`.
        allocatable: of the node.
    """
    fit = least_allocated(counted.plus(pod.nonzero_requests()), allocatable)
    return fit + balanced_allocation(pod, requested, allocatable)


def with_extender(scores: IntArray, wire: IntArray, weight: int = 1) -> IntArray:
    """Scores of the plugins and of an extender, 0..10 on the wire, as prioritizeNodes adds them up."""
    return scores + wire * weight * EXTENDER_POINTS


def _evenness(requested: NodeAmounts, allocatable: NodeAmounts) -> IntArray:
    shares = [np.minimum(asked / np.maximum(size, 1), 1.0) for asked, size in zip(requested, allocatable, strict=True)]
    both = (allocatable.milli_cpu > 0) & (allocatable.memory_bytes > 0)
    deviation = np.where(both, np.abs((shares[0] - shares[1]) / 2.0), 0.0)
    # Towards zero, as Go converts to integers.
    return ((1.0 - deviation) * float(MAX_NODE_SCORE)).astype(np.int64)
