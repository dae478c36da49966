"""Whether all members of a gang find room at once: the gate that holds a gang's pods back until they do.

kube-scheduler places pods one by one; two gangs that each hold half of what both need wait for each other for ever. So
a gang's pods are let go when all of them fit now, one gang at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.trace import JobShape
from joulie.domain.units import BoolArray, FloatArray

_ROUNDING = 1e-9


class Room(NamedTuple):
    """What no pod has requested, arrays of shape ``(n_nodes,)``."""

    cores: FloatArray
    memory_gib: FloatArray
    gpus: FloatArray
    pods: FloatArray
    """Pods that the node still takes."""


class Member(NamedTuple):
    """A pod of a gang: what it requests, and the nodes that its labels and class admit, shape ``(n_nodes,)``."""

    shape: JobShape
    allowed: BoolArray


def fits_together(free: Room, members: Sequence[Member]) -> bool:
    """Whether all members fit at once: the largest first, each on the first node that has room.

    That finds room wherever the members are alike; of members that differ it may miss a way, never invent one.
    """
    left = Room(*(np.array(amounts, dtype=np.float64) for amounts in free))
    by_size = sorted(members, key=lambda member: (member.shape.gpus, member.shape.cores, member.shape.memory_gib))
    for shape, allowed in reversed(by_size):
        fitting = (
            allowed
            & (left.cores >= shape.cores - _ROUNDING)
            & (left.memory_gib >= shape.memory_gib - _ROUNDING)
            & (left.gpus >= shape.gpus)
            & (left.pods >= 1.0)
        )
        if not fitting.any():
            return False
        node = int(np.argmax(fitting))
        left.cores[node] -= shape.cores
        left.memory_gib[node] -= shape.memory_gib
        left.gpus[node] -= shape.gpus
        left.pods[node] -= 1.0
    return True
