"""Nodes whose GPUs are shared by pods: what fits, what a pod takes, and power.

A GPU has 1000 thousandths (milli). A pod asks for a part of one GPU, or for whole GPUs; no pod asks for parts of
several. `gpu_left` is what is free on every GPU of one node, in milli, shape ``(n_gpus,)``. The functions are written
as loops over it, so that compiled code can call them; they check nothing, for inputs are checked where they enter.

The power model is that of "Power- and Fragmentation-aware Online Scheduling for GPU Datacenters" (CCGrid 2025).
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

import numpy as np

from joulie.domain.units import IntArray

FULL_GPU_MILLI = 1000
NO_GPU = -1

SOCKET_THREADS = 32
SOCKET_LIMIT_W = 120.0
SOCKET_IDLE_W = 15.0
"""Xeon E5-2682 v4, as the paper on PWR assumes of every node: the trace does not say."""


def is_part_of_gpu(gpus: int, gpu_milli: int) -> bool:
    """Whether a pod asks for a part of one GPU."""
    return gpus == 1 and gpu_milli < FULL_GPU_MILLI


def gpus_with(gpu_left: Sequence[int] | IntArray, gpu_milli: int) -> int:
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


def free_milli(gpu_left: Sequence[int] | IntArray) -> int:
    """What is free on all GPUs of the node, in milli."""
    total = 0
    for left in gpu_left:
        total += left
    return total


def take(gpu_left: MutableSequence[int] | IntArray, gpus: int, gpu_milli: int, gpu: int) -> None:
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


def sockets_of(cpu_milli: int) -> int:
    """Sockets of a node with this many thousandths of a thread, of `SOCKET_THREADS` threads each."""
    return int(np.ceil(np.ceil(cpu_milli / (2 * 1000)) / (SOCKET_THREADS // 2)))


def shared_node_power_w(
    cpu_left_milli: int,
    cpu_milli: int,
    gpu_left: Sequence[int] | IntArray,
    gpu_idle_w: float,
    gpu_limit_w: float,
    socket_idle_w: float = SOCKET_IDLE_W,
    socket_limit_w: float = SOCKET_LIMIT_W,
) -> float:
    """Power of a node's CPUs and GPUs, W: a GPU or socket with any pod draws its limit, one without what it does idle.

    A core is two threads, and a thread is what a pod's CPU is. As few sockets as possible are in use.

    Args:
        cpu_left_milli: free thousandths of a thread.
        cpu_milli: all of the node.
        gpu_left: see the module.
        gpu_idle_w: of one GPU without pods, W.
        gpu_limit_w: of one with pods, W.
        socket_idle_w: of a socket without pods, W.
        socket_limit_w: of one with pods, W.
    """
    whole = gpus_with(gpu_left, FULL_GPU_MILLI)
    cores = np.ceil(cpu_milli / (2 * 1000))
    used_cores = cores - np.floor(cpu_left_milli / (2 * 1000))
    sockets = sockets_of(cpu_milli)
    used_sockets = np.ceil(used_cores / (SOCKET_THREADS // 2))
    return float(
        whole * gpu_idle_w
        + (len(gpu_left) - whole) * gpu_limit_w
        + (sockets - used_sockets) * socket_idle_w
        + used_sockets * socket_limit_w
    )
