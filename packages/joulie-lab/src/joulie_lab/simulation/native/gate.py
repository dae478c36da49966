"""Gang gate before the scheduler: holds the pods of a gang until all of them fit, then places them at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import GangFit, PodKind, by_kind, ease
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.kinds import KindTable
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

    number: int
    """In the order in which gangs became complete."""
    members: dict[PodKind, list[SimPod]]
    composition: int
    """Equal for gangs with the same number of pods of each kind: if one of them does not fit, none does."""
    rows: tuple[tuple[int, int], ...]
    """Row and number of members of each kind; empty without a table of kinds."""


class GangGate:
    """Holds gangs and releases those that fit, in the order in which they became complete.

    Args:
        gang_sizes: number of members by gang; pods of other gangs are not held.
        capacity: capacity of the nodes.
        admission: filters the nodes that pods may use.
        choose: the scheduler.
        kinds: keeps count of what fits, so that a gang that does not fit costs next to nothing; None to look through
            all nodes each time.
    """

    def __init__(
        self,
        gang_sizes: Mapping[str, int],
        capacity: NodeCapacity,
        admission: Admission,
        choose: Choose,
        kinds: KindTable | None = None,
    ) -> None:
        self._sizes = gang_sizes
        self._capacity = capacity
        self._admission = admission
        self._choose = choose
        self._kinds = kinds
        self._incomplete: dict[str, list[SimPod]] = {}
        self._compositions: dict[object, int] = {}
        self._held: dict[int, dict[int, _Held]] = {}
        self._needs: tuple[IntArray, IntArray, IntArray] | None = None
        self._new: list[_Held] = []
        self._completed = 0
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
            composition = self._compositions.setdefault(numbers, len(self._compositions))
            held = _Held(self._completed, members, composition, self._counted(numbers))
            self._completed += 1
            if composition not in self._held:
                self._held[composition], self._needs = {}, None
            self._held[composition][held.number] = held
            self._new.append(held)

    def release(self, *, changed: bool) -> list[Placed]:
        """Place the gangs that fit now: all members of a gang, or none.

        Args:
            changed: whether nodes have more free capacity, or admit more pods, since gangs were tried last; if not,
                only gangs that became complete since then are tried.
        """
        new, self._new = self._new, []
        if not (self._held if changed else new):
            return []
        if self._kinds is not None:
            self._kinds.recount()
        # All gangs of a composition fit or none does: only the first of each is tried, then the one after it.
        heads = self._firsts() if changed else new
        heapq.heapify(heads)
        found: list[Placed] = []
        fit: GangFit | None = None
        too_large = set[int]()
        while heads:
            held = heapq.heappop(heads)
            if held.composition in too_large:
                continue
            order, assigned = self._order(held), None
            if order is None and self._may_fit(held):
                fit = fit or self._gang_fit()
                assigned = fit.assign(held.members)
                order = None if assigned is None else [pod for pod, _ in assigned]
            if order is None:
                too_large.add(held.composition)
                continue
            self._count -= len(order)
            found += self._place(order, held, assigned)
            fit = None
            self._forget(held)
            if changed and held.composition in self._held:
                heapq.heappush(heads, self._first(held.composition))
        return found

    def _firsts(self) -> list[_Held]:
        """The first gang of each composition that may fit."""
        if self._kinds is None:
            return [self._first(one) for one in self._held]
        if self._needs is None:
            needs = [
                (place, row, number) for place, one in enumerate(self._held) for row, number in self._first(one).rows
            ]
            owners, rows, numbers = np.array(needs, dtype=np.int64).T
            self._needs = owners, self._kinds.places(rows.tolist()), numbers
        owners, places, numbers = self._needs
        lacking = set(owners[self._kinds.totals[places] < numbers].tolist())
        return [self._first(one) for place, one in enumerate(self._held) if place not in lacking]

    def _first(self, composition: int) -> _Held:
        return next(iter(self._held[composition].values()))

    def _forget(self, held: _Held) -> None:
        """Remove a gang that was placed."""
        of_composition = self._held[held.composition]
        del of_composition[held.number]
        if not of_composition:
            del self._held[held.composition]
            self._needs = None
        if self._kinds is not None:
            for row, _ in held.rows:
                self._kinds.unwatch(row)
            self._kinds.recount()

    def _counted(self, numbers: Iterable[tuple[PodKind, int]]) -> tuple[tuple[int, int], ...]:
        if self._kinds is None:
            return ()
        found = tuple((self._kinds.row(kind), number) for kind, number in numbers)
        for row, _ in found:
            self._kinds.watch(row)
        return found

    def _may_fit(self, held: _Held) -> bool:
        """Whether each kind of a gang's members would fit alone: that is what `GangFit.assign` asks first."""
        kinds = self._kinds
        return kinds is None or all(kinds.max_pods(row) >= number for row, number in held.rows)

    def _order(self, held: _Held) -> list[SimPod] | None:
        """The members as `GangFit.assign` orders them, where it is sure to find nodes; None where it takes a search.

        It is sure if each kind fits as many nodes as the gang has members: then each member could have its own.
        """
        kinds = self._kinds
        if kinds is None:
            return None
        size = sum(number for _, number in held.rows)
        if any(kinds.hosts(row) < size for row, _ in held.rows):
            return None
        groups = list(held.members.items())
        ordered = sorted((ease(kind, kinds.hosts(kinds.row(kind))), place) for place, (kind, _) in enumerate(groups))
        return [pod for _, place in ordered for pod in groups[place][1]]

    def _gang_fit(self) -> GangFit:
        return GangFit(self._capacity.free(), self._allowed)

    def _allowed(self, kind: PodKind) -> BoolArray:
        return self._admission.allowed_nodes(kind) & self._capacity.has_gpu_resource(kind)

    def _place(self, order: list[SimPod], held: _Held, assigned: list[tuple[SimPod, int]] | None) -> list[Placed]:
        """Place each pod on the node that the scheduler chooses; if a pod is left without one, all as assigned."""
        taken: list[Placed] = []
        for pod in order:
            node = self._choose(pod)
            if node is None:
                for placed in taken:
                    self._capacity.release(placed.pod.kind, placed.node, placed.devices)
                assigned = assigned or self._gang_fit().assign(held.members) or []
                return [Placed(pod, node, self._capacity.allocate(pod.kind, node)) for pod, node in assigned]
            taken.append(Placed(pod, node, self._capacity.allocate(pod.kind, node)))
        return taken
