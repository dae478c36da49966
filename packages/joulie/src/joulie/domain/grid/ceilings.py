"""A ceiling on the replicas of an autoscaled workload while power is dirty or expensive.

The autoscaler still decides how many replicas run: a ceiling only lowers its maximum, never below the floor or the
minimum, and never raises it. Whatever is unknown or malformed leaves the maximum as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np

from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Watched, duration_text, unknown_text, watched_text
from joulie.domain.grid.maxima import Change, Record, effective
from joulie.domain.grid.request import (
    Cascade,
    GridRequest,
    WorkloadType,
    carbon_limit,
    first_readable,
    price_limit,
)
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.grid.tou import Schedule, parse_clock_min, parse_days

BAND = 0.05
"""Hysteresis: a ceiling in force stays until the signal is below its threshold by this share of it."""
CHANGE_INTERVAL_S = 600.0
"""Minimum time between two changes of one maximum for the grid, s."""
HORIZON_S = 48 * 3600.0
_MAX_BOUNDS = 10
_COUNT = re.compile(r"(\d{1,6})(%?)", re.ASCII)
_T = TypeVar("_T")


class Bound(NamedTuple):
    """A maximum that holds above a threshold.

    Attributes:
        above: threshold, gCO2eq/kWh or currency/kWh; None for that of the workload's other requests.
        amount: number of replicas, or percent of the original maximum.
        percent: whether `amount` is in percent.
    """

    above: float | None
    amount: int
    percent: bool

    def replicas(self, original: int) -> int:
        """The maximum for an original one; a share is rounded up."""
        return -(-original * self.amount // 100) if self.percent else self.amount


@dataclass(frozen=True, slots=True)
class CeilingRequest:
    """What an autoscaler asks for.

    Attributes:
        bounds: maxima by measure; without any it asks for nothing.
        floor: number of replicas below which the maximum is never lowered.
        exempt: times at which no ceiling holds.
        mistakes: what could not be read, one sentence each, fit for an event. With one, it asks for nothing.
    """

    bounds: Mapping[Measure, tuple[Bound, ...]]
    floor: int = 1
    exempt: tuple[Schedule, ...] = ()
    mistakes: tuple[str, ...] = ()


class CeilingReason(StrEnum):
    """Why the maximum is lowered, or is not."""

    CARBON = "carbon"
    PRICE = "price"
    BOTH = "both"
    CLEAN = "clean"
    """Intensity and price are within the thresholds."""
    EXEMPT = "exempt"
    """Its schedule says that no ceiling holds now."""
    MISSING = "missing"
    """The signals are missing, and a missing signal lowers nothing."""
    DELAY = "max-delay"
    """It has been lowered for the maximum delay."""
    SKIP = "skip"
    NOT_ASKED = "not-asked"


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the maximum should be.

    Attributes:
        maximum: number of replicas; the original maximum where nothing is to be lowered.
        reason: why.
        text: the same in words, with numbers.
    """

    maximum: int
    reason: CeilingReason
    text: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """An autoscaler whose maximum may be lowered.

    Attributes:
        request: thresholds, maximum delay and whether it skips, after the cascade of annotations.
        asked: what it asks for.
        original: its own maximum.
        minimum: its own minimum.
        in_force: maximum to which it is lowered now; None if it is not.
        since_s: since when, s since the epoch; None if it is not.
    """

    request: GridRequest
    asked: CeilingRequest
    original: int
    minimum: int
    in_force: int | None = None
    since_s: float | None = None

    @property
    def lifted_s(self) -> float | None:
        """When the maximum delay is over, s since the epoch; None while nothing is lowered."""
        return None if self.since_s is None else self.since_s + self.request.max_delay_s


def ceiling_request(annotations: Mapping[str, str]) -> CeilingRequest:
    """What the annotations of an autoscaler ask for."""
    cascade = Cascade(annotations, WorkloadType.GENERIC)
    mistakes: list[str] = []

    def read(key: str, reader: Callable[[str], _T], default: _T) -> _T:
        _candidate, value, malformed = first_readable(cascade, {key: reader})
        mistakes.extend(malformed)
        return default if value is None else value

    none: tuple[Bound, ...] = ()
    no_schedules: tuple[Schedule, ...] = ()
    bounds = {
        Measure.CARBON: read(names.CARBON_MAX_REPLICAS, lambda text: _bounds(text, carbon_limit), none),
        Measure.PRICE: read(names.PRICE_MAX_REPLICAS, lambda text: _bounds(text, price_limit), none),
    }
    floor = read(names.MAX_REPLICAS_FLOOR, _floor, 1)
    exempt = read(names.MAX_REPLICAS_EXEMPT, _schedules, no_schedules)
    asked = {} if mistakes else {measure: found for measure, found in bounds.items() if found}
    return CeilingRequest(asked, floor, exempt, tuple(mistakes))


def decide(scaling: Scaling, conditions: Conditions, now_s: float) -> Ceiling:
    """What the maximum of an autoscaler should be.

    Args:
        scaling: the autoscaler.
        conditions: carbon intensity and price in its zone.
        now_s: time, s since the epoch.
    """
    original, asked = scaling.original, scaling.asked
    open_ = _open(scaling, now_s)
    if open_ is not None:
        return open_
    unknown: list[str] = []
    known: list[tuple[Watched, int]] = []
    for measure, bounds in asked.bounds.items():
        signal = conditions.carbon if measure is Measure.CARBON else conditions.price
        if signal is None or not signal.known:
            missing = GridSignal(measure, "its zone", problem="no source is configured")
            unknown.append(unknown_text(Watched(signal or missing, None)))
        else:
            known += [_bound_now(scaling, signal, bound) for bound in bounds]
    if not known:
        return Ceiling(original, CeilingReason.MISSING, "; ".join(unknown))
    exceeded = [(one, maximum) for one, maximum in known if one.exceeded and maximum < original]
    if not exceeded:
        return Ceiling(original, CeilingReason.CLEAN, _text([one for one, _ in known], now_s))
    if scaling.lifted_s is not None and now_s >= scaling.lifted_s:
        text = f"has been lowered for its longest delay, {duration_text(scaling.request.max_delay_s)}"
        return Ceiling(original, CeilingReason.DELAY, text)
    lowest = min(maximum for _, maximum in exceeded)
    causes = [one for one, maximum in exceeded if maximum == lowest]
    measures = {one.signal.measure for one in causes}
    reason = CeilingReason.BOTH if len(measures) == 2 else CeilingReason(measures.pop())
    return Ceiling(lowest, reason, _text(causes, now_s))


def _open(scaling: Scaling, now_s: float) -> Ceiling | None:
    """The original maximum, if no ceiling holds now whatever the grid does."""
    original, asked = scaling.original, scaling.asked
    if not asked.bounds:
        return Ceiling(original, CeilingReason.NOT_ASKED, "; ".join(asked.mistakes) or "asks for no ceiling")
    if scaling.request.skip:
        return Ceiling(original, CeilingReason.SKIP, "asks to be left alone")
    if any(schedule.covers(now_s) for schedule in asked.exempt):
        return Ceiling(original, CeilingReason.EXEMPT, "no ceiling holds at this time by its schedule")
    return None


def next_change(scaling: Scaling, conditions: Conditions, now_s: float) -> tuple[float, Ceiling] | None:
    """When the maximum is expected to change, by the forecasts, the schedule and the maximum delay.

    Args:
        scaling: the autoscaler.
        conditions: carbon intensity and price in its zone, with their forecasts.
        now_s: time, s since the epoch.

    Returns:
        The time in s since the epoch and what is decided then; None if no change is expected within the forecast, or
        two days.
    """
    now = decide(scaling, conditions, now_s)
    for time_s in sorted(set(_times_s(scaling, conditions, now_s))):
        then = decide(scaling, Conditions(_at(conditions.carbon, time_s), _at(conditions.price, time_s)), time_s)
        if then.reason is CeilingReason.MISSING and now.reason is not CeilingReason.MISSING:
            return None  # beyond the forecast
        if then.maximum != now.maximum:
            return time_s, then
    return None


def change(
    maximum: int | None, running: int | None, record: Record | None, wanted: Ceiling, changed_s: float, now_s: float
) -> Change | None:
    """The next step towards a ceiling; None if there is nothing to do yet.

    Ceilings follow the grid at most every `CHANGE_INTERVAL_S`. Whatever else ends one, ends it at once. Downwards no
    step stops more than half of what runs: an autoscaler stops replicas above a lowered maximum immediately, whatever
    its own policies for scaling down.

    Args:
        maximum: maximum now, not `overridden`; None where none is set.
        running: number of replicas; None if unknown.
        record: what was done before; None if nothing was.
        wanted: what the maximum should be.
        changed_s: when it was changed last, as far as the caller remembers, s since the epoch.
        now_s: time, s since the epoch.
    """
    original, present = maximum if record is None else record.original, effective(maximum)
    if record is not None:
        changed_s = max(changed_s, record.changed_s)
    wait = now_s - changed_s < CHANGE_INTERVAL_S
    if wanted.maximum >= effective(original):
        if record is None or (wait and wanted.reason is CeilingReason.CLEAN):
            return None
        # Kept, so that it is not lowered again before power has been clean.
        kept = record._replace(ceiling=original) if wanted.reason is CeilingReason.DELAY else None
        return None if (original, kept) == (maximum, record) else Change(original, kept)
    half = -(-(present if running is None else min(running, present)) // 2)
    target = max(wanted.maximum, min(half, present))
    if wait or target == present:
        return None
    since_s = now_s if record is None else record.since_s
    return Change(target, Record(original, target, since_s, now_s))


def _bound_now(scaling: Scaling, signal: GridSignal, bound: Bound) -> tuple[Watched, int]:
    """A bound with its threshold, lower by the band if it is in force, and its maximum."""
    request = scaling.request
    default = (
        request.carbon_threshold_g_per_kwh if signal.measure is Measure.CARBON else request.price_threshold_per_kwh
    )
    above = default if bound.above is None else bound.above
    maximum = max(bound.replicas(scaling.original), scaling.asked.floor, scaling.minimum, 1)
    if above is not None and scaling.in_force is not None and scaling.in_force <= maximum:
        above -= BAND * abs(above)
    return Watched(signal, above), maximum


def _text(watched: Iterable[Watched], now_s: float) -> str:
    return " and ".join(dict.fromkeys(watched_text(one, now_s) for one in watched))


def _times_s(scaling: Scaling, conditions: Conditions, now_s: float) -> Iterator[float]:
    """The times after now at which a decision may change."""
    until_s = now_s + HORIZON_S
    for signal in (conditions.carbon, conditions.price):
        if signal is not None and signal.forecast is not None:
            starts_s = signal.forecast.starts_s
            yield from starts_s[(starts_s > now_s) & (starts_s <= until_s)].tolist()
    for schedule in scaling.asked.exempt:
        yield from (edge_s for edge_s in np.unique([*schedule.edges_s(now_s, until_s)]).tolist() if edge_s > now_s)
    if scaling.lifted_s is not None and scaling.lifted_s > now_s:
        yield scaling.lifted_s


def _at(signal: GridSignal | None, time_s: float) -> GridSignal | None:
    """A signal as it is expected at a time; without a forecast, as it is now."""
    if signal is None or signal.forecast is None or time_s < signal.forecast.start_s:
        return signal
    value = signal.forecast.at(time_s)
    return GridSignal(signal.measure, signal.zone) if value is None else replace(signal, value=value)


def _bounds(text: str, threshold: Callable[[str], float]) -> tuple[Bound, ...]:
    """Bounds of ``5``, ``50%`` or ``200: 20, 400: 25%``.

    Raises:
        ValueError: with what the text should have been.
    """
    parts = text.split(",")
    found = []
    for part in parts[: _MAX_BOUNDS + 1]:
        above, colon, count = part.rpartition(":")
        match = _COUNT.fullmatch(count.strip())
        if match is None or len(parts) > (_MAX_BOUNDS if colon else 1):
            raise ValueError(f"a number of replicas such as 5 or 50%, or up to {_MAX_BOUNDS} such as 200: 20, 400: 25%")
        found.append(Bound(threshold(above) if colon else None, int(match[1]), bool(match[2])))
    return tuple(found)


def _floor(text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    if match is None or match[2]:
        raise ValueError("a number of replicas such as 5")
    return int(match[1])


def _schedules(text: str) -> tuple[Schedule, ...]:
    """Times of ``1-5 08:00-18:00 Europe/Berlin; 0,6 10:00-12:00``; UTC without a zone.

    Raises:
        ValueError: with what the text should have been.
    """
    found = []
    for part in text.split(";"):
        try:
            days, clock, *zone = part.split()
            start, end = clock.split("-")
            (zone_name,) = zone or ["UTC"]
            found.append(
                Schedule("", parse_days(days), parse_clock_min(start), parse_clock_min(end), ZoneInfo(zone_name))
            )
        except (ValueError, OSError, LookupError):
            raise ValueError("times such as 1-5 08:00-18:00 Europe/Berlin, separated by ;") from None
    return tuple(found)
