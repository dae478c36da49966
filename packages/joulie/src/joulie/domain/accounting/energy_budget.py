"""Budgets of energy, emissions and money: what is used, what is expected, and whether new pods wait.

Two programs decide, each from what it knows alone. Accounting measures (`standing`). The grid controller holds
(`decide`): from the measurement, the limit and the clock, so that it lets go when the period turns though nobody has
measured since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.accounting.budget import WhenUnknown
from joulie.domain.accounting.period import Window
from joulie.domain.accounting.records import BUDGET_SLOT_S, Energy
from joulie.domain.quantities import joules_to_kwh

DEFAULT_WARN_AT = (0.8,)
RESUME_BELOW = 0.95
"""Used share of a rolling budget below which what waits goes on: at 1 it would be exhausted again at once."""
_PACES_PER_PERIOD = 24.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """Energy, emissions and cost: limits, or what is used. None: no limit, or unknown.

    Attributes:
        energy_kwh: energy, PUE included, kWh.
        emissions_g: emissions, gCO2eq.
        cost: cost, in the currency of the prices; negative prices reduce it.
    """

    energy_kwh: float | None = None
    emissions_g: float | None = None
    cost: float | None = None

    def pairs(self, limits: Amounts) -> list[tuple[float | None, float]]:
        """Each limit with the amount that it is for."""
        both = (
            (self.energy_kwh, limits.energy_kwh),
            (self.emissions_g, limits.emissions_g),
            (self.cost, limits.cost),
        )
        return [(amount, limit) for amount, limit in both if limit is not None]

    def share_of(self, limits: Amounts) -> float | None:
        """Largest share of a limit; None if one is unknown, unless another one is exhausted."""
        pairs = self.pairs(limits)
        known = [amount / limit for amount, limit in pairs if amount is not None]
        largest = max(known, default=None)
        return largest if len(known) == len(pairs) or (largest is not None and largest >= 1.0) else None


@dataclass(frozen=True, slots=True)
class BudgetTarget:
    """The pods of a namespace that a budget is for. A pod must match all that is given.

    Attributes:
        namespace: their namespace.
        owner_kind: kind of their workload; empty for all.
        owner_name: name of their workload.
        labels: labels that they have, as sorted pairs.
    """

    namespace: str
    owner_kind: str = ""
    owner_name: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, namespace: str, owner_kind: str, owner_name: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod of a workload is one of them."""
        return (
            namespace == self.namespace
            and self.owner_kind in ("", owner_kind)
            and self.owner_name in ("", owner_name)
            and all(labels.get(key) == value for key, value in self.labels)
        )


class Standing(NamedTuple):
    """What was measured of a budget.

    Attributes:
        used: since the start of the period.
        forecast: expected at its end, at the present pace; all None while too little of the period was measured.
        forecast_from_s: time from which there is a forecast, s since the epoch; None if there is one.
    """

    used: Amounts
    forecast: Amounts
    forecast_from_s: float | None = None


def pace_since_s(window: Window, now_s: float) -> float:
    """Since when the present pace is measured, s since the epoch: a 24th of the period, a quarter of an hour at least.

    Args:
        window: the period.
        now_s: current time, s since the epoch.
    """
    return max(window.start_s, now_s - _pace_s(window))


def standing(window: Window, used: Energy, recent: Energy, recent_since_s: float, now_s: float) -> Standing:
    """Amounts used, and expected at the end of the period if it goes on as of late.

    Minutes say nothing about a month: nothing is expected until a 24th of the period was measured, or as much as is
    left of it. So what is expected is at most what was used and 24 times what was used of late.

    Args:
        window: the period; a rolling one ends now.
        used: energy since its start.
        recent: energy of late.
        recent_since_s: start of that time, s since the epoch.
        now_s: current time, s since the epoch.
    """
    so_far, of_late = _amounts(used), _amounts(recent)
    left_s = max(window.end_s - now_s, 0.0)
    if left_s and now_s < (enough_s := min(recent_since_s + _pace_s(window), (recent_since_s + window.end_s) / 2.0)):
        return Standing(so_far, Amounts(), enough_s)
    times = left_s / (now_s - recent_since_s) if left_s else 0.0
    expected = [
        amount if amount is None or pace is None else amount + pace * times
        for amount, pace in zip(_values(so_far), _values(of_late), strict=True)
    ]
    return Standing(so_far, Amounts(*expected))


def _pace_s(window: Window) -> float:
    return max((window.end_s - window.start_s) / _PACES_PER_PERIOD, BUDGET_SLOT_S)


def _values(amounts: Amounts) -> tuple[float | None, ...]:
    return amounts.energy_kwh, amounts.emissions_g, amounts.cost


def _amounts(energy: Energy) -> Amounts:
    return Amounts(
        joules_to_kwh(energy.energy_j),
        _completed(energy.emissions_g, energy.energy_j, energy.energy_without_intensity_j),
        _completed(energy.cost, energy.energy_j, energy.energy_without_price_j),
    )


def _completed(amount: float, energy_j: float, unknown_j: float) -> float | None:
    """An amount with its unknown part, at the mean of the known one: missing is never zero; None if all is unknown."""
    known_j = energy_j - unknown_j
    if unknown_j <= 0.0:
        return amount
    return amount * energy_j / known_j if known_j > 1e-9 * energy_j else None


# ---- holding


class HoldReason(StrEnum):
    """Why new pods wait, or do not."""

    WITHIN = "WithinBudget"
    EXHAUSTED = "Exhausted"
    FAILS_OPEN = "UsageUnknownOpen"
    FAILS_CLOSED = "UsageUnknownClosed"


@dataclass(frozen=True, slots=True)
class Measured:
    """The latest measurement of a budget.

    Attributes:
        used: used amounts; None if there is none yet, or if they are unknown.
        time_s: when it was measured, s since the epoch.
        turns_s: end of its calendar period, s since the epoch; None of a rolling one.
    """

    used: Amounts | None
    time_s: float
    turns_s: float | None


def decide(
    limits: Amounts,
    measured: Measured,
    now_s: float,
    *,
    stale_after_s: float,
    when_unknown: WhenUnknown,
    holding: bool,
) -> HoldReason:
    """Whether new pods wait.

    What was used in a calendar period does not become less, so that one that was exhausted stays so, whoever measures
    or not, until its period turns or the limit is raised. Any other old measurement says nothing.

    Args:
        limits: limits of the budget.
        measured: its latest measurement.
        now_s: current time, s since the epoch.
        stale_after_s: age at which a measurement says nothing any more, s.
        when_unknown: what to do then.
        holding: whether its pods wait already.
    """
    turned = measured.turns_s is not None and now_s >= measured.turns_s
    share = 0.0 if turned else None if measured.used is None else measured.used.share_of(limits)
    stale = now_s - measured.time_s > stale_after_s
    exhausted = share is not None and share >= 1.0
    if exhausted and not (stale and measured.turns_s is None):
        return HoldReason.EXHAUSTED
    if stale or share is None:
        return HoldReason.FAILS_OPEN if when_unknown is WhenUnknown.OPEN else HoldReason.FAILS_CLOSED
    if measured.turns_s is None and holding and share > RESUME_BELOW:
        return HoldReason.EXHAUSTED
    return HoldReason.WITHIN


def holds(reason: HoldReason) -> bool:
    """Whether new pods wait for this reason."""
    return reason in (HoldReason.EXHAUSTED, HoldReason.FAILS_CLOSED)
