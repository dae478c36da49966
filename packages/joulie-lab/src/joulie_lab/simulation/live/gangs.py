"""Seats for all members of a gang at once: what the gate asks that holds a gang's pods back until they have them.

kube-scheduler places pods one by one; two gangs that each hold half of what both need wait for each other for ever. So
a gang's pods are let go when all of them fit now. The native runtime and the simulator service ask the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.kube import PodAmounts
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.trace import JobShape

WHOLE_GPU_MILLI = 1000
_BYTES_PER_GIB = 1024**3


class Room(NamedTuple):
    """What no pod has requested, in the integers that Kubernetes counts with; arrays of shape ``(n_nodes,)``."""

    milli_cpu: IntArray
    memory_bytes: IntArray
    gpu_milli: IntArray
    """Of each GPU, thousandths, shape ``(n_nodes, most GPUs of a node)``; 0 beyond a node's own."""
    pods: IntArray
    """Pods that the node still takes."""


class Alike(NamedTuple):
    """Members of a gang that are alike."""

    requests: PodAmounts
    gpus: int
    gpu_milli: int
    """Of each GPU, thousandths; 1000 for whole ones."""
    allowed: BoolArray
    """Nodes that their rules, class and GPU resource admit, shape ``(n_nodes,)``."""
    number: int
    """How many they are."""

    @classmethod
    def of(cls, shape: JobShape, allowed: BoolArray, number: int = 1, *, share_gpus: bool = False) -> Alike:
        """So many pods that request this; whether one that needs a share of a GPU leaves the rest of it to others."""
        requests = PodAmounts(round(shape.cores * 1000.0), round(shape.memory_gib * _BYTES_PER_GIB))
        shared = share_gpus and shape.gpus == 1
        gpu_milli = round(shape.gpu_share * WHOLE_GPU_MILLI) if shared else WHOLE_GPU_MILLI
        return cls(requests, shape.gpus, gpu_milli, allowed, number)


class Seat(NamedTuple):
    """A place for one member."""

    group: int
    """Index of those that it is alike with."""
    node: int
    """Index of the node."""


def whole_gpus(free: IntArray) -> IntArray:
    """`Room.gpu_milli` of nodes with so many whole GPUs free, shape ``(n_nodes,)``."""
    free_here = np.arange(free.max(initial=0)) < free[:, np.newaxis]
    return np.where(free_here, WHOLE_GPU_MILLI, 0)


def places(free: Room, asked: Alike) -> IntArray:
    """How many pods that are alike fit each node, shape ``(n_nodes,)``; whatever their number."""
    found = free.pods
    for have, amount in zip(free[:2], asked.requests, strict=True):
        if amount > 0:
            found = np.minimum(found, have // amount)
    if asked.gpus:
        shared = asked.gpu_milli < WHOLE_GPU_MILLI
        per_gpu = free.gpu_milli // asked.gpu_milli
        gpus = per_gpu.sum(axis=1) if shared else (per_gpu > 0).sum(axis=1) // asked.gpus
        found = np.minimum(found, gpus)
    return np.where(asked.allowed, np.maximum(found, 0), 0)


def seats(free: Room, groups: Sequence[Alike]) -> list[Seat] | None:
    """Seats for all members at once, in the order in which they should be taken; None where none were found.

    Those that fewest nodes could take come first, of equals the largest, each on the fullest node that has room: nodes
    with GPUs are left to those that need them. That finds seats wherever all members are alike. Where they differ it
    may miss a way, never invent one.
    """
    left = Room(*(amounts.copy() for amounts in free))
    found: list[Seat] = []
    for _, index in sorted((_ease(left, asked), index) for index, asked in enumerate(groups)):
        asked, missing = groups[index], groups[index].number
        fits = places(left, asked)
        for node in _fullest_first(left, np.flatnonzero(fits)):
            taken = min(int(fits[node]), missing)
            found += [Seat(index, node)] * taken
            _take(left, asked, node, taken)
            missing -= taken
            if not missing:
                break
        if missing:
            return None
    return found


def _ease(free: Room, asked: Alike) -> tuple[int, ...]:
    """What is smaller the harder it is to find a seat."""
    nodes = int(np.count_nonzero(places(free, asked)))
    return nodes, -asked.gpus * asked.gpu_milli, -asked.requests.milli_cpu, -asked.requests.memory_bytes


def _fullest_first(free: Room, nodes: IntArray) -> list[int]:
    """Nodes by what is left of their GPUs, then of cores, then of memory."""
    keys = (free.memory_bytes[nodes], free.milli_cpu[nodes], free.gpu_milli[nodes].sum(axis=1))
    ordered: list[int] = nodes[np.lexsort(keys)].tolist()
    return ordered


def _take(free: Room, asked: Alike, node: int, count: int) -> None:
    free.milli_cpu[node] -= count * asked.requests.milli_cpu
    free.memory_bytes[node] -= count * asked.requests.memory_bytes
    free.pods[node] -= count
    gpus = free.gpu_milli[node]
    needed = count * asked.gpus
    # As a node hands them out: shares of the GPU first that has least room for them.
    for gpu in np.argsort(gpus, kind="stable"):
        taken = min(needed, int(gpus[gpu]) // asked.gpu_milli)
        gpus[gpu] -= taken * asked.gpu_milli
        needed -= taken
