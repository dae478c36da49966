"""The gate before the scheduler: the pods of a gang wait there until all of them fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from joulie.domain.trace import JobShape
from joulie.domain.units import BoolArray
from joulie.simulation.live.gangs import Member, Room, fits_together
from joulie.simulation.native.admission import Admission
from joulie.simulation.native.pods import Kind, SimPod
from joulie.simulation.native.queue import WaitingLines
from joulie.simulation.native.room import Nodes
from joulie.simulation.native.running import RunningJobs

_ROUNDING = 1e-9


class _Held:
    """A gang that waits.

    Attributes:
        pods: its members.
        kinds: how many there are of each kind.
        shapes: what those of a kind request.
        total: GPUs, cores and GiB that they need in all.
    """

    def __init__(self, pods: list[SimPod]) -> None:
        self.pods = pods
        self.kinds = Counter(pod.kind for pod in pods)
        self.shapes = {pod.kind: pod.shape for pod in pods}
        self.total = np.sum([(pod.shape.gpus, pod.shape.cores, pod.shape.memory_gib) for pod in pods], axis=0)


class GangGate:
    """Holds gangs back, in order of submission, and lets one go at a time.

    Args:
        gang_sizes: members by gang; the pods of other gangs pass at once.
        running: knows which gangs run.
    """

    def __init__(self, gang_sizes: Mapping[str, int], running: RunningJobs) -> None:
        self._sizes = gang_sizes
        self._running = running
        self._coming: dict[str, list[SimPod]] = {}
        self._held: dict[str, _Held] = {}
        self._let_go: str | None = None
        self._new = False
        self._count = 0

    def __len__(self) -> int:
        """Pods that are held back."""
        return self._count

    def arrived(self, pod: SimPod, lines: WaitingLines) -> None:
        """A pod is submitted: it waits here for its gang, or goes to the scheduler."""
        gang = pod.gang
        if gang is None or gang not in self._sizes:
            lines.add(pod)
            return
        self._count += 1
        self._coming.setdefault(gang, []).append(pod)
        if len(self._coming[gang]) == self._sizes[gang]:
            self._held[gang] = _Held(self._coming.pop(gang))
            self._new = True

    def let_go(self, nodes: Nodes, admission: Admission, lines: WaitingLines, *, changed: bool) -> bool:
        """Send the first gang that fits now to the scheduler, once the one before it runs.

        Args:
            nodes: what is requested of them.
            admission: which of them pods may use.
            lines: takes the pods.
            changed: whether nodes have more room, or admit more, than when gangs were tried last.

        Returns:
            Whether one was let go.
        """
        if self._let_go is not None:
            if self._running.missing_members(self._let_go) > 0:
                return False
            self._let_go, changed = None, True
        if not self._held or not (changed or self._new):
            return False
        self._new = False
        room = nodes.room()
        free = np.array([room.gpus.sum(), room.cores.sum(), room.memory_gib.sum()])
        places: dict[Kind, float] = {}
        for gang, held in self._held.items():
            if (held.total > free).any():
                continue
            for kind in held.kinds.keys() - places.keys():
                places[kind] = _places(room, held.shapes[kind], admission.of(kind) & nodes.right_gpus(kind))
            # Where the members of one kind alone find too few places, the gang needs no closer look.
            if any(places[kind] < count for kind, count in held.kinds.items()):
                continue
            allowed = {kind: admission.of(kind) & nodes.right_gpus(kind) for kind in held.kinds}
            if fits_together(room, [Member(pod.shape, allowed[pod.kind]) for pod in held.pods]):
                del self._held[gang]
                self._let_go = gang
                self._count -= len(held.pods)
                for pod in held.pods:
                    lines.add(pod)
                return True
        return False


def _places(room: Room, shape: JobShape, allowed: BoolArray) -> float:
    """How many pods of a shape fit at once."""
    count = room.pods
    for free, asked in ((room.cores, shape.cores), (room.memory_gib, shape.memory_gib), (room.gpus, shape.gpus)):
        if asked > 0.0:
            count = np.minimum(count, np.floor(free / asked + _ROUNDING))
    return float(count[allowed].sum())
