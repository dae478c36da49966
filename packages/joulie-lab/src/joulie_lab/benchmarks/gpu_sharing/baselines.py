"""Published placement scores, as baselines for Joulie's score.

The scores of DotProd, GpuClustering, GpuPacking and BestFit are those that FGD is compared with ("Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC 2023, and its simulator), to
the integer. Like `joulie.domain.scoring.sharing`, the functions are loops over `gpu_left` that check nothing. Higher
scores are better.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.scoring.fragmentation import GRADIENT_SCALE_MILLI
from joulie.domain.scoring.sharing import FULL_GPU_MILLI, NO_GPU, gpus_with, is_part_of_gpu
from joulie.domain.units import IntArray

MAX_SCORE = 100
WIDEST_CPU_MILLI = 128_000
WIDEST_GPU_MILLI = 8000
"""The largest node of the published cluster, by which scores are normalised."""


def tightest_gpu(gpu_left: IntArray, gpu_milli: int) -> int:
    """The GPU with the least left of those with at least `gpu_milli`, the first of equals; `NO_GPU` if none."""
    found = NO_GPU
    for gpu in range(len(gpu_left)):
        if gpu_left[gpu] >= gpu_milli and (found == NO_GPU or gpu_left[gpu] < gpu_left[found]):
            found = gpu
    return found


def dot_product_score(cpu_left_milli: int, gpu_left_milli: int, cpu_milli: int, gpu_milli: int) -> int:
    """Tetris' packing, reversed: the less the free resources point along the request, the better.

    Args:
        cpu_left_milli: free on the node before the pod.
        gpu_left_milli: on all GPUs of the node.
        cpu_milli: asked for.
        gpu_milli: asked for on all GPUs.
    """
    cpu = cpu_left_milli / WIDEST_CPU_MILLI * (cpu_milli / WIDEST_CPU_MILLI)
    gpu = gpu_left_milli / WIDEST_GPU_MILLI * (gpu_milli / WIDEST_GPU_MILLI)
    return int(MAX_SCORE * (1.0 - (cpu + gpu) / 2.0))


def best_fit_score(cpu_left_milli: int, gpu_left_milli: int, cpu_milli: int, gpu_milli: int) -> int:
    """The less CPU and GPU stays free, each by the largest node's, the better; arguments as of `dot_product_score`."""
    cpu = (cpu_left_milli - cpu_milli) / WIDEST_CPU_MILLI
    gpu = (gpu_left_milli - gpu_milli) / WIDEST_GPU_MILLI
    return int((1.0 - (0.5 * cpu + 0.5 * gpu)) * MAX_SCORE)


def gpu_packing_score(gpu_left: IntArray, gpus: int, gpu_milli: int) -> int:
    """GPUs in use before free ones, free ones of a node in use before those of a free node; the request must fit."""
    if gpus == 0:
        return 0
    whole = gpus_with(gpu_left, FULL_GPU_MILLI)
    if whole == len(gpu_left):
        return max(MAX_SCORE // 3 - whole, whole)
    taken, whole_taken, free_pct = 0, 0, 0
    # From the fullest on: all with so much left, then those with the next more.
    left_before = -1
    while taken < gpus:
        least = FULL_GPU_MILLI
        for left in gpu_left:
            if left >= gpu_milli and left_before < left < least:
                least = left
        for left in gpu_left:
            if left == least and taken < gpus:
                taken += 1
                free_pct += left * 100 // FULL_GPU_MILLI
                if left == FULL_GPU_MILLI:
                    whole_taken += 1
        left_before = least
    if whole_taken > 0:
        return max(MAX_SCORE // 2 - whole_taken, MAX_SCORE // 3)
    return max(MAX_SCORE - free_pct // 10, MAX_SCORE // 2)


def request_kind(gpus: int, gpu_milli: int) -> int:
    """A bit for each size of request that GpuClustering keeps together: parts, 1, 2, ... whole GPUs; 0 for no GPU."""
    if gpus == 0:
        return 0
    return 1 if is_part_of_gpu(gpus, gpu_milli) else 1 << gpus


def gpu_clustering_score(gpu_left_milli: int, kinds_on_node: int, kind: int) -> int:
    """Nodes with pods of the same kind alone, then with such among others, then empty ones, then the rest.

    Args:
        gpu_left_milli: free on all GPUs of the node.
        kinds_on_node: bits of `request_kind` of the pods on it.
        kind: the pod's.
    """
    if kind == 0:
        return 0
    if kinds_on_node == kind:
        base = 75
    elif kinds_on_node & kind:
        base = 50
    else:
        base = 25 if kinds_on_node == 0 else 0
    return 25 * (WIDEST_GPU_MILLI - gpu_left_milli) // WIDEST_GPU_MILLI + base


def fgd_score(added_fragmentation_milli: float) -> int:
    """FGD's score of 0..100: a sigmoid of the fragmentation that a placement removes, cut to whole points."""
    return int(MAX_SCORE / (1.0 + np.exp(added_fragmentation_milli / GRADIENT_SCALE_MILLI)))
