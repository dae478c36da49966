"""Time-of-use tariffs: peak and off-peak periods by local time.

A period is decided by the local time alone, as a meter does it. So a window grows or shrinks on the days on
which clocks are set: 01:00 to 04:00 lasts two hours when 02:00 becomes 03:00, and four when 03:00 becomes 02:00 again.
Source: spec, grid.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Period

MINUTES_PER_DAY = 24 * 60
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::00)?", re.ASCII)
_DAYS = re.compile(r"([0-7])(?:-([0-7]))?", re.ASCII)
_LOOK_AHEAD_S = 15 * 86400.0


@dataclass(frozen=True)
class Schedule:
    """A daily window of peak prices.

    Attributes:
        name: for people.
        days: on which it begins, 0 = Sunday to 6 = Saturday.
        start_min: of local time, minutes since midnight, 0..1439.
        end_min: exclusive, 0..1440. At or before the start: on the next day.
        zone: whose clock counts.
        peak_rate: currency/kWh within it; None where it is not known.
        off_peak_rate: currency/kWh outside; None where it is not known.
        holidays: days on which it does not begin, each a collection of dates.
    """

    name: str
    days: frozenset[int]
    start_min: int
    end_min: int
    zone: ZoneInfo
    peak_rate: float | None = None
    off_peak_rate: float | None = None
    holidays: tuple[Container[date], ...] = ()

    def begins_on(self, day: date) -> bool:
        """Whether its window begins on a day."""
        return day.isoweekday() % 7 in self.days and not any(day in holidays for holidays in self.holidays)

    def covers(self, time_s: float) -> bool:
        """Whether a time, s since the epoch, is within its window."""
        local = datetime.fromtimestamp(time_s, self.zone)
        minute, today = local.hour * 60 + local.minute, local.date()
        if self.start_min < self.end_min:
            return self.start_min <= minute < self.end_min and self.begins_on(today)
        # Past midnight the window is still that of the day on which it began.
        return (minute >= self.start_min and self.begins_on(today)) or (
            minute < self.end_min and self.begins_on(today - timedelta(days=1))
        )

    def edges_s(self, from_s: float, until_s: float) -> Iterator[float]:
        """The moments between two times, s since the epoch, at which it may begin or end, or its day does."""
        day = datetime.fromtimestamp(from_s, self.zone).date() - timedelta(days=1)
        last = datetime.fromtimestamp(until_s, self.zone).date() + timedelta(days=1)
        before_s = _midnight_s(day, self.zone)
        while day <= last:
            after_s = _midnight_s(day + timedelta(days=1), self.zone)
            for minute in (0, self.start_min, self.end_min % MINUTES_PER_DAY):
                local = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=self.zone)
                yield from (local.replace(fold=fold).timestamp() for fold in (0, 1))
            if _offset(before_s, self.zone) != _offset(after_s, self.zone):
                yield _clock_set_s(before_s, after_s, self.zone)
            before_s, day = after_s, day + timedelta(days=1)


@dataclass(frozen=True)
class TouTariff:
    """Windows of peak prices; the first one that covers a time counts.

    Attributes:
        schedules: at least one.
    """

    schedules: tuple[Schedule, ...]

    def period(self, time_s: float) -> Period:
        """Where the tariff stands at a time, s since the epoch."""
        return Period.OFF_PEAK if self._peak(time_s) is None else Period.PEAK

    def rate(self, time_s: float) -> float | None:
        """Currency/kWh at a time, s since the epoch; None where the schedules have none."""
        peak = self._peak(time_s)
        return self._off_peak_rate(time_s) if peak is None else peak.peak_rate

    def next_change_s(self, time_s: float) -> float | None:
        """When period or rate change next after `time_s`; None where they do not within two weeks."""
        until_s = time_s + _LOOK_AHEAD_S
        return next(iter(self._changes_s(time_s, until_s)), None)

    def series(self, from_s: float, until_s: float) -> Series | None:
        """The rates between two times in s since the epoch; None where one of them is not known."""
        starts = [from_s, *self._changes_s(from_s, until_s)]
        rates = [self.rate(start_s) for start_s in starts]
        known = [rate for rate in rates if rate is not None]
        return Series(starts, known, until_s) if len(known) == len(rates) else None

    def _peak(self, time_s: float) -> Schedule | None:
        return next((schedule for schedule in self.schedules if schedule.covers(time_s)), None)

    def _off_peak_rate(self, time_s: float) -> float | None:
        """Of the first schedule for the day, since weekends may have rates of their own; else of the first at all."""
        stated = [schedule for schedule in self.schedules if schedule.off_peak_rate is not None]
        today = (one for one in stated if one.begins_on(datetime.fromtimestamp(time_s, one.zone).date()))
        return next(today, stated[0]).off_peak_rate if stated else None

    def _changes_s(self, from_s: float, until_s: float) -> Iterator[float]:
        edges = np.unique([edge for schedule in self.schedules for edge in schedule.edges_s(from_s, until_s)])
        state = (self.period(from_s), self.rate(from_s))
        for edge_s in edges[(edges > from_s) & (edges < until_s)].tolist():
            new = (self.period(edge_s), self.rate(edge_s))
            if new != state:
                yield edge_s
                state = new


def parse_days(text: str) -> frozenset[int]:
    """Days of ``1-5``, ``0,6``, ``1-3,5`` or ``*``; 0 and 7 are Sunday, and a range may run over it, as in ``5-1``.

    Raises:
        ValueError: with what the text should have been.
    """
    if text.strip() == "*":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        match = _DAYS.fullmatch(part.strip())
        if match is None:
            raise ValueError("days such as 1-5 or 0,6 (0 is Sunday), or *")
        first, last = int(match[1]), int(match[2] or match[1])
        days.update(day % 7 for day in range(first, last + 1 if first <= last else last + 8))
    return frozenset(days)


def parse_clock_min(text: str) -> int:
    """Minutes since midnight of ``16:00``; 1440 of ``24:00``.

    Raises:
        ValueError: with what the text should have been.
    """
    match = _CLOCK.fullmatch(text.strip())
    minutes = int(match[1]) * 60 + int(match[2]) if match else -1
    if match is None or int(match[2]) > 59 or minutes > MINUTES_PER_DAY:
        raise ValueError("a time such as 16:00, at most 24:00")
    return minutes


def _midnight_s(day: date, zone: ZoneInfo) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


def _offset(time_s: float, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(time_s, UTC).astimezone(zone).utcoffset()


def _clock_set_s(before_s: float, after_s: float, zone: ZoneInfo) -> float:
    """The second between two times at which the clock is set."""
    low, high = int(before_s), int(after_s)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(middle, zone) == _offset(before_s, zone):
            low = middle
        else:
            high = middle
    return float(high)
