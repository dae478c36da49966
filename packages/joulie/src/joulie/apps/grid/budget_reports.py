"""Says what EnergyBudgets hold: status, events and metrics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import BudgetHeld, Condition, EnergyBudget, EnergyBudgetStatus
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import HOLDING, condition_of, reference_of, with_times, write_status
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.apply import FIELD_MANAGER
from joulie.apps.grid.budget_waiters import Holder, Waiter
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.domain.accounting.energy_budget import HoldReason, holds
from joulie.program.leadership import NotLeadingError

_log = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """What was decided about a budget in this step.

    Attributes:
        budget: the budget.
        reason: whether it holds, and why.
        enforced: whether what waits is really held for it.
    """

    budget: EnergyBudget
    reason: HoldReason
    enforced: bool


class BudgetReports:
    """Status, events and metrics of what budgets hold.

    Args:
        client: Kubernetes client.
        events: event recorder.
        metrics: metrics of the controller.
        check_leading: raises `NotLeadingError` where this replica must not write.
    """

    def __init__(
        self,
        client: KubeClient,
        events: EventRecorder,
        metrics: ControllerMetrics,
        check_leading: Callable[[], None],
    ) -> None:
        self._client = client
        self._events = events
        self._metrics = metrics
        self._check_leading = check_leading
        self._told: set[tuple[str, Key]] = set()

    async def report(
        self, verdicts: Mapping[Key, Verdict], held: Sequence[tuple[Waiter, Holder]], now_s: float
    ) -> None:
        """Report one step.

        Args:
            verdicts: what was decided, by budget.
            held: what waits, and for which budget.
            now_s: current time, s since the epoch.
        """
        self._tell_held_pods(held)
        counts = {key: [0, 0] for key in verdicts}
        for waiter, by in held:
            counts[by.key][waiter.job is not None] += 1
        for key, verdict in verdicts.items():
            await self._report_budget(key, verdict, BudgetHeld(*counts[key]), now_s)
        self._measure(verdicts.values(), held)

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

    async def _report_budget(self, key: Key, verdict: Verdict, held: BudgetHeld, now_s: float) -> None:
        budget, old = verdict.budget, condition_of(verdict.budget, HOLDING)
        (condition,) = with_times(budget, [_holding(verdict)], rfc3339(now_s))
        if budget.status.held == held and old == condition:
            return
        if old is None or (old.status, old.reason) != (condition.status, condition.reason):
            self._tell(key, budget, condition, first=old is None)
        try:
            self._check_leading()
            status = EnergyBudgetStatus(held=held, conditions=(condition,))
            await write_status(self._client, key, status, field_manager=FIELD_MANAGER)
        except (KubernetesError, NotLeadingError) as error:
            self._metrics.write_errors.labels("budget_status").inc()
            _log.warning("write failed", extra={"object": str(key), "kind": "status", "problem": str(error)})

    def _tell(self, key: Key, budget: EnergyBudget, condition: Condition, *, first: bool) -> None:
        unknown = condition.reason in (HoldReason.FAILS_OPEN, HoldReason.FAILS_CLOSED)
        if first and condition.reason == HoldReason.WITHIN:
            return
        reason = "BudgetUsageUnknown" if unknown else "BudgetHolds" if condition.status == "True" else "BudgetReleases"
        self._events.emit(reference_of(budget), "Warning" if unknown else "Normal", reason, condition.message)
        level = logging.WARNING if unknown else logging.INFO
        _log.log(level, "energy budget", extra={"budget": str(key), "reason": reason, "detail": condition.message})

    def _measure(self, verdicts: Iterable[Verdict], held: Sequence[tuple[Waiter, Holder]]) -> None:
        counts = Counter(verdict.reason for verdict in verdicts)
        for reason in HoldReason:
            self._metrics.budgets.labels(reason.value).set(counts[reason])
        jobs = sum(waiter.job is not None for waiter, _by in held)
        self._metrics.budget_held.labels("jobs").set(jobs)
        self._metrics.budget_held.labels("pods").set(len(held) - jobs)


def _holding(verdict: Verdict) -> Condition:
    _budget, reason, enforced = verdict
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
