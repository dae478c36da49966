"""Calendar periods of every zone follow one another without gap or overlap, and begin where people say."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulie.domain.accounting.period import Period, calendar_window, parse_zone, rolling_window

ZONES = sorted(available_timezones() - {"localtime", "Factory"})
FROM_S = datetime(1995, 1, 1, tzinfo=UTC).timestamp()
UNTIL_S = datetime(2037, 12, 1, tzinfo=UTC).timestamp()
PERIODS = st.sampled_from(Period)
MOMENTS = st.floats(FROM_S, UNTIL_S)


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@given(PERIODS, st.sampled_from(ZONES), MOMENTS)
@example(Period.DAY, "Pacific/Apia", at("2011-12-31T05:00", "Pacific/Apia"))
@example(Period.DAY, "America/Sao_Paulo", at("2018-11-04T05:00", "America/Sao_Paulo"))
@example(Period.HOUR, "Australia/Lord_Howe", at("2026-04-05T01:45", "Australia/Lord_Howe"))
@example(Period.WEEK, "Africa/Abidjan", 1071619199.9999998)
@example(Period.DAY, "Africa/Abidjan", 1071619199.9999998)
def test_a_period_has_its_moment_and_the_next_one_follows(period, zone, now_s):
    here = parse_zone(zone)
    start_s, end_s = calendar_window(period, here, now_s)
    assert start_s <= now_s < end_s
    assert calendar_window(period, here, start_s) == (start_s, end_s)
    assert calendar_window(period, here, end_s - 0.5) == (start_s, end_s)
    assert calendar_window(period, here, end_s).start_s == end_s
    assert calendar_window(period, here, start_s - 0.5).end_s == start_s


@given(st.sampled_from(ZONES), MOMENTS)
def test_a_day_is_all_moments_of_one_date(zone, now_s):
    here = ZoneInfo(zone)
    start_s, end_s = calendar_window(Period.DAY, here, now_s)
    today = datetime.fromtimestamp(now_s, here).date()
    assert {
        datetime.fromtimestamp(time_s, here).date() for time_s in (start_s, (start_s + end_s) / 2, end_s - 1.0)
    } == {today}
    assert datetime.fromtimestamp(start_s - 1.0, here).date() < today
    assert datetime.fromtimestamp(end_s, here).date() > today


@given(st.sampled_from(ZONES), MOMENTS)
def test_a_week_is_that_of_iso_8601_and_a_month_begins_on_the_first(zone, now_s):
    here = ZoneInfo(zone)
    today = datetime.fromtimestamp(now_s, here).date()
    week, month = calendar_window(Period.WEEK, here, now_s), calendar_window(Period.MONTH, here, now_s)
    for time_s in (week.start_s, week.end_s - 1.0):
        assert datetime.fromtimestamp(time_s, here).date().isocalendar()[:2] == today.isocalendar()[:2]
    assert datetime.fromtimestamp(month.end_s, here).date() > today
    for time_s in (month.start_s, month.end_s - 1.0):
        then = datetime.fromtimestamp(time_s, here).date()
        assert (then.year, then.month) == (today.year, today.month)


@given(PERIODS, MOMENTS)
def test_a_rolling_window_ends_now(period, now_s):
    start_s, end_s = rolling_window(period, now_s)
    assert end_s == now_s
    assert timedelta(hours=1).total_seconds() <= end_s - start_s <= timedelta(days=30).total_seconds()


@pytest.mark.parametrize(
    ("zone", "moment", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T12:00", 23.0),
        ("Europe/Berlin", "2026-10-25T12:00", 25.0),
        ("Europe/Berlin", "2026-11-23T12:00", 24.0),
        ("Australia/Lord_Howe", "2026-04-05T12:00", 24.5),
        ("America/Sao_Paulo", "2018-11-04T12:00", 23.0),
        ("Asia/Kathmandu", "2026-11-23T12:00", 24.0),
    ],
)
def test_days_have_23_to_25_hours(zone, moment, hours):
    start_s, end_s = calendar_window(Period.DAY, ZoneInfo(zone), at(moment, zone))
    assert (end_s - start_s) / 3600.0 == hours


def test_a_zone_that_is_unknown_is_refused():
    for name in ("Europe/Nowhere", "", "../etc/passwd", "Europe"):
        with pytest.raises(ValueError, match="unknown time zone"):
            parse_zone(name)
