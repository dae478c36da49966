"""Nodes whose GPUs are shared by pods: what fits, which GPU a pod takes, the published packing scores, and power.

A GPU has 1000 thousandths (milli). A pod asks for a part of one GPU, or for whole GPUs; no pod asks for parts of
several. `gpu_left` is what is free on every GPU of one node, in milli, shape ``(n_gpus,)``. The functions are written
as loops over it, so that compiled code can call them; they check nothing, for inputs are checked where they enter.
Higher scores are better.

Sources: the scores of DotProd, GpuClustering, GpuPacking and BestFit are those that FGD is compared with ("Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC 2023, and its simulator), to
the integer. The power model is that of "Power- and Fragmentation-aware Online Scheduling for GPU Datacenters" (CCGrid
2025).
"""

from __future__ import annotations

import numpy as np

from joulie.domain.units import IntArray

FULL_GPU_MILLI = 1000
MAX_SCORE = 100
WIDEST_CPU_MILLI = 128_000
WIDEST_GPU_MILLI = 8000
"""The largest node of the published cluster, by which scores are normalised."""
NO_GPU = -1

SOCKET_THREADS = 32
SOCKET_LIMIT_W = 120.0
SOCKET_IDLE_W = 15.0
"""Xeon E5-2682 v4, as the paper on PWR assumes of every node: the trace does not say."""


def is_part_of_gpu(gpus: int, gpu_milli: int) -> bool:
    """Whether a pod asks for a part of one GPU."""
    return gpus == 1 and gpu_milli < FULL_GPU_MILLI


def gpus_with(gpu_left: IntArray, gpu_milli: int) -> int:
    """GPUs with at least `gpu_milli` free."""
    found = 0
    for left in gpu_left:
        if left >= gpu_milli:
            found += 1
    return found


def fits(
    cpu_left_milli: int, memory_left: int, gpu_left: IntArray, cpu_milli: int, memory: int, gpus: int, gpu_milli: int
) -> bool:
    """Whether a request fits a node; `memory` in any one unit."""
    if cpu_left_milli < cpu_milli or memory_left < memory:
        return False
    return gpus == 0 or gpus_with(gpu_left, gpu_milli) >= gpus


def free_milli(gpu_left: IntArray) -> int:
    """What is free on all GPUs of the node, in milli."""
    total = 0
    for left in gpu_left:
        total += left
    return total


def tightest_gpu(gpu_left: IntArray, gpu_milli: int) -> int:
    """The GPU with the least left of those with at least `gpu_milli`, the first of equals; `NO_GPU` if none."""
    found = NO_GPU
    for gpu in range(len(gpu_left)):
        if gpu_left[gpu] >= gpu_milli and (found == NO_GPU or gpu_left[gpu] < gpu_left[found]):
            found = gpu
    return found


def take(gpu_left: IntArray, gpus: int, gpu_milli: int, gpu: int) -> None:
    """Take a pod's request out of `gpu_left`: a part from `gpu`, whole ones from the first that are whole.

    Args:
        gpu_left: changed in place.
        gpus: that the pod asks for, 0 for none.
        gpu_milli: asked for on each.
        gpu: number of the shared GPU; not looked at for whole ones.
    """
    if is_part_of_gpu(gpus, gpu_milli):
        gpu_left[gpu] -= gpu_milli
        return
    missing = gpus
    for other in range(len(gpu_left)):
        if missing > 0 and gpu_left[other] == FULL_GPU_MILLI:
            gpu_left[other] = 0
            missing -= 1


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


def shared_node_power_w(
    cpu_left_milli: int, cpu_milli: int, gpu_left: IntArray, gpu_idle_w: float, gpu_limit_w: float
) -> float:
    """Power of a node's CPUs and GPUs, W: a GPU or socket with any pod draws its limit, one without what it does idle.

    A core is two threads, and a thread is what a pod's CPU is. As few sockets as possible are in use.

    Args:
        cpu_left_milli: free thousandths of a thread.
        cpu_milli: all of the node.
        gpu_left: see the module.
        gpu_idle_w: of one GPU without pods, W.
        gpu_limit_w: of one with pods, W.
    """
    whole = gpus_with(gpu_left, FULL_GPU_MILLI)
    cores = np.ceil(cpu_milli / (2 * 1000))
    used_cores = cores - np.floor(cpu_left_milli / (2 * 1000))
    sockets = np.ceil(cores / (SOCKET_THREADS // 2))
    used_sockets = np.ceil(used_cores / (SOCKET_THREADS // 2))
    return float(
        whole * gpu_idle_w
        + (len(gpu_left) - whole) * gpu_limit_w
        + (sockets - used_sockets) * SOCKET_IDLE_W
        + used_sockets * SOCKET_LIMIT_W
    )
