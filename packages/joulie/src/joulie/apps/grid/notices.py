"""What the controller says of the pods that wait and go: annotations, events and counts, each thing once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.apply import PodWriter, Rank, WriteQueue, noted_at_hold
from joulie.apps.grid.facts import GatedPod
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.room import Case, Going, Group, Waiter, WaitingRoom
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold, HoldReason, Release, ReleaseReason
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality

HELD_KEYS = (names.CARBON_DELAY_TIMESTAMP, names.PRICE_DELAY_TIMESTAMP)
"""Annotations of pods that are, or were, held."""


@dataclass(slots=True)
class _Told:
    """What this term has said on a pod that is held: reasons, and annotations that the watch may not show yet."""

    reasons: set[HoldReason] = field(default_factory=set)
    written: dict[str, str] = field(default_factory=dict)


class Notices:
    """What one term of leadership has said.

    Args:
        view: of the cluster.
        room: where the pods wait.
        pods: writes on them.
        writes: when that is done.
        events: where events go.
        metrics: to count in.
        failed: told of the kind of a write that failed, of its object and of the error.
    """

    def __init__(
        self,
        view: GridView,
        room: WaitingRoom,
        pods: PodWriter,
        writes: WriteQueue,
        events: EventRecorder,
        metrics: ControllerMetrics,
        failed: Callable[[str, Key, Exception], None],
    ) -> None:
        self._view = view
        self._room = room
        self._pods = pods
        self._writes = writes
        self._events = events
        self._metrics = metrics
        self._failed = failed
        self._decided: set[str] = set()
        self._told: dict[str, _Told] = {}
        self._complained: set[str] = set()
        self._silent: set[tuple[str, str, Measure]] = set()

    def present(self, uid: str, pod: GatedPod) -> dict[str, str]:
        """The annotations of a pod, with those that the watch may not show yet."""
        return pod.asking.annotations | self._told.get(uid, _Told()).written

    def says_held(self, uid: str, present: Mapping[str, str]) -> bool:
        """Whether a pod has been told that it is held, or its annotations say so."""
        return bool(self._told.get(uid, _Told()).reasons) or any(name in present for name in HELD_KEYS)

    def forget(self, uid: str) -> None:
        """A pod does not wait any more."""
        self._told.pop(uid, None)
        for known in (self._decided, self._complained):
            known.discard(uid)

    def decided(self, group: Group, conditions: Conditions, now_s: float) -> None:
        """Count and note what is new of a decision."""
        decision = group.decision
        assert decision is not None
        for key, waiter in group.pods.items():
            if waiter.uid not in self._decided:
                self._decided.add(waiter.uid)
                self._metrics.decided(decision.reason)
            if isinstance(decision, Hold):
                self._note(key, waiter, group.case, decision, conditions, now_s)
        if isinstance(decision, Release) and decision.reason is ReleaseReason.MISSING:
            self._tell_missing(group, conditions)
        else:
            self._known_again(conditions)

    def released(self, going: Going, now_s: float, *, was_held: bool) -> None:
        """A pod goes."""
        waiter, waiting, reason = going.pod, going.case.waiting, going.release.reason
        self._metrics.writes.labels("release").inc()
        self._metrics.releases.labels(reason.value).inc()
        if was_held:
            self._metrics.decided(reason)
            self._metrics.delay_seconds.observe(max(0.0, now_s - waiting.held_since_s))
        if reason is ReleaseReason.DEADLINE:
            self._metrics.late_seconds.observe(max(0.0, now_s - waiting.latest_start_s))
        self._events.emit(_reference(waiter.key, waiter.uid), "Normal", "GridReleased", f"starts: {going.release.text}")

    def complain(self, key: Key, pod: GatedPod, case: Case) -> None:
        """A malformed annotation counts as absent, and its pod hears of it."""
        mistakes = case.waiting.request.mistakes
        if not mistakes or pod.uid in self._complained:
            return
        self._complained.add(pod.uid)
        self._metrics.mistakes.inc()
        for mistake in mistakes:
            self._events.emit(_reference(key, pod.uid), "Warning", "InvalidAnnotation", mistake)

    def _note(self, key: Key, waiter: Waiter, case: Case, hold: Hold, conditions: Conditions, now_s: float) -> None:
        """Say on a pod that it is held, once for each reason."""
        pod = self._view.pods.get(key)
        told = self._told.setdefault(waiter.uid, _Told())
        if hold.reason in told.reasons or pod is None or pod.uid != waiter.uid:
            return
        told.reasons.add(hold.reason)
        present = self.present(waiter.uid, pod)
        annotations = noted_at_hold(hold.reason, conditions, present, now_s)
        if not annotations:
            return
        first = all(name not in present for name in HELD_KEYS)
        self._writes.put(
            Rank.NOTE,
            partial(self._write_note, waiter, case, hold, annotations, conditions, first=first),
            partial(self._note_failed, waiter, hold.reason),
        )

    async def _write_note(
        self,
        waiter: Waiter,
        case: Case,
        hold: Hold,
        annotations: dict[str, str],
        conditions: Conditions,
        *,
        first: bool,
    ) -> None:
        group = self._room.of(waiter.key)
        if group is None or not isinstance(group.decision, Hold):
            self._told.pop(waiter.uid, None)  # released meanwhile
            return
        await self._pods.annotate(waiter.key, waiter.uid, annotations)
        if (told := self._told.get(waiter.uid)) is not None:
            told.written |= annotations
        self._metrics.writes.labels("note").inc()
        if names.CARBON_DELAY_TIMESTAMP in annotations:
            self._metrics.held_for_carbon(case.zone)
        if names.PRICE_DELAY_TIMESTAMP in annotations:
            period = None if conditions.price is None else conditions.price.period
            self._metrics.held_for_price("" if period is None else period.value)
        if first:
            text = f"waits: {hold.text}; it starts by {rfc3339(hold.latest_start_s)} at the latest"
            self._events.emit(_reference(waiter.key, waiter.uid), "Normal", "GridHold", text)

    def _note_failed(self, waiter: Waiter, reason: HoldReason, error: Exception) -> None:
        self._told.get(waiter.uid, _Told()).reasons.discard(reason)
        self._failed("note", waiter.key, error)

    def _tell_missing(self, group: Group, conditions: Conditions) -> None:
        """One event a namespace and an outage, not one a pod."""
        for signal in signals(conditions):
            if signal.quality is not Quality.MISSING:
                continue
            for namespace in {key.namespace for key in group.pods}:
                about = (namespace, signal.zone, signal.measure)
                if about not in self._silent:
                    self._silent.add(about)
                    text = f"{signal.measure} of {signal.zone} is not known, so nothing waits for it: {signal.problem}"
                    regarding = ObjectReference(
                        kind="Namespace",
                        name=namespace,
                        api_version="v1",
                        namespace=namespace,
                        uid=self._view.namespace(namespace).uid,
                    )
                    self._events.emit(regarding, "Warning", "GridSignalMissing", text)

    def _known_again(self, conditions: Conditions) -> None:
        if not self._silent:
            return
        known = {(signal.zone, signal.measure) for signal in signals(conditions) if signal.known}
        self._silent = {about for about in self._silent if (about[1], about[2]) not in known}


def signals(conditions: Conditions) -> Iterator[GridSignal]:
    """Those of a zone that somebody asks for."""
    return (signal for signal in (conditions.carbon, conditions.price) if signal is not None)


def _reference(key: Key, uid: str) -> ObjectReference:
    return ObjectReference(kind="Pod", name=key.name, api_version="v1", namespace=key.namespace, uid=uid)
