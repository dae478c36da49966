"""Interruptible Jobs: when each is suspended and resumed. The state lives in their annotations."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.core import Job
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import JOBS
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.apps.grid.apply import FIELD_MANAGER, noted_at_pause
from joulie.apps.grid.deadlines import next_run_of
from joulie.apps.grid.facts import RESUMED_SINCE, SUSPENDED_SINCE, WORK_DONE, JobFacts, Owner, keep_job
from joulie.apps.grid.observe import GridView
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions
from joulie.domain.grid.interrupt import Pause, Progress, Run, decide
from joulie.domain.grid.request import GridRequest, Mode, noted_runtime

JOBS_PER_STEP = 500
"""Jobs decided in one step before the event loop runs other tasks."""
FAILED_DECISION_RETRY_S = 300.0
"""Retry interval of a Job whose decision failed, s."""

HOLDS_NOTHING = "a dry run or observe mode holds nothing"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Managed:
    """An interruptible Job.

    Attributes:
        facts: its cached facts.
        request: its deferral request.
        zone: grid zone.
        done_by_s: when the next run of its CronJob begins, s since the epoch; None without one.
        decision: the last one; None before the first.
        wake_s: when to decide again, s since the epoch.
    """

    facts: JobFacts
    request: GridRequest
    zone: str
    done_by_s: float | None = None
    decision: Run | Pause | None = None
    wake_s: float = -math.inf


class Change(msgspec.Struct, frozen=True):
    """A Job to suspend or to resume.

    Attributes:
        key: namespace and name.
        uid: UID.
        suspend: True to suspend, False to resume.
        text: reason, for people.
        since: expected value of the annotation that marks a Job as suspended by the controller.
        done_s: total time that it has run, s.
        notes: annotations for its pods, if it is suspended.
    """

    key: Key
    uid: str
    suspend: bool
    text: str
    since: str | None
    done_s: float
    notes: dict[str, str] = {}


class InterruptibleJobs:
    """The interruptible Jobs and the decisions about them, while this replica leads.

    Args:
        view: watch caches of the cluster.
    """

    def __init__(self, view: GridView) -> None:
        self._view = view
        self._jobs: dict[Key, Managed] = {}

    @property
    def next_s(self) -> float:
        """Time of the next decision, s since the epoch."""
        return min((job.wake_s for job in self._jobs.values()), default=math.inf)

    def zones(self) -> set[str]:
        """The zones of all interruptible Jobs."""
        return {job.zone for job in self._jobs.values()}

    def of(self, namespace: str, owner: Owner | None) -> Managed | None:
        """The interruptible Job that a pod belongs to; None where it belongs to none."""
        if owner is None or owner.kind != JOBS.kind:
            return None
        found = self._jobs.get(Key(namespace, owner.name))
        return found if found is not None and found.facts.uid == owner.uid else None

    def update(self, keys: Iterable[Key]) -> None:
        """Update Jobs that were added, changed or deleted."""
        for key in keys:
            facts = self._view.jobs.get(key)
            managed = None if facts is None else self._managed(key, facts)
            before = self._jobs.pop(key, None)  # reinserted at the end, so that all Jobs are reached
            if managed is None:
                continue
            if before is not None and before.facts.uid == managed.facts.uid:
                managed.decision = before.decision
            self._jobs[key] = managed

    def zone_changed(self, zone: str) -> None:
        """Mark all Jobs of a zone for a new decision."""
        for job in self._jobs.values():
            if job.zone == zone:
                job.wake_s = -math.inf

    def decide(self, look: Callable[[str], Conditions | None], now_s: float) -> tuple[list[Change], list[str]]:
        """Decide up to `JOBS_PER_STEP` of the Jobs that are due; the rest stays due.

        Args:
            look: conditions in a zone; None while its sources have not been queried yet.
            now_s: s since the epoch.

        Returns:
            The Jobs to suspend or resume, and the UIDs of all that were decided. A failed write is repeated by the next
            decision.
        """
        changes, decided = [], []
        for key, job in islice(((key, job) for key, job in self._jobs.items() if job.wake_s <= now_s), JOBS_PER_STEP):
            progress = self._progress(job, now_s)
            conditions = look(job.zone)
            if conditions is None and now_s < progress.latest_resume_s:
                job.wake_s = now_s + 1.0
                continue
            conditions = conditions or Conditions()
            job.decision = decision = _decided(progress, conditions, now_s)
            decided.append(job.facts.uid)
            job.wake_s = math.inf if decision.wake_s is None else decision.wake_s
            facts, done_s = job.facts, progress.done_s
            if isinstance(decision, Pause) and not progress.paused:
                ran_s = done_s - facts.work_done_s
                notes = noted_at_pause(decision.held_by, conditions, facts.held, ran_s, now_s)
                if job.request.learned is not None:
                    notes[names.LEARNED_RUNTIME] = noted_runtime(job.request.learned)
                changes.append(Change(key, facts.uid, True, decision.text, facts.suspended_since, done_s, notes))
            elif isinstance(decision, Run) and progress.paused:
                changes.append(Change(key, facts.uid, False, decision.text, facts.suspended_since, done_s))
        return changes, decided

    def still_wants(self, change: Change) -> bool:
        """Whether the latest decision still agrees with an earlier change."""
        job = self._jobs.get(change.key)
        return job is not None and job.decision is not None and isinstance(job.decision, Pause) == change.suspend

    def let_go(self, keys: Iterable[Key]) -> list[Change]:
        """Manage these Jobs no longer, since nothing is held in a dry run or in observe mode.

        Returns:
            Those that the controller has suspended, to be resumed.
        """
        changes = []
        for key in keys:
            self._jobs.pop(key, None)
            job = self._view.jobs.get(key)
            if job is not None and job.suspended_by_us:
                changes.append(Change(key, job.uid, False, HOLDS_NOTHING, job.suspended_since, job.work_done_s))
        return changes

    def retry(self, key: Key, at_s: float) -> None:
        """Decide again at a time, after a write failed."""
        if key in self._jobs:
            self._jobs[key].wake_s = at_s

    def _managed(self, key: Key, facts: JobFacts) -> Managed | None:
        """The Job, if it is the controller's to suspend and resume."""
        # A Job that somebody else suspended, or resumed after the controller had suspended it, is left alone.
        untouched = not facts.suspended and facts.suspended_since is None
        if facts.queued or not (untouched or facts.suspended_by_us):
            return None
        request = self._view.request(key.namespace, facts.asking, Owner(JOBS.kind, key.name, facts.uid))
        asks = request.defer and request.interruptible and request.mode is Mode.INTERRUPTIBLE
        if not asks and not facts.suspended:  # a suspended one that no longer asks must still be resumed
            return None
        next_run = next_run_of(facts, self._view.cron_job_of(key.namespace, facts))
        done_by_s = None if next_run is None else next_run.time_s
        return Managed(facts, request, self._view.zone(request, facts.asking), done_by_s)

    def _progress(self, job: Managed, now_s: float) -> Progress:
        facts, done_s = job.facts, job.facts.work_done_s
        if facts.suspended:
            changed_s = _since_s(facts)
        elif facts.started_s is None or self._view.pods_of(facts.uid):
            changed_s = -math.inf  # its pods have not started yet, so there is nothing to interrupt
        else:
            changed_s = facts.started_s
            done_s += max(0.0, now_s - facts.started_s)
        return Progress(job.request, facts.created_s, done_s, facts.suspended, changed_s, job.done_by_s)


def _decided(job: Progress, conditions: Conditions, now_s: float) -> Run | Pause:
    """Decide; an error in the decision or in a plug-in's forecast lets the Job run."""
    try:
        return decide(job, conditions, now_s)
    except Exception as error:
        _log.exception("decision failed, running on")
        return Run(f"decision failed: {error}", now_s + FAILED_DECISION_RETRY_S)


def _since_s(facts: JobFacts) -> float:
    since_s = time_or_none(facts.suspended_since)
    return facts.created_s if since_s is None else since_s


class JobWriter:
    """Suspends and resumes Jobs.

    Args:
        client: to write with.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def write(self, change: Change, now_s: float) -> bool:
        """Suspend or resume a Job.

        Returns:
            False, without writing, if somebody else has changed the Job since the decision.

        Raises:
            KubernetesError: the write failed; `ConflictError` if the Job changed during the write.
        """
        found = await self._client.get(JOBS, change.key.name, change.key.namespace)
        if not _as_expected(found, change):
            return False
        begun, ended = (SUSPENDED_SINCE, RESUMED_SINCE) if change.suspend else (RESUMED_SINCE, SUSPENDED_SINCE)
        marks = {**change.notes, begun: rfc3339(now_s), ended: None, WORK_DONE: f"{change.done_s:.0f}"}
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": found.metadata.resource_version, "annotations": marks},
            "spec": {"suspend": change.suspend},
        }
        await self._client.patch(
            JOBS, change.key.name, body, namespace=change.key.namespace, field_manager=FIELD_MANAGER
        )
        return True

    async def leave(self, key: Key, uid: str) -> None:
        """Mark a Job as no longer managed, since somebody else has resumed it.

        Raises:
            KubernetesError: it was deleted or replaced.
        """
        body = {"metadata": {"uid": uid, "annotations": {SUSPENDED_SINCE: ""}}}
        await self._client.patch(JOBS, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER)


def _as_expected(found: Job, change: Change) -> bool:
    """Whether nobody else has suspended, resumed, ended or replaced the Job since it was decided about."""
    facts = keep_job(found)
    return (
        facts is not None
        and facts.uid == change.uid
        and facts.suspended is not change.suspend
        and facts.suspended_since == change.since
    )
