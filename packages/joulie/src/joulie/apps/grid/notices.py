"""Annotations, events and counters for held and released pods, each emitted once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.apply import PodWriter, Rank, WriteQueue, noted_at_hold, was_held
from joulie.apps.grid.facts import GatedPod
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.pending import Deferral, Group, PendingPod, PendingQueue, PodRelease
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold, Release, ReleaseReason, runtime_text
from joulie.domain.grid.request import noted_runtime
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality


@dataclass(slots=True)
class _Reported:
    """What has been reported on a held pod: what holds it, and annotations that the watch may not show yet."""

    held_by: set[Measure] = field(default_factory=set)
    written: dict[str, str] = field(default_factory=dict)


class Notices:
    """Reports decisions on pods while this replica leads.

    Args:
        view: watch caches of the cluster.
        pending: queue of deferred pods.
        pods: writes annotations and lifts gates.
        writes: queue of these writes.
        events: event recorder.
        metrics: metrics of the controller.
        failed: called with the kind, object and error of a failed write.
    """

    def __init__(
        self,
        view: GridView,
        pending: PendingQueue,
        pods: PodWriter,
        writes: WriteQueue,
        events: EventRecorder,
        metrics: ControllerMetrics,
        failed: Callable[[str, Key, Exception], None],
    ) -> None:
        self._view = view
        self._pending = pending
        self._pods = pods
        self._writes = writes
        self._events = events
        self._metrics = metrics
        self._failed = failed
        self._decided: set[str] = set()
        self._reported: dict[str, _Reported] = {}
        self._reported_invalid: set[str] = set()
        self._reported_missing: set[tuple[str, str, Measure]] = set()

    def present(self, uid: str, pod: GatedPod) -> dict[str, str]:
        """The annotations of a pod, with those that the watch may not show yet."""
        return pod.asking.annotations | self._reported.get(uid, _Reported()).written

    def says_held(self, uid: str, present: Mapping[str, str]) -> bool:
        """Whether a pod is annotated as held, or is about to be."""
        return bool(self._reported.get(uid, _Reported()).held_by) or was_held(present)

    def forget(self, uid: str) -> None:
        """Drop the state of a pod that left the queue."""
        self._reported.pop(uid, None)
        for known in (self._decided, self._reported_invalid):
            known.discard(uid)

    def decided(self, group: Group, conditions: Conditions, now_s: float) -> None:
        """Count a decision and annotate the pods that it holds."""
        decision = group.decision
        assert decision is not None
        for key, waiter in group.pods.items():
            if waiter.uid not in self._decided:
                self._decided.add(waiter.uid)
                self._metrics.decided(decision.reason)
            if isinstance(decision, Hold):
                self._note(key, waiter, group.deferral, decision, conditions, now_s)
        if isinstance(decision, Release) and decision.reason is ReleaseReason.MISSING:
            self._tell_missing(group, conditions)
        else:
            self._signal_recovered(conditions)

    def released(self, going: PodRelease, now_s: float, *, was_held: bool) -> None:
        """Count a release and emit its event."""
        waiter, waiting, reason = going.pod, going.deferral.waiting, going.release.reason
        self._metrics.writes.labels("release").inc()
        self._metrics.releases.labels(reason.value).inc()
        if was_held:
            self._metrics.decided(reason)
            self._metrics.delay_seconds.observe(max(0.0, now_s - waiting.held_since_s))
        if reason is ReleaseReason.DEADLINE:
            self._metrics.late_seconds.observe(max(0.0, now_s - waiting.latest_start_s))
        self._events.emit(_reference(waiter.key, waiter.uid), "Normal", "GridReleased", f"starts: {going.release.text}")

    def report_invalid(self, key: Key, pod: GatedPod, deferral: Deferral) -> None:
        """Emit an event for each malformed annotation; such an annotation is treated as absent."""
        mistakes = deferral.waiting.request.mistakes
        if not mistakes or pod.uid in self._reported_invalid:
            return
        self._reported_invalid.add(pod.uid)
        self._metrics.mistakes.inc()
        for mistake in mistakes:
            self._events.emit(_reference(key, pod.uid), "Warning", "InvalidAnnotation", mistake)

    def _note(
        self, key: Key, waiter: PendingPod, deferral: Deferral, hold: Hold, conditions: Conditions, now_s: float
    ) -> None:
        """Annotate a held pod, once for each signal that holds it."""
        pod = self._view.pods.get(key)
        told = self._reported.setdefault(waiter.uid, _Reported())
        if told.held_by.issuperset(hold.held_by) or pod is None or pod.uid != waiter.uid:
            return
        told.held_by.update(hold.held_by)
        present = self.present(waiter.uid, pod)
        annotations = noted_at_hold(hold.held_by, conditions, present, now_s)
        learned = deferral.waiting.request.learned
        if learned is not None:
            annotations[names.LEARNED_RUNTIME] = noted_runtime(learned)
        if not annotations:
            return
        first = not was_held(present)
        self._writes.put(
            Rank.NOTE,
            partial(self._write_note, waiter, deferral, hold, annotations, conditions, first=first),
            partial(self._note_failed, waiter, hold.held_by),
        )

    async def _write_note(
        self,
        waiter: PendingPod,
        deferral: Deferral,
        hold: Hold,
        annotations: dict[str, str],
        conditions: Conditions,
        *,
        first: bool,
    ) -> None:
        group = self._pending.of(waiter.key)
        if group is None or not isinstance(group.decision, Hold):
            self._reported.pop(waiter.uid, None)  # released meanwhile
            return
        await self._pods.annotate(waiter.key, waiter.uid, annotations)
        if (told := self._reported.get(waiter.uid)) is not None:
            told.written |= annotations
        self._metrics.writes.labels("note").inc()
        if names.CARBON_DELAY_TIMESTAMP in annotations:
            self._metrics.held_for_carbon(deferral.zone)
        if names.PRICE_DELAY_TIMESTAMP in annotations:
            period = None if conditions.price is None else conditions.price.period
            self._metrics.held_for_price("" if period is None else period.value)
        if first:
            text = f"waits: {hold.text}; it starts by {rfc3339(hold.latest_start_s)} at the latest"
            text += f", to run for {runtime_text(deferral.waiting.request)}"
            self._events.emit(_reference(waiter.key, waiter.uid), "Normal", "GridHold", text)

    def _note_failed(self, waiter: PendingPod, held_by: tuple[Measure, ...], error: Exception) -> None:
        self._reported.get(waiter.uid, _Reported()).held_by.difference_update(held_by)
        self._failed("note", waiter.key, error)

    def _tell_missing(self, group: Group, conditions: Conditions) -> None:
        """Emit one event per namespace and outage, not one per pod."""
        for signal in signals(conditions):
            if signal.quality is not Quality.MISSING:
                continue
            for namespace in {key.namespace for key in group.pods}:
                about = (namespace, signal.zone, signal.measure)
                if about not in self._reported_missing:
                    self._reported_missing.add(about)
                    text = f"no {signal.measure} signal for {signal.zone}, so no pod waits for it: {signal.problem}"
                    regarding = ObjectReference(
                        kind="Namespace",
                        name=namespace,
                        api_version="v1",
                        namespace=namespace,
                        uid=self._view.namespace(namespace).uid,
                    )
                    self._events.emit(regarding, "Warning", "GridSignalMissing", text)

    def _signal_recovered(self, conditions: Conditions) -> None:
        if not self._reported_missing:
            return
        known = {(signal.zone, signal.measure) for signal in signals(conditions) if signal.known}
        self._reported_missing = {about for about in self._reported_missing if (about[1], about[2]) not in known}


def signals(conditions: Conditions) -> Iterator[GridSignal]:
    """The signals that are configured for a zone."""
    return (signal for signal in (conditions.carbon, conditions.price) if signal is not None)


def _reference(key: Key, uid: str) -> ObjectReference:
    return ObjectReference(kind="Pod", name=key.name, api_version="v1", namespace=key.namespace, uid=uid)
