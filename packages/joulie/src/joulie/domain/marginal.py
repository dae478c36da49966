"""Marginal power: what a pod would add to a node.

`marginal_w` is bare arithmetic, so that compiled schedulers can inline it; `FullLoad` applies it to checked numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware.estimates import estimated_gpu_limit
from joulie.domain.quantities import finite_number
from joulie.domain.units import FloatArray, FloatLike, positive

CPU_LOAD = 0.7
"""Share of a node's CPU power that its requested cores are expected to draw."""
GPU_COEFFICIENT_STANDARD = 0.65
GPU_COEFFICIENT_PERFORMANCE = 0.85

FALLBACK_W_PER_CORE = 3.5
FALLBACK_MIN_NODE_W = 150.0


def marginal_w(
    cpu_max_w: FloatLike,
    core_fraction: FloatLike,
    memory_gib: FloatLike,
    gpus: FloatLike,
    gpu_max_w: FloatLike,
    gpu_coefficient: FloatLike,
) -> FloatLike:
    """Power that a pod adds, W (spec: control loop, marginal).

    ``cpuMax * 0.7 * min(1, podCores / nodeCores) * clamp(1 + 0.01 memGiB, 1, 1.3) + gpus * gpuMax * coefficient``.
    Without memory it is the published scoring experiment's formula, to the bit.

    Args:
        cpu_max_w: CPU power of the node at full load, W.
        core_fraction: cores that the pod requests over cores of the node.
        memory_gib: memory that the pod requests, GiB.
        gpus: GPUs that the pod requests.
        gpu_max_w: limit of one GPU of the node, W; 0 where it has none.
        gpu_coefficient: `GPU_COEFFICIENT_STANDARD` or `GPU_COEFFICIENT_PERFORMANCE`.
    """
    memory_factor = np.minimum(1.3, np.maximum(1.0, 1.0 + 0.01 * memory_gib))
    return cpu_max_w * CPU_LOAD * np.minimum(1.0, core_fraction) * memory_factor + gpus * gpu_max_w * gpu_coefficient


def gpu_coefficient(performance: npt.ArrayLike) -> FloatArray:
    """Share of a GPU's limit that a pod is expected to draw, by its class."""
    return np.where(np.asarray(performance), GPU_COEFFICIENT_PERFORMANCE, GPU_COEFFICIENT_STANDARD)


def cpu_max_or_fallback_w(cpu_max_w: float | None, node_cores: float) -> float:
    """The node's CPU power at full load, or 3.5 W a core, at least 150 W, where it is not known.

    Raises:
        InvalidQuantityError: an input is NaN or not above 0.
    """
    cores = float(positive("node_cores", node_cores))
    if cpu_max_w is None:
        return max(FALLBACK_MIN_NODE_W, FALLBACK_W_PER_CORE * cores)
    return float(positive("cpu_max_w", cpu_max_w))


def gpu_max_or_fallback_w(gpu_max_w: float | None, vendor: str | None = None) -> float:
    """The limit of one GPU, or its vendor's fallback where it is not known.

    Raises:
        InvalidQuantityError: the limit is NaN or not above 0.
    """
    if gpu_max_w is None:
        return estimated_gpu_limit(vendor).expected_w
    return float(positive("gpu_max_w", gpu_max_w))


@dataclass(frozen=True)
class PodRequests:
    """What a pod requests, as kube-scheduler counts it.

    Attributes:
        cores: CPUs.
        memory_gib: memory, GiB.
        gpus: whole GPUs of any vendor.

    Raises:
        InvalidQuantityError: a request is NaN or negative.
    """

    cores: float = 0.0
    memory_gib: float = 0.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cores", "memory_gib", "gpus"):
            finite_number(name, getattr(self, name), minimum=0.0)


@dataclass(frozen=True, eq=False)
class FullLoad:
    """What many nodes draw at full load, known or by fallback; every array has shape ``(n_nodes,)``.

    Attributes:
        cpu_max_w: CPU power, W.
        cores: CPUs that pods can request.
        gpu_max_w: limit of one GPU, W; a fallback where a node has none, for a pod with GPUs cannot start there.

    Raises:
        InvalidQuantityError: an entry is NaN or not above 0.
    """

    cpu_max_w: FloatArray
    cores: FloatArray
    gpu_max_w: FloatArray

    def __post_init__(self) -> None:
        for name in ("cpu_max_w", "cores", "gpu_max_w"):
            positive(name, getattr(self, name))

    def marginal_w(self, requests: PodRequests, *, performance: bool) -> FloatArray:
        """Power that a pod would add to each node, W, shape ``(n_nodes,)``: `marginal_w` on checked numbers."""
        coefficient = GPU_COEFFICIENT_PERFORMANCE if performance else GPU_COEFFICIENT_STANDARD
        fraction = requests.cores / self.cores
        return np.asarray(
            marginal_w(self.cpu_max_w, fraction, requests.memory_gib, requests.gpus, self.gpu_max_w, coefficient)
        )
