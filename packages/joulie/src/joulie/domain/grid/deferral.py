"""Whether a waiting workload runs now, and when to look again if not.

One pure decision for scheduling gates, Kueue's admission checks, dry runs and the benchmark. Nothing is held past its
latest start, and nothing is held for a signal that is missing. Source: spec, grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.grid import windows
from joulie.domain.grid.request import GridRequest, Mode
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import GridSignal, Measure, Period
from joulie.domain.quantities import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

MIN_WAKE_S = 1.0
"""Minimum time between two decisions, s."""


class HoldReason(StrEnum):
    """Why a workload waits."""

    CARBON = "carbon"
    PRICE = "price"
    BOTH = "both"
    WINDOW = "window"
    """A better window is expected."""


class ReleaseReason(StrEnum):
    """Why a workload runs."""

    CLEAN = "clean"
    """Intensity and price are within its limits."""
    WINDOW = "window"
    """The best window that is expected begins."""
    DEADLINE = "deadline"
    """Its latest start is reached."""
    MISSING = "missing"
    """The signal is missing, and a missing signal holds no workload."""
    NOT_WATCHED = "not-watched"
    """Neither carbon intensity nor price is considered."""
    NOT_ASKED = "not-asked"
    SKIP = "skip"
    REPLACEMENT = "replacement"
    """It replaces a pod that has run; the caller knows its owner."""
    HOLDOUT = "holdout"
    """Chance leaves it alone, so that what waiting saves goes on being measured."""
    TRIAL = "trial"
    """A trial of deferral lets it start at once, by chance."""


class FinishBy(NamedTuple):
    """A time by which a workload has to be done."""

    time_s: float
    """s since the epoch."""
    what: str
    """What comes then, in words: ``the deadline of its Job``."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload that may be held.

    Attributes:
        request: what it asks.
        held_since_s: since when its delay counts, s since the epoch.
        finish_by: when it has to be done; None if it may take as long as it likes.
    """

    request: GridRequest
    held_since_s: float
    finish_by: FinishBy | None = None

    @property
    def latest_start_s(self) -> float:
        """Until when it may be held, s since the epoch."""
        latest_s = self.held_since_s + self.request.max_delay_s
        if self.finish_by is not None:
            latest_s = min(latest_s, self.finish_by.time_s - self.request.runtime_s)
        return max(latest_s, self.held_since_s)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Signals of the grid in the workload's zone; None for those that the cluster does not watch."""

    carbon: GridSignal | None = None
    price: GridSignal | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """It waits.

    Attributes:
        reason: what for.
        text: the same in words, with numbers.
        wake_s: when to decide again at the latest, s since the epoch; a new value of a signal is a reason, too.
        latest_start_s: until when it may be held, s since the epoch.
        held_by: the signals that hold it; its savings are accounted by them.
    """

    reason: HoldReason
    text: str
    wake_s: float
    latest_start_s: float
    held_by: tuple[Measure, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """It runs.

    Attributes:
        reason: why.
        text: the same in words, with numbers.
    """

    reason: ReleaseReason
    text: str


@dataclass(frozen=True, slots=True)
class Watched:
    """One measure that a workload considers.

    Attributes:
        signal: its value and forecast.
        limit: above which it holds, gCO2eq/kWh or currency/kWh; None: in a peak period.
        weight: its weight in the objective, 0..1.
    """

    signal: GridSignal
    limit: float | None
    weight: float = 0.0

    @property
    def comparable(self) -> bool:
        """Whether there are a value and a limit; without, a price holds in its peak periods."""
        return self.limit is not None and self.signal.value is not None

    @property
    def exceeded(self) -> bool:
        """Whether it holds the workload now. Equal to the limit runs."""
        if self.limit is not None and self.signal.value is not None:
            return self.signal.value > self.limit
        return self.signal.period is Period.PEAK


def decide(waiting: Waiting, conditions: Conditions, now_s: float) -> Hold | Release:
    """Whether a workload runs now.

    Args:
        waiting: the workload.
        conditions: carbon intensity and price in its zone.
        now_s: time, s since the epoch.
    """
    release = _never_held(waiting, now_s)
    if release is not None:
        return release
    watched = _watched(waiting.request, conditions)
    if not watched:
        return Release(ReleaseReason.NOT_WATCHED, "neither carbon intensity nor price is to be watched")
    known = [one for one in watched if one.signal.known]
    if not known:
        return Release(ReleaseReason.MISSING, "; ".join(unknown_text(one) for one in watched))
    if waiting.request.mode is Mode.THRESHOLD:
        return _by_thresholds(known, waiting, now_s, "")
    return _by_window(known, waiting, now_s)


def _never_held(waiting: Waiting, now_s: float) -> Release | None:
    if waiting.request.skip:
        return Release(ReleaseReason.SKIP, "asks not to wait")
    if not waiting.request.defer:
        return Release(ReleaseReason.NOT_ASKED, "does not ask to wait")
    if now_s >= waiting.latest_start_s:
        return Release(ReleaseReason.DEADLINE, _deadline_text(waiting))
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """What the time of a workload is chosen by.

    Attributes:
        series: the objective to minimise, from now on as far as it is forecast.
        forecast: signals that have a forecast.
        measures: those of them that count in the objective.
    """

    series: Series
    forecast: tuple[Measure, ...]
    measures: tuple[Measure, ...]


def expected_goal(request: GridRequest, conditions: Conditions, now_s: float) -> Goal | None:
    """The objective of a workload from now on, as far as it is forecast; None without a forecast."""
    return _goal([one for one in _watched(request, conditions) if one.signal.known], now_s)


def _goal(known: Sequence[Watched], now_s: float) -> Goal | None:
    forecasts = [(one, series) for one in known if (series := _expected(one.signal, now_s)) is not None]
    series = objective([(one.weight, series) for one, series in forecasts])
    if series is None:
        return None
    counted = [one for one, _series in forecasts if one.weight > 0.0 or len(forecasts) == 1]
    return Goal(series, _measures(one for one, _series in forecasts), _measures(counted))


def _watched(request: GridRequest, conditions: Conditions) -> list[Watched]:
    watched = []
    if request.carbon_enabled and conditions.carbon is not None:
        watched.append(Watched(conditions.carbon, request.carbon_threshold_g_per_kwh, request.carbon_weight))
    if request.price_enabled and conditions.price is not None:
        watched.append(Watched(conditions.price, request.price_threshold_per_kwh, request.price_weight))
    return watched


def _by_thresholds(known: list[Watched], waiting: Waiting, now_s: float, note: str) -> Hold | Release:
    above = [one for one in known if one.exceeded]
    if not above:
        return Release(ReleaseReason.CLEAN, note + " and ".join(watched_text(one, now_s) for one in known))
    return _hold_above(above, waiting, now_s, note)


def _hold_above(above: list[Watched], waiting: Waiting, now_s: float, note: str = "") -> Hold:
    measures = _measures(above)
    reason = HoldReason.BOTH if len(measures) == 2 else HoldReason(measures[0])
    # All of them must fall: the last one to do so is the one to wait for.
    wake_s = max(_change_s(one, waiting.latest_start_s, now_s) for one in above)
    return _hold(
        reason, measures, note + " and ".join(watched_text(one, now_s) for one in above), wake_s, waiting, now_s
    )


def _by_window(known: list[Watched], waiting: Waiting, now_s: float) -> Hold | Release:
    """The best time by what is forecast; what is not forecast is compared with its limit."""
    goal = _goal(known, now_s)
    if goal is None:
        return _by_thresholds(known, waiting, now_s, "no forecast, so by thresholds: ")
    above = [one for one in known if one.signal.measure not in goal.forecast and one.exceeded]
    plan = _plan(goal.series, waiting, now_s)
    if plan is None:
        return (
            _hold_above(above, waiting, now_s)
            if above
            else _by_thresholds(known, waiting, now_s, "forecast shorter than the run, so by thresholds: ")
        )
    later = plan.start_s > now_s
    if above:
        hold = _hold_above(above, waiting, now_s)
        return replace(hold, held_by=(*hold.held_by, *goal.measures)) if later else hold
    what = " and ".join(_NAMES[measure] for measure in goal.forecast)
    run = f"a run of {runtime_text(waiting.request)}"
    # No margin for small gains: in the benchmark it costs more than it saves.
    if not later:
        return Release(ReleaseReason.WINDOW, f"the best time by {what} for {run} begins now")
    text = f"{what} of {run} is expected {plan.gain:.0%} lower from {duration_text(plan.start_s - now_s)} on"
    return _hold(HoldReason.WINDOW, goal.measures, text, plan.start_s, waiting, now_s)


def _measures(watched: Iterable[Watched]) -> tuple[Measure, ...]:
    return tuple(one.signal.measure for one in watched)


class _Plan(NamedTuple):
    start_s: float
    gain: float
    """Share of the objective that is saved against a start at once."""


def _plan(goal: Series, waiting: Waiting, now_s: float) -> _Plan | None:
    """When the run best begins, in one piece; None where the goal does not cover it.

    Only Jobs that the controller suspends and resumes run in several pieces, see `joulie.domain.grid.interrupt`.
    """
    runtime_s = waiting.request.runtime_s
    at_once = goal.mean(now_s, now_s + runtime_s)
    window = windows.best_start(goal, now_s, waiting.latest_start_s, runtime_s)
    if at_once is None or window is None:
        return None
    return _Plan(window.start_s, saved_share(at_once, window.mean_value))


def saved_share(before: float, after: float) -> float:
    """Share of `before` that is saved; of the larger of the two, since prices may be negative."""
    scale = max(abs(before), abs(after))
    return (before - after) / scale if scale else 0.0


def _expected(signal: GridSignal, now_s: float) -> Series | None:
    """What is expected from now on, with the value in force until the forecast begins."""
    if signal.forecast is None or signal.forecast.end_s <= now_s:
        return None
    if signal.forecast.start_s <= now_s:
        return signal.forecast
    return (
        None if signal.value is None else constant(signal.value, now_s, signal.forecast.start_s).then(signal.forecast)
    )


def objective(expected: Sequence[tuple[float, Series]]) -> Series | None:
    """The objective to minimise: sum of weight times value over its mean, where all are forecast; None for none.

    Args:
        expected: weight and forecast of each measure.
    """
    if len(expected) <= 1:
        return expected[0][1] if expected else None
    start_s = max(series.start_s for _weight, series in expected)
    end_s = min(series.end_s for _weight, series in expected)
    starts = np.unique(np.concatenate([[start_s], *(series.starts_s for _weight, series in expected)]))
    starts = starts[(starts >= start_s) & (starts < end_s)]
    if not starts.size:
        return None
    total = np.zeros(len(starts))
    for weight, series in expected:
        scale = abs(series.mean(start_s, end_s) or 0.0) or 1.0
        total += weight / scale * series.values[np.searchsorted(series.starts_s, starts, side="right") - 1]
    return Series(starts, total, end_s)


def _change_s(one: Watched, until_s: float, now_s: float) -> float:
    """When the measure is expected to come within its limit; the latest start where it is not expected to."""
    forecast = one.signal.forecast
    if forecast is None:
        return until_s
    if one.limit is None or not one.comparable:
        change_s = forecast.next_change_s(now_s)
        return until_s if change_s is None else change_s
    within = forecast.starts_s[(forecast.starts_s > now_s) & (forecast.values <= one.limit)]
    return float(within[0]) if within.size else until_s


def _hold(
    reason: HoldReason, held_by: tuple[Measure, ...], text: str, wake_s: float, waiting: Waiting, now_s: float
) -> Hold:
    latest_s = waiting.latest_start_s
    return Hold(reason, text, min(max(wake_s, now_s + MIN_WAKE_S), latest_s), latest_s, held_by)


def _deadline_text(waiting: Waiting) -> str:
    by_delay_s = waiting.held_since_s + waiting.request.max_delay_s
    if waiting.finish_by is not None and waiting.latest_start_s < by_delay_s:
        return f"needs {runtime_text(waiting.request)} before {waiting.finish_by.what}"
    return f"has waited for its longest delay, {duration_text(waiting.request.max_delay_s)}"


_NAMES = {Measure.CARBON: "carbon intensity", Measure.PRICE: "price"}
_UNITS = {Measure.CARBON: " gCO2eq/kWh", Measure.PRICE: "/kWh"}


def watched_text(one: Watched, now_s: float) -> str:
    """Such as ``carbon intensity 412 gCO2eq/kWh (US-CAL-CISO, electricity-maps, 3 min old) above 200``."""
    name, origin = _NAMES[one.signal.measure], _origin(one.signal, now_s)
    value = "" if one.signal.value is None else f" {one.signal.value:g}{_UNITS[one.signal.measure]}"
    if one.comparable:
        return f"{name}{value} ({origin}) {'above' if one.exceeded else 'within'} {one.limit:g}"
    period = f"in its {one.signal.period} period" if one.signal.period is not None else "without a limit"
    return f"{name}{value} ({origin}) {period}"


def _origin(signal: GridSignal, now_s: float) -> str:
    parts = [signal.zone]
    if signal.provenance is not None:
        parts.append(signal.provenance.source)
        if signal.provenance.estimated:
            parts.append("estimated")
    if signal.time_s is not None:
        parts.append(f"{duration_text(max(now_s - signal.time_s, 0.0))} old")
    return ", ".join(parts)


def unknown_text(one: Watched) -> str:
    """Such as ``price of DE is not known: no answer``."""
    problem = f": {one.signal.problem}" if one.signal.problem else ""
    return f"{_NAMES[one.signal.measure]} of {one.signal.zone} is not known{problem}"


def runtime_text(request: GridRequest) -> str:
    """Such as ``2 h``, or ``20 min (90% of its last 23 runs took no longer)`` where nobody states it."""
    text = duration_text(request.runtime_s)
    return text if request.runtime_stated else f"{text} ({request.runtime_basis})"


def duration_text(seconds: float) -> str:
    """Such as ``3 min`` or ``1.5 h``."""
    if seconds >= 2 * SECONDS_PER_HOUR:
        return f"{seconds / SECONDS_PER_HOUR:.3g} h"
    if seconds >= SECONDS_PER_MINUTE:
        return f"{seconds / SECONDS_PER_MINUTE:.0f} min"
    return f"{seconds:.0f} s"
