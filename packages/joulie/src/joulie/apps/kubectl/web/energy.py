"""What the energy page shows, from the accounting program's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.energy import (
    FOLDED,
    IDLE,
    LABEL_PREFIX,
    UNLABELLED,
    EnergyAnswer,
    EnergyItem,
    SavingsAnswer,
    SavingsItem,
)
from joulie.adapters.program_api.grid import SignalItem
from joulie.apps.kubectl.energy import total
from joulie.apps.kubectl.holdout import LimitsSaving
from joulie.apps.kubectl.web.answers import PowerHour
from joulie.apps.kubectl.web.programs import Programs, problem_of
from joulie.apps.kubectl.web.watching import ClusterView
from joulie.domain.accounting.records import OTHER_VALUE
from joulie.domain.quantities import joules_to_kwh
from joulie.program.queries import choice, page_of

_SECONDS_PER_DAY = 86400.0
_PERIODS = ("7", "31", "92")
_GROUPS = {"namespace": "Namespace", "job": "Workload", "node": "Node", "pod": "Pod"}
_SERIES = 7
_OTHERS = "all others"
_ROWS = 100
_MONTHS = 13
_SHOWN = {IDLE: "idle nodes", FOLDED: "older energy", UNLABELLED: "without this label", OTHER_VALUE: "other values"}
"""What pages say for energy without a pod."""


@dataclass(frozen=True)
class EnergyDay:
    """Energy of one day.

    Attributes:
        at: start of the day, s since the epoch.
        text: its date.
        kwh: energy by series, kWh.
    """

    at: float
    text: str
    kwh: Sequence[float]


class DayFactors(NamedTuple):
    """Mean carbon intensity and price of one day's energy; None where unknown.

    Attributes:
        at: start of the day, s since the epoch.
        text: its date.
        intensity_g_per_kwh: gCO2eq/kWh.
        price_per_kwh: currency/kWh.
    """

    at: float
    text: str
    intensity_g_per_kwh: float | None
    price_per_kwh: float | None


@dataclass(frozen=True)
class EnergyView:
    """What the energy page shows.

    Attributes:
        days: length of the period up to now, days.
        by: what the energy is grouped by.
        problems: data that is missing, and why.
        answer: sums over the period; None if the accounting program does not tell.
        total: sum of all groups.
        rows: groups of this page of the table, with their names, largest first.
        found: number of groups on all pages.
        names: names of the chart's series.
        daily: the chart.
        next_page: value of ``continue`` for the next page of the table.
        namespaces: namespaces to choose from.
        namespace: chosen one; empty for all.
        idle_j: energy of the period that no pod is charged for, J.
        factors: intensity and price by day.
        savings: savings by deferral.
        measured: what holdouts have measured.
        months: months whose report can be had, latest first.
        signals: intensity and price now and ahead, by zone.
    """

    days: str
    by: str
    problems: Sequence[str] = ()
    answer: EnergyAnswer | None = None
    total: EnergyItem | None = None
    rows: Sequence[tuple[str, EnergyItem]] = ()
    found: int = 0
    names: Sequence[str] = ()
    daily: Sequence[EnergyDay] = ()
    next_page: str | None = None
    namespaces: Sequence[str] = ()
    namespace: str = ""
    idle_j: float = 0.0
    factors: Sequence[DayFactors] = ()
    savings: Sequence[Saved] = ()
    measured: Sequence[Measured] = ()
    months: Sequence[str] = ()
    signals: Sequence[SignalItem] = ()

    @property
    def group(self) -> str:
        """What the energy is grouped by, in words."""
        return self.groups[self.by].lower() if self.by in _GROUPS else f"label {self.by.removeprefix(LABEL_PREFIX)}"

    @property
    def groups(self) -> Mapping[str, str]:
        """What energy can be grouped by, with their titles."""
        keys = self.answer.label_keys if self.answer else ()
        return _GROUPS | {LABEL_PREFIX + key: key for key in keys}


class Measured(NamedTuple):
    """A saving that a holdout has measured, as a share; its bounds hold at all looks together.

    Attributes:
        what: what saves, and what of.
        saved_pct: estimate, %.
        low_pct: lower bound, %.
        high_pct: upper bound, %.
        left_out: number of units that were left alone by chance.
        units: number of all units.
        unit: what they are.
    """

    what: str
    saved_pct: float
    low_pct: float
    high_pct: float
    left_out: int
    units: int
    unit: str


class Saved(NamedTuple):
    """Savings by deferral of one measure, by one method.

    Attributes:
        measure: carbon or price.
        method: how they were calculated.
        gains: sum over pods that saved, gCO2eq or currency.
        losses: sum over pods that would have been better off without waiting, likewise, above 0.
        pods: number of pods.
    """

    measure: str
    method: str
    gains: float
    losses: float
    pods: int


async def energy_view(programs: Programs, cluster: ClusterView, query: Mapping[str, str]) -> EnergyView:
    """The energy page's content.

    Raises:
        QueryError: an invalid parameter.
    """
    days, by = choice(query, "days", _PERIODS, "31"), query.get("by", "namespace")
    if not by.startswith(LABEL_PREFIX):
        by = choice(query, "by", tuple(_GROUPS), "namespace")
    namespaces = cluster.state().namespaces
    # Who may not list all namespaces would only learn that they may not see the sum of all.
    chosen = query.get("namespace") or (namespaces[0] if cluster.visible is not None and namespaces else "")
    asked = {"since": f"{int(days) * _SECONDS_PER_DAY:g}", "namespace": chosen}
    empty = EnergyView(days, by, namespaces=namespaces, namespace=chosen)
    try:
        answer, by_day, by_namespace, saved = await asyncio.gather(
            programs.energy(asked | {"by": by}),
            programs.energy(asked | {"by": by, "step": "day"}),
            programs.energy(asked | {"by": "namespace"}),
            programs.savings(asked),
        )
        signals = await programs.signals()
    except KubernetesError as error:
        return replace(empty, problems=[f"energy is not shown: {problem_of(error)}"])
    rows, after = page_of(answer.items, query, _ROWS)
    names, daily = stacked_days(answer.items, by_day.items)
    return replace(
        empty,
        answer=answer,
        total=total(answer.items),
        idle_j=sum(item.energy_j for item in by_namespace.items if item.name == IDLE),
        rows=[(title(item), item) for item in rows],
        found=len(answer.items),
        names=names,
        daily=daily,
        factors=daily_factors(by_day.items),
        savings=saved_by_method(saved.items),
        measured=measured_savings(saved, cluster.limits_saving(chosen)),
        months=_months(answer.until),
        signals=signals.signals if signals else (),
        next_page=after,
    )


def measured_savings(saved: SavingsAnswer, visible: LimitsSaving | None) -> list[Measured]:
    """What holdouts have measured.

    Args:
        saved: what accounting knows: of all namespaces, or of none.
        visible: what limits save by the profiles that the reader may see, for who is not told of all namespaces.
    """
    limits, waiting = LimitsSaving.of_all(saved.limits) or visible, saved.holdout
    found = []
    if limits is not None:
        shares = limits.saved_pct, limits.low_pct, limits.high_pct
        what = "power limits of GPUs: energy for the same work"
        found.append(Measured(what, *shares, limits.left_out, limits.windows, "windows of time"))
    if waiting is not None:
        shares = waiting.saved_pct, waiting.low_pct, waiting.high_pct
        found.append(Measured("waiting: emissions", *shares, waiting.left_out, waiting.workloads, "workloads"))
    return found


def _months(until_s: float) -> list[str]:
    """The month of a time and those before it that the ledger keeps, latest first."""
    now = datetime.fromtimestamp(until_s, UTC)
    months = (divmod(now.year * 12 + now.month - 1 - back, 12) for back in range(_MONTHS))
    return [f"{year:04}-{month + 1:02}" for year, month in months]


def saved_by_method(items: Sequence[SavingsItem]) -> list[Saved]:
    """Savings by measure and method, gains and losses apart."""
    found: dict[tuple[str, str], list[SavingsItem]] = {}
    for item in items:
        found.setdefault((item.measure, item.method), []).append(item)
    return [
        Saved(
            measure,
            method,
            sum(item.amount for item in group if item.amount > 0.0),
            -sum(item.amount for item in group if item.amount < 0.0),
            sum(item.pods for item in group),
        )
        for (measure, method), group in sorted(found.items())
    ]


def daily_factors(items: Sequence[EnergyItem]) -> list[DayFactors]:
    """Mean carbon intensity and price of each day's energy, as far as they are known."""
    by_day: dict[float, list[EnergyItem]] = {}
    for item in items:
        by_day.setdefault((item.start or 0.0) // _SECONDS_PER_DAY * _SECONDS_PER_DAY, []).append(item)
    found = []
    for day_s, group in sorted(by_day.items()):
        day = total(group)
        found.append(
            DayFactors(
                day_s,
                datetime.fromtimestamp(day_s, UTC).date().isoformat(),
                _per_kwh(day.emissions_g, day.energy_j - day.energy_without_intensity_j),
                _per_kwh(day.cost, day.energy_j - day.energy_without_price_j),
            )
        )
    return found


def _per_kwh(amount: float, energy_j: float) -> float | None:
    return amount / joules_to_kwh(energy_j) if energy_j > 0.0 else None


def stacked_days(groups: Sequence[EnergyItem], items: Sequence[EnergyItem]) -> tuple[list[str], list[EnergyDay]]:
    """Energy by day: series of the largest groups, and one of all others.

    Args:
        groups: sums by group, largest first.
        items: sums by group and day.
    """
    names = [title(item) for item in groups[:_SERIES]]
    names += [_OTHERS] if len(groups) > _SERIES else []
    columns = {name: index for index, name in enumerate(names)}
    by_day: dict[float, list[float]] = {}
    for item in items:
        day_s = (item.start or 0.0) // _SECONDS_PER_DAY * _SECONDS_PER_DAY
        series = by_day.setdefault(day_s, [0.0] * len(names))
        series[columns.get(title(item), len(names) - 1)] += joules_to_kwh(item.energy_j)
    return names, [
        EnergyDay(day_s, datetime.fromtimestamp(day_s, UTC).date().isoformat(), kwh)
        for day_s, kwh in sorted(by_day.items())
    ]


def power_hours(items: Sequence[EnergyItem]) -> list[PowerHour]:
    """Mean power by hour, from sums by hour."""
    return [
        PowerHour(
            at=item.start,
            measured_w=item.measured_j / (item.end - item.start),
            estimated_w=(item.energy_j - item.measured_j - item.assumed_j) / (item.end - item.start),
            assumed_w=item.assumed_j / (item.end - item.start),
        )
        for item in items
        if item.start is not None and item.end is not None and item.end > item.start
    ]


def title(item: EnergyItem) -> str:
    """Name of a group, with its namespace and kind."""
    parts = dict.fromkeys(_SHOWN.get(part, part) for part in (item.namespace, item.kind, item.name) if part)
    return "/".join(parts)
