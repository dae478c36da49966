"""Price schedules as users of the Compute Gardener Scheduler have them."""

import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from joulie.adapters.grid.price_schedules import PriceSchedulesError, load_price_schedules, parse_price_schedules
from joulie.domain.grid.signals import Period

SEED = """\
schedules:
  - name: "california-pge"
    dayOfWeek: "1-5"
    startTime: "16:00"
    endTime: "21:00"
    timezone: "America/Los_Angeles"
    peakRate: 0.30
    offPeakRate: 0.10
"""


def test_the_seeds_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "schedules.yaml"
    path.write_text(SEED, encoding="utf-8")
    tariff = load_price_schedules(path)
    (schedule,) = tariff.schedules
    assert (schedule.name, schedule.days, schedule.zone.key) == (
        "california-pge",
        frozenset({1, 2, 3, 4, 5}),
        "America/Los_Angeles",
    )
    evening = datetime(2026, 11, 21, 1, tzinfo=UTC).timestamp()  # Friday, 17:00 in California
    assert (tariff.period(evening), tariff.rate(evening)) == (Period.PEAK, 0.3)


def test_values_without_quotes_mean_what_they_say() -> None:
    """YAML reads a plain 16:00 as 960 and a plain 0,6 as something that is no day."""
    (schedule,) = parse_price_schedules("schedules: [{dayOfWeek: 6, startTime: 16:00, endTime: 21:00}]", "f").schedules
    assert (schedule.start_min, schedule.end_min, schedule.days) == (960, 1260, frozenset({6}))
    assert (schedule.peak_rate, schedule.off_peak_rate, schedule.zone.key) == (None, None, "UTC")


def test_the_last_minute_of_the_day_belongs_to_a_window_that_ends_with_it() -> None:
    (schedule,) = parse_price_schedules(
        'schedules: [{dayOfWeek: "*", startTime: "18:00", endTime: "23:59"}]', "f"
    ).schedules
    assert schedule.end_min == 24 * 60


def test_holidays_by_date_and_by_country() -> None:
    text = SEED + "    holidays:\n      dates: [2026-11-20]\n      country: US\n      subdivision: CA\n"
    (schedule,) = parse_price_schedules(text, "f").schedules
    assert schedule.begins_on(date(2026, 11, 19))
    assert not schedule.begins_on(date(2026, 11, 20))
    assert not schedule.begins_on(date(2034, 7, 4))


def test_a_country_without_the_package_of_holidays_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(PriceSchedulesError, match=r"install joulie\[grid\]"):
        parse_price_schedules(SEED + "    holidays: {country: US}\n", "f.yaml")


def wrong(line: str, instead: str) -> str:
    assert line in SEED
    return SEED.replace(line, instead)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1: is empty"),
        ("schedules: []", "f.yaml:1: has no schedules"),
        ("schedules: 5", "f.yaml:1: the file: schedules must be a list"),
        ("- a", "f.yaml:1: the file: must be a mapping"),
        ("schedules: [a, b", "f.yaml:1: not YAML"),
        ("prices: []", "f.yaml:1: the file: unknown key 'prices'"),
        (wrong('"1-5"', '"1-9"'), "f.yaml:3: schedules.0: dayOfWeek is '1-9', not days such as"),
        (wrong('"16:00"', '"4pm"'), "f.yaml:4: schedules.0: startTime is '4pm', not a time"),
        (wrong('"16:00"', '"24:00"'), "f.yaml:4: schedules.0: startTime is '24:00'"),
        (wrong('"21:00"', '"16:00"'), "f.yaml:2: schedules.0: startTime and endTime are the same"),
        (wrong('"21:00"', "[1]"), "f.yaml:5: schedules.0: endTime must be one value"),
        (wrong('    endTime: "21:00"\n', ""), "f.yaml:2: schedules.0: endTime is missing"),
        (wrong("America/Los_Angeles", "Mars/Base"), "f.yaml:6: schedules.0: timezone is 'Mars/Base', not an IANA"),
        (wrong("America/Los_Angeles", "../etc"), "f.yaml:6: schedules.0: timezone"),
        (wrong("0.30", ".nan"), "f.yaml:7: schedules.0: peakRate is '.nan', not a number"),
        (wrong("peakRate: 0.30", "peekRate: 0.30"), "f.yaml:7: schedules.0: unknown key 'peekRate'"),
        (wrong("peakRate: 0.30", "name: again"), "f.yaml:7: schedules.0: duplicate key 'name'"),
        (SEED + "    holidays: {country: XX}\n", "f.yaml:9: schedules.0.holidays: country is 'XX'"),
        (SEED + "    holidays: {dates: [soon]}\n", "f.yaml:9: schedules.0.holidays: dates is 'soon', not a date"),
        (SEED + "    holidays: {subdivision: CA}\n", "f.yaml:9: schedules.0.holidays: subdivision needs a country"),
    ],
)
def test_mistakes_are_told_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(PriceSchedulesError) as caught:
        parse_price_schedules(text, "f.yaml")
    assert str(caught.value).startswith(message)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PriceSchedulesError, match="cannot be read"):
        load_price_schedules(tmp_path / "none.yaml")
