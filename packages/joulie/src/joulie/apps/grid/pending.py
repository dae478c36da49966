"""The queue of deferred pods: it groups equal deferrals, schedules their next decision, and orders releases.

A pod enters with `put` and leaves with `remove`. Pods with the same request, zone and start of delay share one
`Deferral` and are decided once. A decision is repeated when a signal of the zone changes, and at the time that the
decision itself names; nothing is polled.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import NamedTuple

from joulie.adapters.kubernetes.cache import Key
from joulie.domain.grid.deferral import Conditions, Hold, Release, ReleaseReason, Waiting
from joulie.domain.grid.place import Place, Placement, choose, rank_now
from joulie.domain.grid.release import Bucket, Due, Limits, due_now, in_order

DEFERRALS_PER_STEP = 500
"""Deferrals decided in one step before the event loop runs other tasks: tenths of a second if all search a window."""
UNKNOWN_ZONE_RETRY_S = 1.0
"""Retry interval of a zone whose sources have not been queried yet, s."""
_AT_ONCE = frozenset(
    {
        ReleaseReason.DEADLINE,
        ReleaseReason.SKIP,
        ReleaseReason.NOT_ASKED,
        ReleaseReason.NOT_WATCHED,
        ReleaseReason.REPLACEMENT,
        ReleaseReason.HOLDOUT,
        ReleaseReason.TRIAL,
    }
)

Decision = Hold | Release

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deferral:
    """What pods that are decided together have in common.

    Attributes:
        zone: grid zone; of several, the one where their data is.
        waiting: their request and the start of their delay.
        settled: the decision, where it does not depend on the grid.
        others: other zones in which they may run.
        drawn: annotation that says what chance said of them, key and value; None where nothing was drawn.
    """

    zone: str
    waiting: Waiting
    settled: Release | None = None
    others: tuple[str, ...] = ()
    drawn: tuple[str, str] | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """All zones in which they may run."""
        return (self.zone, *self.others)

    def place(self, look: Callable[[str], Conditions | None], now_s: float) -> Placement | None:
        """Where and whether they run now; None while the sources of their zone have not been queried yet.

        Args:
            look: conditions in a zone; None while its sources have not been queried yet.
            now_s: s since the epoch.
        """
        if self.settled is not None:
            return Placement(self.zone, self.settled)
        here = look(self.zone)
        if here is None and now_s < self.waiting.latest_start_s:
            return None
        others = [Place(zone, found) for zone in self.others if (found := look(zone)) is not None]
        try:
            home = Place(self.zone, here or Conditions())
            return choose(self.waiting, home, others, self.waiting.request.move, now_s)
        except Exception as error:  # an error in the decision or in a plug-in's forecast releases the pods
            _log.exception("decision failed, releasing")
            return Placement(self.zone, Release(ReleaseReason.MISSING, f"decision failed: {error}"))

    def rank_now(self, look: Callable[[str], Conditions | None], now_s: float) -> tuple[str, ...] | None:
        """Zones in which they may start now, best first; None while the sources of one have not been queried yet.

        Empty where the zones cannot be compared. Arguments as of `place`.
        """
        places = [Place(zone, found) for zone in self.zones if (found := look(zone)) is not None]
        if len(places) < len(self.zones):
            return None
        try:
            return rank_now(self.waiting, places[0], places[1:], self.waiting.request.move, now_s)
        except Exception:  # as above
            _log.exception("decision failed, no zone is preferred")
            return ()


class PendingPod(NamedTuple):
    """A pod in the queue.

    Attributes:
        key: namespace and name.
        uid: UID.
        priority: pod priority.
        created_s: creation, s since the epoch.
    """

    key: Key
    uid: str
    priority: int
    created_s: float


@dataclass(slots=True)
class Group:
    """The pods that share a deferral, and their last decision; None before the first.

    Attributes:
        deferral: what they have in common.
        pods: the pods.
        decision: whether they run.
        zone: where; before the first decision, where their data is.
        wake_s: when to decide again, s since the epoch.
    """

    deferral: Deferral
    pods: dict[Key, PendingPod] = field(default_factory=dict)
    decision: Decision | None = None
    zone: str = ""
    wake_s: float = math.inf

    def __post_init__(self) -> None:
        self.zone = self.deferral.zone


class PodRelease(NamedTuple):
    """A pod whose gate is lifted now.

    Attributes:
        pod: the pod.
        deferral: its deferral.
        zone: zone that was chosen.
        release: the decision.
        urgent: it is released before all others.
    """

    pod: PendingPod
    deferral: Deferral
    zone: str
    release: Release
    urgent: bool


class PendingQueue:
    """Deferred pods and the decisions about them.

    Args:
        limits: release rate and burst for pods that have been held.
        use_priorities: order releases by priority before age.
        now_s: current time, s since the epoch.
    """

    def __init__(self, limits: Limits, now_s: float, *, use_priorities: bool = False) -> None:
        self._limits = limits
        self._use_priorities = use_priorities
        self._bucket = Bucket(float(limits.burst), now_s)
        self._groups: dict[Deferral, Group] = {}
        self._deferral_by_pod: dict[Key, Deferral] = {}
        self._held: set[Key] = set()
        self._released: set[Key] = set()
        self._dirty: set[Deferral] = set()
        self._heap: list[tuple[float, int, Deferral]] = []
        self._count = count()
        self._queue: list[Due] | None = []
        self._next_release_s = math.inf

    def __len__(self) -> int:
        return len(self._deferral_by_pod)

    @property
    def groups(self) -> Iterable[Group]:
        """All groups, in no particular order."""
        return self._groups.values()

    @property
    def next_s(self) -> float:
        """Time of the next decision or release, s since the epoch; infinite if none is scheduled."""
        return min(self.next_decision_s, self._next_release_s)

    @property
    def next_decision_s(self) -> float:
        """Time of the next decision, s since the epoch; infinite if none is scheduled."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        if self._dirty:
            return -math.inf
        return self._heap[0][0] if self._heap else math.inf

    def of(self, key: Key) -> Group | None:
        """The group of a pod; None if it is not in the queue."""
        deferral = self._deferral_by_pod.get(key)
        return None if deferral is None else self._groups[deferral]

    def zones(self) -> set[str]:
        """The zones with deferred pods."""
        return {zone for deferral in self._groups for zone in deferral.zones}

    # ---- membership

    def put(self, pod: PendingPod, deferral: Deferral, *, held: bool = False) -> None:
        """Add a pod, or update its deferral.

        Args:
            pod: the pod.
            deferral: its deferral.
            held: a previous leader has held it already.
        """
        before = self.of(pod.key)
        if before is not None and before.deferral == deferral and before.pods[pod.key] == pod:
            return
        was_held = held or pod.key in self._held
        self.remove(pod.key)
        group = self._groups.get(deferral)
        if group is None:
            group = self._groups[deferral] = Group(deferral)
        group.pods[pod.key] = pod
        self._deferral_by_pod[pod.key] = deferral
        self._dirty.add(deferral)
        if was_held:
            self._held.add(pod.key)
        self._queue = None

    def remove(self, key: Key) -> None:
        """Forget a pod."""
        deferral = self._deferral_by_pod.pop(key, None)
        if deferral is None:
            return
        group = self._groups[deferral]
        del group.pods[key]
        if not group.pods:
            del self._groups[deferral]
            self._dirty.discard(deferral)
        self._held.discard(key)
        if key in self._released:
            self._released.discard(key)
        else:
            self._queue = None

    def requeue(self, key: Key) -> None:
        """Return a pod whose gate could not be lifted to the queue."""
        self._released.discard(key)
        self._queue = None
        self._next_release_s = -math.inf

    # ---- deciding

    def zone_changed(self, zone: str) -> None:
        """Mark all deferrals of a zone for a new decision."""
        self._dirty.update(deferral for deferral in self._groups if zone in deferral.zones)

    def decide(self, look: Callable[[str], Conditions | None], now_s: float) -> list[Group]:
        """Decide every deferral that is due, and up to `DEFERRALS_PER_STEP` of those that changed.

        Args:
            look: conditions in a zone; None while its sources have not been queried yet.
            now_s: s since the epoch.

        Returns:
            The groups that were decided.
        """
        deferrals = set()
        while self._heap and self._heap[0][0] <= now_s:
            entry = heapq.heappop(self._heap)
            if self._is_current(*entry):
                deferrals.add(entry[2])
        self._dirty -= deferrals
        while self._dirty and len(deferrals) < DEFERRALS_PER_STEP:
            deferrals.add(self._dirty.pop())
        looked = cache(look)
        return [group for group in map(self._groups.__getitem__, deferrals) if self._decide(group, looked, now_s)]

    def _decide(self, group: Group, look: Callable[[str], Conditions | None], now_s: float) -> bool:
        waiting = group.deferral.waiting
        placement = group.deferral.place(look, now_s)
        if placement is None:
            self._look_again(group, min(now_s + UNKNOWN_ZONE_RETRY_S, waiting.latest_start_s))
            return False
        group.zone, decision = placement.zone, placement.decision
        group.decision = decision
        if isinstance(decision, Hold):
            self._held.update(group.pods)
            self._look_again(group, decision.wake_s)
        else:
            # Pods held back by the release rate go at once when they reach their latest start.
            self._look_again(group, waiting.latest_start_s if now_s < waiting.latest_start_s else math.inf)
            self._next_release_s = -math.inf
        self._queue = None
        return True

    def _look_again(self, group: Group, wake_s: float) -> None:
        group.wake_s = wake_s
        if wake_s < math.inf:
            heapq.heappush(self._heap, (wake_s, next(self._count), group.deferral))

    def _is_current(self, wake_s: float, _number: int, deferral: Deferral) -> bool:
        group = self._groups.get(deferral)
        return group is not None and group.wake_s == wake_s

    # ---- releasing

    def take_due(self, now_s: float) -> list[PodRelease]:
        """The pods to release now, in order; each is returned once unless it is requeued."""
        if self._queue is None:
            self._queue = in_order(self._due(), self._use_priorities)
        releases = due_now(self._queue, self._bucket, now_s, self._limits)
        self._bucket = releases.bucket
        self._next_release_s = math.inf if releases.next_s is None else releases.next_s
        del self._queue[: len(releases.now)]
        releases_now = []
        for due in releases.now:
            key = Key(*due.name.split("/", 1))
            group = self._groups[self._deferral_by_pod[key]]
            assert isinstance(group.decision, Release)
            self._released.add(key)
            releases_now.append(PodRelease(group.pods[key], group.deferral, group.zone, group.decision, due.urgent))
        return releases_now

    def _due(self) -> Iterator[Due]:
        for group in self._groups.values():
            if not isinstance(group.decision, Release):
                continue
            at_once = group.decision.reason in _AT_ONCE
            for key, pod in group.pods.items():
                if key not in self._released:
                    # Only pods that were held could start as a burst; the others arrive at their own rate.
                    yield Due(str(key), pod.priority, pod.created_s, at_once or key not in self._held)
