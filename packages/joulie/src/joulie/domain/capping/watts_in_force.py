"""How many watts a budget allows at a time: by its calendar, by a signal that it follows, and by events that reduce it.

The lowest counts. An event that ends returns to what would hold without it along a ramp, so that the power that it
held back does not come back at once. A signal that is unknown changes nothing: it is no reason to limit, and none that
protects anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.grid.tou import Schedule
from joulie.domain.units import finite, non_negative, positive

RAMP_S = 300.0
"""Default time over which a limit returns after an event, s."""


@dataclass(frozen=True)
class ScheduledWatts:
    """A window of the calendar with a limit of its own.

    Attributes:
        window: when it holds.
        limit_w: limit within it, W.
    """

    window: Schedule
    limit_w: float

    def __post_init__(self) -> None:
        positive("limit_w", self.limit_w)


@dataclass(frozen=True)
class Follow:
    """A limit that falls while a signal rises: linear between two values of it.

    Attributes:
        low: value up to which the budget's own watts hold.
        high: value from which `at_high_w` holds.
        at_high_w: limit at `high`, W.
    """

    low: float
    high: float
    at_high_w: float

    def __post_init__(self) -> None:
        finite("low", self.low)
        positive("high - low", finite("high", self.high) - self.low)
        positive("at_high_w", self.at_high_w)

    def limit_w(self, base_w: float, value: float) -> float:
        """The limit at a value of the signal, W; never above the budget's own."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return min(base_w, base_w + share * (self.at_high_w - base_w))


@dataclass(frozen=True)
class Reduction:
    """An event that reduces a budget for a time.

    Attributes:
        name: unique within the budget.
        start_s: start, s since the epoch.
        end_s: end, s since the epoch.
        limit_w: limit meanwhile, W.
        ramp_s: how long the limit takes to return afterwards, s.
    """

    name: str
    start_s: float
    end_s: float
    limit_w: float
    ramp_s: float = RAMP_S

    def __post_init__(self) -> None:
        positive("end_s - start_s", finite("end_s", self.end_s) - finite("start_s", self.start_s))
        positive("limit_w", self.limit_w)
        non_negative("ramp_s", self.ramp_s)

    def active(self, now_s: float) -> bool:
        """Whether it holds; not while the limit returns afterwards."""
        return self.start_s <= now_s < self.end_s

    def at(self, now_s: float, without_w: float) -> float:
        """The limit at a time, where `without_w` would hold without it, W."""
        if now_s < self.start_s or without_w <= self.limit_w:
            return without_w
        if now_s < self.end_s:
            return self.limit_w
        passed = 1.0 if self.ramp_s <= 0.0 else min((now_s - self.end_s) / self.ramp_s, 1.0)
        return self.limit_w + passed * (without_w - self.limit_w)


class WattsInForce(NamedTuple):
    """What a budget allows now.

    Attributes:
        limit_w: limit, W.
        reason: what decides it: "spec", "schedule", "signal", "invalid", or the name of a reduction.
    """

    limit_w: float
    reason: str


SPEC, SCHEDULE, SIGNAL, INVALID = "spec", "schedule", "signal", "invalid"
"""What decides a limit, but for reductions. Invalid is a budget of which a part cannot be read."""


def watts_in_force(
    now_s: float,
    base_w: float,
    *,
    schedule: Sequence[ScheduledWatts] = (),
    follow: Follow | None = None,
    signal: float | None = None,
    reductions: Sequence[Reduction] = (),
) -> WattsInForce:
    """What a budget allows at a time; never more than `base_w`.

    Args:
        now_s: time, s since the epoch.
        base_w: the budget's own watts.
        schedule: windows of the calendar.
        follow: how it follows a signal.
        signal: the signal's value now; None where it is unknown.
        reductions: events.

    Raises:
        InvalidQuantityError: a quantity is NaN or out of range.
    """
    best = WattsInForce(float(positive("base_w", base_w)), SPEC)
    for one in schedule:
        if one.limit_w < best.limit_w and one.window.covers(now_s):
            best = WattsInForce(one.limit_w, SCHEDULE)
    if follow is not None and signal is not None:
        limit_w = follow.limit_w(base_w, float(finite("signal", signal)))
        if limit_w < best.limit_w:
            best = WattsInForce(limit_w, SIGNAL)
    without_w = best.limit_w
    for event in reductions:
        limit_w = event.at(now_s, without_w)
        if limit_w < best.limit_w:
            best = WattsInForce(limit_w, event.name)
    return best
