"""Servers that share an oversubscribed feed: the limits that keep its breaker closed.

A limit that the hardware enforces holds within milliseconds; a controller that reads, decides and has it written needs
seconds. So the question is never what the servers draw but what they could draw before anything can be done about it:

1. **Ride through.** If all servers went to their limits now, the breaker must stay closed for longer than it takes to
   lower the limits. A cold breaker allows more than a warm one, so its heat is kept count of.
2. **Sustain.** What the servers want, in the trend that it has, must fit under the target.
3. **Alarm.** At a heat that only an overload explains, or without telemetry, limits go at once to where the feed
   carries the worst.

Only standard servers are limited, those of the lowest tier first. Within a tier, down to the knee of their throughput
all have the same level: those that draw the most give the most, which costs the least work for a watt. Below the knee,
work for the energy falls (A40: half the power does 0.41 of the work), so some are kept at the knee, those first that do
most work for a joule, and the others go to their floor. Critical servers are limited where the feed could not carry
them beside standard servers at their floor, and then only in alarm, unless the worst case must be carried at all times
(`FeedSettings.limit_critical`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from joulie.domain.capping.trip import TripCurve
from joulie.domain.units import BoolArray, FloatArray, IntArray, finite, non_negative, positive

LEVELS = np.linspace(0.0, 1.0, 101)
"""Steps of the level: 0 leaves standard servers their floor, 1 full power."""
BLIND_HOLD_S = 45.0
"""How long a feed says that it was blind, s: else it would change with each reading where they are seldom."""
_AT_LIMIT = 0.98
"""Share of its limit from which a server is taken to want more than it draws."""


class FeedState(StrEnum):
    """What decides the level."""

    OPEN = "open"
    RIDE_THROUGH = "ride-through"
    SUSTAIN = "sustain"
    ALARM = "alarm"
    BLIND = "no telemetry"


@dataclass(frozen=True, eq=False)
class FeedServers:
    """The servers on a feed; arrays of shape ``(n,)``.

    Attributes:
        critical: whose work must not be slowed.
        floor_w: lowest limit that a server can be given, W.
        full_w: the most it can draw without one, W.
        work_per_j: work for a joule, in any unit; decides only who goes to the floor first.
        tier: standard servers of a lower tier are at their floor before those of a higher one give; None for one tier.
    """

    critical: BoolArray
    floor_w: FloatArray
    full_w: FloatArray
    work_per_j: FloatArray
    tier: IntArray | None = None

    def __post_init__(self) -> None:
        positive("full_w - floor_w", self.full_w - non_negative("floor_w", self.floor_w))


@dataclass(frozen=True)
class FeedSettings:
    """Settings of a feed's controller.

    Attributes:
        rating_w: load that the breaker is rated for, W.
        trip: its time-current curve.
        reaction_s: longest time from a reading to limits that act on it, s: telemetry, decision, agents, hardware.
        margin: times the reaction that the worst load must be carried.
        target: share of the rating that is drawn for long.
        alarm_heat: heat, in squares of loads, from which limits go to where the worst is carried.
        stale_s: age from which a reading is stale, s.
        smoothing_s: time constant of what servers want, s.
        raise_share_per_s: by how much the level may rise, in shares of full power a second.
        knee: level below which work for the energy falls.
        reading_error: by how much more may be drawn than is read, as a share.
        limit_critical: whether critical servers are limited whenever the worst case is too much, not only in alarm.
    """

    rating_w: float
    trip: TripCurve
    reaction_s: float
    margin: float = 1.5
    target: float = 0.99
    alarm_heat: float = 1.04
    stale_s: float = 10.0
    smoothing_s: float = 15.0
    raise_share_per_s: float = 0.03
    knee: float = 0.55
    reading_error: float = 0.0
    limit_critical: bool = False

    def __post_init__(self) -> None:
        for name in ("rating_w", "reaction_s", "stale_s", "smoothing_s", "raise_share_per_s"):
            positive(name, getattr(self, name))
        finite("margin", self.margin, minimum=1.0)
        non_negative("reading_error", self.reading_error)
        positive("knee", finite("knee", self.knee, maximum=1.0))
        finite("target", self.target, minimum=0.0, maximum=1.0)
        finite("alarm_heat", self.alarm_heat, minimum=self.target**2, maximum=self.trip.trip_heat)


@dataclass(frozen=True, eq=False)
class FeedReading:
    """Measured power of the servers.

    Attributes:
        time_s: when.
        power_w: of each server, W, shape ``(n,)``; NaN or negative where it is not known.
    """

    time_s: float
    power_w: FloatArray


@dataclass(frozen=True, eq=False)
class FeedMemory:
    """State kept between decisions.

    Attributes:
        time_s: of the last decision.
        read_s: of the last reading that was counted; -inf before the first.
        heat: of the breaker at `read_s`.
        wanted_w: what each server wants, smoothed, W.
        rise_w: by how much critical servers together want more than that now, W.
        level: of standard servers, 0 at their floor, 1 at full power.
        limit_w: of each server as last decided, W.
        allowed_w: the most that all servers together were allowed since `read_s`, W.
        read_w: that reading, W.
        changed_s: time of the last reading that differed from the one before, s.
        blind_s: time of the last decision without telemetry, s; -inf before the first.
    """

    time_s: float
    read_s: float
    heat: float
    wanted_w: FloatArray
    rise_w: float
    level: float
    limit_w: FloatArray
    allowed_w: float
    read_w: FloatArray
    changed_s: float
    blind_s: float = -math.inf


@dataclass(frozen=True, eq=False)
class FeedDecision:
    """Limits to set.

    Attributes:
        limit_w: of each server, W; full power means none.
        level: of standard servers, 0 at their floor, 1 at full power.
        state: what decides the level.
        blind: whether telemetry is lost, too old or stuck, or was just now (`BLIND_HOLD_S`).
        memory: for the next decision.
    """

    limit_w: FloatArray
    level: float
    state: FeedState
    blind: bool
    memory: FeedMemory


def first_memory(servers: FeedServers, settings: FeedSettings, now_s: float) -> FeedMemory:
    """The initial state: the breaker is as warm as its target makes it, and every server wants full power."""
    budget_w = settings.target * settings.rating_w
    level = max(_highest_level(budget_w, _ladder_w(servers, settings), servers.full_w), 0.0)
    full_w = servers.full_w
    return FeedMemory(
        now_s, -math.inf, settings.target**2, full_w, 0.0, level, full_w, float(full_w.sum()), full_w, -math.inf
    )


def decide_feed(
    now_s: float, reading: FeedReading | None, servers: FeedServers, settings: FeedSettings, memory: FeedMemory
) -> FeedDecision:
    """The limits of all servers on a feed.

    Args:
        now_s: time, s.
        reading: the newest; None where there is none. One that was counted before is not counted again, and one from
            the future is none: believed, it would hide for as long that telemetry is lost.
        servers: on the feed.
        settings: of the feed.
        memory: of the last decision.
    """
    back_s = memory.time_s - now_s
    if back_s > 0.0:
        # The clock was set back. What was read keeps its age, or no reading would count until the old time is reached.
        memory = replace(
            memory,
            read_s=memory.read_s - back_s,
            changed_s=memory.changed_s - back_s,
            blind_s=memory.blind_s - back_s,
        )
    new = reading is not None and memory.read_s < reading.time_s <= now_s
    seen = _read(reading, servers, settings, memory) if reading is not None and new else memory
    # How long ago the clock was set back is not known, so for once nothing is.
    # Readings of many sensors that are all the same again and again come from something that is stuck.
    old = back_s > 0.0 or not 0.0 <= now_s - seen.read_s <= settings.stale_s
    blind = old or seen.read_s - seen.changed_s > settings.stale_s
    ladder_w = _ladder_w(servers, settings)
    bounds: dict[FeedState, float] = {}
    if blind or seen.heat >= settings.alarm_heat:
        alarm = FeedState.BLIND if blind else FeedState.ALARM
        bounds[alarm] = _highest_level(settings.target * settings.rating_w, ladder_w, servers.full_w)
    bounds[FeedState.SUSTAIN] = _highest_level(_sustained_w(servers, settings, seen), ladder_w, seen.wanted_w)
    bounds[FeedState.RIDE_THROUGH] = _highest_level(_carried_w(settings, seen.heat), ladder_w, servers.full_w)
    # Of equal reasons the first is reported; a reason that leaves full power does not count.
    reason, bound = min(bounds.items(), key=lambda item: item[1])
    state = FeedState.OPEN if bound >= 1.0 else reason
    risen = seen.level + settings.raise_share_per_s * max(now_s - seen.time_s, 0.0)
    level = min(max(bound, 0.0), risen)
    limit_w = ladder_w[np.searchsorted(LEVELS, level, side="right") - 1]
    limits_critical = settings.limit_critical or state in (FeedState.ALARM, FeedState.BLIND)
    if bound < 0.0 and limits_critical and servers.critical.any():
        limit_w = np.where(servers.critical, _critical_limit_w(servers, settings), limit_w)
    allowed_w = max(seen.allowed_w, float(limit_w.sum()))
    blind_s = now_s if blind else seen.blind_s
    kept = replace(seen, time_s=now_s, level=level, limit_w=limit_w, allowed_w=allowed_w, blind_s=blind_s)
    return FeedDecision(limit_w, level, state, now_s - blind_s <= BLIND_HOLD_S, kept)


def _read(reading: FeedReading, servers: FeedServers, settings: FeedSettings, memory: FeedMemory) -> FeedMemory:
    """Memory with one more reading counted."""
    # A server without a reading counts with the most that it can draw.
    known = np.isfinite(reading.power_w) & (reading.power_w >= 0.0)
    stuck = bool(np.array_equal(reading.power_w, memory.read_w, equal_nan=True))
    changed_s = memory.changed_s if stuck else reading.time_s
    memory = replace(memory, read_w=reading.power_w, changed_s=changed_s)
    most_w = np.minimum(reading.power_w * (1.0 + settings.reading_error), np.maximum(servers.full_w, reading.power_w))
    power_w = np.where(known, most_w, servers.full_w)
    wanted_w = np.where(power_w >= _AT_LIMIT * memory.limit_w, np.maximum(power_w, memory.wanted_w), power_w)
    if math.isinf(memory.read_s):
        return replace(memory, read_s=reading.time_s, wanted_w=wanted_w)
    dt_s = reading.time_s - memory.read_s
    load = float(power_w.sum()) / settings.rating_w
    if dt_s > settings.stale_s:
        # Power in between was not observed: as much as limits allowed, and as the breaker, which is closed, carried.
        load = max(load, memory.allowed_w / settings.rating_w)
    heat = min(float(settings.trip.heated(memory.heat, load, dt_s)), settings.trip.trip_heat)
    kept = math.exp(-dt_s / settings.smoothing_s)
    smoothed_w = kept * memory.wanted_w + (1.0 - kept) * wanted_w
    rise_w = max(float((wanted_w - smoothed_w)[servers.critical].sum()), 0.0)
    allowed_w = float(memory.limit_w.sum())
    return replace(memory, read_s=reading.time_s, heat=heat, wanted_w=smoothed_w, rise_w=rise_w, allowed_w=allowed_w)


def _sustained_w(servers: FeedServers, settings: FeedSettings, seen: FeedMemory) -> float:
    """What all servers together may want, W: the target less what critical ones are about to want more.

    A smoothed ramp lags behind the ramp by its slope times the time constant: that gives the slope, and with it what is
    wanted when limits act. It is never more than all that critical servers can draw.
    """
    ahead_w = seen.rise_w * (1.0 + settings.reaction_s / settings.smoothing_s)
    most_w = float((servers.full_w - seen.wanted_w)[servers.critical].sum())
    return settings.target * settings.rating_w - min(ahead_w, max(most_w, 0.0))


def _carried_w(settings: FeedSettings, heat: float) -> float:
    """The largest load that the breaker carries until limits act, W."""
    return settings.rating_w * settings.trip.largest_load(heat, settings.margin * settings.reaction_s)


def _ladder_w(servers: FeedServers, settings: FeedSettings) -> FloatArray:
    """Limits at each of `LEVELS`, W, shape ``(n_levels, n)``; no limit falls from one to the next."""
    share = np.ones((LEVELS.size, servers.critical.size))
    standard = np.flatnonzero(~servers.critical)
    tier = np.zeros(servers.critical.size, dtype=np.int64) if servers.tier is None else servers.tier
    range_w = servers.full_w - servers.floor_w
    left_w = LEVELS * float(range_w[standard].sum())
    for one in np.unique(tier[standard])[::-1].tolist():
        members = standard[tier[standard] == one]
        of_tier_w = float(range_w[members].sum())
        # One tier alone has the level itself, without a rounding error.
        level = LEVELS if members.size == standard.size else np.clip(left_w / of_tier_w, 0.0, 1.0)
        left_w = left_w - of_tier_w
        order = members[np.argsort(-servers.work_per_j[members], kind="stable")]
        below = np.minimum(level, settings.knee) / settings.knee
        # Below the knee one server after the other rises to it; above it all rise together.
        risen = np.clip(order.size * below[:, np.newaxis] - np.arange(order.size), 0.0, 1.0)
        share[:, order] = settings.knee * risen + np.maximum(level - settings.knee, 0.0)[:, np.newaxis]
    return np.asarray(servers.floor_w + share * (servers.full_w - servers.floor_w))


def _highest_level(budget_w: float, ladder_w: FloatArray, wanted_w: FloatArray) -> float:
    """The highest level at which all servers together draw no more than a budget; below 0 where none does.

    Args:
        budget_w: of all servers, W.
        ladder_w: limits by level, W, shape ``(n_levels, n)``.
        wanted_w: what each server would draw without a limit, W, shape ``(n,)``.
    """
    fitting = np.flatnonzero(np.minimum(ladder_w, wanted_w).sum(axis=1) <= budget_w)
    return float(LEVELS[fitting[-1]]) if fitting.size else -1.0


def _critical_limit_w(servers: FeedServers, settings: FeedSettings) -> FloatArray:
    """Limits of critical servers where standard ones at their floor do not suffice, W."""
    left_w = settings.target * settings.rating_w - float(servers.floor_w[~servers.critical].sum())
    floor_w, full_w = servers.floor_w[servers.critical], servers.full_w[servers.critical]
    share = np.clip((left_w - floor_w.sum()) / (full_w - floor_w).sum(), 0.0, 1.0)
    return np.asarray(servers.floor_w + share * (servers.full_w - servers.floor_w))
