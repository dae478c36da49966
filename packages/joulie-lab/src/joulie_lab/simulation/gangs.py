"""Gang scheduling: whether all members of a gang fit at once, and on which nodes.

kube-scheduler places pods one by one, so two gangs that each hold half of what both need wait for each other for ever.
A gate therefore holds a gang's pods until all of them fit. The native runtime, the simulator service and the check of
workloads against an empty cluster all use `GangFit`.
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
    """Scheduling properties of a pod: pods of one kind fit the same nodes, so if one is unschedulable, all are."""

    requests: PodAmounts
    gpus: int = 0
    gpu_milli: int = WHOLE_GPU_MILLI
    """Share of each GPU, thousandths; 1000 for whole GPUs."""
    gpu_resource: str = ""
    performance: bool = False
    rules: NodeRules = ANYWHERE
    priority: int = 0

    @classmethod
    def from_shape(
        cls,
        shape: JobShape,
        rules: NodeRules = ANYWHERE,
        *,
        performance: bool = False,
        share_gpus: bool = False,
        priority: int = 0,
    ) -> PodKind:
        """Build the kind of pods with these requests.

        Args:
            shape: requests of the pod.
            rules: node selector and affinity.
            performance: whether the pod is of class performance.
            share_gpus: whether a pod that needs a share of a GPU leaves the rest of it to other pods.
            priority: value of its PriorityClass.
        """
        gpu_milli = round(shape.gpu_share * WHOLE_GPU_MILLI) if share_gpus and shape.gpus == 1 else WHOLE_GPU_MILLI
        return cls(shape.amounts, shape.gpus, gpu_milli, shape.gpu_resource, performance, rules, priority)

    @property
    def shares_gpu(self) -> bool:
        """Whether it needs only a part of its GPU."""
        return self.gpu_milli < WHOLE_GPU_MILLI


class FreeCapacity(NamedTuple):
    """Free capacity of nodes, in the integers that Kubernetes uses; arrays of shape ``(n_nodes,)``."""

    milli_cpu: IntArray
    memory_bytes: IntArray
    gpu_milli: IntArray
    """Free share of each GPU, thousandths, shape ``(n_nodes, maximum GPUs of a node)``; 0 where there is no GPU."""
    pods: IntArray
    """Number of pods that still fit the node's maximum."""


class Group(NamedTuple):
    """The members of a gang that are of one kind."""

    kind: PodKind
    allowed: BoolArray
    """Nodes that their rules, class and GPU resource admit, shape ``(n_nodes,)``."""
    number: int = 1
    """Number of members."""


class Assignment(NamedTuple):
    """The node of one member."""

    group: int
    """Index of the member's group."""
    node: int
    """Index of the node."""


def by_kind(members: Iterable[MemberT], kind_of: Callable[[MemberT], PodKind]) -> dict[PodKind, list[MemberT]]:
    """Group the members of a gang by kind."""
    found: dict[PodKind, list[MemberT]] = {}
    for member in members:
        found.setdefault(kind_of(member), []).append(member)
    return found


class GangFit:
    """Checks whether gangs fit a snapshot of the free capacity, and caches results per kind.

    Args:
        free: free capacity.
        allowed: nodes that the rules, class and GPU resource of a kind admit, shape ``(n_nodes,)``.
    """

    def __init__(self, free: FreeCapacity, allowed: Callable[[PodKind], BoolArray]) -> None:
        self._free = free
        self._allowed = allowed
        self._total = [int(amounts.sum()) for amounts in (free.milli_cpu, free.memory_bytes, free.gpu_milli)]
        self._max_pods: dict[PodKind, int] = {}

    def max_pods(self, kind: PodKind) -> int:
        """Maximum number of pods of a kind that fit."""
        if kind not in self._max_pods:
            self._max_pods[kind] = int(max_pods(self._free, Group(kind, self._allowed(kind))).sum())
        return self._max_pods[kind]

    def assign(self, members: Mapping[PodKind, Sequence[MemberT]]) -> list[tuple[MemberT, int]] | None:
        """Assign a node to each member, in the order in which they should be placed; None if not all of them fit."""
        needs = [(*kind.requests, kind.gpus * kind.gpu_milli) for kind in members]
        numbers = [len(group) for group in members.values()]
        for column, total in zip(zip(*needs, strict=True), self._total, strict=True):
            if sum(number * amount for number, amount in zip(numbers, column, strict=True)) > total:
                return None
        # A gang of which one kind alone does not fit needs no closer look.
        if any(self.max_pods(kind) < number for kind, number in zip(members, numbers, strict=True)):
            return None
        groups = [Group(kind, self._allowed(kind), len(group)) for kind, group in members.items()]
        found = assign_nodes(self._free, groups)
        if found is None:
            return None
        members_of = [iter(group) for group in members.values()]
        return [(next(members_of[assignment.group]), assignment.node) for assignment in found]


def whole_gpus(free: IntArray) -> IntArray:
    """`FreeCapacity.gpu_milli` of nodes with these numbers of whole GPUs free, `free` of shape ``(n_nodes,)``."""
    free_here = np.arange(free.max(initial=0)) < free[:, np.newaxis]
    return np.where(free_here, WHOLE_GPU_MILLI, 0)


def max_pods(free: FreeCapacity, group: Group) -> IntArray:
    """Maximum number of pods of a group's kind that fit each node, shape ``(n_nodes,)``, whatever the group's size."""
    kind, found = group.kind, free.pods
    for have, amount in zip(free[:2], kind.requests, strict=True):
        if amount > 0:
            found = np.minimum(found, have // amount)
    if kind.gpus:
        per_gpu = free.gpu_milli // kind.gpu_milli
        gpus = per_gpu.sum(axis=1) if kind.shares_gpu else (per_gpu > 0).sum(axis=1) // kind.gpus
        found = np.minimum(found, gpus)
    return np.where(group.allowed, np.maximum(found, 0), 0)


def assign_nodes(free: FreeCapacity, groups: Sequence[Group]) -> list[Assignment] | None:
    """Assign nodes to all members at once, in the order in which they should be placed; None if no way was found.

    Greedy: groups that the fewest nodes could hold come first, larger requests first among equals; each member goes to
    the fullest node that fits it, which leaves nodes with GPUs to the members that need them. This finds an assignment
    whenever one exists if all members are of one kind. For members of several kinds it may miss one, but never returns
    an invalid one.
    """
    left = FreeCapacity(*(amounts.copy() for amounts in free))
    found: list[Assignment] = []
    for _, index in sorted((_ease(left, group), index) for index, group in enumerate(groups)):
        group, missing = groups[index], groups[index].number
        fits = max_pods(left, group)
        for node in _fullest_first(left, np.flatnonzero(fits)):
            taken = min(int(fits[node]), missing)
            found += [Assignment(index, node)] * taken
            _take(left, group.kind, node, taken)
            missing -= taken
            if not missing:
                break
        if missing:
            return None
    return found


def _ease(free: FreeCapacity, group: Group) -> tuple[int, ...]:
    return ease(group.kind, int(np.count_nonzero(max_pods(free, group))))


def ease(kind: PodKind, nodes: int) -> tuple[int, ...]:
    """Sort key that is smaller the harder it is to find a node for pods of a kind, which so many nodes could hold."""
    return nodes, -kind.gpus * kind.gpu_milli, -kind.requests.milli_cpu, -kind.requests.memory_bytes


def _fullest_first(free: FreeCapacity, nodes: IntArray) -> list[int]:
    """Nodes ordered by free GPU capacity, then by free CPU, then by free memory."""
    keys = (free.memory_bytes[nodes], free.milli_cpu[nodes], free.gpu_milli[nodes].sum(axis=1))
    ordered: list[int] = nodes[np.lexsort(keys)].tolist()
    return ordered


def _take(free: FreeCapacity, kind: PodKind, node: int, count: int) -> None:
    free.milli_cpu[node] -= count * kind.requests.milli_cpu
    free.memory_bytes[node] -= count * kind.requests.memory_bytes
    free.pods[node] -= count
    gpus = free.gpu_milli[node]
    needed = count * kind.gpus
    # As nodes allocate them: shares come from the GPU with the smallest free share that is large enough.
    for gpu in np.argsort(gpus, kind="stable"):
        taken = min(needed, int(gpus[gpu]) // kind.gpu_milli)
        gpus[gpu] -= taken * kind.gpu_milli
        needed -= taken
