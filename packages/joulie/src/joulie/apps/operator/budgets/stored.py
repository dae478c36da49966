"""PowerBudgets of the API as the domain's: what they cover, and what they allow now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget, PowerBudgetSpec
from joulie.adapters.kubernetes.api.v1alpha1.power_budget import FollowSpec, ReductionSpec, ScheduleWindow
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.operator.observe import ClusterView
from joulie.domain.capping.budgets import READING_ERROR, RESPONSE_S, Breaker, Budget
from joulie.domain.capping.trip import EARLIEST, TripCurve
from joulie.domain.capping.watts_in_force import (
    INVALID,
    RAMP_S,
    Follow,
    Reduction,
    ScheduledWatts,
    WattsInForce,
    watts_in_force,
)
from joulie.domain.grid.tou import Schedule, parse_clock_min, parse_days
from joulie.domain.mode import Mode
from joulie.domain.units import IntArray

Signal = Callable[[str], float | None]
"""The value of a budget's signal, by the budget's name; None where it is unknown."""
_Part = TypeVar("_Part")
_Read = TypeVar("_Read")


class StoredBudget(NamedTuple):
    """A budget as it is in force now, and why its limit is what it is.

    Attributes:
        budget: in the domain's terms.
        limit: its limit.
        reductions: events that reduce it, those that do not hold now among them.
        spec_w: its own watts, W.
        signal: value of the signal that it follows; None where it follows none, or it is unknown.
        invalid: what of it cannot be read; empty if all can.
    """

    budget: Budget
    limit: WattsInForce
    reductions: tuple[Reduction, ...]
    spec_w: float
    signal: float | None
    invalid: str = ""


def budgets_in_force(
    view: ClusterView, signal: Signal, now_s: float, asked: Callable[[str, float], Sequence[Reduction]] = lambda *_: ()
) -> Mapping[str, StoredBudget]:
    """All budgets by name, with the nodes that they cover.

    A part that cannot be read lifts nothing: then the limit may fall by all that can be read, and does not rise above
    what was in force last, which the status says to a new leader too.

    Args:
        view: cached view of the cluster.
        signal: values of the signals that budgets follow.
        now_s: time, s since the epoch.
        asked: returns reductions of a budget beside those in its spec, by its name and watts.
    """
    stored = {key.name: budget for key, budget in view.power_budgets.items()}
    if not stored:
        return {}
    selected = _Selection(view)
    found: dict[str, StoredBudget] = {}
    for name, budget in stored.items():
        covered = selected.of(budget.spec.node_selector)
        pair, errors = budget.spec.redundant_with, list[str]()
        other = stored.get(pair or "")
        if other is not None:
            # After a failover the nodes of both feeds draw from this one.
            covered = np.union1d(covered, selected.of(other.spec.node_selector))
        elif pair:
            errors.append(f"redundantWith: there is no PowerBudget {pair!r}")
        found[name] = _in_force(budget, covered, signal(name), now_s, asked(name, budget.spec.watts), errors)
    return found


def zone_of(spec: PowerBudgetSpec) -> ZoneInfo:
    """Time zone of a budget's calendar.

    Raises:
        ValueError: it is unknown.
    """
    name = spec.time_zone or "UTC"
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(f"unknown time zone {name!r}") from error


def _in_force(
    stored: PowerBudget,
    covered: IntArray,
    signal: float | None,
    now_s: float,
    asked: Sequence[Reduction],
    errors: list[str],
) -> StoredBudget:
    """A budget in the domain's terms; what of it cannot be read is added to `errors`."""
    spec, breaker = stored.spec, stored.spec.breaker
    schedule = _readable((("schedule", one) for one in spec.schedule), partial(_window, spec), errors)
    follow = next(iter(_readable([("follow", spec.follow)] if spec.follow else (), _follow, errors)), None)
    events = ((f"reduction {one.name}", one) for one in spec.reductions)
    reductions = (*_readable(events, partial(_reduction, spec.watts), errors), *asked)
    limit = watts_in_force(
        now_s, spec.watts, schedule=schedule, follow=follow, signal=signal, reductions=reductions
    )  # fmt: skip
    if errors:
        limit = WattsInForce(min(limit.limit_w, stored.status.limit_watts or limit.limit_w), INVALID)
    budget = Budget(
        stored.metadata.name,
        limit.limit_w,
        covered,
        spec.response_seconds or RESPONSE_S,
        None
        if breaker is None
        else Breaker(
            breaker.rated_watts,
            TripCurve(
                breaker.hold or EARLIEST.hold,
                breaker.time_constant_seconds or EARLIEST.time_constant_s,
                breaker.instantaneous or EARLIEST.instantaneous,
            ),
            READING_ERROR if breaker.reading_error_percent is None else breaker.reading_error_percent / 100.0,
        ),
        enforced=spec.mode != Mode.OBSERVE,
    )
    invalid = "; ".join(dict.fromkeys(errors))
    return StoredBudget(budget, limit, reductions, spec.watts, None if follow is None else signal, invalid)


def _readable(parts: Iterable[tuple[str, _Part]], read: Callable[[_Part], _Read], errors: list[str]) -> list[_Read]:
    """The named parts that can be read; what is wrong with the others is added to `errors`."""
    found = []
    for name, part in parts:
        try:
            found.append(read(part))
        except ValueError as error:  # of quantities, zones, clocks and days
            errors.append(f"{name}: {error}")
    return found


def _window(spec: PowerBudgetSpec, window: ScheduleWindow) -> ScheduledWatts:
    days, start_min = parse_days(window.days or "*"), parse_clock_min(window.start) % 1440
    return ScheduledWatts(Schedule("", days, start_min, parse_clock_min(window.end), zone_of(spec)), window.watts)


def _follow(spec: FollowSpec) -> Follow:
    return Follow(spec.low, spec.high, spec.watts_at_high)


def _reduction(spec_w: float, event: ReductionSpec) -> Reduction:
    start_s, end_s = time_or_none(event.start), time_or_none(event.end)
    if start_s is None or end_s is None:
        raise ValueError("start or end is no time")
    limit_w = event.watts if event.watts is not None else spec_w * (1.0 - (event.reduce_percent or 0.0) / 100.0)
    return Reduction(event.name, start_s, end_s, limit_w, RAMP_S if event.ramp_seconds is None else event.ramp_seconds)


class _Selection:
    """Managed nodes by their labels; each label is looked up once for all budgets."""

    def __init__(self, view: ClusterView) -> None:
        self._labels = [facts.labels if (facts := view.node(one.name)) else {} for one in view.nodes]
        self._by_key: dict[str, dict[str, set[int]]] = {}

    def of(self, selector: Mapping[str, str]) -> IntArray:
        """Indices of the nodes that have all these labels, ascending."""
        found = set(range(len(self._labels)))
        for key, value in selector.items():
            found &= self._of_key(key).get(value, set())
        return np.array(sorted(found), dtype=np.int64)

    def _of_key(self, key: str) -> dict[str, set[int]]:
        if key not in self._by_key:
            values = self._by_key[key] = {}
            for index, labels in enumerate(self._labels):
                if key in labels:
                    values.setdefault(labels[key], set()).add(index)
        return self._by_key[key]
