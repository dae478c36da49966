"""Gang gate before the scheduler: holds the pods of a gang until all of them fit, then places them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from joulie.domain.units import BoolArray
from joulie_lab.simulation.gangs import GangFit, PodKind, by_kind
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.native.queue import PendingQueue


class Placed(NamedTuple):
    """A pod with its node and GPUs."""

    pod: SimPod
    node: int
    """Index of the node."""
    devices: tuple[int, ...]
    """Indices of its GPUs on the node."""


Choose = Callable[[SimPod], int | None]
"""Returns the index of the node that the scheduler chooses for a pod; None if no node is feasible."""


class _Held(NamedTuple):
    """A complete gang that waits until it fits."""

    members: dict[PodKind, list[SimPod]]
    composition: int
    """Equal for gangs with the same number of pods of each kind: if one of them does not fit, none does."""


class GangGate:
    """Holds gangs and releases those that fit, in the order in which they became complete.

    Args:
        gang_sizes: number of members by gang; pods of other gangs are not held.
        capacity: capacity of the nodes.
        admission: filters the nodes that pods may use.
        choose: the scheduler.
    """

    def __init__(
        self, gang_sizes: Mapping[str, int], capacity: NodeCapacity, admission: Admission, choose: Choose
    ) -> None:
        self._sizes = gang_sizes
        self._capacity = capacity
        self._admission = admission
        self._choose = choose
        self._incomplete: dict[str, list[SimPod]] = {}
        self._held: dict[str, _Held] = {}
        self._compositions: dict[object, int] = {}
        self._new: list[str] = []
        self._count = 0

    def __len__(self) -> int:
        """Number of pods held."""
        return self._count

    def submit(self, pod: SimPod, queue: PendingQueue) -> None:
        """Hold a submitted pod until its gang fits, or add it to the scheduler's queue if it has no gang."""
        gang = pod.gang
        if gang is None or self._sizes.get(gang, 1) == 1:
            queue.add(pod)
            return
        self._count += 1
        self._incomplete.setdefault(gang, []).append(pod)
        if len(self._incomplete[gang]) == self._sizes[gang]:
            members = by_kind(self._incomplete.pop(gang), lambda member: member.kind)
            numbers = frozenset((kind, len(pods)) for kind, pods in members.items())
            self._held[gang] = _Held(members, self._compositions.setdefault(numbers, len(self._compositions)))
            self._new.append(gang)

    def release(self, *, changed: bool) -> list[Placed]:
        """Place the gangs that fit now: all members of a gang, or none.

        Args:
            changed: whether nodes have more free capacity, or admit more pods, since gangs were tried last; if not,
                only gangs that became complete since then are tried.
        """
        tried = list(self._held) if changed else self._new
        self._new = []
        if not tried:
            return []
        found: list[Placed] = []
        fit, too_large = self._gang_fit(), set[int]()
        for gang in tried:
            held = self._held[gang]
            if held.composition in too_large:
                continue
            assigned = fit.assign(held.members)
            if assigned is None:
                too_large.add(held.composition)
                continue
            del self._held[gang]
            self._count -= len(assigned)
            found += self._place(assigned)
            fit = self._gang_fit()
        return found

    def _gang_fit(self) -> GangFit:
        return GangFit(self._capacity.free(), self._allowed)

    def _allowed(self, kind: PodKind) -> BoolArray:
        return self._admission.allowed_nodes(kind) & self._capacity.has_gpu_resource(kind)

    def _place(self, assigned: list[tuple[SimPod, int]]) -> list[Placed]:
        """Place each pod on the node that the scheduler chooses; if a pod is left without one, all as assigned."""
        taken: list[Placed] = []
        for pod, _ in assigned:
            node = self._choose(pod)
            if node is None:
                for placed in taken:
                    self._capacity.release(placed.pod.kind, placed.node, placed.devices)
                return [Placed(pod, node, self._capacity.allocate(pod.kind, node)) for pod, node in assigned]
            taken.append(Placed(pod, node, self._capacity.allocate(pod.kind, node)))
        return taken
