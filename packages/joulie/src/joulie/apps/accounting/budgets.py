"""Budgets of energy: which are crossed, and what is then done, once for each crossing, restarts or not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import httpx2

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.resources import JOBS, NAMESPACES, PODS
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod
from joulie.apps.accounting.policies import namespace_budget
from joulie.domain.accounting.budget import Budget, BudgetAction, Crossing, crossing
from joulie.domain.accounting.records import CycleResult, Grouping, OpenPod
from joulie.domain.grid import names
from joulie.domain.quantities import joules_to_kwh
from joulie.ports import Ledger

FIELD_MANAGER = "joulie-accounting"
EXCEEDED = "EnergyBudgetExceeded"
NAMESPACE_KIND = "Namespace"


_log = logging.getLogger(__name__)


class Counts(Protocol):
    """Who counts crossed budgets."""

    def exceeded(self, namespace: str, owner_kind: str, action: str) -> None:
        """A budget was crossed, and acted on."""
        ...


class Budgets:
    """Looks at budgets, and acts on those that are crossed.

    Args:
        client: to write with.
        ledger: the ledger, which also remembers the budgets that were acted on.
        events: to tell people.
        counts: to count in.

    Attributes:
        used: share of its budget that each pod has used, 0..1 and above, by uid.
    """

    def __init__(self, client: KubeClient, ledger: AsyncLedger, events: EventRecorder, counts: Counts) -> None:
        self.used: dict[str, float] = {}
        self._client = client
        self._ledger = ledger
        self._events = events
        self._counts = counts
        self._of_period_j: dict[tuple[str, float], float] = {}
        self._unsettled: dict[Budget, tuple[Crossing, AccountedPod | None]] = {}
        """Crossings that are still to be acted on: a pod may have ended when the API server can be reached again."""
        self._settled: set[Budget] = set()
        """Those that need not be looked up again, for as long as they are crossed."""

    async def look(
        self,
        pods: Mapping[str, AccountedPod],
        limits: Mapping[str, Budget],
        namespaces: Mapping[str, AccountedNamespace],
        accounts: Mapping[str, OpenPod],
        result: CycleResult,
        now_s: float,
    ) -> dict[ObjectReference, tuple[str, ...]]:
        """Act on budgets that are crossed.

        Args:
            pods: that run or have just ended, by uid.
            limits: budgets of those that have one, by uid.
            namespaces: all.
            accounts: pods that run, with all that they have used, by uid.
            result: what the cycle added, and pods that ended with it.
            now_s: s since the epoch.

        Returns:
            What of the namespaces' budgets cannot be read.

        Raises:
            LedgerError: see `Ledger`.
        """
        used_j = {uid: one.energy.energy_j for uid, one in accounts.items() if uid in limits}
        used_j |= {one.pod.uid: one.energy.energy_j for one in result.completed if one.pod.uid in limits}
        self.used = {uid: energy_j / limits[uid].limit_j for uid, energy_j in used_j.items()}
        crossed = [crossing(limits[uid], energy_j, now_s) for uid, energy_j in used_j.items()]
        budgets, mistakes = _namespace_budgets(namespaces, now_s)
        by_namespace_j = await self._used_by(budgets, result)
        crossed += [crossing(one, by_namespace_j[one.scope], now_s) for one in budgets]
        await self._settle([one for one in crossed if one is not None], pods)
        return mistakes

    def forget(self) -> None:
        """Ask the ledger again what namespaces have used: what cycles added may not have come here."""
        self._of_period_j = {}

    async def _used_by(self, budgets: Sequence[Budget], result: CycleResult) -> dict[str, float]:
        """Energy of namespaces in the period of their budgets, J: of the ledger once, then by what cycles add."""
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

    async def _settle(self, crossed: Sequence[Crossing], pods: Mapping[str, AccountedPod]) -> None:
        """Act on crossings that nobody has acted on, and on those of before whose action has failed."""
        self._settled &= {one.budget for one in crossed}
        new = {one.budget: (one, pods.get(one.budget.scope)) for one in crossed if one.budget not in self._settled}
        self._unsettled |= new
        if not self._unsettled:
            return
        asked = [one for one, _pod in self._unsettled.values()]
        due = await self._ledger.call(lambda ledger: ledger.cross(asked))
        self._unsettled = {one.budget: self._unsettled[one.budget] for one in due}
        for one in due:
            if await self._act(one, self._unsettled[one.budget][1], pods):
                await self._ledger.call(partial(_acted, one))
                del self._unsettled[one.budget]
        self._settled |= new.keys() - self._unsettled.keys()

    async def _act(self, crossed: Crossing, pod: AccountedPod | None, pods: Mapping[str, AccountedPod]) -> bool:
        """Do what the budget says, and tell; what the API server refuses for good is told, too.

        Returns:
            Whether that is settled; else it is tried again with the next cycle.
        """
        budget = crossed.budget
        if pod is None:
            regarding = ObjectReference(NAMESPACE_KIND, budget.scope, api_version="v1")
        else:
            regarding = ObjectReference("Pod", pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
        try:
            problem = await self._do(crossed, regarding, pod, pods)
        except ApiError as error:
            if _passes(error):
                _log.warning("cannot act on an energy budget, will try again", extra={"problem": str(error)})
                return False
            problem = str(error)
        except KubernetesError as error:
            _log.warning("cannot act on an energy budget, will try again", extra={"problem": str(error)})
            return False
        said = _sentence(crossed) + (f"; {budget.action} was not possible: {problem}" if problem else "")
        namespace = budget.scope if pod is None else pod.namespace
        _log.warning(
            "energy budget exceeded",
            extra={"kind": regarding.kind, "object": regarding.name, "namespace": namespace, "said": said},
        )
        if budget.action is not BudgetAction.LOG:
            self._events.emit(regarding, "Warning", EXCEEDED, said)
        self._counts.exceeded(namespace, NAMESPACE_KIND if pod is None else pod.owner.kind, budget.action)
        return True

    async def _do(
        self,
        crossed: Crossing,
        regarding: ObjectReference,
        pod: AccountedPod | None,
        pods: Mapping[str, AccountedPod],
    ) -> str:
        """What the budget asks for; returns why not, where it cannot be."""
        match crossed.budget.action:
            case BudgetAction.ANNOTATE:
                await self._write(regarding, {"annotations": _annotations(crossed)})
            case BudgetAction.LABEL:
                await self._write(regarding, {"labels": {names.BUDGET_EXCEEDED: "true"}})
            case BudgetAction.SUSPEND:
                of_namespace = [one for one in pods.values() if one.namespace == regarding.name and one.running]
                return await self._suspend(of_namespace if pod is None else [pod])
        return ""

    async def _write(self, regarding: ObjectReference, meta: Mapping[str, Any]) -> None:
        # The uid makes the API server refuse a pod that has taken the name of the one that is meant.
        body = {"metadata": {"uid": regarding.uid, **meta} if regarding.uid else meta}
        if regarding.kind == NAMESPACE_KIND:
            await self._client.patch(NAMESPACES, regarding.name, body, field_manager=FIELD_MANAGER)
        else:
            await self._client.patch(
                PODS, regarding.name, body, namespace=regarding.namespace, field_manager=FIELD_MANAGER
            )

    async def _suspend(self, pods: Iterable[AccountedPod]) -> str:
        """Suspend the Jobs of pods, where they allow it; why none could be, if none."""
        jobs = {(pod.namespace, job.name): job for pod in pods if (job := pod.controller) and job.kind == "Job"}
        suspended, problem = 0, f'there is no Job with {names.INTERRUPTIBLE}: "true"'
        for (namespace, name), job in jobs.items():
            try:
                suspended += await self._suspend_job(name, namespace, job.uid)
            except ApiError as error:  # one that is gone, or is refused, must not protect the others
                if _passes(error):
                    raise
                problem = str(error)
        return "" if suspended else problem

    async def _suspend_job(self, name: str, namespace: str, uid: str) -> bool:
        """Suspend a Job if it allows that; whether it does."""
        found = await self._client.get(JOBS, name, namespace)
        if found.metadata.annotations.get(names.INTERRUPTIBLE) != "true":
            return False
        body = {"metadata": {"uid": uid}, "spec": {"suspend": True}}
        await self._client.patch(JOBS, name, body, namespace=namespace, field_manager=FIELD_MANAGER)
        return True


def _passes(error: ApiError) -> bool:
    """Whether the API server may say something else the next time."""
    return error.status >= httpx2.codes.INTERNAL_SERVER_ERROR or error.status == httpx2.codes.TOO_MANY_REQUESTS


def _acted(crossed: Crossing, ledger: Ledger) -> None:
    ledger.acted(crossed)


def _used_j(budget: Budget, ledger: Ledger) -> float:
    """Energy of a namespace since its budget began, J."""
    rows = ledger.usage(Grouping.NAMESPACE, since_s=budget.since_s, namespace=budget.scope)
    return sum(row.energy.energy_j for row in rows)


def _namespace_budgets(
    namespaces: Mapping[str, AccountedNamespace], now_s: float
) -> tuple[list[Budget], dict[ObjectReference, tuple[str, ...]]]:
    budgets, mistakes = [], {}
    for name, namespace in namespaces.items():
        budget, malformed = namespace_budget(name, namespace, now_s)
        budgets += [] if budget is None else [budget]
        if malformed:
            mistakes[ObjectReference(NAMESPACE_KIND, name, api_version="v1")] = malformed
    return budgets, mistakes


def _annotations(crossed: Crossing) -> dict[str, str]:
    return {
        names.BUDGET_EXCEEDED: "true",
        names.ENERGY_USAGE_KWH: f"{joules_to_kwh(crossed.used_j):.6g}",
        names.BUDGET_EXCEEDED_BY: f"{joules_to_kwh(crossed.exceeded_by_j):.6g}",
    }


def _sentence(crossed: Crossing) -> str:
    used, limit = joules_to_kwh(crossed.used_j), joules_to_kwh(crossed.budget.limit_j)
    return f"used {used:.4g} kWh, {joules_to_kwh(crossed.exceeded_by_j):.4g} kWh above its budget of {limit:.4g} kWh"
