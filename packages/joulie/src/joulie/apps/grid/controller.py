"""The grid controller of the leading replica: take in changes, decide, queue writes, sleep until the next wake-up."""

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
from joulie.apps.grid.apply import (
    PodWriter,
    Rank,
    WriteQueue,
    inherited_at_release,
    noted_at_release,
    noted_of_place,
    was_held,
)
from joulie.apps.grid.budgets import BudgetHolds
from joulie.apps.grid.ceilings import ReplicaCeilings
from joulie.apps.grid.deferrals import by_chance, deferral_of
from joulie.apps.grid.dryrun import DryRun
from joulie.apps.grid.facts import GatedPod
from joulie.apps.grid.jobs import HOLDS_NOTHING, Change, InterruptibleJobs, JobWriter
from joulie.apps.grid.kueue import KueueChecks
from joulie.apps.grid.leader import Leader
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.notices import Notices, signals
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.pending import Deferral, PendingPod, PendingQueue, PodRelease
from joulie.apps.grid.publisher import IntensityPublisher
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.grid.trials import DeferralTrials
from joulie.domain.grid.deferral import Conditions, Release, ReleaseReason
from joulie.domain.grid.interrupt import Run
from joulie.domain.mode import Mode

DEBOUNCE_S = 0.2
"""Debounce: pods are created in bursts."""
LONGEST_SLEEP_S = 60.0
"""Upper bound of a sleep, so that clock steps and ageing signals are noticed."""
ZONE_PATIENCE_S = 60.0
"""How long decisions wait for the first answer of a zone's sources."""
RETRY_S = 5.0
GATING_EVERY_S = 60.0
_PODS_A_TURN = 500

_log = logging.getLogger(__name__)


class Controller:
    """Holds and releases pods while this replica leads. Its state survives in the pods' annotations.

    Args:
        client: Kubernetes client for writes.
        settings: settings of the program.
        view: watch caches of the cluster.
        feed: carbon intensity and prices.
        metrics: metrics of the controller.
        wake: set when an input of a decision changed.
        may_write: whether this replica still leads.
        now_s: current time, s since the epoch.

    Attributes:
        pending: queue of deferred pods.
        jobs: interruptible Jobs.
        trials: trials of deferral.
        budgets: holds and releases for EnergyBudgets.
        dry: the dry run; None if pods are really held in every namespace.
        ceilings: ceilings on the replicas of autoscalers; None if they are disabled.
        writes: queue of writes to the API server.
        events: event recorder.
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
        self.pending = PendingQueue(settings.release_limits, now_s(), use_priorities=settings.enable_pod_priorities)
        self.writes = WriteQueue(settings.write_concurrency, may_write)
        self.events = EventRecorder(client, "joulie-grid", instance=settings.identity or "", clock=now_s)
        self.jobs = InterruptibleJobs(view)
        self._pods = PodWriter(client)
        self._notices = Notices(view, self.pending, self._pods, self.writes, self.events, metrics, self._failed)
        self._jobs = JobWriter(client)
        self._zones_since_s: dict[str, float] = {}
        self._stepped_s = -math.inf
        self._known: dict[str, tuple[bool, ...]] = {}
        self._next_warning_s = -math.inf
        self._observing = asyncio.Event()
        self._new_dry_run = partial(
            DryRun, client, settings, view, feed, metrics.dry_run, self.writes, wake=wake.set, now_s=now_s
        )
        needed = settings.dry_run_enabled or settings.mode is Mode.OBSERVE
        self.dry: DryRun | None = self._new_dry_run() if needed else None
        leader = Leader(client, view, settings, metrics, self.events, may_write, now_s)
        self._kueue = KueueChecks(leader, self._conditions)
        self.trials = DeferralTrials(client, view.decide_again)
        self._publisher = IntensityPublisher(
            client,
            settings.namespace,
            feed,
            settings.electricity_map_api_region,
            settings.grid_zones,
            may_write=may_write,
            now_s=now_s,
        )
        self.budgets = BudgetHolds(leader)
        ceilings = ReplicaCeilings(leader, self._conditions)
        self.ceilings: ReplicaCeilings | None = ceilings if settings.replica_ceilings_enabled else None

    async def run(self) -> None:
        """Lead until cancelled."""
        self._view.begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.writes.run())
                group.create_task(self.events.run())
                group.create_task(self._keep_gating())
                group.create_task(self._kueue.run())
                group.create_task(self._publisher.run())
                group.create_task(self.trials.run())
                group.create_task(self.budgets.run())
                if self.ceilings is not None:
                    group.create_task(self.ceilings.run())
                group.create_task(self._run_dry_run())
                group.create_task(self._run_steps())
        finally:
            self._view.stand_by()

    async def _run_dry_run(self) -> None:
        """Follow the pods of the dry run, once a namespace is in observe mode."""
        if self.dry is None:
            await self._observing.wait()
            self.dry = self._new_dry_run()
        await self.dry.pods.run()

    async def _keep_gating(self) -> None:
        """Let admission gate new pods while this replica lifts the gates; not in a dry run."""
        while True:
            enabled = not self.dry_run
            try:
                await set_gating(self._client, self._settings.namespace, enabled=enabled)
            except KubernetesError as error:
                _log.warning("cannot switch gating", extra={"enabled": enabled, "problem": str(error)})
            # Repeated, since a guard whose clock is wrong may have taken this process for dead.
            await asyncio.sleep(GATING_EVERY_S)

    # ---- the step

    async def _run_steps(self) -> None:
        await self.trials.looked.wait()  # else the first step would draw pods of a trial for the holdout
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
        """Whether nothing is held anywhere."""
        return self._settings.dry_run_enabled or not self._view.has_namespace_in(Mode.ENFORCE)

    def _holds(self, namespace: str) -> bool:
        """Whether pods and Jobs of a namespace are held; else decisions about them are only recorded."""
        return not (self._settings.dry_run_enabled or self._view.observes(namespace))

    @property
    def next_s(self) -> float:
        """Time of the next decision, s since the epoch."""
        return min(self.pending.next_s, self.jobs.next_s, math.inf if self.dry is None else self.dry.next_s)

    async def step(self) -> None:
        """Run one step: take in changes, decide what is due, queue the writes."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        now_s = self._now_s()
        self._notice_clock(now_s)
        self._notice_age()
        self._decide_jobs(now_s)
        await self._take_in()
        decided = self.pending.decide(self._conditions, now_s)
        if decided:
            self._metrics.decide_seconds.labels("total").observe(clock() - began_s)
        for group in decided:
            await asyncio.sleep(0)
            self._notices.decided(group, _conditions(self._feed, group.zone), now_s)
        for going in self.pending.take_due(now_s):
            self._release(going)
        if self._view.has_namespace_in(Mode.OBSERVE):
            self._observing.set()
        if self.dry is not None:
            self.dry.step(self._conditions)
        if len(self._zones_since_s) > MAX_ZONES:
            here = self._zones()
            self._zones_since_s = {zone: since_s for zone, since_s in self._zones_since_s.items() if zone in here}

    def _decide_jobs(self, now_s: float) -> None:
        """Suspend and resume interruptible Jobs; their pods follow."""
        changed, self._view.jobs_changed = self._view.jobs_changed, set()
        self._leave_to_others(changed)
        held = {key for key in changed if self._holds(key.namespace)}
        self.jobs.update(held)
        changes, decided = self.jobs.decide(self._conditions, now_s)
        for change in self.jobs.let_go(changed - held) + changes:
            self.writes.put(Rank.URGENT, partial(self._write_job, change), partial(self._job_failed, change))
        for uid in decided:
            self._view.changed.update(self._view.pods_of(uid))

    def _leave_to_others(self, keys: Iterable[Key]) -> None:
        """Stop managing Jobs that somebody else resumed after the controller had suspended them."""
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
        if self._holds(change.key.namespace) and not self.jobs.still_wants(change):
            return
        kind = "suspend" if change.suspend else "resume"
        if not await self._jobs.write(change, self._now_s()):
            return
        self._metrics.writes.labels(kind).inc()
        reason = "GridSuspended" if change.suspend else "GridResumed"
        self.events.emit(_job_reference(change), "Normal", reason, f"{kind}s: {change.text}")

    def _job_failed(self, change: Change, error: Exception) -> None:
        self._failed("suspend" if change.suspend else "resume", change.key, error)
        self.jobs.retry(change.key, self._now_s() + RETRY_S)
        if not self._holds(change.key.namespace):
            self._view.jobs_changed.add(change.key)

    async def _take_in(self) -> None:
        """Update the queue from the pods that changed."""
        changed, self._view.changed = self._view.changed, set()
        for index, key in enumerate(changed):
            if index % _PODS_A_TURN == _PODS_A_TURN - 1:
                await asyncio.sleep(0)
            try:
                self._take_in_one(key, self._view.pods.get(key))
            except Exception:  # one malformed pod must not block the others
                _log.exception("cannot process pod", extra={"pod": str(key)})

    def _take_in_one(self, key: Key, pod: GatedPod | None) -> None:
        before = self.pending.of(key)
        if before is not None and (pod is None or before.pods[key].uid != pod.uid):
            self._forget(key)
        if pod is None or not self._view.knows_namespace(key.namespace):
            return  # namespaces have a watch of their own, which marks their pods as changed
        deferral = self._deferral(key, pod)
        if deferral is None:
            self._forget(key)
            return
        self._notices.report_invalid(key, pod, deferral)
        held = was_held(pod.asking.annotations)
        self.pending.put(PendingPod(key, pod.uid, pod.priority, pod.created_s), deferral, held=held)

    def _deferral(self, key: Key, pod: GatedPod) -> Deferral | None:
        """The deferral of a pod; None while its interruptible Job is being suspended, which deletes its pods."""
        deferral = deferral_of(key, pod, self._view)
        if not self._holds(key.namespace):
            return Deferral(deferral.zone, deferral.waiting, Release(ReleaseReason.NOT_ASKED, HOLDS_NOTHING))
        job = self.jobs.of(key.namespace, pod.owner)
        if job is None:
            top, share = self._view.top_of(key.namespace, pod.owner), self._settings.holdout_share
            return by_chance(key, pod, deferral, top, self.trials.known, share)
        if not isinstance(job.decision, Run):
            return None
        return Deferral(
            deferral.zone, deferral.waiting, Release(ReleaseReason.WINDOW, f"its Job runs: {job.decision.text}")
        )

    def _forget(self, key: Key) -> None:
        group = self.pending.of(key)
        if group is None:
            return
        uid = group.pods[key].uid
        self.pending.remove(key)
        self._notices.forget(uid)

    # ---- the grid

    def zone_changed(self, zone: str) -> None:
        """Decide again for all pods and Jobs of a zone, after one of its signals changed."""
        self.pending.zone_changed(zone)
        self.jobs.zone_changed(zone)
        self._kueue.signals_changed()
        if self.dry is not None:
            self.dry.pending.zone_changed(zone)
        self._wake.set()

    def _notice_clock(self, now_s: float) -> None:
        """Decide everything again after the clock was set back: what was to happen at a time would happen late."""
        if now_s < self._stepped_s:
            self._zones_since_s.clear()
            self._next_warning_s = -math.inf
            for zone in self._zones():
                self.zone_changed(zone)
        self._stepped_s = now_s

    def _notice_age(self) -> None:
        """Notice signals that became missing because no update arrived."""
        known = {zone: _is_known(self._feed, zone) for zone in self._zones()}
        for zone, now in known.items():
            if now != self._known.get(zone, now):
                self.zone_changed(zone)
        self._known = known

    def _zones(self) -> set[str]:
        """The zones of deferred pods and interruptible Jobs."""
        return self.pending.zones() | self.jobs.zones() | (set() if self.dry is None else self.dry.pending.zones())

    def _conditions(self, zone: str) -> Conditions | None:
        """Conditions in a zone; None until its sources have answered, for at most `ZONE_PATIENCE_S`."""
        if not self._feed.want(zone) or self._feed.asked(zone):
            # Sources of zones without pods are no longer polled; they are queried again when one arrives.
            self._zones_since_s.pop(zone, None)
            return _conditions(self._feed, zone)
        since_s = self._zones_since_s.setdefault(zone, self._now_s())
        return None if self._now_s() < since_s + ZONE_PATIENCE_S else _conditions(self._feed, zone)

    # ---- writing

    def _release(self, going: PodRelease) -> None:
        self.writes.put(
            Rank.URGENT if going.urgent else Rank.RELEASE,
            partial(self._lift, going),
            partial(self._lift_failed, going.pod),
        )

    async def _lift(self, going: PodRelease) -> None:
        now_s = self._now_s()
        waiter, pod = going.pod, self._view.pods.get(going.pod.key)
        if pod is None or pod.uid != waiter.uid:
            return
        present = self._notices.present(waiter.uid, pod)
        # Read before the write: while it runs, the watch may show the pod without its gate, which drops its state.
        held_before = self._notices.says_held(waiter.uid, present)
        conditions = _conditions(self._feed, going.zone)
        job = self._view.job_of(waiter.key, pod)
        inherited = {} if job is None or was_held(present) else inherited_at_release(job, now_s)
        noted = inherited | noted_at_release(conditions, present | inherited, now_s)
        noted |= noted_of_place(going.deferral.zones, going.zone)
        if going.deferral.drawn is not None:
            noted |= [going.deferral.drawn]
        await self._pods.lift(waiter.key, waiter.uid, noted)
        self._notices.released(going, now_s, was_held=held_before)

    def _lift_failed(self, waiter: PendingPod, error: Exception) -> None:
        self._failed("release", waiter.key, error)
        asyncio.get_running_loop().call_later(RETRY_S, self._requeue, waiter.key)

    def _requeue(self, key: Key) -> None:
        self.pending.requeue(key)
        self._wake.set()

    def _failed(self, kind: str, key: Key, error: Exception) -> None:
        if isinstance(error, NotFoundError):
            return  # the watch reports it
        self._metrics.write_errors.labels(kind).inc()
        if self._now_s() >= self._next_warning_s:  # one cause may fail ten thousand writes
            self._next_warning_s = self._now_s() + RETRY_S
            _log.warning("write failed", extra={"object": str(key), "kind": kind, "problem": str(error)})


def _conditions(feed: GridFeed, zone: str) -> Conditions:
    return Conditions(feed.carbon(zone), feed.price(zone))


def _is_known(feed: GridFeed, zone: str) -> tuple[bool, ...]:
    return tuple(signal.known for signal in signals(_conditions(feed, zone)))


def _job_reference(change: Change) -> ObjectReference:
    return ObjectReference(
        kind="Job", name=change.key.name, api_version="batch/v1", namespace=change.key.namespace, uid=change.uid
    )
