"""Periods of budgets: hours, days, ISO weeks and months of a time zone's calendar, or windows that roll.

A calendar period begins when the zone's clocks first show its date (or hour), so that days of 23 and 25 hours, days
without a midnight, and hours that are repeated are what people there take them for. Periods follow one another without
gap or overlap. Offsets are those of the IANA database.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from joulie.domain.quantities import SECONDS_PER_HOUR

_SECONDS_PER_DAY = 86400.0
_LONGEST_CHANGE_S = 26 * SECONDS_PER_HOUR
"""By how much clocks are ever set forward at most, s: Samoa left out a day."""


class Period(StrEnum):
    """How often a budget begins anew."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    """Of ISO 8601: from Monday on."""
    MONTH = "month"


ROLLING_S = {
    Period.HOUR: SECONDS_PER_HOUR,
    Period.DAY: _SECONDS_PER_DAY,
    Period.WEEK: 7 * _SECONDS_PER_DAY,
    Period.MONTH: 30 * _SECONDS_PER_DAY,
}
"""Length of a rolling window, s; a rolling month has 30 days."""


class Window(NamedTuple):
    """The time that a budget is for.

    Attributes:
        start_s: start, s since the epoch.
        end_s: end, s since the epoch; later than the start, and not part of it.
    """

    start_s: float
    end_s: float


def parse_zone(name: str) -> tzinfo:
    """A time zone by its IANA name.

    Raises:
        ValueError: the zone is unknown.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the database is an OSError
        raise ValueError(f"unknown time zone {name!r}: it must be an IANA name, such as Europe/Berlin") from None


def rolling_window(period: Period, now_s: float) -> Window:
    """The window that ends now."""
    return Window(now_s - ROLLING_S[period], now_s)


def calendar_window(period: Period, zone: tzinfo, now_s: float) -> Window:
    """The period of a zone's calendar that a moment lies in.

    Args:
        period: hour, day, week or month.
        zone: time zone.
        now_s: the moment, s since the epoch.
    """
    if period is Period.HOUR:
        return _hour(zone, now_s)
    today = _date(zone, now_s)
    if period is Period.DAY:
        first, after = today, today + timedelta(days=1)
    elif period is Period.WEEK:
        first = today - timedelta(days=today.weekday())
        after = first + timedelta(days=7)
    else:
        first = today.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    return Window(_start_s(first, zone), _start_s(after, zone))


def _hour(zone: tzinfo, now_s: float) -> Window:
    """The hour that the clocks show; where they are set within it, it ends or begins there."""
    offset_s = _offset_s(zone, now_s)
    start_s = (now_s + offset_s) // SECONDS_PER_HOUR * SECONDS_PER_HOUR - offset_s
    end_s = start_s + SECONDS_PER_HOUR
    if _offset_s(zone, start_s) != offset_s:
        start_s = _change_s(zone, start_s, now_s)
    if _offset_s(zone, end_s) != offset_s:
        end_s = _change_s(zone, now_s, end_s)
    return Window(start_s, end_s)


def _start_s(day: date, zone: tzinfo) -> float:
    """The first moment of a date, s since the epoch.

    Where clocks were set forward over midnight, the time at which they were set.
    """
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    start_s = midnight.timestamp()
    if datetime.fromtimestamp(start_s, zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return start_s
    return _first_s(start_s - _LONGEST_CHANGE_S, start_s + _LONGEST_CHANGE_S, lambda time_s: _date(zone, time_s) >= day)


def _offset_s(zone: tzinfo, time_s: float) -> float:
    offset = datetime.fromtimestamp(time_s // 1, UTC).astimezone(zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def _date(zone: tzinfo, time_s: float) -> date:
    # A whole second: fromtimestamp rounds the last half microsecond of a day to the next one.
    return datetime.fromtimestamp(time_s // 1, zone).date()


def _change_s(zone: tzinfo, before_s: float, after_s: float) -> float:
    """When the offset changes between two moments, s since the epoch."""
    offset_s = _offset_s(zone, after_s)
    return _first_s(before_s, after_s, lambda time_s: _offset_s(zone, time_s) == offset_s)


def _first_s(before_s: float, after_s: float, holds: Callable[[float], bool]) -> float:
    """The first whole second at which a condition holds that does not before, and does after."""
    low, high = int(before_s // 1), int(-(-after_s // 1))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return float(high)
