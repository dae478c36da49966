"""Events of demand response and what they achieved, and the signals that budgets follow."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget, ReductionStatus
from joulie.adapters.openadr import BASELINE, DEMAND, USAGE, OpenAdr, OpenAdrError, ReportRequest
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.apps.operator.budgets.stored import StoredBudget, zone_of
from joulie.apps.operator.settings.budgets import PowerBudgetSettings
from joulie.domain.capping.budgets import BudgetOutcome
from joulie.domain.capping.demand_response import (
    ADJUST_FROM_S,
    ADJUST_UNTIL_S,
    Baseline,
    Course,
    baseline_10_in_10,
    similar_days,
)
from joulie.domain.capping.grid_events import GridEvent, merged, reduction_of, signal_at
from joulie.domain.capping.watts_in_force import RAMP_S, Reduction
from joulie.domain.signal import Reading
from joulie.domain.units import joules_to_kwh

POLL_S = 30.0
"""How often signals and baselines are looked at, s."""
SIGNAL_STALE_S = 600.0
"""Age from which a signal is unknown, s."""
VTN_STALE_S = 6 * 3600.0
"""Age of the VTN's last answer from which its signals are unknown, s: it tells them ahead, by the day mostly."""
METRIC = "joulie_operator_power_budget_measured_watts"
REPORTED_SHARE = 0.95
"""Share of an event's time in which all nodes must have been measured for it to be reported to the VTN."""
_NO_PROMETHEUS = "no baseline: it needs PROMETHEUS_ADDRESS, where the power of past days is"
_log = logging.getLogger(__name__)


class BudgetEvents:
    """Follows events and signals of budgets.

    Args:
        prometheus: Prometheus client; None without one.
        openadr: client of a VTN; None without one.
        settings: which budgets its events reduce, and by how much.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        prometheus: Prometheus | None,
        openadr: OpenAdr | None,
        settings: PowerBudgetSettings,
        now_s: Callable[[], float],
    ) -> None:
        self._prometheus = prometheus
        self._openadr = openadr
        self._settings = settings
        self._now_s = now_s
        self._told: list[GridEvent] = []
        self._told_s = -math.inf
        self._vtn_signals: dict[str, str] = {}
        self._signals: dict[str, Reading] = {}
        self._courses: dict[tuple[str, str, float], Course] = {}
        self._baselines: dict[tuple[str, str, float], Baseline | str] = {}
        self._requests: dict[str, ReportRequest] = {}
        self._reported: set[str] = set()

    def signal(self, budget: str) -> float | None:
        """The value of a budget's signal; None where it is unknown."""
        told = self._vtn_signals.get(budget)
        if told is not None:
            recent = self._now_s() - self._told_s <= VTN_STALE_S
            return signal_at(self._told, told, self._now_s()) if recent else None
        reading = self._signals.get(budget)
        return reading.value if reading is not None and self._now_s() - reading.time_s <= SIGNAL_STALE_S else None

    def asked(self, budget: str, base_w: float) -> list[Reduction]:
        """Reductions of a budget that the VTN asks for.

        Args:
            budget: name of the budget.
            base_w: its watts, W.
        """
        if budget not in self._settings.openadr_budgets:
            return []
        levels = self._settings.openadr_simple_pct
        return [found for event in self._told if (found := reduction_of(event, base_w, levels)) is not None]

    def sampled(self, budgets: Mapping[str, StoredBudget], outcomes: Mapping[str, BudgetOutcome]) -> None:
        """Take the power measured of budgets into account, where an event holds."""
        now_s, kept = self._now_s(), dict[tuple[str, str, float], Course]()
        for name, stored in budgets.items():
            for event in stored.reductions:
                key = _key(name, event)
                course = self._courses.get(key)
                if event.active(now_s) and name in outcomes:
                    before = course or Course(event.start_s, event.limit_w)
                    course = before.sampled(now_s, outcomes[name].measured_w, measured=not outcomes[name].unread)
                if course is not None:
                    kept[key] = course
        self._courses = kept
        self._baselines = {key: found for key, found in self._baselines.items() if key in kept}

    def statuses(self, stored: PowerBudget, budget: StoredBudget) -> tuple[ReductionStatus, ...]:
        """What the events of a budget achieved; what a leader before has written stays where nothing newer is known."""
        before = {one.name: one for one in stored.status.reductions}
        found = []
        for event in budget.reductions:
            course = self._courses.get(_key(budget.budget.name, event))
            known = before.get(event.name)
            if course is not None:
                status = self._status(_key(budget.budget.name, event), event, course)
                if course.over_s is None and status.complied_seconds is None and known is not None:
                    status = msgspec.structs.replace(status, complied_seconds=known.complied_seconds)
                found.append(status)
            elif known is not None:
                found.append(known)
        return tuple(found)

    def _status(self, key: tuple[str, str, float], event: Reduction, course: Course) -> ReductionStatus:
        baseline, mean_w = self._baselines.get(key), course.mean_w
        over = self._now_s() >= event.end_s
        known = baseline if isinstance(baseline, Baseline) else None
        message = baseline if isinstance(baseline, str) else ""
        if known is not None:
            message = f"mean of {known.days} similar days, adjusted by {known.adjustment:.2f}"
        elif over and self._prometheus is None:
            message = _NO_PROMETHEUS
        return ReductionStatus(
            event.name,
            round(event.limit_w, 1),
            None if mean_w is None else round(mean_w, 1),
            None if course.complied_s is None else round(course.complied_s, 1),
            None if known is None else round(known.power_w, 1),
            None if known is None or mean_w is None else round(known.power_w - mean_w, 1),
            message,
        )

    async def poll(self, stored: Mapping[str, PowerBudget], budgets: Mapping[str, StoredBudget]) -> None:
        """Read events of the VTN, the signals that budgets follow, and the baselines of events that are over.

        Reports to the VTN are sent last, with those baselines.
        """
        if self._openadr is not None:
            await self._read_events(self._openadr)
        follows = {name: one.spec.follow for name, one in stored.items() if one.spec.follow is not None}
        self._vtn_signals = {name: one.signal.upper() for name, one in follows.items() if one.signal is not None}
        if self._prometheus is not None:
            await self._ask(self._prometheus, stored, budgets)
        if self._openadr is not None:
            await self._report(self._openadr, budgets)

    async def _read_events(self, openadr: OpenAdr) -> None:
        try:
            told = await openadr.events()
        except OpenAdrError as error:
            _log.warning("VTN not read: the events that are known stay", extra={"error": str(error)})
            return
        self._told, self._told_s = merged(self._told, told, self._now_s(), RAMP_S), self._now_s()
        # A VTN may forget an event that is over, but for a report the programme needs its ids.
        requests = self._requests | dict(openadr.requests)
        self._requests = {one.name: requests[one.name] for one in self._told if one.name in requests}
        self._reported &= self._requests.keys()

    async def _ask(
        self, prometheus: Prometheus, stored: Mapping[str, PowerBudget], budgets: Mapping[str, StoredBudget]
    ) -> None:
        for name, budget in stored.items():
            if budget.spec.follow is not None and budget.spec.follow.query is not None:
                await self._read_signal(prometheus, name, budget.spec.follow.query)
        self._signals = {name: found for name, found in self._signals.items() if name in stored}
        for name, one in budgets.items():
            for event in one.reductions:
                key = _key(name, event)
                if key in self._courses and key not in self._baselines and self._now_s() >= event.end_s:
                    starts = [other.start_s for other in one.reductions]
                    self._baselines[key] = await self._baseline(prometheus, stored[name], event, starts)

    async def _report(self, openadr: OpenAdr, budgets: Mapping[str, StoredBudget]) -> None:
        """Report to the VTN on the intervals that are over and that it wants to know of; tried again at each poll."""
        for ident, request in self._requests.items():
            if ident in self._reported:
                continue
            events = {name: event for name, one in budgets.items() for event in one.reductions if event.name == ident}
            event = next(iter(events.values()), None)
            if event is None or self._now_s() < event.end_s:
                continue
            values = {name: told for name, one in events.items() if (told := self._measured(name, one, request))}
            try:
                if values:
                    await openadr.report(request, event.start_s, event.end_s, values)
                else:
                    _log.warning(
                        "event not reported to the VTN: it was not measured as a whole", extra={"event": ident}
                    )
                self._reported.add(ident)
            except OpenAdrError as error:
                _log.warning("event not reported to the VTN", extra={"event": ident, "error": str(error)})

    def _measured(self, budget: str, event: Reduction, request: ReportRequest) -> dict[str, float]:
        """What is reported of a budget, by payload, in its units; nothing where too little was measured."""
        key, length_s = _key(budget, event), event.end_s - event.start_s
        course, baseline = self._courses.get(key), self._baselines.get(key)
        if course is None or course.mean_w is None or course.measured_s < REPORTED_SHARE * length_s:
            return {}
        found = {DEMAND: course.mean_w / 1000.0, USAGE: joules_to_kwh(course.mean_w * length_s)}
        if isinstance(baseline, Baseline):
            found[BASELINE] = baseline.power_w / 1000.0
        return {kind: found[kind] for kind in request.payloads if kind in found}

    async def _read_signal(self, prometheus: Prometheus, name: str, query: str) -> None:
        try:
            series = await prometheus.query(query)
        except PrometheusError as error:
            _log.warning("signal of a power budget not read", extra={"budget": name, "error": str(error)})
            return
        if len(series) != 1:
            _log.warning("signal of a power budget has not one series", extra={"budget": name, "series": len(series)})
            return
        self._signals[name] = Reading(self._now_s(), series[0].value)

    async def _baseline(
        self, prometheus: Prometheus, stored: PowerBudget, event: Reduction, starts: list[float]
    ) -> Baseline | str:
        name, length_s = stored.metadata.name, event.end_s - event.start_s
        window_s = ADJUST_FROM_S - ADJUST_UNTIL_S

        async def mean_w(until_s: float, over_s: float) -> float | None:
            selector = f'avg_over_time({METRIC}{{budget="{name}"}}[{over_s:.0f}s] @ {until_s:.0f})'
            values = [one.value for one in await prometheus.query(f"max({selector})")]
            return values[0] if values else None

        try:
            days = {
                start_s: (
                    await mean_w(start_s + length_s, length_s),
                    await mean_w(start_s - ADJUST_UNTIL_S, window_s),
                )
                for start_s in similar_days(event.start_s, zone_of(stored.spec), starts)
            }
            found = baseline_10_in_10(days, await mean_w(event.start_s - ADJUST_UNTIL_S, window_s))
        except (PrometheusError, ValueError) as error:
            return f"no baseline: {error}"
        return found or "no baseline: fewer than five similar days are known"


def _key(budget: str, event: Reduction) -> tuple[str, str, float]:
    return budget, event.name, event.start_s
