"""The gate before the scheduler: the pods of a gang wait there until all of them fit, and get their places at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from joulie.domain.units import IntArray
from joulie_lab.simulation.live.gangs import Alike, Room, places, seats
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.pods import Kind, SimPod
from joulie_lab.simulation.native.queue import WaitingLines
from joulie_lab.simulation.native.room import Nodes


class Placed(NamedTuple):
    """A pod and its place."""

    pod: SimPod
    node: int
    devices: tuple[int, ...]
    """Its GPUs."""


Choose = Callable[[SimPod], int | None]
"""The node that the scheduler wants for a pod; None where none has room."""


class _Held:
    """A gang that waits.

    Attributes:
        by_kind: its members, those together that are alike.
        total: cores, memory and GPUs that they request in all, in the units of `Room`.
        make: the same for gangs that are made alike: where one of them does not fit, none does.
    """

    def __init__(self, pods: list[SimPod], makes: dict[object, int]) -> None:
        self.by_kind: dict[Kind, list[SimPod]] = {}
        for pod in pods:
            self.by_kind.setdefault(pod.kind, []).append(pod)
        kinds = [pod.kind for pod in pods]
        self.total: IntArray = np.sum([(*kind.requests, kind.gpus * kind.gpu_milli) for kind in kinds], axis=0)
        self.make = makes.setdefault(frozenset(Counter(kinds).items()), len(makes))


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
            self._held[gang] = _Held(self._coming.pop(gang), self._makes)
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
        free, too_large = _Free(self._nodes.room()), set[int]()
        for gang in tried:
            held = self._held[gang]
            if held.make in too_large:
                continue
            placed = self._placed(held, free)
            if placed is None:
                too_large.add(held.make)
                continue
            del self._held[gang]
            self._count -= len(placed)
            found += placed
            free = _Free(self._nodes.room())
        return found

    def _placed(self, held: _Held, free: _Free) -> list[Placed] | None:
        if (held.total > free.total).any():
            return None
        groups = []
        for kind, pods in held.by_kind.items():
            allowed = self._admission.of(kind) & self._nodes.right_gpus(kind)
            group = Alike(kind.requests, kind.gpus, kind.gpu_milli, allowed, len(pods))
            # Where those of one kind alone find too few places, the gang needs no closer look.
            if free.places(kind, group) < len(pods):
                return None
            groups.append(group)
        found = seats(free.room, groups)
        if found is None:
            return None
        pods_of = [iter(pods) for pods in held.by_kind.values()]
        return self._put([(next(pods_of[seat.group]), seat.node) for seat in found])

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


class _Free:
    """The room of a moment, and what was worked out about it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.total = np.array([room.milli_cpu.sum(), room.memory_bytes.sum(), room.gpu_milli.sum()])
        self._places: dict[Kind, int] = {}

    def places(self, kind: Kind, group: Alike) -> int:
        """How many pods of a kind fit."""
        if kind not in self._places:
            self._places[kind] = int(places(self.room, group).sum())
        return self._places[kind]
