"""Gangs: a place for every member at once, or for none.

kube-scheduler places pods one by one; two gangs that each hold half of what both need wait for each other for ever. So
a gate holds a gang's pods back until all of them fit now. The native runtime, the simulator service and the check of
workloads against an empty cluster all ask `Seating`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules
from joulie.domain.scheduling.scores import PodAmounts
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.trace import WHOLE_GPU_MILLI, JobShape

MemberT = TypeVar("MemberT")


class PodKind(NamedTuple):
    """What pods have in common that fit the same nodes: where one of them finds no room, none does."""

    requests: PodAmounts
    gpus: int = 0
    gpu_milli: int = WHOLE_GPU_MILLI
    """Of each GPU, thousandths; 1000 for whole ones."""
    gpu_resource: str = ""
    performance: bool = False
    rules: NodeRules = ANYWHERE
    priority: int = 0

    @classmethod
    def of(
        cls,
        shape: JobShape,
        rules: NodeRules = ANYWHERE,
        *,
        performance: bool = False,
        share_gpus: bool = False,
        priority: int = 0,
    ) -> PodKind:
        """The kind of pods that request this.

        Args:
            shape: what they request.
            rules: which nodes they may run on.
            performance: whether they are of class performance.
            share_gpus: whether one that needs a share of a GPU leaves the rest of it to others.
            priority: of their PriorityClass.
        """
        gpu_milli = round(shape.gpu_share * WHOLE_GPU_MILLI) if share_gpus and shape.gpus == 1 else WHOLE_GPU_MILLI
        return cls(shape.amounts, shape.gpus, gpu_milli, shape.gpu_resource, performance, rules, priority)

    @property
    def shares_gpu(self) -> bool:
        """Whether it needs only a part of its GPU."""
        return self.gpu_milli < WHOLE_GPU_MILLI


class FreeCapacity(NamedTuple):
    """What no pod has requested, in the integers that Kubernetes counts with; arrays of shape ``(n_nodes,)``."""

    milli_cpu: IntArray
    memory_bytes: IntArray
    gpu_milli: IntArray
    """Of each GPU, thousandths, shape ``(n_nodes, maximum GPUs of a node)``; 0 beyond a node's own."""
    pods: IntArray
    """Pods that the node still takes."""


class Group(NamedTuple):
    """Members of a gang that are of one kind."""

    kind: PodKind
    allowed: BoolArray
    """Nodes that their rules, class and GPU resource admit, shape ``(n_nodes,)``."""
    number: int = 1
    """How many they are."""


class Seat(NamedTuple):
    """A place for one member."""

    group: int
    """Index of its group."""
    node: int
    """Index of the node."""


def by_kind(members: Iterable[MemberT], kind_of: Callable[[MemberT], PodKind]) -> dict[PodKind, list[MemberT]]:
    """Members of a gang, those of a kind together."""
    found: dict[PodKind, list[MemberT]] = {}
    for member in members:
        found.setdefault(kind_of(member), []).append(member)
    return found


class Seating:
    """Looks for seats in the free capacity of one moment, and remembers what it has worked out about it.

    Args:
        free: the capacity.
        allowed: nodes that the rules, class and GPU resource of a kind admit, shape ``(n_nodes,)``.
    """

    def __init__(self, free: FreeCapacity, allowed: Callable[[PodKind], BoolArray]) -> None:
        self._free = free
        self._allowed = allowed
        self._total = [int(amounts.sum()) for amounts in (free.milli_cpu, free.memory_bytes, free.gpu_milli)]
        self._places: dict[PodKind, int] = {}

    def places(self, kind: PodKind) -> int:
        """How many pods of a kind fit."""
        if kind not in self._places:
            self._places[kind] = int(places(self._free, Group(kind, self._allowed(kind))).sum())
        return self._places[kind]

    def seats(self, members: Mapping[PodKind, Sequence[MemberT]]) -> list[tuple[MemberT, int]] | None:
        """A node for each member, in the order in which they should be taken; None where not all find one."""
        needs = [(*kind.requests, kind.gpus * kind.gpu_milli) for kind in members]
        numbers = [len(alike) for alike in members.values()]
        for column, had in zip(zip(*needs, strict=True), self._total, strict=True):
            if sum(number * amount for number, amount in zip(numbers, column, strict=True)) > had:
                return None
        # Where those of one kind alone find too few places, the gang needs no closer look.
        if any(self.places(kind) < number for kind, number in zip(members, numbers, strict=True)):
            return None
        groups = [Group(kind, self._allowed(kind), len(alike)) for kind, alike in members.items()]
        found = seats(self._free, groups)
        if found is None:
            return None
        members_of = [iter(alike) for alike in members.values()]
        return [(next(members_of[seat.group]), seat.node) for seat in found]


def whole_gpus(free: IntArray) -> IntArray:
    """`FreeCapacity.gpu_milli` of nodes with so many whole GPUs free, shape ``(n_nodes,)``."""
    free_here = np.arange(free.max(initial=0)) < free[:, np.newaxis]
    return np.where(free_here, WHOLE_GPU_MILLI, 0)


def places(free: FreeCapacity, group: Group) -> IntArray:
    """How many pods of a group's kind fit each node, shape ``(n_nodes,)``; whatever their number."""
    kind, found = group.kind, free.pods
    for have, amount in zip(free[:2], kind.requests, strict=True):
        if amount > 0:
            found = np.minimum(found, have // amount)
    if kind.gpus:
        per_gpu = free.gpu_milli // kind.gpu_milli
        gpus = per_gpu.sum(axis=1) if kind.shares_gpu else (per_gpu > 0).sum(axis=1) // kind.gpus
        found = np.minimum(found, gpus)
    return np.where(group.allowed, np.maximum(found, 0), 0)


def seats(free: FreeCapacity, groups: Sequence[Group]) -> list[Seat] | None:
    """Seats for all members at once, in the order in which they should be taken; None where none were found.

    Those that fewest nodes could take come first, of equals the largest, each on the fullest node that has room: nodes
    with GPUs are left to those that need them. That finds seats wherever all members are alike. Where they differ it
    may miss a way, never invent one.
    """
    left = FreeCapacity(*(amounts.copy() for amounts in free))
    found: list[Seat] = []
    for _, index in sorted((_ease(left, group), index) for index, group in enumerate(groups)):
        group, missing = groups[index], groups[index].number
        fits = places(left, group)
        for node in _fullest_first(left, np.flatnonzero(fits)):
            taken = min(int(fits[node]), missing)
            found += [Seat(index, node)] * taken
            _take(left, group.kind, node, taken)
            missing -= taken
            if not missing:
                break
        if missing:
            return None
    return found


def _ease(free: FreeCapacity, group: Group) -> tuple[int, ...]:
    """What is smaller the harder it is to find a seat."""
    kind, nodes = group.kind, int(np.count_nonzero(places(free, group)))
    return nodes, -kind.gpus * kind.gpu_milli, -kind.requests.milli_cpu, -kind.requests.memory_bytes


def _fullest_first(free: FreeCapacity, nodes: IntArray) -> list[int]:
    """Nodes by what is left of their GPUs, then of cores, then of memory."""
    keys = (free.memory_bytes[nodes], free.milli_cpu[nodes], free.gpu_milli[nodes].sum(axis=1))
    ordered: list[int] = nodes[np.lexsort(keys)].tolist()
    return ordered


def _take(free: FreeCapacity, kind: PodKind, node: int, count: int) -> None:
    free.milli_cpu[node] -= count * kind.requests.milli_cpu
    free.memory_bytes[node] -= count * kind.requests.memory_bytes
    free.pods[node] -= count
    gpus = free.gpu_milli[node]
    needed = count * kind.gpus
    # As a node hands them out: shares of the GPU first that has least room for them.
    for gpu in np.argsort(gpus, kind="stable"):
        taken = min(needed, int(gpus[gpu]) // kind.gpu_milli)
        gpus[gpu] -= taken * kind.gpu_milli
        needed -= taken
