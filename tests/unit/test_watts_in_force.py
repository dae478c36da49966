"""What a budget allows at a time, and what an event achieved."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from joulie.domain.capping.demand_response import Baseline, Course, baseline_10_in_10, similar_days
from joulie.domain.capping.watts_in_force import Follow, Reduction, ScheduledWatts, WattsInForce, watts_in_force
from joulie.domain.grid.tou import Schedule
from joulie.domain.units import InvalidQuantityError

BERLIN = ZoneInfo("Europe/Berlin")


def at(text, zone=BERLIN):
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


PEAK = ScheduledWatts(Schedule("peak", frozenset(range(1, 6)), 17 * 60, 20 * 60, BERLIN), 12_000.0)
NIGHT = ScheduledWatts(Schedule("night", frozenset(range(7)), 23 * 60, 4 * 60, BERLIN), 9_000.0)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-11-26T16:59:59", WattsInForce(18_000.0, "spec")),
        ("2026-11-26T17:00:00", WattsInForce(12_000.0, "schedule")),
        ("2026-11-26T20:00:00", WattsInForce(18_000.0, "spec")),
        ("2026-11-28T18:00:00", WattsInForce(18_000.0, "spec")),  # a Saturday
        ("2026-11-28T03:00:00", WattsInForce(9_000.0, "schedule")),
        ("2026-03-29T03:30:00", WattsInForce(9_000.0, "schedule")),  # the clocks were set an hour before
    ],
)
def test_the_calendar_of_its_zone_counts(time, expected):
    assert watts_in_force(at(time), 18_000.0, schedule=[PEAK, NIGHT]) == expected


def test_a_limit_follows_its_signal_and_an_unknown_one_changes_nothing():
    follow = Follow(100.0, 400.0, 12_000.0)
    found = [watts_in_force(0.0, 18_000.0, follow=follow, signal=value) for value in (50.0, 250.0, 900.0, None)]
    assert [one.limit_w for one in found] == [18_000.0, 15_000.0, 12_000.0, 18_000.0]
    assert [one.reason for one in found] == ["spec", "signal", "signal", "spec"]
    with pytest.raises(InvalidQuantityError):
        watts_in_force(0.0, 18_000.0, follow=follow, signal=float("nan"))


def test_an_event_holds_for_its_time_and_ramps_at_its_end():
    event = Reduction("dr", 1000.0, 4600.0, 12_000.0, ramp_s=300.0)
    limits = [watts_in_force(t, 18_000.0, reductions=[event]).limit_w for t in (999, 1000, 4599, 4600, 4750, 4900, 9e9)]
    assert limits == [18_000.0, 12_000.0, 12_000.0, 12_000.0, 15_000.0, 18_000.0, 18_000.0]
    assert watts_in_force(4750.0, 18_000.0, reductions=[event]).reason == "dr"


def test_the_lowest_of_several_counts_and_no_event_raises_a_limit():
    events = [Reduction("a", 0.0, 100.0, 15_000.0), Reduction("b", 50.0, 100.0, 20_000.0)]
    assert watts_in_force(60.0, 18_000.0, reductions=events) == WattsInForce(15_000.0, "a")
    assert watts_in_force(60.0, 14_000.0, reductions=events) == WattsInForce(14_000.0, "spec")


def test_an_event_without_a_length_is_refused():
    with pytest.raises(InvalidQuantityError):
        Reduction("a", 100.0, 100.0, 15_000.0)


def test_similar_days_are_of_the_same_kind_and_without_events():
    start_s = at("2026-11-26T17:00:00")  # a Thursday
    days = similar_days(start_s, BERLIN, [at("2026-11-25T09:00:00")])
    local = [datetime.fromtimestamp(one, BERLIN) for one in days]
    assert len(days) == 10
    assert local[0].date().isoformat() == "2026-11-24"
    assert all(one.weekday() < 5 and one.hour == 17 for one in local)
    # Across the change of the clocks the hour of the day stays.
    assert {
        one.utcoffset().total_seconds()
        for one in (datetime.fromtimestamp(s, BERLIN) for s in similar_days(at("2026-11-02T17:00:00"), BERLIN, []))
    } == {3600.0, 7200.0}


def test_the_baseline_is_the_mean_of_similar_days_adjusted_to_the_day_itself():
    days = {float(day): (1000.0 + day, 800.0) for day in range(10)}
    assert baseline_10_in_10(days, 880.0) == Baseline(pytest.approx(1004.5 * 1.1), 10, pytest.approx(1.1))
    assert baseline_10_in_10(days, 8000.0).adjustment == 1.2
    assert baseline_10_in_10(days, None).adjustment == 1.0
    few = {float(day): (1000.0, 800.0) if day < 4 else (None, None) for day in range(10)}
    assert baseline_10_in_10(few, 880.0) is None


def test_how_soon_power_was_within_the_limit_and_what_it_was():
    course = Course(20.0, 6.0)
    for index, power_w in enumerate([9.0, 8.0, 6.02, 7.0, 6.0, 5.0]):
        course = course.sampled(20.0 + 10.0 * index, power_w)
    assert course.mean_w == pytest.approx((8.0 + 6.02 + 7.0 + 6.0 + 5.0) / 5.0)
    assert course.complied_s == 40.0
    assert course.sampled(70.0, 9.0) is course, "a second sample of the same time"
    assert course.sampled(80.0, 9.0).complied_s is None
    assert Course(20.0, 6.0).complied_s is None
    assert Course(20.0, 6.0).sampled(25.0, 5.0).complied_s == 0.0
    assert Course(20.0, 6.0).sampled(80.0, 5.0).complied_s is None, "whether it was within before is not known"
    assert Course(20.0, 6.0).sampled(25.0, 5.0).mean_w is None
    gap = Course(0.0, 6.0).sampled(0.0, 5.0).sampled(1000.0, 8.0)
    assert gap.known_s == 60.0
    with pytest.raises(InvalidQuantityError):
        course.sampled(90.0, float("nan"))


def test_an_event_is_sampled_on_after_the_clock_was_set_back():
    course = Course(0.0, 6.0).sampled(3600.0, 7.0).sampled(3610.0, 5.0).sampled(10.0, 5.0)
    assert (course.energy_j, course.last_s) == (50.0, 10.0), "how long it was is not known"
    assert (course.first_s, course.over_s, course.complied_s) == (10.0, 10.0, 10.0), "none is in the future"
    assert course.sampled(20.0, 7.0).energy_j == 50.0 + 7.0 * 10.0
