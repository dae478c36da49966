"""Queued workloads of Kueue wait for the grid as gated pods do, without holding quota.

A workload with Joulie's admission gate waits before Kueue looks for quota, so it preempts nobody; the gate is lifted by
the decision that gated pods get. Without the gate, which Kueue honours since v0.19, it waits by an AdmissionCheck:
Kueue requests the check once it has reserved quota, for which it may have preempted others. The answer is Ready, or
Retry with the delay after which Kueue queues the workload again. A Pending check would keep the quota, so each is
answered immediately. Earlier versions of Kueue also keep the quota during the delay of a Retry, so the workload is
evicted at once, as Kueue would do later. No state is kept: gates and checks tell it to whichever replica leads.

An answer at the wrong moment breaks a workload permanently (`joulie.adapters.kubernetes.kueue.unanswered`), so each
answer carries the resource version it was decided on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from joulie.adapters.kubernetes.api.kueue import AdmissionCheck, AdmissionCheckState, CheckState, Workload
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.kueue import (
    CONCURRENCY,
    FIELD_MANAGER,
    KueueResources,
    QueuedObject,
    check_states,
    find_kueue,
    lift_gate,
    read_owners,
    write_status,
)
from joulie.adapters.kubernetes.multikueue import MultiKueueResources
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.grid.apply import noted_at_hold, noted_at_release, noted_of_place
from joulie.apps.grid.deferrals import deferral_of
from joulie.apps.grid.jobs import HOLDS_NOTHING
from joulie.apps.grid.kueue_answers import (
    ACTIVE,
    CheckFacts,
    WorkloadFacts,
    as_pod,
    hold_text,
    keep_check,
    keep_workload,
    pod_set_updates,
    ready,
    retry,
)
from joulie.apps.grid.kueue_settings import KueueMode
from joulie.apps.grid.leader import Leader
from joulie.apps.grid.multikueue import Dispatcher, WorkerClusters
from joulie.apps.grid.pending import Deferral
from joulie.domain.grid.deferral import Conditions, Hold, Release, ReleaseReason
from joulie.domain.grid.request import GridRequest
from joulie.program.leadership import NotLeadingError

LOOK_AGAIN_S = 300.0
"""Interval at which a cluster without Kueue is checked for it, s."""
UNKNOWN_ZONE_RETRY_S = 1.0
CHECKS_LISTED_S = 3.0
"""Time in which Kueue lists the checks of a new workload, s."""
RETRY_S = 5.0
_log = logging.getLogger(__name__)


class CheckWriter:
    """Writes check states, each for the resource version it was decided on.

    Args:
        client: Kubernetes client.
        resources: Kueue's resources in the served version.
        may_write: whether this replica leads.
    """

    def __init__(self, client: KubeClient, resources: KueueResources, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._resources = resources
        self._may_write = may_write

    async def write_states(self, key: Key, workload: WorkloadFacts, states: Sequence[AdmissionCheckState]) -> None:
        """Write the check states of a workload.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the workload has changed.
        """
        self.check_leading()
        status = {"admissionChecks": check_states(states)}
        await write_status(self._client, self._resources.workloads, key, workload.version, status)

    async def evict(self, key: Key, workload: WorkloadFacts, now_s: float) -> None:
        """Start the eviction of a delayed workload as Kueue does; Kueue completes it and honours the delay.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the workload has changed.
        """
        self.check_leading()
        condition = {
            "type": "Evicted",
            "status": "True",
            "reason": "AdmissionCheck",
            "message": "Its admission check is to be retried later: Joulie frees its quota",
            "lastTransitionTime": rfc3339(now_s),
        }
        states = [
            AdmissionCheckState(one.name, CheckState.PENDING, rfc3339(now_s), one.message) for one in workload.delayed
        ]
        status = {"conditions": [condition], "admissionChecks": check_states(states)}
        await write_status(self._client, self._resources.workloads, key, workload.version, status)

    async def mark_active(self, key: Key, check: CheckFacts, now_s: float) -> None:
        """Set the condition Active of an AdmissionCheck.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the check has changed.
        """
        self.check_leading()
        condition = {
            "type": ACTIVE,
            "status": "True",
            "reason": ACTIVE,
            "message": "Joulie decides by carbon intensity and price",
            "lastTransitionTime": rfc3339(now_s),
            "observedGeneration": check.generation,
        }
        await write_status(self._client, self._resources.checks, key, check.version, {"conditions": [condition]})

    async def note(self, key: Key, uid: str, annotations: Mapping[str, str]) -> None:
        """Write annotations on a workload.

        Raises:
            KubernetesError: the write failed.
        """
        self.check_leading()
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._client.patch(
            self._resources.workloads, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER
        )

    async def read_owners(self, key: Key, workload: WorkloadFacts) -> list[QueuedObject]:
        """The objects that a workload represents.

        Raises:
            KubernetesError: they could not be read.
        """
        return await read_owners(self._client, key.namespace, workload.owners)

    async def lift(self, owners: Iterable[QueuedObject]) -> None:
        """Lift the admission gate of a workload's owners; does nothing where there is none.

        Raises:
            KubernetesError: the write failed.
        """
        self.check_leading()
        await lift_gate(self._client, owners)

    def reference(self, key: Key, workload: WorkloadFacts) -> ObjectReference:
        """Reference to a workload for its events."""
        return ObjectReference(
            kind=self._resources.workloads.kind,
            name=key.name,
            api_version=self._resources.workloads.api_version,
            namespace=key.namespace,
            uid=workload.uid,
        )

    def check_leading(self) -> None:
        """Raise NotLeadingError unless this replica leads."""
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not written")


class KueueChecks:
    """Answers Joulie's AdmissionChecks while this replica leads.

    Args:
        leader: this replica while it leads.
        look: conditions in a zone; None while its sources have not been queried yet.
    """

    def __init__(self, leader: Leader, look: Callable[[str], Conditions | None]) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._metrics, self._events = leader.metrics, leader.events
        self._may_write, self._now_s = leader.may_write, leader.now_s
        self._look = look
        self._dispatcher: Dispatcher | None = None
        self._changed: set[Key] = set()
        self._wake = asyncio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._owners: dict[str, list[QueuedObject]] = {}

    async def run(self) -> None:
        """Answer until cancelled; without Kueue, wait until there is one."""
        if self._settings.kueue_enabled is KueueMode.FALSE:
            return
        resources = await self._find()
        _log.info("answering for AdmissionChecks", extra={"version": resources.workloads.version})
        checks: Cache[AdmissionCheck, CheckFacts] = Cache(self._client, resources.checks, keep_check)
        workloads: Cache[Workload, WorkloadFacts] = Cache(self._client, resources.workloads, keep_workload)
        checks.add_listener(lambda _key, _old, _new: self._look_at(workloads.objects))
        workloads.add_listener(self._workload_changed)
        writer = CheckWriter(self._client, resources, self._may_write)
        async with asyncio.TaskGroup() as group:
            if self._settings.multikueue_dispatcher:
                self._dispatcher = self._new_dispatcher(resources, workloads.objects)
                group.create_task(self._dispatcher.clusters.run())
                await self._dispatcher.clusters.wait_for_all()
            group.create_task(checks.run())
            group.create_task(workloads.run())
            await checks.wait_synced()
            await workloads.wait_synced()
            group.create_task(self._answer_loop(writer, checks.objects, workloads.objects))

    def _new_dispatcher(self, resources: KueueResources, workloads: Mapping[Key, WorkloadFacts]) -> Dispatcher:
        found = MultiKueueResources.for_version(resources.workloads.version)
        zone_of, changed = self._view.zone_of_cluster, partial(self._look_at, workloads)
        return Dispatcher(
            self._client,
            found,
            WorkerClusters(self._client, resources, found, zone_of, changed),
            self._look,
            self._events,
            round_s=self._settings.multikueue_round_s,
            now_s=self._now_s,
            counted=self._metrics.nominated,
        )

    async def _find(self) -> KueueResources:
        level = logging.WARNING if self._settings.kueue_enabled is KueueMode.TRUE else logging.INFO
        while True:
            try:
                found = await find_kueue(self._client)
            except KubernetesError as error:
                _log.warning("cannot detect Kueue", extra={"problem": str(error)})
            else:
                if found is not None:
                    return found
                _log.log(level, "the cluster has no Kueue")
                level = logging.DEBUG
            await asyncio.sleep(LOOK_AGAIN_S)

    def signals_changed(self) -> None:
        """Decide again about the gated workloads, after a signal of the grid has changed."""
        self._look_at(self._timers)

    def _workload_changed(self, key: Key, old: WorkloadFacts | None, _new: WorkloadFacts | None) -> None:
        if old is not None:
            self._owners.pop(old.uid, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._look_at([key])

    def _look_at(self, keys: Iterable[Key]) -> None:
        self._changed.update(keys)
        self._wake.set()

    def _look_later(self, key: Key, after_s: float) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(after_s, self._look_at, [key])

    async def _answer_loop(
        self, writer: CheckWriter, checks: Mapping[Key, CheckFacts], workloads: Mapping[Key, WorkloadFacts]
    ) -> None:
        self._look_at(workloads)
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            if len(self._owners) > len(workloads):  # some were read while their workload was deleted
                self._owners.clear()
            if self._dispatcher is not None and self._dispatcher.size > len(workloads):
                self._dispatcher.keep_only({one.uid for one in workloads.values()})
            now_s = self._now_s()
            jobs: list[Job] = [
                partial(writer.mark_active, key, check, now_s) for key, check in checks.items() if not check.active
            ]
            for key in changed:
                workload = workloads.get(key)
                if workload is None:
                    continue
                if workload.gated:
                    jobs.append(partial(self._gate, writer, key, workload))
                elif ours := [name for name in workload.pending if Key("", name) in checks]:
                    jobs.append(partial(self._answer, writer, key, workload, ours))
                elif any(one.state == CheckState.RETRY and Key("", one.name) in checks for one in workload.delayed):
                    jobs.append(partial(writer.evict, key, workload, now_s))
                elif self._dispatcher is not None and self._dispatcher.clusters.dispatches(workload.last_check):
                    jobs.append(partial(self._nominate, self._dispatcher, writer, key, workload))
            failed = [failure.error for failure in await write_all(jobs, concurrency=CONCURRENCY)]
            # The watch reports objects that were deleted or changed.
            problems = [str(error) for error in failed if not isinstance(error, NotFoundError | ConflictError)]
            if problems:
                _log.warning(
                    "queued workloads not decided, retrying",
                    extra={"workloads": len(problems), "problem": problems[0]},
                )
                asyncio.get_running_loop().call_later(RETRY_S, self._look_at, workloads)

    async def _answer(self, writer: CheckWriter, key: Key, workload: WorkloadFacts, ours: Sequence[str]) -> None:
        decided = await self._decide(writer, key, workload)
        if decided is None:
            return
        now_s, decision = self._now_s(), decided.decision
        if isinstance(decision, Hold):
            await writer.write_states(key, workload, retry(ours, decision, now_s, self._settings.kueue_max_requeue_s))
            await self._held(writer, key, workload, decision, decided.conditions)
            return
        observed = self._view.observes(key.namespace)
        updates = (
            pod_set_updates(workload, decided.owners, decided.conditions, now_s, decided.place)
            if decided.request.defer and not observed
            else ()
        )
        await writer.write_states(key, workload, ready(ours, decision.text, now_s, updates))
        # A Kueue that ignores the gate refuses to work with it once it is upgraded.
        await writer.lift(decided.owners)
        self._metrics.decided(decision.reason)
        if decided.request.defer:
            self._events.emit(writer.reference(key, workload), "Normal", "GridReleased", f"starts: {decision.text}")

    async def _gate(self, writer: CheckWriter, key: Key, workload: WorkloadFacts) -> None:
        """Lift the admission gate of a workload, or decide again later."""
        decided = await self._decide(writer, key, workload)
        if decided is None:
            return
        decision = decided.decision
        if isinstance(decision, Hold):
            await self._held(writer, key, workload, decision, decided.conditions)
            self._look_later(key, min(decision.wake_s - self._now_s(), self._settings.kueue_max_requeue_s))
            return
        if workload.released_at is None:
            # Written first: without it, the check might hold the workload again when Kueue has preempted others for it.
            notes = noted_at_release(decided.conditions, workload.notes, self._now_s())
            await writer.note(key, workload.uid, notes)
            self._metrics.decided(decision.reason)
            text = f"queued by Kueue: {decision.text}"
            self._events.emit(writer.reference(key, workload), "Normal", "GridReleased", text)
        await writer.lift(decided.owners)

    async def _decide(self, writer: CheckWriter, key: Key, workload: WorkloadFacts) -> _Decided | None:
        """The decision about a workload; None while the sources of its zone have not been queried yet."""
        owners, deferral = await self._deferral(writer, key, workload)
        waiting = deferral.waiting
        placement = deferral.place(self._look, self._now_s())
        if placement is None or self._lacks_checks(workload):
            self._look_later(key, UNKNOWN_ZONE_RETRY_S)
            return None
        conditions = self._look(placement.zone) or Conditions()
        place = noted_of_place(deferral.zones, placement.zone)
        for mistake in waiting.request.mistakes:
            self._events.emit(writer.reference(key, workload), "Warning", "InvalidAnnotation", mistake)
        if workload.released_at is not None:
            text = f"its admission gate was lifted at {workload.released_at}"
            return _Decided(waiting.request, owners, conditions, Release(ReleaseReason.CLEAN, text), place)
        decision = placement.decision
        if isinstance(decision, Hold) and (self._settings.dry_run_enabled or self._view.observes(key.namespace)):
            decision = Release(ReleaseReason.NOT_ASKED, f"{HOLDS_NOTHING}; {hold_text(decision)}")
        return _Decided(waiting.request, owners, conditions, decision, place)

    def _lacks_checks(self, workload: WorkloadFacts) -> bool:
        """Whether Kueue has not said yet to which clusters a new workload may be dispatched."""
        new = self._now_s() < workload.created_s + CHECKS_LISTED_S
        return self._dispatcher is not None and not workload.checks and new

    async def _deferral(
        self, writer: CheckWriter, key: Key, workload: WorkloadFacts
    ) -> tuple[list[QueuedObject], Deferral]:
        """A workload's owners and its deferral, over the zones of the clusters that it may be dispatched to."""
        owners = self._owners.get(workload.uid)
        if owners is None:
            owners = self._owners[workload.uid] = await writer.read_owners(key, workload)
        clusters = {} if self._dispatcher is None else self._dispatcher.clusters.connected(workload.checks)
        zones = set(filter(None, clusters.values()))
        return owners, deferral_of(key, as_pod(workload, owners), self._view, zones)

    async def _nominate(self, dispatcher: Dispatcher, writer: CheckWriter, key: Key, workload: WorkloadFacts) -> None:
        """Nominate the clusters that are due for a workload, and those of the next zone later."""
        writer.check_leading()
        _owners, deferral = await self._deferral(writer, key, workload)
        observe = self._settings.dry_run_enabled or self._view.observes(key.namespace)
        again_s = await dispatcher.dispatch(key, workload, writer.reference(key, workload), deferral, observe=observe)
        if again_s < math.inf:
            self._look_later(key, again_s)

    async def _held(
        self, writer: CheckWriter, key: Key, workload: WorkloadFacts, hold: Hold, conditions: Conditions
    ) -> None:
        self._metrics.decided(hold.reason)
        notes = noted_at_hold(hold.held_by, conditions, workload.notes, self._now_s())
        if notes:
            await writer.note(key, workload.uid, notes)
            self._events.emit(writer.reference(key, workload), "Normal", "GridHold", hold_text(hold))


class _Decided(NamedTuple):
    request: GridRequest
    owners: list[QueuedObject]
    conditions: Conditions
    decision: Hold | Release
    place: dict[str, str]
