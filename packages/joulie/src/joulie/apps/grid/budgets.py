"""Holds pods and Jobs while their EnergyBudget is exhausted, and lets them go in order of waiting.

What is decided follows from the budgets' spec, their measured status and the clock alone; what waits is marked on the
objects: pods by a scheduling gate, Jobs by an annotation. So another replica goes on where this one died.

- New pods of a namespace get the gate at admission, while one of its budgets holds.
- Jobs of which no pod has a node yet are suspended: their pods were let go before and must not start now, nor does
  their deadline run.
- Running Jobs that may be interrupted are suspended if the budget says so. Nothing else that runs is touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import BudgetHeld, Condition, EnergyBudget, EnergyBudgetStatus
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import (
    HOLDING,
    amounts_of,
    condition_of,
    reference_of,
    target_of,
    with_times,
)
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.gating import set_budget_gating
from joulie.adapters.kubernetes.pods import workload_of
from joulie.adapters.kubernetes.resources import CRON_JOBS, ENERGY_BUDGETS, JOBS, PODS
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.grid.apply import FIELD_MANAGER, PodWriter
from joulie.apps.grid.facts import BUDGET_WAITING_SINCE, JobFacts, created_s, keep_job
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.domain.accounting.budget import BudgetResponse, WhenUnknown
from joulie.domain.accounting.energy_budget import BudgetTarget, HoldReason, Measured, decide, holds
from joulie.domain.grid import names
from joulie.domain.grid.release import Bucket, Due, Limits, due_now, in_order
from joulie.domain.grid.request import is_interruptible
from joulie.domain.resource_quantity import QuantityError
from joulie.program.leadership import NotLeadingError

STEP_S = 1.0
"""Interval of the steps while there is a budget that may hold something, s."""
REBIND_S = 60.0
"""How often the namespaces whose pods are gated are written again, s: a guard may have taken this process for dead."""
IDLE_S = 60.0
_UNBOUND = "spec.nodeName="

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BudgetSettings:
    """Settings of budgets.

    Attributes:
        when_unknown: what happens to new pods while the usage is unknown, where the budget does not say.
        stale_after_s: age at which a measurement says nothing any more, s.
        limits: rate at which what waited is released.
    """

    when_unknown: WhenUnknown
    stale_after_s: float
    limits: Limits


class UnboundPod(msgspec.Struct, frozen=True, gc=False):
    """Cached facts of a pod without a node.

    Attributes:
        uid: UID of the pod.
        created_s: creation, s since the epoch.
        workload: kind and name of its workload.
        job_uid: UID of its Job; empty without one.
        labels: its labels.
        gated: whether it has the gate of budgets.
    """

    uid: str
    created_s: float
    workload: tuple[str, str]
    job_uid: str
    labels: dict[str, str]
    gated: bool


def keep_unbound(pod: Pod) -> UnboundPod | None:
    """Cached facts of a pod; None while it is being deleted.

    Raises:
        QuantityError: the creation time is invalid.
    """
    meta = pod.metadata
    if meta.deletion_timestamp is not None:
        return None
    controller, workload = meta.controller, workload_of(meta, meta.controller)
    return UnboundPod(
        meta.uid,
        created_s(meta),
        (workload.kind, workload.name),
        controller.uid if controller is not None and controller.kind == JOBS.kind else "",
        meta.labels,
        any(gate.name == names.BUDGET_GATE for gate in pod.spec.scheduling_gates),
    )


class Holder(NamedTuple):
    """A budget that holds now.

    Attributes:
        key: namespace and name of the budget.
        target: pods that it is for.
        suspends: whether it suspends running Jobs that may be interrupted.
        text: why it holds and until when, for people.
    """

    key: Key
    target: BudgetTarget
    suspends: bool
    text: str


class Waiter(NamedTuple):
    """A Job or pod that waits, in the order in which it is released.

    Attributes:
        since_s: since when it waits, s since the epoch.
        key: namespace and name.
        job: the Job; None for a pod.
        pod: the pod; None for a Job.
    """

    since_s: float
    key: Key
    job: JobFacts | None = None
    pod: UnboundPod | None = None

    @property
    def name(self) -> str:
        """Kind, namespace and name: unique."""
        return f"{'pod' if self.job is None else 'job'} {self.key}"


class BudgetHolds:
    """Holds and releases for EnergyBudgets while this replica leads.

    Args:
        client: Kubernetes client.
        view: watch caches with Jobs and namespaces.
        events: event recorder.
        metrics: metrics of the controller.
        settings: settings of budgets.
        dry_run: hold nothing.
        may_write: whether this replica leads.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: GridView,
        events: EventRecorder,
        metrics: ControllerMetrics,
        settings: BudgetSettings,
        *,
        dry_run: bool,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._events = events
        self._metrics = metrics
        self._settings = settings
        self._dry_run = dry_run
        self._may_write = may_write
        self._now_s = now_s
        self._pods = PodWriter(client)
        self._wake = asyncio.Event()
        self._bucket = Bucket(float(settings.limits.burst), now_s())
        self._bound: tuple[str, ...] | None = None
        self._bound_s = 0.0
        self._told: set[tuple[str, Key]] = set()
        self.budgets: Cache[EnergyBudget, EnergyBudget] = Cache(client, ENERGY_BUDGETS, lambda found: found)
        self.unbound: Cache[Pod, UnboundPod] = Cache(client, PODS, keep_unbound, field_selector=_UNBOUND)
        self.budgets.add_listener(lambda _key, _old, _new: self._wake.set())

    async def run(self) -> None:
        """Hold and release until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.budgets.run())
            group.create_task(self.unbound.run())
            await self.budgets.wait_synced()
            await self.unbound.wait_synced()
            while True:
                self._wake.clear()
                try:
                    done = await self.step()
                except Exception:
                    _log.exception("step of budgets failed")
                    done = False
                await self._pause(IDLE_S if done else STEP_S)

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def step(self) -> bool:
        """Run one step.

        Returns:
            Whether nothing is left to do until a budget changes.
        """
        now_s = self._now_s()
        reasons = {key: self._reason(budget, now_s) for key, budget in self.budgets.objects.items()}
        holders = [self._holder(key, reason) for key, reason in reasons.items() if self._enforces(key, reason)]
        by_namespace: dict[str, list[Holder]] = {}
        for one in holders:
            by_namespace.setdefault(one.key.namespace, []).append(one)
        await self._bind(tuple(sorted(by_namespace)), now_s)
        await self._suspend(by_namespace, now_s)
        waiting, held = self._waiting(by_namespace)
        released = await self._release(waiting, now_s)
        self._tell_held_pods(held)
        await self._write_statuses(reasons, held, now_s)
        self._measure(reasons.values(), held)
        acting = any(one.spec.action not in (None, BudgetResponse.REPORT) for one in self.budgets.objects.values())
        return not acting and released and not by_namespace

    # ---- deciding

    def _reason(self, budget: EnergyBudget, now_s: float) -> HoldReason:
        status, spec = budget.status, budget.spec
        when_unknown = self._settings.when_unknown if spec.when_unknown is None else WhenUnknown(spec.when_unknown)
        holding = condition_of(budget, HOLDING)
        measured = Measured(
            None if status.used is None else amounts_of(status.used),
            _time_s(status.last_updated or budget.metadata.creation_timestamp),
            None if status.period_end is None else _time_s(status.period_end),
        )
        new = status.last_updated is None and now_s - measured.time_s < self._settings.stale_after_s
        if new and when_unknown is WhenUnknown.OPEN:
            return HoldReason.WITHIN
        return decide(
            amounts_of(spec.limits),
            measured,
            now_s,
            stale_after_s=self._settings.stale_after_s,
            when_unknown=when_unknown,
            holding=holding is not None and holding.status == "True",
        )

    def _enforces(self, key: Key, reason: HoldReason) -> bool:
        """Whether a budget holds something now."""
        if not holds(reason) or self._dry_run or self._view.observes(key.namespace):
            return False
        return self.budgets.objects[key].spec.action in (BudgetResponse.GATE, BudgetResponse.SUSPEND)

    def _holder(self, key: Key, reason: HoldReason) -> Holder:
        budget = self.budgets.objects[key]
        until = "" if budget.status.period_end is None else f" until {budget.status.period_end}"
        why = f"is exhausted{until}" if reason is HoldReason.EXHAUSTED else "holds, since its usage is unknown"
        text = f"EnergyBudget {key.name} {why}"
        return Holder(key, target_of(budget), budget.spec.action == BudgetResponse.SUSPEND, text)

    # ---- holding

    async def _bind(self, namespaces: tuple[str, ...], now_s: float) -> None:
        """Let admission gate new pods of these namespaces."""
        if namespaces == self._bound and now_s - self._bound_s < REBIND_S:
            return
        try:
            self._check_leading()
            await set_budget_gating(self._client, namespaces)
        except (KubernetesError, NotLeadingError) as error:
            self._bound = None
            _log.warning("cannot switch the gating of budgets", extra={"problem": str(error)})
        else:
            self._bound, self._bound_s = namespaces, now_s

    async def _suspend(self, holders: Mapping[str, list[Holder]], now_s: float) -> None:
        unbound: dict[str, int] = {}
        for pod in self.unbound.objects.values():
            unbound[pod.job_uid] = unbound.get(pod.job_uid, 0) + 1
        writes = []
        for key, job in self._view.jobs.items():
            by = _holder_of(holders, key, job.workload, job.labels)
            if by is None or job.suspended or job.queued or job.budget_since is not None:
                continue
            waits = 0 < job.active == unbound.get(job.uid, 0) and job.workload[0] in (JOBS.kind, CRON_JOBS.kind)
            if by.suspends and is_interruptible(job.asking.annotations):
                since_s = job.created_s if waits else now_s
                writes.append(partial(self._suspend_job, key, job, by.text, since_s, runs=True))
            elif waits:
                writes.append(partial(self._suspend_job, key, job, by.text, job.created_s, runs=False))
        await write_all(writes)  # at once: each of these pods may get a node any moment

    async def _suspend_job(self, key: Key, job: JobFacts, text: str, since_s: float, *, runs: bool) -> None:
        """Suspend a Job that waits since a time; one that must not be interrupted only if none of its pods runs."""
        if runs or not await self._has_node(key, job):
            await self._write_job(key, job, text, rfc3339(since_s))

    async def _has_node(self, key: Key, job: JobFacts) -> bool:
        """Whether a pod of a Job has a node by now, or nobody can tell: the watch may be late, and it must not die."""
        try:
            selector = f"batch.kubernetes.io/controller-uid={job.uid}"
            found = await self._client.list(PODS, namespace=key.namespace, label_selector=selector)
        except KubernetesError as error:
            self._failed("suspend", key, error)
            return True
        return any(pod.spec.node_name for pod in found.items)

    async def _write_job(self, key: Key, job: JobFacts, text: str, since: str | None) -> bool:
        """Suspend a Job that waits since a time, or resume it. Returns whether nothing is left to do."""
        suspend = since is not None
        kind = "suspend" if suspend else "resume"
        try:
            self._check_leading()
            if await write_job(self._client, key, job, since):
                reason = "BudgetSuspended" if suspend else "BudgetResumed"
                self._events.emit(_job_reference(key, job), "Normal", reason, f"{kind}s: {text}")
        except (NotFoundError, ConflictError):
            return True  # the watch reports what became of it
        except (KubernetesError, NotLeadingError) as error:
            self._failed(kind, key, error)
            return False
        self._metrics.writes.labels(f"budget_{kind}").inc()
        return True

    # ---- releasing

    def _waiting(self, holders: Mapping[str, list[Holder]]) -> tuple[list[Waiter], list[tuple[Waiter, Holder]]]:
        """What waits: what may go now, and what is still held."""
        free, held = [], []
        for waiter, workload, labels in self._waiters():
            by = _holder_of(holders, waiter.key, workload, labels)
            if by is None:
                free.append(waiter)
            elif waiter.job is None or waiter.job.suspended:
                held.append((waiter, by))
        return free, held

    def _waiters(self) -> Iterator[tuple[Waiter, tuple[str, str], Mapping[str, str]]]:
        for key, job in self._view.jobs.items():
            if job.budget_since is not None:
                since_s = _time_s(job.budget_since) or job.created_s
                yield Waiter(since_s, key, job=job), job.workload, job.labels
        for key, pod in self.unbound.objects.items():
            if pod.gated:
                yield Waiter(pod.created_s, key, pod=pod), pod.workload, pod.labels

    async def _release(self, waiting: Iterable[Waiter], now_s: float) -> bool:
        """Release in order of waiting, at the rate of the settings. Returns whether all are released."""
        by_name = {one.name: one for one in waiting}
        due = in_order((Due(one.name, 0, one.since_s) for one in by_name.values()), use_priorities=False)
        releases = due_now(due, self._bucket, now_s, self._settings.limits)
        self._bucket = releases.bucket
        done = [await self._release_one(by_name[one.name]) for one in releases.now]
        return all(done) and len(done) == len(due)

    async def _release_one(self, one: Waiter) -> bool:
        if one.job is not None:
            return await self._write_job(one.key, one.job, "its EnergyBudget lets it go", None)
        assert one.pod is not None
        try:
            self._check_leading()
            await self._pods.lift(one.key, one.pod.uid, {}, names.BUDGET_GATE)
        except NotFoundError:
            return True
        except (KubernetesError, NotLeadingError) as error:
            self._failed("release", one.key, error)
            return False
        self._metrics.writes.labels("budget_release").inc()
        return True

    # ---- telling

    def _tell_held_pods(self, held: Iterable[tuple[Waiter, Holder]]) -> None:
        """Emit an event for each pod that a budget holds, once."""
        told = set()
        for waiter, by in held:
            if waiter.pod is not None:
                mark = waiter.pod.uid, by.key
                told.add(mark)
                if mark not in self._told:
                    key = waiter.key
                    pod = ObjectReference("Pod", key.name, "v1", namespace=key.namespace, uid=waiter.pod.uid)
                    self._events.emit(pod, "Normal", "BudgetHold", f"waits: {by.text}")
        self._told = told

    async def _write_statuses(
        self, reasons: Mapping[Key, HoldReason], held: Iterable[tuple[Waiter, Holder]], now_s: float
    ) -> None:
        counts = {key: [0, 0] for key in reasons}
        for waiter, by in held:
            counts[by.key][waiter.job is not None] += 1
        for key, reason in reasons.items():
            budget = self.budgets.objects.get(key)
            if budget is None:
                continue
            enforced = self._enforces(key, reason)
            status = EnergyBudgetStatus(
                held=BudgetHeld(*counts[key]),
                conditions=with_times(budget, [_holding(reason, enforced)], rfc3339(now_s)),
            )
            old = condition_of(budget, HOLDING)
            if budget.status.held == status.held and (old,) == status.conditions:
                continue
            if old is None or (old.status, old.reason) != (status.conditions[0].status, status.conditions[0].reason):
                self._tell(budget, status.conditions[0], first=old is None)
            await self._write_status(key, status)

    async def _write_status(self, key: Key, status: EnergyBudgetStatus) -> None:
        try:
            self._check_leading()
            await self._client.apply(
                ENERGY_BUDGETS,
                key.name,
                {"status": status},
                namespace=key.namespace,
                field_manager=FIELD_MANAGER,
                subresource="status",
            )
        except NotFoundError:
            return
        except (KubernetesError, NotLeadingError) as error:
            self._failed("status", key, error)

    def _tell(self, budget: EnergyBudget, condition: Condition, *, first: bool) -> None:
        unknown = condition.reason in (HoldReason.FAILS_OPEN, HoldReason.FAILS_CLOSED)
        if first and condition.reason == HoldReason.WITHIN:
            return
        reason = "BudgetUsageUnknown" if unknown else "BudgetHolds" if condition.status == "True" else "BudgetReleases"
        self._events.emit(reference_of(budget), "Warning" if unknown else "Normal", reason, condition.message)
        key = Key(budget.metadata.namespace, budget.metadata.name)
        level = logging.WARNING if unknown else logging.INFO
        _log.log(level, "energy budget", extra={"budget": str(key), "reason": reason, "detail": condition.message})

    def _measure(self, reasons: Iterable[HoldReason], held: Sequence[tuple[Waiter, Holder]]) -> None:
        counts = Counter(reasons)
        for reason in HoldReason:
            self._metrics.budgets.labels(reason.value).set(counts[reason])
        jobs = sum(waiter.job is not None for waiter, _by in held)
        self._metrics.budget_held.labels("jobs").set(jobs)
        self._metrics.budget_held.labels("pods").set(len(held) - jobs)

    def _check_leading(self) -> None:
        if not self._may_write():
            raise NotLeadingError("lost leadership: not written")

    def _failed(self, kind: str, key: Key, error: Exception) -> None:
        self._metrics.write_errors.labels(f"budget_{kind}").inc()
        _log.warning("write failed", extra={"object": str(key), "kind": kind, "problem": str(error)})


async def write_job(client: KubeClient, key: Key, job: JobFacts, since: str | None) -> bool:
    """Suspend a Job for a budget, or let it go.

    Args:
        client: Kubernetes client.
        key: namespace and name of the Job.
        job: the Job as it was when it was decided about.
        since: since when it waits, RFC 3339; None to let it go.

    Returns:
        False, without writing, if somebody else has changed it since.

    Raises:
        KubernetesError: the write failed; `ConflictError` if the Job changed during the write.
    """
    found = await client.get(JOBS, key.name, key.namespace)
    facts = keep_job(found)
    if facts is None or (facts.uid, facts.suspended, facts.budget_since) != (job.uid, job.suspended, job.budget_since):
        return False
    body: dict[str, Any] = {
        "metadata": {
            "resourceVersion": found.metadata.resource_version,
            "annotations": {BUDGET_WAITING_SINCE: since},
        },
        "spec": {"suspend": since is not None},
    }
    await client.patch(JOBS, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER)
    return True


def _holder_of(
    holders: Mapping[str, list[Holder]], key: Key, workload: tuple[str, str], labels: Mapping[str, str]
) -> Holder | None:
    """A budget that holds a workload's pods; of several, the one that suspends."""
    found = [one for one in holders.get(key.namespace, ()) if one.target.matches(key.namespace, *workload, labels)]
    return max(found, key=lambda one: one.suspends, default=None)


def _holding(reason: HoldReason, enforced: bool) -> Condition:
    texts = {
        HoldReason.WITHIN: "new pods start",
        HoldReason.EXHAUSTED: "the budget is exhausted: new pods wait until the period turns or the limit is raised",
        HoldReason.FAILS_OPEN: "the usage is unknown: new pods start (fail open)",
        HoldReason.FAILS_CLOSED: "the usage is unknown: new pods wait (fail closed)",
    }
    text = texts[reason]
    if holds(reason) and not enforced:
        text = f"the usage is {'unknown' if reason is HoldReason.FAILS_CLOSED else 'above the budget'}: only reported"
    return Condition(HOLDING, "True" if enforced else "False", reason, "", text)


def _job_reference(key: Key, job: JobFacts) -> ObjectReference:
    return ObjectReference(JOBS.kind, key.name, JOBS.api_version, namespace=key.namespace, uid=job.uid)


def _time_s(text: str | None) -> float:
    try:
        return parse_rfc3339(text or "")
    except QuantityError:
        return 0.0
