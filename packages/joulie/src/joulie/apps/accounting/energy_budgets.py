"""EnergyBudgets: which pods each is for, how much they have used, warnings, and the status that others decide by.

Accounting measures and reports; what waits is decided by the grid controller. The counts are in the ledger and the
warnings that were given are in the status, so that nothing is kept here.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import (
    BudgetAmounts,
    BudgetLimits,
    Condition,
    EnergyBudget,
    EnergyBudgetSpec,
    EnergyBudgetStatus,
)
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import (
    EXHAUSTED,
    USAGE_KNOWN,
    amounts_of,
    condition_of,
    reference_of,
    target_of,
    with_times,
    write_status,
)
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.names import MANAGED_BY_LABEL
from joulie.adapters.kubernetes.resources import ENERGY_BUDGETS
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.facts import AccountedPod
from joulie.apps.accounting.policies import NamespaceBudget
from joulie.domain.accounting.budget import BudgetAction, BudgetResponse, WindowKind
from joulie.domain.accounting.energy_budget import (
    DEFAULT_WARN_AT,
    Amounts,
    BudgetTarget,
    Standing,
    pace_since_s,
    standing,
)
from joulie.domain.accounting.period import Period, Window, calendar_window, parse_zone, rolling_window
from joulie.domain.accounting.records import BUDGET_SLOT_S, BudgetCount, BudgetScope, OpenPod
from joulie.domain.quantities import joules_to_kwh

FIELD_MANAGER = "joulie-accounting"
DECLARED_NAME = "namespace-energy-budget"
"""Name of the EnergyBudget that the annotations of its namespace declare."""
_MANAGER = FIELD_MANAGER
"""Value of `MANAGED_BY_LABEL` on it."""
REWRITE_S = 60.0
"""How often a status is written that says nothing new but its age, s."""
WARN_AGAIN_BELOW = 0.95
"""Share of a warning's level below which a rolling budget may warn of it again."""

_log = logging.getLogger(__name__)


class BudgetUse(NamedTuple):
    """Use of a budget, for metrics.

    Attributes:
        namespace: namespace of the budget.
        name: name of the budget.
        used: largest used share of a limit; None if unknown.
        forecast: largest expected share of a limit; None if unknown.
    """

    namespace: str
    name: str
    used: float | None
    forecast: float | None


class EnergyBudgets:
    """Measures all EnergyBudgets of the cluster.

    Args:
        client: Kubernetes client.
        ledger: energy ledger, which counts what their pods use.
        events: event recorder.
        currency: currency of costs.

    Attributes:
        use: use of all budgets at the last report.
    """

    def __init__(self, client: KubeClient, ledger: AsyncLedger, events: EventRecorder, currency: str) -> None:
        self.use: list[BudgetUse] = []
        self._client = client
        self._ledger = ledger
        self._events = events
        self._currency = currency
        self._cache: Cache[EnergyBudget, EnergyBudget] = Cache(client, ENERGY_BUDGETS, lambda found: found)

    async def run(self) -> None:
        """Follow the EnergyBudgets until cancelled."""
        await self._cache.run()

    @property
    def budgets(self) -> Mapping[Key, EnergyBudget]:
        """All EnergyBudgets."""
        return self._cache.objects

    @property
    def labelled_namespaces(self) -> frozenset[str]:
        """Namespaces with a budget that selects pods by their labels."""
        return frozenset(key.namespace for key, one in self.budgets.items() if one.spec.target.match_labels)

    def scopes(self, pods: Iterable[AccountedPod], accounts: Mapping[str, OpenPod], now_s: float) -> list[BudgetScope]:
        """What each budget counts in a cycle.

        Args:
            pods: pods in the cluster, and those that have just left it.
            accounts: pods of which the ledger knows no end, by UID; those that left while nobody watched are only here,
                without labels.
            now_s: current time, s since the epoch.
        """
        if not self.budgets:
            return []
        known = {one.uid: (one.namespace, one.owner.kind, one.owner.name, one.labels) for one in pods}
        for uid, account in accounts.items():
            meta = account.pod
            known.setdefault(uid, (meta.namespace, meta.owner_kind, meta.owner_name, {}))
        by_namespace: dict[str, list[str]] = {}
        for uid, facts in known.items():
            by_namespace.setdefault(facts[0], []).append(uid)
        scopes = []
        for budget in self.budgets.values():
            window, target = _window(budget, now_s), target_of(budget)
            if window is not None:
                own = (uid for uid in by_namespace.get(target.namespace, ()) if target.matches(*known[uid]))
                scopes.append(_scope(budget, target, window, own))
        return scopes

    async def declare(self, declared: Mapping[str, NamespaceBudget]) -> None:
        """Keep an EnergyBudget for each namespace whose annotations ask to suspend, so that one mechanism holds both.

        Args:
            declared: budgets in the annotations of namespaces, by namespace.
        """
        wanted = {
            Key(namespace, DECLARED_NAME): _declared_spec(one)
            for namespace, one in declared.items()
            if one.action is BudgetAction.SUSPEND
        }
        present = {
            key: one.spec for key, one in self.budgets.items() if one.metadata.labels.get(MANAGED_BY_LABEL) == _MANAGER
        }
        jobs = [self._declarer(key, spec) for key, spec in wanted.items() if present.get(key) != spec]
        jobs += [self._remover(key) for key in present.keys() - wanted.keys()]
        for failure in await write_all(jobs):
            _log.warning("cannot keep the EnergyBudget of a namespace", extra={"problem": str(failure.error)})

    def _declarer(self, key: Key, spec: EnergyBudgetSpec) -> Job:
        body = {"metadata": {"labels": {MANAGED_BY_LABEL: _MANAGER}}, "spec": spec}

        async def declare() -> None:
            await self._client.apply(
                ENERGY_BUDGETS, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER
            )

        return declare

    def _remover(self, key: Key) -> Job:
        async def remove() -> None:
            with suppress(NotFoundError):
                await self._client.delete(ENERGY_BUDGETS, key.name, key.namespace)

        return remove

    async def report(self, now_s: float) -> None:
        """Write the status of all budgets, and warn.

        Raises:
            LedgerError: see `Ledger`.
        """
        windows = {key: _window(budget, now_s) for key, budget in self.budgets.items()}
        asked = {
            _count_key(self.budgets[key]): (window.start_s, _whole_slot_s(pace_since_s(window, now_s)))
            for key, window in windows.items()
            if window is not None
        }
        counts = await self._ledger.call(lambda ledger: ledger.budget_counts(asked)) if asked else {}
        self.use = []
        statuses: dict[Key, EnergyBudgetStatus] = {}
        for key, window in windows.items():
            budget = self.budgets[key]
            count = counts.get(_count_key(budget))
            if window is None:
                statuses[key] = _unknown(budget, "InvalidTimeZone", f"unknown time zone {budget.spec.time_zone!r}")
            elif count is not None:
                statuses[key] = self._measured(budget, window, count, now_s)
        await self._write(statuses, now_s)

    async def report_failure(self, problem: str, now_s: float) -> None:
        """Say on all budgets that their usage is unknown, since the ledger failed."""
        self.use = [BudgetUse(key.namespace, key.name, None, None) for key in self.budgets]
        await self._write(
            {key: _unknown(one, "LedgerUnavailable", problem) for key, one in self.budgets.items()}, now_s
        )

    def _measured(self, budget: EnergyBudget, window: Window, count: BudgetCount, now_s: float) -> EnergyBudgetStatus:
        recent_since_s = max(_whole_slot_s(pace_since_s(window, now_s)), window.start_s, count.counted_since_s)
        now = standing(window, count.used, count.recent, recent_since_s, now_s)
        limits = amounts_of(budget.spec.limits)
        used, forecast = now.used.share_of(limits), now.forecast.share_of(limits)
        self.use.append(BudgetUse(budget.metadata.namespace, budget.metadata.name, used, forecast))
        rolling = _is_rolling(budget)
        start = rfc3339(window.start_s)
        return EnergyBudgetStatus(
            period_start=start,
            period_end=None if rolling else rfc3339(window.end_s),
            used=_written(now.used),
            forecast=None if now.forecast_from_s is not None else _written(now.forecast),
            forecast_from=None if now.forecast_from_s is None else rfc3339(now.forecast_from_s),
            used_pct=_percent(used),
            forecast_pct=_percent(forecast),
            currency=self._currency,
            counted_since=rfc3339(count.counted_since_s),
            warned_pct=self._warn(budget, now, used, same_period=rolling or start == budget.status.period_start),
            last_updated=rfc3339(now_s),
            conditions=tuple(_conditions(limits, now, used)),
        )

    def _warn(self, budget: EnergyBudget, now: Standing, used: float | None, *, same_period: bool) -> float | None:
        """Warn of the highest level that is newly reached; returns the highest one of the period, %."""
        warned = (budget.status.warned_pct or 0.0) / 100.0 if same_period else 0.0
        if used is None:
            return _percent(warned)
        if used < warned * WARN_AGAIN_BELOW:  # a rolling window, or a raised limit
            warned = max((level for level in _levels(budget) if level <= used), default=0.0)
        reached = max((level for level in _levels(budget) if level <= used), default=0.0)
        if reached > warned:
            exhausted = reached >= 1.0
            text = f"{used:.0%} used: {_text(now.used, amounts_of(budget.spec.limits))}"
            if not exhausted and now.forecast_from_s is None:
                text += f"; {_text(now.forecast, amounts_of(budget.spec.limits))} expected at its end"
            reason = "EnergyBudgetExhausted" if exhausted else "EnergyBudgetWarning"
            self._events.emit(reference_of(budget), "Warning", reason, text)
            key = Key(budget.metadata.namespace, budget.metadata.name)
            _log.warning("energy budget", extra={"budget": str(key), "reason": reason, "detail": text})
        return _percent(max(reached, warned))

    async def _write(self, statuses: Mapping[Key, EnergyBudgetStatus], now_s: float) -> None:
        """Write the statuses that say something new."""
        jobs = []
        for key, status in statuses.items():
            budget = self.budgets.get(key)
            if budget is not None:
                timed = msgspec.structs.replace(
                    status, conditions=with_times(budget, status.conditions, rfc3339(now_s))
                )
                if _is_news(budget.status, timed, now_s):
                    jobs.append(partial(write_status, self._client, key, timed, field_manager=FIELD_MANAGER))
        for failure in await write_all(jobs):
            _log.warning("cannot write the status of an EnergyBudget", extra={"problem": str(failure.error)})


def _window(budget: EnergyBudget, now_s: float) -> Window | None:
    """The period of a budget; None if its time zone is unknown."""
    period = Period(budget.spec.period)
    if _is_rolling(budget):
        start_s, end_s = rolling_window(period, now_s)
        return Window(_whole_slot_s(start_s), end_s)
    try:
        return calendar_window(period, parse_zone(budget.spec.time_zone or "UTC"), now_s)
    except ValueError:
        return None


def _declared_spec(budget: NamespaceBudget) -> EnergyBudgetSpec:
    limits = BudgetLimits(energy_kwh=joules_to_kwh(budget.limit_j))
    return EnergyBudgetSpec(limits, budget.period, action=BudgetResponse.SUSPEND)


def _is_rolling(budget: EnergyBudget) -> bool:
    return budget.spec.window == WindowKind.ROLLING


def _whole_slot_s(time_s: float) -> float:
    return time_s // BUDGET_SLOT_S * BUDGET_SLOT_S


def _count_key(budget: EnergyBudget) -> str:
    """Key of a budget in the ledger: made again under its name, it goes on; with other pods, it begins anew."""
    digest = hashlib.sha256(repr(target_of(budget)).encode()).hexdigest()[:12]
    return f"{budget.metadata.namespace}/{budget.metadata.name}/{digest}"


def _scope(budget: EnergyBudget, target: BudgetTarget, window: Window, pods: Iterable[str]) -> BudgetScope:
    return BudgetScope(
        _count_key(budget),
        target.namespace,
        window.start_s,
        frozenset(pods),
        target.owner_kind,
        target.owner_name,
        by_labels=bool(target.labels),
    )


def _levels(budget: EnergyBudget) -> Sequence[float]:
    return (*(DEFAULT_WARN_AT if budget.spec.warn_at is None else budget.spec.warn_at), 1.0)


def _conditions(limits: Amounts, now: Standing, used: float | None) -> Iterator[Condition]:
    if used is None:
        text = "carbon intensity or prices are unknown for all energy of the period"
        yield Condition(USAGE_KNOWN, "False", "SignalsMissing", "", text)
        yield Condition(EXHAUSTED, "Unknown", "SignalsMissing", "", text)
        return
    yield Condition(USAGE_KNOWN, "True", "Measured", "", "the usage is measured")
    text = f"used {_text(now.used, limits)}"
    yield Condition(EXHAUSTED, *(("True", "Exhausted") if used >= 1.0 else ("False", "WithinBudget")), "", text)


def _unknown(budget: EnergyBudget, reason: str, problem: str) -> EnergyBudgetStatus:
    """The last status of a budget, with the news that its usage is unknown now."""
    exhausted = condition_of(budget, EXHAUSTED)
    conditions = [Condition(USAGE_KNOWN, "False", reason, "", problem), *([] if exhausted is None else [exhausted])]
    return msgspec.structs.replace(budget.status, held=None, conditions=tuple(conditions))


def _is_news(old: EnergyBudgetStatus, new: EnergyBudgetStatus, now_s: float) -> bool:
    own = tuple(one for one in old.conditions if one.type in (USAGE_KNOWN, EXHAUSTED))
    # A rolling period begins at another time in every cycle.
    same = msgspec.structs.replace(
        old, held=None, conditions=own, last_updated=new.last_updated, period_start=new.period_start
    )
    return same != new or (
        new.last_updated != old.last_updated and now_s - (time_or_none(old.last_updated) or 0.0) >= REWRITE_S
    )


def _written(amounts: Amounts) -> BudgetAmounts:
    values = (amounts.energy_kwh, amounts.emissions_g, amounts.cost)
    return BudgetAmounts(*(None if value is None else float(f"{value:.9g}") for value in values))


def _percent(share: float | None) -> float | None:
    return None if share is None else round(share * 100.0, 3)


def _text(amounts: Amounts, limits: Amounts) -> str:
    """Amounts of what is limited, for people."""
    units = ("kWh", "gCO2eq", "cost")
    limited = (limits.energy_kwh, limits.emissions_g, limits.cost)
    values = (amounts.energy_kwh, amounts.emissions_g, amounts.cost)
    parts = [
        f"{'an unknown amount' if value is None else format(value, '.4g')} of {limit:.4g} {unit}"
        for value, limit, unit in zip(values, limited, units, strict=True)
        if limit is not None
    ]
    return ", ".join(parts)
