"""The simulated cluster: pools of identical nodes, in index order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain.units import FloatArray, IntArray, non_negative, positive


@dataclass(frozen=True)
class NodePool:
    """Identical nodes with consecutive indices.

    Attributes:
        name: shown in tables and errors.
        count: number of nodes.
        cores: allocatable CPU cores of one node.
        cpu_max_w: CPU power of one node at full load, W.
        gpus: GPUs of one node.
        gpu_max_w: power limit of one GPU, W.
        gpu_idle_w: power of one GPU that is allocated to no job, W.
    """

    name: str
    count: int
    cores: int
    cpu_max_w: float
    gpus: int = 0
    gpu_max_w: float = 0.0
    gpu_idle_w: float = 0.0

    def __post_init__(self) -> None:
        positive("count", self.count)
        positive("cores", self.cores)
        positive("cpu_max_w", self.cpu_max_w)
        non_negative("gpus", self.gpus)
        non_negative("gpu_max_w", self.gpu_max_w)
        non_negative("gpu_idle_w", self.gpu_idle_w)

    @property
    def peak_w(self) -> float:
        """Power limit of one node, also its TDP: CPU plus all GPUs at their limits, W."""
        return self.cpu_max_w + self.gpus * self.gpu_max_w


@dataclass(frozen=True)
class Cluster:
    """Node pools; node indices run through them in order."""

    pools: tuple[NodePool, ...]

    def __post_init__(self) -> None:
        if not self.pools:
            raise ValueError("a cluster needs at least one node pool")

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return sum(pool.count for pool in self.pools)

    @property
    def total_cores(self) -> int:
        """CPU cores of the whole cluster."""
        return sum(pool.count * pool.cores for pool in self.pools)

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return sum(pool.count * pool.gpus for pool in self.pools)

    @property
    def peak_w(self) -> float:
        """Sum of the nodes' power limits, W."""
        return sum(pool.count * pool.peak_w for pool in self.pools)

    def pool_starts(self) -> IntArray:
        """Index of the first node of each pool, and the number of nodes, shape ``(n_pools + 1,)``."""
        return np.cumsum([0, *(pool.count for pool in self.pools)], dtype=np.int64)

    def per_node(self, attribute: str) -> FloatArray:
        """The value of a pool attribute for every node, shape ``(n_nodes,)``."""
        values = [float(getattr(pool, attribute)) for pool in self.pools]
        return np.repeat(np.asarray(values, dtype=np.float64), [pool.count for pool in self.pools])
