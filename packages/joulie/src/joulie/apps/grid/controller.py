"""The controller while it leads: look, decide, write, and sleep until something can have changed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial

from joulie.adapters.grid.feed import MAX_ZONES, GridFeed
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.gating import set_gating
from joulie.apps.grid.apply import PodWriter, Rank, WriteQueue, noted_at_release
from joulie.apps.grid.cases import case_of
from joulie.apps.grid.dryrun import DryRun
from joulie.apps.grid.facts import GatedPod
from joulie.apps.grid.jobs import Change, JobDesk, JobWriter
from joulie.apps.grid.kueue import KueueChecks
from joulie.apps.grid.kueue_settings import KueueMode
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.notices import HELD_KEYS, Notices, signals
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.room import Case, Going, Waiter, WaitingRoom
from joulie.apps.grid.settings import ControllerSettings
from joulie.domain.grid.deferral import Conditions, Release, ReleaseReason
from joulie.domain.grid.interrupt import Run

DEBOUNCE_S = 0.2
"""Changes are gathered for this long, since pods come in flocks."""
LONGEST_SLEEP_S = 60.0
"""A clock that is set, or a signal that ages, is noticed after this long."""
ZONE_PATIENCE_S = 60.0
"""How long decisions wait for the first answer about a zone."""
RETRY_S = 5.0
GATING_EVERY_S = 60.0
_PODS_A_TURN = 500

_log = logging.getLogger(__name__)


class Controller:
    """One term of leadership. All that it has to remember is in the pods' annotations.

    Args:
        client: to write with.
        settings: of the program.
        view: of the cluster.
        feed: signals of the grid.
        metrics: to count in.
        wake: set when something changed that decisions hang on.
        may_write: whether this process leads.
        now_s: s since the epoch.

    Attributes:
        room: where the pods wait.
        jobs: those that may be interrupted.
        dry: the dry run; None where pods are really held.
        writes: what is to be written.
        events: what is to be told.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: ControllerSettings,
        view: GridView,
        feed: GridFeed,
        metrics: ControllerMetrics,
        wake: asyncio.Event,
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._settings = settings
        self._view = view
        self._feed = feed
        self._metrics = metrics
        self._wake = wake
        self._now_s = now_s
        self.room = WaitingRoom(settings.release_limits, now_s(), use_priorities=settings.enable_pod_priorities)
        self.writes = WriteQueue(settings.write_concurrency, may_write)
        self.events = EventRecorder(client, "joulie-grid", instance=settings.identity or "", clock=now_s)
        self.jobs = JobDesk(view)
        self._pods = PodWriter(client)
        self._notices = Notices(view, self.room, self._pods, self.writes, self.events, metrics, self._failed)
        self._jobs = JobWriter(client)
        self._zones_since_s: dict[str, float] = {}
        self._known: dict[str, tuple[bool, ...]] = {}
        self._next_warning_s = -math.inf
        self.dry = (
            DryRun(client, settings, view, feed, metrics.dry_run, self.writes, wake=wake.set, now_s=now_s)
            if settings.dry_run_enabled
            else None
        )
        self._kueue = KueueChecks(
            client,
            view,
            self._conditions,
            self.events,
            mode=KueueMode(settings.kueue_enabled),
            max_requeue_s=settings.kueue_max_requeue_s,
            may_write=may_write,
            now_s=now_s,
            dry_run=settings.dry_run_enabled,
            decided=metrics.decided,
        )

    async def run(self) -> None:
        """Lead until cancelled."""
        self._view.begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.writes.run())
                group.create_task(self.events.run())
                group.create_task(self._say_gating())
                group.create_task(self._kueue.run())
                if self.dry is not None:
                    group.create_task(self.dry.pods.run())
                group.create_task(self._step_for_ever())
        finally:
            self._view.stand_by()

    async def _say_gating(self) -> None:
        """Let admission gate new pods while this process is there to lift the gates; not in a dry run."""
        enabled = not self.dry_run
        while True:
            try:
                await set_gating(self._client, self._settings.namespace, enabled=enabled)
            except KubernetesError as error:
                _log.warning("gating is not switched", extra={"enabled": enabled, "problem": str(error)})
            # Again and again: the guard, by a clock that is wrong, may have taken this process for dead.
            await asyncio.sleep(GATING_EVERY_S)

    # ---- the step

    async def _step_for_ever(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.step()
            except Exception:
                _log.exception("step failed")
            await self._pause()

    async def _pause(self) -> None:
        wait_s = min(LONGEST_SLEEP_S, max(DEBOUNCE_S, self.next_s - self._now_s()))
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
                await asyncio.sleep(DEBOUNCE_S)
        except TimeoutError:
            return

    @property
    def dry_run(self) -> bool:
        """Whether nothing is held."""
        return self.dry is not None

    @property
    def next_s(self) -> float:
        """When something is decided again, s since the epoch."""
        return min(self.room.next_s, self.jobs.next_s, math.inf if self.dry is None else self.dry.next_s)

    async def step(self) -> None:
        """One step: take in what changed, decide what is due, and queue what is to be written."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        now_s = self._now_s()
        self._notice_age()
        self._decide_jobs(now_s)
        await self._take_in()
        decided = self.room.decide(self._conditions, now_s)
        if decided:
            self._metrics.decide_seconds.labels("total").observe(clock() - began_s)
        for group in decided:
            await asyncio.sleep(0)
            self._notices.decided(group, _conditions(self._feed, group.case.zone), now_s)
        for going in self.room.take_due(now_s):
            self._release(going)
        if self.dry is not None:
            self.dry.step(self._conditions)
        if len(self._zones_since_s) > MAX_ZONES:
            here = self._zones()
            self._zones_since_s = {zone: since_s for zone, since_s in self._zones_since_s.items() if zone in here}

    def _decide_jobs(self, now_s: float) -> None:
        """Suspend and resume interruptible Jobs; their pods follow them."""
        changed, self._view.jobs_changed = self._view.jobs_changed, set()
        self._leave_to_others(changed)
        decided: list[str] = []
        if self.dry_run:
            changes = self.jobs.to_let_go(changed)
        else:
            self.jobs.look(changed)
            changes, decided = self.jobs.decide(self._conditions, now_s)
        for change in changes:
            self.writes.put(Rank.URGENT, partial(self._write_job, change), partial(self._job_failed, change))
        for uid in decided:
            self._view.changed.update(self._view.pods_of(uid))

    def _leave_to_others(self, keys: Iterable[Key]) -> None:
        """Who resumes a Job that the controller has suspended may suspend it later: that one stays as it is."""
        for key in keys:
            job = self._view.jobs.get(key)
            if job is not None and job.resumed_by_others:
                self.writes.put(Rank.URGENT, partial(self._leave, key, job.uid), partial(self._leave_failed, key))

    async def _leave(self, key: Key, uid: str) -> None:
        await self._jobs.leave(key, uid)
        self._metrics.writes.labels("leave").inc()

    def _leave_failed(self, key: Key, error: Exception) -> None:
        self._failed("leave", key, error)
        self._view.jobs_changed.add(key)

    async def _write_job(self, change: Change) -> None:
        if not self.dry_run and not self.jobs.still_wants(change):
            return
        kind = "suspend" if change.suspend else "resume"
        if not await self._jobs.write(change, self._now_s()):
            return
        self._metrics.writes.labels(kind).inc()
        reason = "GridSuspended" if change.suspend else "GridResumed"
        self.events.emit(_job_reference(change), "Normal", reason, f"{kind}s: {change.text}")

    def _job_failed(self, change: Change, error: Exception) -> None:
        self._failed("suspend" if change.suspend else "resume", change.key, error)
        self.jobs.again(change.key, self._now_s() + RETRY_S)
        if self.dry_run:
            self._view.jobs_changed.add(change.key)

    async def _take_in(self) -> None:
        """Bring the room up to date with the pods that changed."""
        changed, self._view.changed = self._view.changed, set()
        for index, key in enumerate(changed):
            if index % _PODS_A_TURN == _PODS_A_TURN - 1:
                await asyncio.sleep(0)
            try:
                self._take_in_one(key, self._view.pods.get(key))
            except Exception:  # what is odd about one pod must not hold the others
                _log.exception("pod not taken in", extra={"pod": str(key)})

    def _take_in_one(self, key: Key, pod: GatedPod | None) -> None:
        before = self.room.of(key)
        if before is not None and (pod is None or before.pods[key].uid != pod.uid):
            self._forget(key)
        if pod is None or not self._view.knows_namespace(key.namespace):
            return  # a namespace comes by a watch of its own, and brings up its pods
        case = self._case(key, pod)
        if case is None:
            self._forget(key)
            return
        self._notices.complain(key, pod, case)
        held = any(name in pod.asking.annotations for name in HELD_KEYS)
        self.room.put(Waiter(key, pod.uid, pod.priority, pod.created_s), case, held=held)

    def _case(self, key: Key, pod: GatedPod) -> Case | None:
        """The case of a pod; None while its interruptible Job is to be suspended, which removes its pods."""
        case = case_of(key, pod, self._view)
        if self.dry_run:
            return Case(case.zone, case.waiting, Release(ReleaseReason.NOT_ASKED, "a dry run holds nothing"))
        job = self.jobs.of(key.namespace, pod.owner)
        if job is None:
            return case
        if not isinstance(job.decision, Run):
            return None
        return Case(case.zone, case.waiting, Release(ReleaseReason.WINDOW, f"its Job runs: {job.decision.text}"))

    def _forget(self, key: Key) -> None:
        group = self.room.of(key)
        if group is None:
            return
        uid = group.pods[key].uid
        self.room.remove(key)
        self._notices.forget(uid)

    # ---- the grid

    def zone_changed(self, zone: str) -> None:
        """Decide again for all who wait in a zone: a signal of it changed."""
        self.room.zone_changed(zone)
        self.jobs.zone_changed(zone)
        if self.dry is not None:
            self.dry.room.zone_changed(zone)
        self._wake.set()

    def _notice_age(self) -> None:
        """A signal that nobody renews goes missing without anybody saying so."""
        known = {zone: _is_known(self._feed, zone) for zone in self._zones()}
        for zone, now in known.items():
            if now != self._known.get(zone, now):
                self.zone_changed(zone)
        self._known = known

    def _zones(self) -> set[str]:
        """The zones that somebody waits or runs in."""
        return self.room.zones() | self.jobs.zones() | (set() if self.dry is None else self.dry.room.zones())

    def _conditions(self, zone: str) -> Conditions | None:
        """What is known of a zone; None until its sources have been asked, though not for long."""
        if not self._feed.want(zone) or self._feed.asked(zone):
            # A zone that nobody wants is forgotten, and asked about anew when somebody does.
            self._zones_since_s.pop(zone, None)
            return _conditions(self._feed, zone)
        since_s = self._zones_since_s.setdefault(zone, self._now_s())
        return None if self._now_s() < since_s + ZONE_PATIENCE_S else _conditions(self._feed, zone)

    # ---- writing

    def _release(self, going: Going) -> None:
        self.writes.put(
            Rank.URGENT if going.urgent else Rank.RELEASE,
            partial(self._lift, going),
            partial(self._lift_failed, going.pod),
        )

    async def _lift(self, going: Going) -> None:
        now_s = self._now_s()
        waiter, pod = going.pod, self._view.pods.get(going.pod.key)
        if pod is None or pod.uid != waiter.uid:
            return
        present = self._notices.present(waiter.uid, pod)
        # Asked before the write: while that runs, the watch may show the pod without its gate, and it is forgotten.
        was_held = self._notices.says_held(waiter.uid, present)
        conditions = _conditions(self._feed, going.case.zone)
        await self._pods.lift(waiter.key, waiter.uid, noted_at_release(conditions, present, now_s))
        self._notices.released(going, now_s, was_held=was_held)

    def _lift_failed(self, waiter: Waiter, error: Exception) -> None:
        self._failed("release", waiter.key, error)
        asyncio.get_running_loop().call_later(RETRY_S, self._come_back, waiter.key)

    def _come_back(self, key: Key) -> None:
        self.room.come_back(key)
        self._wake.set()

    def _failed(self, kind: str, key: Key, error: Exception) -> None:
        if isinstance(error, NotFoundError):
            return  # the watch will tell
        self._metrics.write_errors.labels(kind).inc()
        if self._now_s() >= self._next_warning_s:  # what is wrong with one pod may be wrong with ten thousand
            self._next_warning_s = self._now_s() + RETRY_S
            _log.warning("not written", extra={"object": str(key), "kind": kind, "problem": str(error)})


def _conditions(feed: GridFeed, zone: str) -> Conditions:
    return Conditions(feed.carbon(zone), feed.price(zone))


def _is_known(feed: GridFeed, zone: str) -> tuple[bool, ...]:
    return tuple(signal.known for signal in signals(_conditions(feed, zone)))


def _job_reference(change: Change) -> ObjectReference:
    return ObjectReference(
        kind="Job", name=change.key.name, api_version="batch/v1", namespace=change.key.namespace, uid=change.uid
    )
