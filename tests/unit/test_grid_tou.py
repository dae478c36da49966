"""Time-of-use tariffs: days, windows over midnight, clock changes, holidays."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from joulie.domain.grid.signals import Period
from joulie.domain.grid.tou import Schedule, TouTariff, parse_clock_min, parse_days

BERLIN = ZoneInfo("Europe/Berlin")
LOS_ANGELES = ZoneInfo("America/Los_Angeles")
WEEKDAYS = frozenset(range(1, 6))
EVERY_DAY = frozenset(range(7))


def schedule(
    start: str, end: str, days: frozenset[int] = WEEKDAYS, zone: ZoneInfo = BERLIN, **more: object
) -> Schedule:
    return Schedule("test", days, parse_clock_min(start), parse_clock_min(end), zone, **more)  # type: ignore[arg-type]


def at(zone: ZoneInfo, *local: int, fold: int = 0) -> float:
    year, month, day, hour, minute = local
    return datetime(year, month, day, hour, minute, tzinfo=zone, fold=fold).timestamp()


def peak(tariff: TouTariff, zone: ZoneInfo, *local: int, fold: int = 0) -> bool:
    return tariff.period(at(zone, *local, fold=fold)) is Period.PEAK


def test_the_window_of_the_seed() -> None:
    tariff = TouTariff((schedule("16:00", "21:00", zone=LOS_ANGELES, peak_rate=0.3, off_peak_rate=0.1),))
    assert not peak(tariff, LOS_ANGELES, 2026, 11, 20, 15, 59)
    assert peak(tariff, LOS_ANGELES, 2026, 11, 20, 16, 0)
    assert not peak(tariff, LOS_ANGELES, 2026, 11, 20, 21, 0)
    assert not peak(tariff, LOS_ANGELES, 2026, 11, 21, 17, 0)  # a Saturday
    assert tariff.rate(at(LOS_ANGELES, 2026, 11, 20, 17, 0)) == 0.3
    assert tariff.rate(at(LOS_ANGELES, 2026, 11, 20, 12, 0)) == 0.1


def test_trap_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    tariff = TouTariff((schedule("22:00", "06:00"),))
    assert not peak(tariff, BERLIN, 2026, 11, 23, 5, 59)  # Monday morning: Sunday is no weekday
    assert peak(tariff, BERLIN, 2026, 11, 23, 22, 0)
    assert peak(tariff, BERLIN, 2026, 11, 24, 0, 0)
    assert peak(tariff, BERLIN, 2026, 11, 24, 5, 59)
    assert not peak(tariff, BERLIN, 2026, 11, 24, 6, 0)
    assert peak(tariff, BERLIN, 2026, 11, 28, 5, 59)  # Saturday morning: Friday's
    assert not peak(tariff, BERLIN, 2026, 11, 28, 22, 0)


def test_a_whole_day_and_a_window_that_ends_at_midnight() -> None:
    whole = TouTariff((schedule("00:00", "24:00", frozenset({0})),))
    assert peak(whole, BERLIN, 2026, 11, 22, 0, 0)
    assert peak(whole, BERLIN, 2026, 11, 22, 23, 59)
    assert not peak(whole, BERLIN, 2026, 11, 23, 0, 0)
    for end in ("00:00", "24:00"):
        evening = TouTariff((schedule("18:00", end),))
        assert peak(evening, BERLIN, 2026, 11, 23, 23, 59)
        assert not peak(evening, BERLIN, 2026, 11, 24, 0, 0)


def test_a_window_is_shorter_when_clocks_go_forward_and_longer_when_they_go_back() -> None:
    tariff = TouTariff((schedule("01:00", "04:00", EVERY_DAY, peak_rate=1.0, off_peak_rate=0.0),))

    def peak_hours(day: date) -> float:
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=BERLIN).timestamp()
        series = tariff.series(noon - 12 * 3600.0, noon)
        assert series is not None
        return float(series.integral(noon - 12 * 3600.0, noon)) / 3600.0

    assert peak_hours(date(2026, 3, 28)) == 3.0
    assert peak_hours(date(2026, 3, 29)) == 2.0
    assert peak_hours(date(2026, 10, 25)) == 4.0


def test_a_time_that_does_not_exist_begins_when_the_clock_is_set() -> None:
    tariff = TouTariff((schedule("02:30", "05:00", EVERY_DAY),))
    set_s = at(BERLIN, 2026, 3, 29, 3, 0)
    assert tariff.next_change_s(set_s - 7200.0) == set_s


def test_a_time_that_comes_twice_counts_twice() -> None:
    """By the clock on the wall 02:30 to 02:45 comes once before the clock is set back and once after."""
    tariff = TouTariff((schedule("02:30", "02:45", EVERY_DAY),))
    first, second = at(BERLIN, 2026, 10, 25, 2, 30), at(BERLIN, 2026, 10, 25, 2, 30, fold=1)
    assert second - first == 3600.0
    assert tariff.next_change_s(first - 60.0) == first
    assert tariff.next_change_s(first) == first + 900.0
    assert tariff.next_change_s(first + 900.0) == second


def test_holidays_have_no_peak_and_neither_has_the_morning_after() -> None:
    christmas = (frozenset({date(2026, 12, 25)}),)
    tariff = TouTariff((schedule("22:00", "06:00", holidays=christmas),))
    assert peak(tariff, BERLIN, 2026, 12, 25, 5, 0)  # of the night before
    assert not peak(tariff, BERLIN, 2026, 12, 25, 23, 0)
    assert not peak(tariff, BERLIN, 2026, 12, 26, 5, 0)


def test_the_first_schedule_that_covers_a_time_counts() -> None:
    tariff = TouTariff(
        (
            schedule("17:00", "19:00", peak_rate=0.5, off_peak_rate=0.1),
            schedule("16:00", "21:00", peak_rate=0.3, off_peak_rate=0.2),
            schedule("10:00", "12:00", frozenset({0, 6}), peak_rate=0.2, off_peak_rate=0.05),
        )
    )
    rates = [tariff.rate(at(BERLIN, 2026, 11, 20, hour, 0)) for hour in (12, 16, 17, 19, 21)]
    assert rates == [0.1, 0.3, 0.5, 0.3, 0.1]
    assert tariff.rate(at(BERLIN, 2026, 11, 21, 9, 0)) == 0.05  # the weekend's own


def test_rates_that_are_not_stated_are_not_zero() -> None:
    tariff = TouTariff((schedule("16:00", "21:00", peak_rate=0.3),))
    noon = at(BERLIN, 2026, 11, 20, 12, 0)
    assert tariff.rate(noon) is None
    assert tariff.series(noon, noon + 86400.0) is None
    assert tariff.next_change_s(noon) == noon + 4 * 3600.0


def test_the_series_of_rates() -> None:
    tariff = TouTariff((schedule("16:00", "21:00", peak_rate=0.3, off_peak_rate=0.1),))
    noon = at(BERLIN, 2026, 11, 20, 12, 0)
    series = tariff.series(noon, noon + 86400.0)
    assert series is not None
    assert series.starts_s.tolist() == [noon, noon + 4 * 3600.0, noon + 9 * 3600.0]
    assert series.values.tolist() == [0.1, 0.3, 0.1]
    assert series.end_s == noon + 86400.0


def test_a_tariff_that_never_changes() -> None:
    tariff = TouTariff((schedule("00:00", "24:00", EVERY_DAY, peak_rate=0.3),))
    now_s = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
    assert tariff.next_change_s(now_s) is None
    series = tariff.series(now_s, now_s + 86400.0)
    assert series is not None
    assert series.values.tolist() == [0.3]


@pytest.mark.parametrize(
    ("text", "days"),
    [("1-5", {1, 2, 3, 4, 5}), ("0,6", {0, 6}), ("1-3, 5", {1, 2, 3, 5}), ("7", {0}), ("5-1", {5, 6, 0, 1}),
     ("0-6", set(range(7))), ("6-7", {6, 0}), ("*", set(range(7)))],
)  # fmt: skip
def test_days(text: str, days: set[int]) -> None:
    assert parse_days(text) == days


@pytest.mark.parametrize("text", ["", "8", "1-", "mon", "1;2", "1-5-6", "-1"])
def test_what_are_no_days(text: str) -> None:
    with pytest.raises(ValueError, match="days such as"):
        parse_days(text)


@pytest.mark.parametrize("text", ["", "16", "24:01", "12:60", "-1:00", "noon", "16:00:30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as"):
        parse_clock_min(text)
