"""PowerBudgets of the API as the domain's: what they cover, and what they allow now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget, PowerBudgetSpec
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.operator.observe import ClusterView
from joulie.domain.capping.budgets import READING_ERROR, RESPONSE_S, Breaker, Budget
from joulie.domain.capping.trip import EARLIEST, TripCurve
from joulie.domain.capping.watts_in_force import (
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
_log = logging.getLogger(__name__)


class StoredBudget(NamedTuple):
    """A budget as it is in force now, and why its limit is what it is.

    Attributes:
        budget: in the domain's terms.
        limit: its limit.
        reductions: events that reduce it, those that do not hold now among them.
        spec_w: its own watts, W.
        signal: value of the signal that it follows; None where it follows none, or it is unknown.
    """

    budget: Budget
    limit: WattsInForce
    reductions: tuple[Reduction, ...]
    spec_w: float
    signal: float | None


def budgets_in_force(
    view: ClusterView, signal: Signal, now_s: float, asked: Callable[[str, float], Sequence[Reduction]] = lambda *_: ()
) -> Mapping[str, StoredBudget]:
    """All budgets by name, with the nodes that they cover; those that are invalid are left out and logged.

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
        other = stored.get(budget.spec.redundant_with or "")
        if other is not None:
            # After a failover the nodes of both feeds draw from this one.
            covered = np.union1d(covered, selected.of(other.spec.node_selector))
        try:
            found[name] = _in_force(budget, covered, signal(name), now_s, asked(name, budget.spec.watts))
        except ValueError as error:  # of quantities, zones, clocks and days
            _log.warning("invalid power budget", extra={"budget": name, "error": str(error)})
    return found


def reductions_of(spec: PowerBudgetSpec) -> tuple[Reduction, ...]:
    """The events of a budget.

    Raises:
        ValueError: a time cannot be read, or a quantity is out of range.
    """
    found = []
    for one in spec.reductions:
        start_s, end_s = time_or_none(one.start), time_or_none(one.end)
        if start_s is None or end_s is None:
            raise ValueError(f"reduction {one.name}: start or end is no time")
        limit_w = one.watts if one.watts is not None else spec.watts * (1.0 - (one.reduce_percent or 0.0) / 100.0)
        ramp_s = RAMP_S if one.ramp_seconds is None else one.ramp_seconds
        found.append(Reduction(one.name, start_s, end_s, limit_w, ramp_s))
    return tuple(found)


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
    stored: PowerBudget, covered: IntArray, signal: float | None, now_s: float, asked: Sequence[Reduction]
) -> StoredBudget:
    """A budget in the domain's terms.

    Raises:
        ValueError: a quantity, zone, clock or day is invalid; most of it the API server refuses.
    """
    spec, breaker, zone = stored.spec, stored.spec.breaker, zone_of(stored.spec)
    schedule = [
        ScheduledWatts(
            Schedule(
                "", parse_days(one.days or "*"), parse_clock_min(one.start) % 1440, parse_clock_min(one.end), zone
            ),
            one.watts,
        )
        for one in spec.schedule
    ]
    follow = None if spec.follow is None else Follow(spec.follow.low, spec.follow.high, spec.follow.watts_at_high)
    reductions = (*reductions_of(spec), *asked)
    limit = watts_in_force(
        now_s, spec.watts, schedule=schedule, follow=follow, signal=signal, reductions=reductions
    )  # fmt: skip
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
    return StoredBudget(budget, limit, reductions, spec.watts, None if follow is None else signal)


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
