"""Energy budgets: detects exceeded ones and runs their action, once per crossing, also across restarts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import httpx2

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.names import MODE_LABEL
from joulie.adapters.kubernetes.resources import JOBS, NAMESPACES, PODS
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod
from joulie.apps.accounting.policies import NamespaceBudget, namespace_budget
from joulie.domain.accounting.budget import Budget, BudgetAction, Crossing, crossing
from joulie.domain.accounting.records import CycleResult, Grouping, OpenPod
from joulie.domain.grid import names
from joulie.domain.grid.request import is_interruptible
from joulie.domain.mode import Mode, mode_of
from joulie.domain.quantities import joules_to_kwh
from joulie.ports.ledger import Ledger

FIELD_MANAGER = "joulie-accounting"
EXCEEDED = "EnergyBudgetExceeded"
NAMESPACE_KIND = "Namespace"
_WRITING = frozenset({BudgetAction.ANNOTATE, BudgetAction.LABEL, BudgetAction.SUSPEND})
"""Actions that change objects of users."""
_NO_ANNOTATIONS = dict.fromkeys((names.BUDGET_EXCEEDED, names.ENERGY_USAGE_KWH, names.BUDGET_EXCEEDED_BY))

_log = logging.getLogger(__name__)


class BudgetMetrics(Protocol):
    """Counter of exceeded budgets."""

    def exceeded(self, namespace: str, owner_kind: str, action: str) -> None:
        """Count a budget that was exceeded and acted on."""
        ...


class Budgets:
    """Evaluates energy budgets, and runs the action of those that are exceeded.

    Args:
        client: Kubernetes client.
        ledger: energy ledger, which also records the crossings that were acted on.
        events: event recorder.
        budget_metrics: counter of exceeded budgets.
        mode: mode of namespaces without a label of their own; in observe mode budgets are reported by log and event
            only.

    Attributes:
        used: used share of each pod's budget, by UID; above 1 if exceeded.
    """

    def __init__(
        self,
        client: KubeClient,
        ledger: AsyncLedger,
        events: EventRecorder,
        budget_metrics: BudgetMetrics,
        *,
        mode: Mode = Mode.ENFORCE,
    ) -> None:
        self._mode = mode
        self._namespaces: Mapping[str, AccountedNamespace] = {}
        self._declared: Mapping[str, NamespaceBudget] = {}
        self.used: dict[str, float] = {}
        self._client = client
        self._ledger = ledger
        self._events = events
        self._budget_metrics = budget_metrics
        self._of_period_j: dict[tuple[str, float], float] = {}
        self._pending: dict[Budget, tuple[Crossing, AccountedPod | None]] = {}
        """Crossings whose action is pending; with the pod, which may be gone once the API server is reachable again."""
        self._done: set[Budget] = set()
        """Exceeded budgets whose action is done; they are not looked up in the ledger again."""

    async def evaluate(
        self,
        pods: Mapping[str, AccountedPod],
        limits: Mapping[str, Budget],
        namespaces: Mapping[str, AccountedNamespace],
        accounts: Mapping[str, OpenPod],
        result: CycleResult,
        now_s: float,
    ) -> dict[ObjectReference, tuple[str, ...]]:
        """Evaluate all budgets and act on those that are exceeded.

        Args:
            pods: pods that run or have just ended, by UID.
            limits: budgets of pods, by UID.
            namespaces: all namespaces by name.
            accounts: running pods with their energy so far, by UID.
            result: energy added by the cycle, and the pods that ended in it.
            now_s: current time, s since the epoch.

        Returns:
            Messages about invalid budget annotations, by namespace.

        Raises:
            LedgerError: see `Ledger`.
        """
        self._namespaces = namespaces
        used_j = {uid: one.energy.energy_j for uid, one in accounts.items() if uid in limits}
        used_j |= {one.pod.uid: one.energy.energy_j for one in result.completed if one.pod.uid in limits}
        self.used = {uid: energy_j / limits[uid].limit_j for uid, energy_j in used_j.items()}
        crossed = [crossing(limits[uid], energy_j, now_s) for uid, energy_j in used_j.items()]
        self._declared, mistakes = _namespace_budgets(namespaces)
        budgets = [budget.now(name, now_s) for name, budget in self._declared.items()]
        by_namespace_j = await self._used_by(budgets, result)
        crossed += [crossing(one, by_namespace_j[one.scope], now_s) for one in budgets]
        exceeded = [one for one in crossed if one is not None]
        await self._act_on_crossings(exceeded, pods)
        await self._clear_marks({one.budget.scope for one in exceeded}, [pods[uid] for uid in used_j if uid in pods])
        return mistakes

    @property
    def declared(self) -> Mapping[str, NamespaceBudget]:
        """Budgets of namespaces that their annotations declare, by namespace."""
        return self._declared

    def forget(self) -> None:
        """Forget the cached energy of namespaces, so that it is read from the ledger again (after a failed cycle)."""
        self._of_period_j = {}

    async def _used_by(self, budgets: Sequence[Budget], result: CycleResult) -> dict[str, float]:
        """Energy of namespaces in the period of their budgets, J: read from the ledger once, then updated by cycles."""
        known: dict[tuple[str, float], float] = {}
        for budget in budgets:
            key = budget.scope, budget.since_s
            before_j = self._of_period_j.get(key)
            if before_j is None:
                known[key] = await self._ledger.call(partial(_used_j, budget))
            else:
                added = result.added.get(budget.scope)
                known[key] = before_j + (0.0 if added is None else added.energy_j)
        self._of_period_j = known
        return {namespace: energy_j for (namespace, _), energy_j in known.items()}

    # ---- acting

    async def _act_on_crossings(self, crossed: Sequence[Crossing], pods: Mapping[str, AccountedPod]) -> None:
        """Act on new crossings, and retry earlier ones whose action failed."""
        self._done &= {one.budget for one in crossed}
        new = {one.budget: (one, pods.get(one.budget.scope)) for one in crossed if one.budget not in self._done}
        self._pending |= new
        if not self._pending:
            return
        asked = [one for one, _pod in self._pending.values()]
        due = await self._ledger.call(lambda ledger: ledger.cross(asked))
        self._pending = {one.budget: self._pending[one.budget] for one in due}
        for one in due:
            if await self._act(one, self._pending[one.budget][1]):
                await self._ledger.call(partial(_acted, one))
                del self._pending[one.budget]
        self._done |= new.keys() - self._pending.keys()

    async def _act(self, crossed: Crossing, pod: AccountedPod | None) -> bool:
        """Run the budget's action and report it; a permanent error of the API server is reported, too.

        Returns:
            Whether the crossing is done; else it is retried in the next cycle.
        """
        budget = crossed.budget
        if pod is None:
            regarding = ObjectReference(NAMESPACE_KIND, budget.scope, api_version="v1")
        else:
            regarding = ObjectReference("Pod", pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
        try:
            problem = await self._run_action(crossed, regarding, pod)
        except ApiError as error:
            if _is_transient(error):
                _log.warning("cannot act on an energy budget, will retry", extra={"problem": str(error)})
                return False
            problem = str(error)
        except KubernetesError as error:
            _log.warning("cannot act on an energy budget, will retry", extra={"problem": str(error)})
            return False
        message = _message(crossed) + (f"; {budget.action} failed: {problem}" if problem else "")
        namespace = budget.scope if pod is None else pod.namespace
        _log.warning(
            "energy budget exceeded",
            extra={"kind": regarding.kind, "object": regarding.name, "namespace": namespace, "detail": message},
        )
        if budget.action is not BudgetAction.LOG:
            self._events.emit(regarding, "Warning", EXCEEDED, message)
        self._budget_metrics.exceeded(namespace, NAMESPACE_KIND if pod is None else pod.owner.kind, budget.action)
        return True

    async def _run_action(
        self,
        crossed: Crossing,
        regarding: ObjectReference,
        pod: AccountedPod | None,
    ) -> str:
        """Run the budget's action. Returns why it failed; empty on success."""
        action = crossed.budget.action
        if action in _WRITING and self._observes(regarding.namespace or regarding.name):
            return "the namespace is in observe mode"
        match action:
            case BudgetAction.ANNOTATE:
                await self._write(regarding, {"annotations": _annotations(crossed)})
            case BudgetAction.LABEL:
                await self._write(regarding, {"labels": {names.BUDGET_EXCEEDED: "true"}})
            case BudgetAction.SUSPEND if pod is not None:
                return await self._suspend(pod)
        return ""

    def _observes(self, namespace: str) -> bool:
        facts = self._namespaces.get(namespace)
        return mode_of(None if facts is None else facts.labels.get(MODE_LABEL), self._mode) is Mode.OBSERVE

    async def _write(self, regarding: ObjectReference, meta: Mapping[str, Any]) -> None:
        # With the UID, the API server rejects the patch if another pod of that name exists by now.
        body = {"metadata": {"uid": regarding.uid, **meta} if regarding.uid else meta}
        if regarding.kind == NAMESPACE_KIND:
            await self._client.patch(NAMESPACES, regarding.name, body, field_manager=FIELD_MANAGER)
        else:
            await self._client.patch(
                PODS, regarding.name, body, namespace=regarding.namespace, field_manager=FIELD_MANAGER
            )

    async def _suspend(self, pod: AccountedPod) -> str:
        """Suspend the Job of a pod if it may be interrupted. Returns why it was not, or empty."""
        job = pod.controller
        if job is None or job.kind != JOBS.kind:
            return "it belongs to no Job"
        found = await self._client.get(JOBS, job.name, pod.namespace)
        annotations = {**found.metadata.annotations, **found.spec.template.metadata.annotations}
        if not is_interruptible(annotations):
            return f'its Job does not have the annotation {names.INTERRUPTIBLE}: "true"'
        body = {"metadata": {"uid": job.uid}, "spec": {"suspend": True}}
        await self._client.patch(JOBS, job.name, body, namespace=pod.namespace, field_manager=FIELD_MANAGER)
        return ""

    async def _clear_marks(self, exceeded: Collection[str], pods: Iterable[AccountedPod]) -> None:
        """Remove annotations and labels of budgets that are not exceeded any more: the period turned, or it was raised.

        Args:
            exceeded: UIDs of pods and names of namespaces whose budget is exceeded.
            pods: pods with a budget.
        """
        marked = [
            ObjectReference(NAMESPACE_KIND, name, api_version="v1")
            for name, found in self._namespaces.items()
            if name not in exceeded and _is_marked(found)
        ]
        marked += [
            ObjectReference("Pod", pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
            for pod in pods
            if pod.uid not in exceeded and _is_marked(pod)
        ]
        for one in marked:
            if self._observes(one.namespace or one.name):
                continue
            try:
                await self._write(one, {"annotations": _NO_ANNOTATIONS, "labels": {names.BUDGET_EXCEEDED: None}})
            except KubernetesError as error:
                _log.warning("cannot remove the mark of an energy budget, will retry", extra={"problem": str(error)})


def _is_transient(error: ApiError) -> bool:
    """Whether an error of the API server is transient, so that a retry can succeed."""
    return error.status >= httpx2.codes.INTERNAL_SERVER_ERROR or error.status == httpx2.codes.TOO_MANY_REQUESTS


def _acted(crossed: Crossing, ledger: Ledger) -> None:
    ledger.acted(crossed)


def _used_j(budget: Budget, ledger: Ledger) -> float:
    """Energy of a namespace since the start of its budget's period, J."""
    rows = ledger.usage(Grouping.NAMESPACE, since_s=budget.since_s, namespace=budget.scope)
    return sum(row.energy.energy_j for row in rows)


def _namespace_budgets(
    namespaces: Mapping[str, AccountedNamespace],
) -> tuple[dict[str, NamespaceBudget], dict[ObjectReference, tuple[str, ...]]]:
    budgets, mistakes = {}, {}
    for name, namespace in namespaces.items():
        budget, malformed = namespace_budget(namespace)
        if budget is not None:
            budgets[name] = budget
        if malformed:
            mistakes[ObjectReference(NAMESPACE_KIND, name, api_version="v1")] = malformed
    return budgets, mistakes


def _is_marked(found: AccountedNamespace | AccountedPod) -> bool:
    return names.BUDGET_EXCEEDED in found.annotations or names.BUDGET_EXCEEDED in found.labels


def _annotations(crossed: Crossing) -> dict[str, str]:
    return {
        names.BUDGET_EXCEEDED: "true",
        names.ENERGY_USAGE_KWH: f"{joules_to_kwh(crossed.used_j):.6g}",
        names.BUDGET_EXCEEDED_BY: f"{joules_to_kwh(crossed.exceeded_by_j):.6g}",
    }


def _message(crossed: Crossing) -> str:
    used, limit = joules_to_kwh(crossed.used_j), joules_to_kwh(crossed.budget.limit_j)
    return f"used {used:.4g} kWh, {joules_to_kwh(crossed.exceeded_by_j):.4g} kWh above its budget of {limit:.4g} kWh"
