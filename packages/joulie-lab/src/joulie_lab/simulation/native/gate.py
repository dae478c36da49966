"""The gate before the scheduler: the pods of a gang wait there until all of them fit, and get their places at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from joulie.domain.units import BoolArray
from joulie_lab.simulation.gangs import PodKind, Seating, by_kind
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import Nodes
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.native.queue import WaitingLines


class Placed(NamedTuple):
    """A pod and its place."""

    pod: SimPod
    node: int
    devices: tuple[int, ...]
    """Its GPUs."""


Choose = Callable[[SimPod], int | None]
"""The node that the scheduler wants for a pod; None where none has room."""


class _Held(NamedTuple):
    """A gang that waits."""

    members: dict[PodKind, list[SimPod]]
    make: int
    """The same for gangs that are made alike: where one of them does not fit, none does."""


class GangGate:
    """Holds gangs back and lets those go that fit, in the order in which they were complete.

    Args:
        gang_sizes: members by gang; the pods of other gangs pass at once.
        nodes: what is requested of them.
        admission: which of them pods may use.
        choose: the scheduler.
    """

    def __init__(self, gang_sizes: Mapping[str, int], nodes: Nodes, admission: Admission, choose: Choose) -> None:
        self._sizes = gang_sizes
        self._nodes = nodes
        self._admission = admission
        self._choose = choose
        self._coming: dict[str, list[SimPod]] = {}
        self._held: dict[str, _Held] = {}
        self._makes: dict[object, int] = {}
        self._new: list[str] = []
        self._count = 0

    def __len__(self) -> int:
        """Pods that are held back."""
        return self._count

    def arrived(self, pod: SimPod, lines: WaitingLines) -> None:
        """A pod is submitted: it waits here for its gang, or goes to the scheduler."""
        gang = pod.gang
        if gang is None or self._sizes.get(gang, 1) == 1:
            lines.add(pod)
            return
        self._count += 1
        self._coming.setdefault(gang, []).append(pod)
        if len(self._coming[gang]) == self._sizes[gang]:
            members = by_kind(self._coming.pop(gang), lambda member: member.kind)
            alike = frozenset((kind, len(pods)) for kind, pods in members.items())
            self._held[gang] = _Held(members, self._makes.setdefault(alike, len(self._makes)))
            self._new.append(gang)

    def let_go(self, *, changed: bool) -> list[Placed]:
        """Place the gangs that fit now. Each gets all its places or none.

        Args:
            changed: whether nodes have more room, or admit more, than when gangs were tried last; else only those are
                tried that have come since.
        """
        tried = list(self._held) if changed else self._new
        self._new = []
        found: list[Placed] = []
        seating, too_large = self._seating(), set[int]()
        for gang in tried:
            held = self._held[gang]
            if held.make in too_large:
                continue
            seated = seating.seats(held.members)
            if seated is None:
                too_large.add(held.make)
                continue
            del self._held[gang]
            self._count -= len(seated)
            found += self._put(seated)
            seating = self._seating()
        return found

    def _seating(self) -> Seating:
        return Seating(self._nodes.free(), self._allowed)

    def _allowed(self, kind: PodKind) -> BoolArray:
        return self._admission.of(kind) & self._nodes.right_gpus(kind)

    def _put(self, seated: list[tuple[SimPod, int]]) -> list[Placed]:
        """Put pods where the scheduler wants each; where that leaves one of them outside, all on their seats."""
        taken: list[Placed] = []
        for pod, _ in seated:
            node = self._choose(pod)
            if node is None:
                for placed in taken:
                    self._nodes.remove(placed.pod.kind, placed.node, placed.devices)
                return [Placed(pod, seat, self._nodes.put(pod.kind, seat)) for pod, seat in seated]
            taken.append(Placed(pod, node, self._nodes.put(pod.kind, node)))
        return taken
