"""What a demand-response event achieved: power shed against a stated baseline, and the time that it took.

The baseline is the 10-in-10 method of North American programmes: the mean power of the ten most recent similar days at
the same time of day, adjusted by what was drawn on the day itself in a window before the event. Similar days are those
of the same kind (workday or not) on which no event was. The adjustment is bounded, as in most tariffs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

import numpy as np

from joulie.domain.units import finite

DAYS = 10
MIN_DAYS = 5
"""Fewer days are no baseline."""
LOOK_BACK_DAYS = 45
ADJUST_FROM_S, ADJUST_UNTIL_S = 4 * 3600.0, 1 * 3600.0
"""Window of the same-day adjustment before the event, from and until, s."""
MAX_ADJUSTMENT = 0.2
"""The adjustment is at most so much, as a share."""
TOLERANCE = 0.005
"""Power above the limit by less than this share of it is within it."""
LONGEST_GAP_S = 60.0
"""After a longer gap between two samples nothing is known of what was between them, s."""
LATE_S = 10.0
"""Time after the start from which a first sample says nothing of how power came within the limit, s."""
_WORKDAYS = 5


class Baseline(NamedTuple):
    """What would have been drawn without the event.

    Attributes:
        power_w: mean power over the event, W.
        days: number of days that it is the mean of.
        adjustment: factor of the same-day adjustment; 1 where nothing was measured in its window.
    """

    power_w: float
    days: int
    adjustment: float


@dataclass(frozen=True)
class Course:
    """The course of an event so far.

    Attributes:
        start_s: start of the event, s since the epoch.
        limit_w: limit during it, W.
        first_s: time of the first sample; None before it.
        last_s: time of the last sample; None before the first.
        energy_j: energy between samples, J.
        known_s: time that it was drawn in, s.
        measured_s: of that, time in which all of it was measured, s.
        over_s: time of the last sample above the limit; None where none was.
        within_s: time of the first sample since then; None where there is none.
    """

    start_s: float
    limit_w: float
    first_s: float | None = None
    last_s: float | None = None
    energy_j: float = 0.0
    known_s: float = 0.0
    measured_s: float = 0.0
    over_s: float | None = None
    within_s: float | None = None

    def sampled(self, now_s: float, power_w: float, *, measured: bool = True) -> Course:
        """The course with one more sample; a second one of the same time changes nothing.

        A sample before the last tells that the clock was set back: by how much, and so how long it was, is not known.

        Args:
            now_s: time, s since the epoch.
            power_w: power, W.
            measured: whether all of it was measured, and none is a worst case.

        Raises:
            InvalidQuantityError: the power is NaN, infinite or negative.
        """
        power_w = float(finite("power_w", power_w, minimum=0.0))
        if now_s == self.last_s:
            return self
        dt_s = 0.0 if self.last_s is None else min(max(now_s - self.last_s, 0.0), LONGEST_GAP_S)
        over = power_w > self.limit_w * (1.0 + TOLERANCE)
        return replace(
            self,
            first_s=_until(now_s, self.first_s),
            last_s=now_s,
            energy_j=self.energy_j + power_w * dt_s,
            known_s=self.known_s + dt_s,
            measured_s=self.measured_s + (dt_s if measured else 0.0),
            over_s=now_s if over else None if self.over_s is None else min(self.over_s, now_s),
            within_s=None if over else _until(now_s, self.within_s),
        )

    @property
    def mean_w(self) -> float | None:
        """Mean power so far, W; None before two samples."""
        return self.energy_j / self.known_s if self.known_s > 0.0 else None

    @property
    def complied_s(self) -> float | None:
        """Time from the start until power was within the limit for good, s; None while it is not, or was not seen."""
        if self.within_s is None or self.first_s is None:
            return None
        if self.over_s is None:
            return 0.0 if self.first_s - self.start_s <= LATE_S else None
        return max(self.within_s - self.start_s, 0.0)


def _until(now_s: float, before_s: float | None) -> float:
    """A time that was noted before; now where it was not, or is in the future since the clock was set back."""
    return now_s if before_s is None else min(before_s, now_s)


def similar_days(start_s: float, zone: tzinfo, with_events: Sequence[float]) -> list[float]:
    """Starts of the same time of day on the most recent similar days, s since the epoch, the latest first.

    Args:
        start_s: start of the event.
        zone: whose calendar counts.
        with_events: starts of other events, whose days do not count.
    """
    local = datetime.fromtimestamp(start_s, zone)
    excluded = {datetime.fromtimestamp(one, zone).date() for one in with_events}
    found: list[float] = []
    for back in range(1, LOOK_BACK_DAYS + 1):
        day = local - timedelta(days=back)
        same_kind = (day.weekday() < _WORKDAYS) == (local.weekday() < _WORKDAYS)
        if same_kind and day.date() not in excluded:
            found.append(day.timestamp())
        if len(found) == DAYS:
            break
    return found


def baseline_10_in_10(
    mean_w: Mapping[float, tuple[float | None, float | None]], before_w: float | None
) -> Baseline | None:
    """The baseline of an event.

    Args:
        mean_w: for the start of each similar day, mean power over the time of the event and over the window of the
            adjustment, W; None where it is unknown.
        before_w: mean power over the window of the adjustment on the day itself, W; None where it is unknown.

    Raises:
        InvalidQuantityError: a power is NaN, infinite or negative.
    """
    known = [(during, before) for during, before in mean_w.values() if during is not None]
    if len(known) < MIN_DAYS:
        return None
    during_w = float(np.mean([finite("power", during, minimum=0.0) for during, _ in known]))
    earlier = [float(finite("power", before, minimum=0.0)) for _, before in known if before is not None]
    adjustment = 1.0
    if before_w is not None and earlier and (usual_w := float(np.mean(earlier))) > 0.0:
        factor = float(finite("before_w", before_w, minimum=0.0)) / usual_w
        adjustment = min(max(factor, 1.0 - MAX_ADJUSTMENT), 1.0 + MAX_ADJUSTMENT)
    return Baseline(during_w * adjustment, len(known), adjustment)
