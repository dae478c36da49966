"""Where and when a workload runs that may run in several zones: here later, or there now, by one decision.

A zone is judged by its carbon intensity during the run, plus what moving the workload's data there emits. The time is
chosen for each zone by the decision that workloads of one zone get (`joulie.domain.grid.deferral`), so what waits in
one zone waits for the same reasons in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.domain.grid import windows
from joulie.domain.grid.deferral import Conditions, Hold, Release, ReleaseReason, Waiting, decide
from joulie.domain.grid.move import Move
from joulie.domain.grid.request import Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal
from joulie.domain.quantities import finite_number
from joulie.domain.units import FloatArray, finite

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Place:
    """A zone in which a workload may run.

    Attributes:
        zone: name of the zone.
        conditions: signals there.
    """

    zone: str
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a workload runs, and whether now.

    Attributes:
        zone: zone where it runs, or is expected to run if it waits.
        decision: whether it runs now.
        move_g_per_kwh: what moving there emits for each kWh of the run, gCO2eq/kWh.
    """

    zone: str
    decision: Hold | Release
    move_g_per_kwh: float = 0.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    placement: Placement
    value_g_per_kwh: float


def choose(waiting: Waiting, home: Place, others: Sequence[Place], move: Move, now_s: float) -> Placement:
    """Where and whether a workload runs now.

    Args:
        waiting: the workload.
        home: where its data is.
        others: the other zones in which it may run. One whose carbon intensity is missing is not chosen.
        move: what moving from home costs.
        now_s: s since the epoch.
    """
    candidates = _candidates(waiting, home, others, move, now_s) if others else []
    if not candidates:
        return Placement(home.zone, decide(waiting, home.conditions, now_s))
    if waiting.request.mode is Mode.THRESHOLD:
        # Clean enough now, wherever it is, takes precedence over cleaner later.
        now = [one for one in candidates if isinstance(one.placement.decision, Release)]
        if not now:
            return min(candidates, key=_wake_s).placement
        candidates = now
    best = min(one.value_g_per_kwh for one in candidates)
    # Home comes first: what is not better by more than rounding is no reason to move.
    tolerance = _ROUNDING * max(abs(one.value_g_per_kwh) for one in candidates)
    return next(one for one in candidates if one.value_g_per_kwh <= best + tolerance).placement


def rank_now(waiting: Waiting, home: Place, others: Sequence[Place], move: Move, now_s: float) -> tuple[str, ...]:
    """Zones in which a workload may start now, best first; those whose carbon intensity is missing are left out.

    Empty where that of home is missing, or carbon intensity does not count: nothing can be compared then. In mode
    `threshold`, zones within the limits precede all others. Arguments as of `choose`, which would release it in the
    first of them.
    """
    if waiting.request.mode is not Mode.THRESHOLD:
        waiting = replace(waiting, request=replace(waiting.request, max_delay_s=0.0))
    candidates = _candidates(waiting, home, others, move, now_s)
    candidates.sort(key=lambda one: (isinstance(one.placement.decision, Hold), one.value_g_per_kwh))
    return tuple(one.placement.zone for one in candidates)


def _candidates(waiting: Waiting, home: Place, others: Sequence[Place], move: Move, now_s: float) -> list[_Candidate]:
    """The zones that can be compared, home first; none if the carbon intensity of home is not known."""
    here = _candidate(waiting, home, 0.0, now_s)
    if here is None:
        return []
    candidates = [here]
    for place in others:
        if (cost := _move_cost(home, place, move)) is not None:
            candidates += [found] if (found := _candidate(waiting, place, cost, now_s)) else []
    return candidates


def _move_cost(home: Place, place: Place, move: Move) -> float | None:
    there, here = place.conditions.carbon, home.conditions.carbon
    if there is None or here is None or there.value is None or here.value is None:
        return None
    return move.g_per_kwh(here.value, there.value)


def _candidate(waiting: Waiting, place: Place, move_g_per_kwh: float, now_s: float) -> _Candidate | None:
    """A zone with its own decision; None if its carbon intensity is not known or does not count."""
    carbon = place.conditions.carbon
    if carbon is None or not carbon.known or carbon.value is None or not waiting.request.carbon_enabled:
        return None
    conditions = replace(place.conditions, carbon=_raised(carbon, move_g_per_kwh))
    decision = decide(waiting, conditions, now_s)
    value = carbon.value
    if waiting.request.mode is not Mode.THRESHOLD:
        expected = _expected_mean(waiting, carbon, decision, now_s)
        value = value if expected is None else expected
    return _Candidate(Placement(place.zone, decision, move_g_per_kwh), value + move_g_per_kwh)


def _expected_mean(waiting: Waiting, carbon: GridSignal, decision: Hold | Release, now_s: float) -> float | None:
    """Mean intensity of the best run that the zone's decision leaves, gCO2eq/kWh; None if it is not forecast."""
    if carbon.forecast is None:
        return None
    # What is past its latest start, or does not wait, runs now.
    waits = isinstance(decision, Hold) or decision.reason is ReleaseReason.WINDOW
    latest_s = max(waiting.latest_start_s, now_s) if waits else now_s
    window = windows.best_start(carbon.forecast, now_s, latest_s, waiting.request.runtime_s)
    return None if window is None else window.mean_value


def _raised(carbon: GridSignal, by_g_per_kwh: float) -> GridSignal:
    if by_g_per_kwh == 0.0 or carbon.value is None:
        return carbon
    forecast = carbon.forecast
    if forecast is not None:
        forecast = Series(forecast.starts_s, forecast.values + by_g_per_kwh, forecast.end_s)
    return replace(carbon, value=carbon.value + by_g_per_kwh, forecast=forecast)


def _wake_s(candidate: _Candidate) -> float:
    decision = candidate.placement.decision
    return decision.wake_s if isinstance(decision, Hold) else -np.inf


def zone_points(intensity_g_per_kwh: FloatArray, weight: float) -> FloatArray:
    """Points that nodes gain or lose by the intensity of their zones, shape ``(n_nodes,)``, within ±`weight`.

    A node in a zone without emissions gains `weight`, one at the mean of the zones nothing, one at twice the mean or
    more loses `weight`. Nodes whose intensity is missing, and all nodes where fewer than two are known, get 0.

    Args:
        intensity_g_per_kwh: (n_nodes,), gCO2eq/kWh; NaN where it is missing or does not count.
        weight: points, on a scale of 0..100.

    Raises:
        InvalidQuantityError: an intensity is infinite or negative, or the weight is out of range.
    """
    finite_number("weight", weight, minimum=0.0, maximum=100.0)
    known = ~np.isnan(intensity_g_per_kwh)
    zones = np.unique(finite("intensity_g_per_kwh", intensity_g_per_kwh[known], minimum=0.0))
    points = np.zeros(intensity_g_per_kwh.shape)
    mean = float(zones.mean()) if zones.size > 1 else 0.0
    if mean > 0.0:  # the mean of 0 and the smallest number is 0
        points[known] = weight * np.clip(1.0 - intensity_g_per_kwh[known] / mean, -1.0, 1.0)
    return points


def with_zone_points(score: FloatArray, points: FloatArray) -> FloatArray:
    """Scores 0..100 with the points of the zones, shape ``(n_nodes,)``; a node at 0, where a pod must not be, stays."""
    return np.where(score > 0.0, np.clip(score + points, 0.0, 100.0), score)
