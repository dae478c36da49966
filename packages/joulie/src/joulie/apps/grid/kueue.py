"""Kueue AdmissionChecks: queued workloads wait for the grid as gated pods do, without holding quota.

Kueue requests a check once it has reserved quota for a workload. The answer is the decision that gated pods get:
Ready, or Retry with the delay after which Kueue queues the workload again. A Pending check would keep the quota, so
each is answered immediately. Kueue also keeps the quota during the delay of a Retry, so the workload is evicted at
once, as Kueue would do later. No state is kept: Kueue requests the check again after the delay, from whichever replica
leads then.

An answer at the wrong moment breaks a workload permanently (`joulie.adapters.kubernetes.kueue.unanswered`), so each
answer carries the resource version it was decided on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from joulie.adapters.kubernetes.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    CheckState,
    PodSet,
    PodSetUpdate,
    Workload,
)
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.kueue import (
    CONCURRENCY,
    FIELD_MANAGER,
    KueueResources,
    delayed,
    find_kueue,
    is_ours,
    unanswered,
    write_status,
)
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.grid.apply import noted_at_hold, noted_at_release
from joulie.apps.grid.facts import Asking, Owner, asking_of, created_s, grid_annotations, owner_of
from joulie.apps.grid.jobs import HOLDS_NOTHING
from joulie.apps.grid.kueue_settings import KueueMode
from joulie.apps.grid.observe import GridView
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold, HoldReason, ReleaseReason, Waiting, decide
from joulie.program.leadership import NotLeadingError

LOOK_AGAIN_S = 300.0
"""Interval at which a cluster without Kueue is checked for it, s."""
UNKNOWN_ZONE_RETRY_S = 1.0
RETRY_S = 5.0
_ACTIVE = "Active"
_CARRIED = frozenset(
    {
        names.INITIAL_CARBON_INTENSITY,
        names.INITIAL_ELECTRICITY_RATE,
        names.CARBON_DELAY_TIMESTAMP,
        names.PRICE_DELAY_TIMESTAMP,
    }
)

_log = logging.getLogger(__name__)


class PodSetFacts(msgspec.Struct, frozen=True):
    """Cached facts of a pod set: its name and its grid annotations."""

    name: str
    annotations: dict[str, str]


class WorkloadFacts(msgspec.Struct, frozen=True):
    """Cached facts of a workload that has quota and waits for a check.

    Attributes:
        uid: UID.
        version: ``metadata.resourceVersion``.
        created_s: creation, s since the epoch.
        owner: the object that the workload represents; None without one.
        asking: annotations and labels of its pods.
        notes: its own grid annotations: start of the delay, initial intensity and price.
        pod_sets: its pod sets.
        pending: names of the unanswered checks.
        delayed: all its checks while it waits to be requeued and still holds quota; see
            `joulie.adapters.kubernetes.kueue.delayed`.
    """

    uid: str
    version: str
    created_s: float
    owner: Owner | None
    asking: Asking
    notes: dict[str, str]
    pod_sets: tuple[PodSetFacts, ...]
    pending: tuple[str, ...]
    delayed: tuple[AdmissionCheckState, ...]


class CheckFacts(msgspec.Struct, frozen=True):
    """Cached facts of one of Joulie's AdmissionChecks.

    Attributes:
        version: ``metadata.resourceVersion``.
        generation: ``metadata.generation``.
        active: whether its condition Active is True.
    """

    version: str
    generation: int
    active: bool


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
        self._check_leading()
        status = {"admissionChecks": list(states)}
        await write_status(self._client, self._resources.workloads, key, workload.version, status)

    async def evict(self, key: Key, workload: WorkloadFacts, now_s: float) -> None:
        """Start the eviction of a delayed workload as Kueue does; Kueue completes it and honours the delay.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the workload has changed.
        """
        self._check_leading()
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
        status = {"conditions": [condition], "admissionChecks": states}
        await write_status(self._client, self._resources.workloads, key, workload.version, status)

    async def mark_active(self, key: Key, check: CheckFacts, now_s: float) -> None:
        """Set the condition Active of an AdmissionCheck.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the check has changed.
        """
        self._check_leading()
        condition = {
            "type": _ACTIVE,
            "status": "True",
            "reason": _ACTIVE,
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
        self._check_leading()
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._client.patch(
            self._resources.workloads, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER
        )

    def reference(self, key: Key, workload: WorkloadFacts) -> ObjectReference:
        """Reference to a workload for its events."""
        return ObjectReference(
            kind=self._resources.workloads.kind,
            name=key.name,
            api_version=self._resources.workloads.api_version,
            namespace=key.namespace,
            uid=workload.uid,
        )

    def _check_leading(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not written")


class KueueChecks:
    """Answers Joulie's AdmissionChecks while this replica leads.

    Args:
        client: Kubernetes client for watches and writes.
        view: watch caches with the policies of namespaces.
        look: conditions in a zone; None while its sources have not been queried yet.
        events: event recorder.
        mode: whether to answer checks.
        max_requeue_s: maximum delay before a workload is requeued, s.
        may_write: whether this replica leads.
        now_s: current time, s since the epoch.
        dry_run: record decisions, hold nothing.
        decided: called with the reason of each decision that is written.
    """

    def __init__(
        self,
        client: KubeClient,
        view: GridView,
        look: Callable[[str], Conditions | None],
        events: EventRecorder,
        *,
        mode: KueueMode,
        max_requeue_s: float,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
        dry_run: bool = False,
        decided: Callable[[HoldReason | ReleaseReason], None] = lambda _reason: None,
    ) -> None:
        self._client = client
        self._view = view
        self._look = look
        self._events = events
        self._mode = mode
        self._max_requeue_s = max_requeue_s
        self._may_write = may_write
        self._now_s = now_s
        self._dry_run = dry_run
        self._decided = decided
        self._changed: set[Key] = set()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Answer until cancelled; without Kueue, wait until there is one."""
        if self._mode is KueueMode.FALSE:
            return
        resources = await self._find()
        _log.info("answering for AdmissionChecks", extra={"version": resources.workloads.version})
        checks: Cache[AdmissionCheck, CheckFacts] = Cache(self._client, resources.checks, keep_check)
        workloads: Cache[Workload, WorkloadFacts] = Cache(self._client, resources.workloads, keep_workload)
        checks.add_listener(lambda _key, _old, _new: self._look_at(workloads.objects))
        workloads.add_listener(lambda key, _old, _new: self._look_at([key]))
        writer = CheckWriter(self._client, resources, self._may_write)
        async with asyncio.TaskGroup() as group:
            group.create_task(checks.run())
            group.create_task(workloads.run())
            await checks.wait_synced()
            await workloads.wait_synced()
            group.create_task(self._answer_loop(writer, checks.objects, workloads.objects))

    async def _find(self) -> KueueResources:
        level = logging.WARNING if self._mode is KueueMode.TRUE else logging.INFO
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

    def _look_at(self, keys: Iterable[Key]) -> None:
        self._changed.update(keys)
        self._wake.set()

    async def _answer_loop(
        self, writer: CheckWriter, checks: Mapping[Key, CheckFacts], workloads: Mapping[Key, WorkloadFacts]
    ) -> None:
        self._look_at(workloads)
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            now_s = self._now_s()
            jobs: list[Job] = [
                partial(writer.mark_active, key, check, now_s) for key, check in checks.items() if not check.active
            ]
            for key in changed:
                workload = workloads.get(key)
                if workload is None:
                    continue
                if ours := [name for name in workload.pending if Key("", name) in checks]:
                    jobs.append(partial(self._answer, writer, key, workload, ours))
                elif any(one.state == CheckState.RETRY and Key("", one.name) in checks for one in workload.delayed):
                    jobs.append(partial(writer.evict, key, workload, now_s))
            failed = [failure.error for failure in await write_all(jobs, concurrency=CONCURRENCY)]
            # The watch reports objects that were deleted or changed.
            problems = [str(error) for error in failed if not isinstance(error, NotFoundError | ConflictError)]
            if problems:
                _log.warning(
                    "admission checks not answered, retrying", extra={"checks": len(problems), "problem": problems[0]}
                )
                asyncio.get_running_loop().call_later(RETRY_S, self._look_at, workloads)

    async def _answer(self, writer: CheckWriter, key: Key, workload: WorkloadFacts, ours: Sequence[str]) -> None:
        request = self._view.request(key.namespace, workload.asking, workload.owner)
        waiting, now_s = Waiting(request, workload.created_s), self._now_s()
        conditions = self._look(self._view.zone(request, workload.asking))
        if conditions is None and now_s < waiting.latest_start_s:
            asyncio.get_running_loop().call_later(UNKNOWN_ZONE_RETRY_S, self._look_at, [key])
            return
        conditions = conditions or Conditions()
        regarding = writer.reference(key, workload)
        for mistake in request.mistakes:
            self._events.emit(regarding, "Warning", "InvalidAnnotation", mistake)
        decision = decide(waiting, conditions, now_s)
        observed = self._view.observes(key.namespace)
        if isinstance(decision, Hold) and not (self._dry_run or observed):
            await writer.write_states(key, workload, retry(ours, decision, now_s, self._max_requeue_s))
            self._decided(decision.reason)
            notes = noted_at_hold(decision.held_by, conditions, workload.notes, now_s)
            if notes:
                await writer.note(key, workload.uid, notes)
                self._events.emit(regarding, "Normal", "GridHold", _hold_text(decision))
            return
        text = f"{HOLDS_NOTHING}; {_hold_text(decision)}" if isinstance(decision, Hold) else decision.text
        updates = pod_set_updates(workload, conditions, now_s) if request.defer and not observed else ()
        await writer.write_states(key, workload, ready(ours, text, now_s, updates))
        self._decided(decision.reason)
        if request.defer:
            self._events.emit(regarding, "Normal", "GridReleased", f"starts: {text}")


# ---- cached facts


def keep_check(check: AdmissionCheck) -> CheckFacts | None:
    """The cached facts of an AdmissionCheck; None for checks of other controllers."""
    if not is_ours(check):
        return None
    active = any(one.type == _ACTIVE and one.status == "True" for one in check.status.conditions)
    return CheckFacts(check.metadata.resource_version, check.metadata.generation, active)


def keep_workload(workload: Workload) -> WorkloadFacts | None:
    """The cached facts of a workload; None unless it has quota and waits for checks.

    Raises:
        QuantityError: a timestamp is invalid.
    """
    pending, waits = unanswered(workload), delayed(workload)
    if not pending and not waits:
        return None
    meta = workload.metadata
    return WorkloadFacts(
        uid=meta.uid,
        version=meta.resource_version,
        created_s=created_s(meta),
        owner=owner_of(meta),
        asking=_asking(workload.spec.pod_sets),
        notes=grid_annotations(meta.annotations),
        pod_sets=tuple(
            PodSetFacts(one.name, grid_annotations(one.template.metadata.annotations)) for one in workload.spec.pod_sets
        ),
        pending=pending,
        delayed=waits,
    )


def _asking(pod_sets: Sequence[PodSet]) -> Asking:
    """The merged annotations of a workload's pod sets, which start together: the first pod set that sets a key wins."""
    askings = [asking_of(one.template.metadata, one.template.spec) for one in pod_sets]
    if not askings:
        return Asking()
    annotations: dict[str, str] = {}
    for one in reversed(askings):
        annotations |= one.annotations
    gardened = [one for one in askings if one.scheduler_name == names.SCHEDULER_NAME]
    return msgspec.structs.replace((gardened or askings)[0], annotations=annotations)


# ---- check states


def retry(checks: Iterable[str], hold: Hold, now_s: float, max_requeue_s: float) -> tuple[AdmissionCheckState, ...]:
    """Check states of a workload that waits.

    Args:
        checks: names of the checks.
        hold: the decision.
        now_s: s since the epoch.
        max_requeue_s: maximum delay before the workload is requeued, s. No decision wakes after the latest start, so it
            is always back by then.
    """
    after_s = math.floor(min(hold.wake_s - now_s, max_requeue_s))
    return tuple(
        AdmissionCheckState(
            name,
            CheckState.RETRY,
            rfc3339(now_s),
            _hold_text(hold),
            requeue_after_seconds=max(after_s, 1),
        )
        for name in checks
    )


def ready(
    checks: Sequence[str], text: str, now_s: float, updates: tuple[PodSetUpdate, ...]
) -> tuple[AdmissionCheckState, ...]:
    """Check states of a workload that starts; only the first carries the pod set updates, which must not repeat.

    Args:
        checks: names of the checks.
        text: reason, for people.
        now_s: s since the epoch.
        updates: annotations for the pods.
    """
    return tuple(
        AdmissionCheckState(
            name, CheckState.READY, rfc3339(now_s), text, pod_set_updates=updates if name == checks[0] else ()
        )
        for name in checks
    )


def pod_set_updates(workload: WorkloadFacts, conditions: Conditions, now_s: float) -> tuple[PodSetUpdate, ...]:
    """Annotations for the pods of a workload that starts: those of released pods, and one that skips the gate.

    Annotations that the pods have stay unchanged, since Kueue refuses to admit a workload whose check changes them.
    Earlier versions of Kueue require an update of every pod set or of none.

    Args:
        workload: cached facts of the workload.
        conditions: conditions in its zone.
        now_s: s since the epoch.
    """
    notes = {key: value for key, value in workload.notes.items() if key in _CARRIED}
    wanted = {names.SKIP: "true", **notes, **noted_at_release(conditions, workload.notes, now_s)}
    return tuple(
        PodSetUpdate(one.name, {key: value for key, value in wanted.items() if key not in one.annotations})
        for one in workload.pod_sets
    )


def _hold_text(hold: Hold) -> str:
    return f"waits: {hold.text}; it starts by {rfc3339(hold.latest_start_s)} at the latest, if there is quota"
