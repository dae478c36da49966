"""Where pods wait: who is decided alike, when each is looked at again, and in which order they go.

Pods that ask the same, in the same zone and since the same moment are decided once. A decision is made again when a
signal of the zone changes, and at the moment that the decision itself names; nothing is polled.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from joulie.adapters.kubernetes.cache import Key
from joulie.domain.grid.deferral import Conditions, Hold, Release, ReleaseReason, Waiting, decide
from joulie.domain.grid.release import Bucket, Due, Limits, due_now, in_order

CASES_AT_ONCE = 500
"""Cases decided before others get their turn on the event loop: some tenths of a second, where all look for windows."""
UNKNOWN_ZONE_S = 1.0
"""How soon a zone is looked at again whose sources have not been asked yet, s."""
_AT_ONCE = frozenset(
    {
        ReleaseReason.DEADLINE,
        ReleaseReason.SKIP,
        ReleaseReason.NOT_ASKED,
        ReleaseReason.NOT_WATCHED,
        ReleaseReason.REPLACEMENT,
    }
)

Decision = Hold | Release

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Case:
    """What pods have in common that are decided alike.

    Attributes:
        zone: of the grid.
        waiting: what they ask, and since when they wait.
        settled: the decision, where it does not hang on the grid.
    """

    zone: str
    waiting: Waiting
    settled: Release | None = None


class Waiter(NamedTuple):
    """A pod in the room.

    Attributes:
        key: of the pod.
        uid: of the pod.
        priority: of the pod.
        created_s: s since the epoch.
    """

    key: Key
    uid: str
    priority: int
    created_s: float


@dataclass(slots=True)
class Group:
    """The pods of a case, and what was last decided for them; None before the first decision."""

    case: Case
    pods: dict[Key, Waiter] = field(default_factory=dict)
    decision: Decision | None = None
    wake_s: float = math.inf


class Going(NamedTuple):
    """A pod that goes now.

    Attributes:
        pod: which one.
        case: what it waited for.
        release: why it goes.
        urgent: it goes before all others.
    """

    pod: Waiter
    case: Case
    release: Release
    urgent: bool


class WaitingRoom:
    """The pods that wait, and the decisions about them.

    Args:
        limits: how fast pods go that have been held.
        use_priorities: whether priority comes before age.
        now_s: time of the start, s since the epoch.
    """

    def __init__(self, limits: Limits, now_s: float, *, use_priorities: bool = False) -> None:
        self._limits = limits
        self._use_priorities = use_priorities
        self._bucket = Bucket(float(limits.burst), now_s)
        self._groups: dict[Case, Group] = {}
        self._case_of: dict[Key, Case] = {}
        self._held: set[Key] = set()
        self._gone: set[Key] = set()
        self._unsure: set[Case] = set()
        self._heap: list[tuple[float, int, Case]] = []
        self._count = count()
        self._queue: list[Due] | None = []
        self._next_release_s = math.inf

    def __len__(self) -> int:
        return len(self._case_of)

    @property
    def groups(self) -> Iterable[Group]:
        """All groups, in no particular order."""
        return self._groups.values()

    @property
    def next_s(self) -> float:
        """When there is something to do, s since the epoch; infinite where nothing is foreseen."""
        return min(self.next_decision_s, self._next_release_s)

    @property
    def next_decision_s(self) -> float:
        """When there is something to decide, s since the epoch; infinite where nothing is foreseen."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        if self._unsure:
            return -math.inf
        return self._heap[0][0] if self._heap else math.inf

    def of(self, key: Key) -> Group | None:
        """The group of a pod; None where it does not wait here."""
        case = self._case_of.get(key)
        return None if case is None else self._groups[case]

    def zones(self) -> set[str]:
        """The zones that somebody waits in."""
        return {case.zone for case in self._groups}

    # ---- who is here

    def put(self, pod: Waiter, case: Case, *, held: bool = False) -> None:
        """Let a pod in, or note that it asks something else now.

        Args:
            pod: who.
            case: what it asks.
            held: it has been held before, by an earlier leader.
        """
        before = self.of(pod.key)
        if before is not None and before.case == case and before.pods[pod.key] == pod:
            return
        was_held = held or pod.key in self._held
        self.remove(pod.key)
        group = self._groups.get(case)
        if group is None:
            group = self._groups[case] = Group(case)
        group.pods[pod.key] = pod
        self._case_of[pod.key] = case
        self._unsure.add(case)
        if was_held:
            self._held.add(pod.key)
        self._queue = None

    def remove(self, key: Key) -> None:
        """Forget a pod."""
        case = self._case_of.pop(key, None)
        if case is None:
            return
        group = self._groups[case]
        del group.pods[key]
        if not group.pods:
            del self._groups[case]
            self._unsure.discard(case)
        self._held.discard(key)
        if key in self._gone:
            self._gone.discard(key)
        else:
            self._queue = None

    def come_back(self, key: Key) -> None:
        """A pod that was to go is still here: its gate could not be lifted."""
        self._gone.discard(key)
        self._queue = None
        self._next_release_s = -math.inf

    # ---- deciding

    def zone_changed(self, zone: str) -> None:
        """Decide again for all who wait in a zone."""
        self._unsure.update(case for case in self._groups if case.zone == zone)

    def decide(self, look: Callable[[str], Conditions | None], now_s: float) -> list[Group]:
        """Decide what has to be decided now: all whose moment has come, and some of those that changed.

        Args:
            look: conditions in a zone; None while its sources have not been asked yet.
            now_s: s since the epoch.

        Returns:
            The groups that were decided.
        """
        cases = set()
        while self._heap and self._heap[0][0] <= now_s:
            entry = heapq.heappop(self._heap)
            if self._is_current(*entry):
                cases.add(entry[2])
        self._unsure -= cases
        while self._unsure and len(cases) < CASES_AT_ONCE:
            cases.add(self._unsure.pop())
        known: dict[str, Conditions | None] = {}
        decided = []
        for case in cases:
            if case.zone not in known:
                known[case.zone] = look(case.zone)
            group = self._groups[case]
            if self._decide(group, known[case.zone], now_s):
                decided.append(group)
        return decided

    def _decide(self, group: Group, conditions: Conditions | None, now_s: float) -> bool:
        waiting = group.case.waiting
        decision: Decision | None = group.case.settled
        if decision is None and conditions is None and now_s < waiting.latest_start_s:
            self._look_again(group, min(now_s + UNKNOWN_ZONE_S, waiting.latest_start_s))
            return False
        if decision is None:
            decision = _decided(waiting, conditions or Conditions(), now_s)
        group.decision = decision
        if isinstance(decision, Hold):
            self._held.update(group.pods)
            self._look_again(group, decision.wake_s)
        else:
            # Those that have to queue for their release go at once when they come to their latest start.
            self._look_again(group, waiting.latest_start_s if now_s < waiting.latest_start_s else math.inf)
            self._next_release_s = -math.inf
        self._queue = None
        return True

    def _look_again(self, group: Group, wake_s: float) -> None:
        group.wake_s = wake_s
        if wake_s < math.inf:
            heapq.heappush(self._heap, (wake_s, next(self._count), group.case))

    def _is_current(self, wake_s: float, _number: int, case: Case) -> bool:
        group = self._groups.get(case)
        return group is not None and group.wake_s == wake_s

    # ---- going

    def take_due(self, now_s: float) -> list[Going]:
        """The pods that go now, in order; each is given once, until it comes back."""
        if self._queue is None:
            self._queue = in_order(self._due(), self._use_priorities)
        releases = due_now(self._queue, self._bucket, now_s, self._limits)
        self._bucket = releases.bucket
        self._next_release_s = math.inf if releases.next_s is None else releases.next_s
        del self._queue[: len(releases.now)]
        going = []
        for due in releases.now:
            key = Key(*due.name.split("/", 1))
            group = self._groups[self._case_of[key]]
            assert isinstance(group.decision, Release)
            self._gone.add(key)
            going.append(Going(group.pods[key], group.case, group.decision, due.urgent))
        return going

    def _due(self) -> Iterator[Due]:
        for group in self._groups.values():
            if not isinstance(group.decision, Release):
                continue
            at_once = group.decision.reason in _AT_ONCE
            for key, pod in group.pods.items():
                if key not in self._gone:
                    # Only a crowd that was held together could start together: the others come as they come.
                    yield Due(str(key), pod.priority, pod.created_s, at_once or key not in self._held)


def _decided(waiting: Waiting, conditions: Conditions, now_s: float) -> Decision:
    """The decision; what cannot be decided, by a defect here or in a plug-in's forecast, holds nobody."""
    try:
        return decide(waiting, conditions, now_s)
    except Exception as error:
        _log.exception("not decided")
        return Release(ReleaseReason.MISSING, f"cannot be decided: {error}")
