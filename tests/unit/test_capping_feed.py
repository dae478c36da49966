"""A breaker and the servers behind it: when it trips, and which limits keep it closed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulie.domain.capping.feed import FeedReading, FeedServers, FeedSettings, FeedState, decide_feed, first_memory
from joulie.domain.capping.trip import EARLIEST, TripCurve
from joulie.domain.units import InvalidQuantityError

FLOOR_W, FULL_W = 4000.0, 10_000.0


def servers(n=10, critical=5, work_per_j=None):
    return FeedServers(
        np.arange(n) < critical,
        np.full(n, FLOOR_W),
        np.full(n, FULL_W),
        np.ones(n) if work_per_j is None else np.array(work_per_j, dtype=float),
    )


def settings(**changes):
    return replace(FeedSettings(80_000.0, EARLIEST, reaction_s=16.0), **changes)


class Row:
    """Servers that are read and decided on every 2 s."""

    def __init__(self, fleet=None, run=None):
        self.servers, self.settings = fleet or servers(), run or settings()
        self.memory, self.now_s = first_memory(self.servers, self.settings, 0.0), 0.0

    def told(self, power_w, seconds=2.0, obeying=True):
        """The last decision after servers wanted this for so long, and drew what limits left."""
        for _ in range(round(seconds / 2.0)):
            self.now_s += 2.0
            most_w = self.memory.limit_w if obeying else np.inf
            # Sensors never repeat to the last digit, unless they are stuck.
            power_now_w = np.minimum(np.full(10, power_w, dtype=float), most_w) - 1e-9 * (self.now_s % 4.0)
            reading = FeedReading(self.now_s, power_now_w)
            decision = decide_feed(self.now_s, reading, self.servers, self.settings, self.memory)
            self.memory = decision.memory
        return decision


@pytest.mark.parametrize("load", [1.06, 1.2, 1.3, 2.0])
def test_the_time_to_trip_is_that_of_the_heat(load):
    time_s = float(EARLIEST.time_to_trip_s(0.81, load))
    assert EARLIEST.heated(0.81, load, time_s) == pytest.approx(EARLIEST.trip_heat)
    assert EARLIEST.largest_load(0.81, time_s) == pytest.approx(load)


def test_the_breaker_keeps_its_standard():
    assert EARLIEST.time_to_trip_s(0.0, 1.05) == math.inf
    assert EARLIEST.time_to_trip_s(0.81, 1.3) == pytest.approx(24.2, abs=0.1)
    assert EARLIEST.time_to_trip_s(0.0, 1.3) < 3600.0, "IEC 60947-2: within the conventional time"
    assert EARLIEST.time_to_trip_s(0.0, 5.0) == 0.0, "at once"
    assert EARLIEST.time_to_trip_s(1.2, 0.5) == 0.0, "it is open"
    assert EARLIEST.time_to_trip_s(1.0, 1.2) < EARLIEST.time_to_trip_s(0.5, 1.2), "a warm one trips sooner"
    assert EARLIEST.trips([1.0, 1.11, 0.0], [1.2, 0.0, 5.0]).tolist() == [False, True, True]


def test_a_load_that_is_carried_for_a_moment_does_not_trip_at_once():
    load = EARLIEST.largest_load(0.0, 0.1)
    assert load == pytest.approx(EARLIEST.instantaneous)
    assert not EARLIEST.trips(0.0, load)


def test_a_curve_that_cannot_be():
    with pytest.raises(InvalidQuantityError):
        TripCurve(hold=0.9, time_constant_s=60.0, instantaneous=5.0)
    with pytest.raises(InvalidQuantityError):
        EARLIEST.time_to_trip_s(math.nan, 1.0)


def test_little_load_is_left_alone():
    decision = Row().told(5000.0, 120.0)
    assert decision.state is FeedState.OPEN
    assert (decision.limit_w == FULL_W).all()


def test_what_servers_want_is_kept_under_the_target_and_only_standard_ones_pay():
    decision = Row().told(9000.0, 120.0)
    assert decision.state is FeedState.SUSTAIN
    assert (decision.limit_w[:5] == FULL_W).all()
    drawn_w = np.minimum(9000.0, decision.limit_w).sum()
    assert 0.97 * 80_000.0 < drawn_w <= 0.99 * 80_000.0


def test_what_they_could_draw_is_kept_within_the_reaction():
    row = Row()
    # Warm at the target, but wanting less: only the worst that could come is a reason.
    decision = row.told(np.r_[np.full(5, 9300.0), np.full(5, 6350.0)], 400.0)
    assert decision.state is FeedState.RIDE_THROUGH
    worst = decision.limit_w.sum() / 80_000.0
    assert worst < 1.25
    assert EARLIEST.time_to_trip_s(row.memory.heat, worst) >= 1.5 * 16.0 - 1e-6


def test_an_overload_is_an_alarm():
    row = Row()
    row.told(5000.0, 120.0)
    decision = row.told(10_000.0, 60.0, obeying=False)
    assert (row.memory.heat > 1.04, decision.state) == (True, FeedState.ALARM)
    assert decision.limit_w.sum() <= 0.99 * 80_000.0
    assert (decision.limit_w[:5] == FULL_W).all()


def test_without_telemetry_the_worst_is_carried():
    row = Row()
    row.told(5000.0, 120.0)
    for now_s, blind in ((row.now_s + 10.0, False), (row.now_s + 10.1, True)):
        decision = decide_feed(now_s, None, row.servers, row.settings, row.memory)
        assert (decision.state is FeedState.BLIND) is blind
        assert bool(decision.limit_w.sum() <= 0.99 * 80_000.0) is blind
    old = FeedReading(row.now_s - 60.0, np.full(10, 1.0))
    assert decide_feed(row.now_s + 11.0, old, row.servers, row.settings, row.memory).state is FeedState.BLIND


def test_before_anything_is_known_limits_are_those_of_the_worst():
    fleet, run = servers(), settings()
    decision = decide_feed(0.0, None, fleet, run, first_memory(fleet, run, 0.0))
    assert decision.state is FeedState.BLIND
    assert decision.limit_w.sum() <= 0.99 * 80_000.0


def test_a_server_that_says_nothing_may_draw_everything():
    assert Row().told(np.nan, 60.0).limit_w.sum() <= 0.99 * 80_000.0


def test_a_negative_power_is_no_reading():
    assert Row().told(-1.0, 60.0).limit_w.sum() <= 0.99 * 80_000.0


@pytest.mark.parametrize("time_s", [1e6, math.inf, math.nan])
def test_a_reading_from_the_future_does_not_hide_that_telemetry_is_lost(time_s):
    row = Row()
    row.told(5000.0, 120.0)
    odd = FeedReading(time_s, np.full(10, 5000.0))
    memory = decide_feed(row.now_s, odd, row.servers, row.settings, row.memory).memory
    assert memory.read_s == row.memory.read_s
    assert decide_feed(row.now_s + 10.1, odd, row.servers, row.settings, memory).state is FeedState.BLIND


def test_a_clock_that_was_set_back_is_no_telemetry():
    row = Row()
    row.told(5000.0, 120.0)
    newest = FeedReading(row.now_s - 60.0, np.full(10, 9000.0))
    decision = decide_feed(row.now_s - 59.0, newest, row.servers, row.settings, row.memory)
    assert decision.state is FeedState.BLIND
    assert decision.limit_w.sum() <= 0.99 * 80_000.0


@pytest.mark.parametrize("back_s", [5.0, 3600.0])
def test_after_a_clock_was_set_back_the_next_reading_counts(back_s):
    row = Row()
    row.told(5000.0, 120.0)
    heat = row.memory.heat
    row.now_s -= back_s
    row.memory = decide_feed(row.now_s, None, row.servers, row.settings, row.memory).memory
    row.now_s += 2.0
    new = FeedReading(row.now_s, np.full(10, 5000.0))
    decision = decide_feed(row.now_s, new, row.servers, row.settings, row.memory)
    assert decision.state is not FeedState.BLIND
    assert decision.memory.heat == pytest.approx(heat, rel=0.02), "the breaker is as warm as it was"


def test_a_feed_that_is_read_too_seldom_says_so_all_the_time():
    """Readings each 30 s, of which the feed believes 10: it must not be blind and seeing in turn."""
    row, told = Row(), []
    for second in range(0, 120, 2):
        row.now_s += 2.0
        reading = FeedReading(row.now_s, 4000.0 + np.arange(10.0) + second) if second % 30 == 0 else None
        decision = decide_feed(row.now_s, reading, row.servers, row.settings, row.memory)
        row.memory = decision.memory
        told.append((decision.blind, decision.state is FeedState.BLIND))
    assert {blind for blind, _ in told[10:]} == {True}
    assert {state for _, state in told[10:]} == {True, False}, "the decision itself goes by what is known"
    for second in range(0, 62, 2):
        row.now_s += 2.0
        reading = FeedReading(row.now_s, 4000.0 + np.arange(10.0) + second)
        decision = decide_feed(row.now_s, reading, row.servers, row.settings, row.memory)
        row.memory = decision.memory
    assert not decision.blind


def test_a_gap_counts_as_what_limits_allowed():
    row = Row()
    row.told(5000.0, 120.0)
    heat = row.memory.heat
    row.now_s += 20.0
    row.told(5000.0)
    assert row.memory.heat > heat + 0.1


def test_critical_servers_are_limited_only_where_there_is_no_other_way():
    row = Row(servers(critical=8))
    assert (row.told(9000.0, 60.0).limit_w[:8] == FULL_W).all()
    blind = decide_feed(row.now_s + 60.0, None, row.servers, row.settings, row.memory)
    assert (blind.limit_w[8:] == FLOOR_W).all()
    assert blind.limit_w.sum() == pytest.approx(0.99 * 80_000.0)


def test_floors_that_do_not_fit_are_all_that_can_be_given():
    fleet, run = servers(critical=0), settings(rating_w=30_000.0)
    decision = decide_feed(0.0, None, fleet, run, first_memory(fleet, run, 0.0))
    assert (decision.limit_w == FLOOR_W).all()


def test_below_the_knee_those_that_do_most_work_for_a_joule_keep_it():
    row = Row(servers(critical=5, work_per_j=[1, 1, 1, 1, 1, 3, 1, 2, 5, 4]))
    decision = row.told(10_000.0, 60.0)
    knee_w = FLOOR_W + row.settings.knee * (FULL_W - FLOOR_W)
    kept = np.flatnonzero(decision.limit_w[5:] >= knee_w - 1e-6) + 5
    assert kept.tolist() == [8, 9]
    assert (decision.limit_w[[6]] == FLOOR_W).all()


def test_limits_rise_no_faster_than_allowed():
    row = Row()
    row.told(10_000.0, 120.0)
    levels = [row.memory.level, *(row.told(1000.0).level for _ in range(60))]
    assert np.diff(levels).max() == pytest.approx(2.0 * row.settings.raise_share_per_s)
    assert levels[-1] == 1.0


@pytest.mark.parametrize("changes", [{"margin": 0.5}, {"target": 1.2}, {"alarm_heat": 2.0}, {"knee": 0.0}])
def test_settings_that_cannot_be(changes):
    with pytest.raises(InvalidQuantityError):
        settings(**changes)
