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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import EnergyBudget
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import (
    HOLDING,
    amounts_of,
    condition_of,
    target_of,
)
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.gating import set_budget_gating
from joulie.adapters.kubernetes.resources import CRON_JOBS, ENERGY_BUDGETS, JOBS, PODS
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.grid.apply import FIELD_MANAGER, PodWriter
from joulie.apps.grid.budget_reports import BudgetReports, Verdict
from joulie.apps.grid.budget_waiters import Holder, UnboundPod, Waiter, holder_of, keep_unbound
from joulie.apps.grid.facts import BUDGET_WAITING_SINCE, JobFacts, keep_job
from joulie.apps.grid.leader import Leader
from joulie.domain.accounting.budget import BudgetResponse, WhenUnknown
from joulie.domain.accounting.energy_budget import HoldReason, Measured, decide, holds
from joulie.domain.grid import names
from joulie.domain.grid.release import Bucket, Due, due_now, in_order
from joulie.domain.grid.request import is_interruptible
from joulie.program.leadership import NotLeadingError
from joulie.waiting import set_within

STEP_S = 1.0
"""Interval of the steps while there is a budget that may hold something, s."""
REBIND_S = 60.0
"""How often the namespaces whose pods are gated are written again, s: a guard may have taken this process for dead."""
IDLE_S = 60.0
_UNBOUND = "spec.nodeName="

Check = Callable[[], Awaitable[bool]]

_log = logging.getLogger(__name__)


class BudgetHolds:
    """Holds and releases for EnergyBudgets while this replica leads.

    Args:
        leader: this replica while it leads.
    """

    def __init__(self, leader: Leader) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._metrics, self._events = leader.metrics, leader.events
        self._may_write, self._now_s = leader.may_write, leader.now_s
        self._pods = PodWriter(leader.client)
        self._wake = asyncio.Event()
        self._bucket = Bucket(float(leader.settings.release_limits.burst), leader.now_s())
        self._bound: tuple[str, ...] | None = None
        self._bound_s = 0.0
        self._reports = BudgetReports(leader.client, leader.events, leader.metrics, self._check_leading)
        self.budgets: Cache[EnergyBudget, EnergyBudget] = Cache(leader.client, ENERGY_BUDGETS, lambda found: found)
        self.unbound: Cache[Pod, UnboundPod] = Cache(leader.client, PODS, keep_unbound, field_selector=_UNBOUND)
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
                await set_within(self._wake, IDLE_S if done else STEP_S)

    async def step(self) -> bool:
        """Run one step.

        Returns:
            Whether nothing is left to do until a budget changes.
        """
        now_s = self._now_s()
        verdicts = {key: self._verdict(key, budget, now_s) for key, budget in self.budgets.objects.items()}
        holders = [_holder(key, verdict) for key, verdict in verdicts.items() if verdict.enforced]
        by_namespace: dict[str, list[Holder]] = {}
        for one in holders:
            by_namespace.setdefault(one.key.namespace, []).append(one)
        await self._bind(tuple(sorted(by_namespace)), now_s)
        await self._suspend(by_namespace, now_s)
        waiting, held = self._waiting(by_namespace)
        released = await self._release(waiting, now_s)
        await self._reports.report(verdicts, held, now_s)
        acting = any(one.spec.action not in (None, BudgetResponse.REPORT) for one in self.budgets.objects.values())
        return not acting and released and not by_namespace

    # ---- deciding

    def _verdict(self, key: Key, budget: EnergyBudget, now_s: float) -> Verdict:
        reason = self._reason(budget, now_s)
        acts = budget.spec.action in (BudgetResponse.GATE, BudgetResponse.SUSPEND)
        enforced = (
            acts and holds(reason) and not self._settings.dry_run_enabled and not self._view.observes(key.namespace)
        )
        return Verdict(budget, reason, enforced)

    def _reason(self, budget: EnergyBudget, now_s: float) -> HoldReason:
        status, spec = budget.status, budget.spec
        when_unknown = (
            self._settings.budget_when_unknown if spec.when_unknown is None else WhenUnknown(spec.when_unknown)
        )
        holding = condition_of(budget, HOLDING)
        measured = Measured(
            None if status.used is None else amounts_of(status.used),
            time_or_none(status.last_updated or budget.metadata.creation_timestamp) or 0.0,
            None if status.period_end is None else time_or_none(status.period_end) or 0.0,
        )
        new = status.last_updated is None and now_s - measured.time_s < self._settings.budget_stale_after_s
        if new and when_unknown is WhenUnknown.OPEN:
            return HoldReason.WITHIN
        return decide(
            amounts_of(spec.limits),
            measured,
            now_s,
            stale_after_s=self._settings.budget_stale_after_s,
            when_unknown=when_unknown,
            holding=holding is not None and holding.status == "True",
        )

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
            by = holder_of(holders, key, job.workload, job.labels)
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
        unless = None if runs else partial(self._has_node, key, job)
        await self._write_job(key, job, text, rfc3339(since_s), unless)

    async def _has_node(self, key: Key, job: JobFacts) -> bool:
        """Whether a pod of a Job has a node by now: the watch may be late, and what runs must not die."""
        selector = f"batch.kubernetes.io/controller-uid={job.uid}"
        found = await self._client.list(PODS, namespace=key.namespace, label_selector=selector)
        return any(pod.spec.node_name for pod in found.items)

    async def _write_job(
        self, key: Key, job: JobFacts, text: str, since: str | None, unless: Check | None = None
    ) -> bool:
        """Suspend a Job that waits since a time, or resume it. Returns whether nothing is left to do."""
        suspend = since is not None
        kind = "suspend" if suspend else "resume"
        try:
            self._check_leading()
            written = await write_job(self._client, key, job, since, unless=unless)
        except (NotFoundError, ConflictError):
            return True  # the watch reports what became of it
        except (KubernetesError, NotLeadingError) as error:
            self._failed(kind, key, error)
            return False
        if written:
            reason = "BudgetSuspended" if suspend else "BudgetResumed"
            self._events.emit(_job_reference(key, job), "Normal", reason, f"{kind}s: {text}")
            self._metrics.writes.labels(f"budget_{kind}").inc()
        return True

    # ---- releasing

    def _waiting(self, holders: Mapping[str, list[Holder]]) -> tuple[list[Waiter], list[tuple[Waiter, Holder]]]:
        """What waits: what may go now, and what is still held."""
        free, held = [], []
        for waiter, workload, labels in self._waiters():
            by = holder_of(holders, waiter.key, workload, labels)
            if by is None:
                free.append(waiter)
            elif waiter.job is None or waiter.job.suspended:
                held.append((waiter, by))
        return free, held

    def _waiters(self) -> Iterator[tuple[Waiter, tuple[str, str], Mapping[str, str]]]:
        for key, job in self._view.jobs.items():
            if job.budget_since is not None:
                since_s = time_or_none(job.budget_since) or job.created_s
                yield Waiter(since_s, key, job=job), job.workload, job.labels
        for key, pod in self.unbound.objects.items():
            if pod.gated:
                yield Waiter(pod.created_s, key, pod=pod), pod.workload, pod.labels

    async def _release(self, waiting: Iterable[Waiter], now_s: float) -> bool:
        """Release in order of waiting, at the rate of the settings. Returns whether all are released."""
        by_name = {one.name: one for one in waiting}
        due = in_order((Due(one.name, 0, one.since_s) for one in by_name.values()), use_priorities=False)
        releases = due_now(due, self._bucket, now_s, self._settings.release_limits)
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

    def _check_leading(self) -> None:
        if not self._may_write():
            raise NotLeadingError("lost leadership: not written")

    def _failed(self, kind: str, key: Key, error: Exception) -> None:
        self._metrics.write_errors.labels(f"budget_{kind}").inc()
        _log.warning("write failed", extra={"object": str(key), "kind": kind, "problem": str(error)})


async def write_job(
    client: KubeClient, key: Key, job: JobFacts, since: str | None, *, unless: Check | None = None
) -> bool:
    """Suspend a Job for a budget, or let it go.

    Args:
        client: Kubernetes client.
        key: namespace and name of the Job.
        job: the Job as it was when it was decided about.
        since: since when it waits, RFC 3339; None to let it go.
        unless: asked last, right before the write; nothing is written if the answer is yes.

    Returns:
        False, without writing, if somebody else has changed it since, or `unless` forbids it.

    Raises:
        KubernetesError: the write failed; `ConflictError` if the Job changed during the write.
    """
    found = await client.get(JOBS, key.name, key.namespace)
    facts = keep_job(found)
    if facts is None or (facts.uid, facts.suspended, facts.budget_since) != (job.uid, job.suspended, job.budget_since):
        return False
    if unless is not None and await unless():
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


def _holder(key: Key, verdict: Verdict) -> Holder:
    budget, reason, _enforced = verdict
    until = "" if budget.status.period_end is None else f" until {budget.status.period_end}"
    why = f"is exhausted{until}" if reason is HoldReason.EXHAUSTED else "holds, since its usage is unknown"
    text = f"EnergyBudget {key.name} {why}"
    return Holder(key, target_of(budget), budget.spec.action == BudgetResponse.SUSPEND, text)


def _job_reference(key: Key, job: JobFacts) -> ObjectReference:
    return ObjectReference(JOBS.kind, key.name, JOBS.api_version, namespace=key.namespace, uid=job.uid)
