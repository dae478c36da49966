"""Grid data from files: the shapes in which it is published, and what is wrong with them."""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from joulie.adapters.grid.files import FileOptions, TableFile, read_table
from joulie.domain.grid.signals import Basis, Measure
from joulie.ports.grid import GridSourceError


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


EXPORT = """Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO₂eq/kWh (direct),\
Carbon Intensity gCO₂eq/kWh (LCA),Low Carbon Percentage,Renewable Percentage,Data Source,Data Estimated,\
Data Estimation Method
2021-01-01 00:00:00,USA,CAISO,US-CAL-CISO,226.05,280.28,48.62,32.66,eia.gov,false,
2021-01-01 01:00:00,USA,CAISO,US-CAL-CISO,240.21,291.01,44.70,30.46,eia.gov,true,TIME_SLICER_AVERAGE
2021-01-01 02:00:00,Germany,Germany,DE,350.5,401.5,44.70,30.46,entsoe.eu,false,
"""
DATA_SET = """Time,Carbon Intensity
2020-01-01 00:00:00,374.03
2020-01-01 00:15:00,375.5
2020-01-01 00:30:00,376.25
"""
DAY_AHEAD = """"MTU (CET/CEST)","Day-ahead Price [EUR/MWh]"
"29.10.2023 01:00 - 29.10.2023 02:00","10.5"
"29.10.2023 02:00 - 29.10.2023 03:00","20.5"
"29.10.2023 02:00 - 29.10.2023 03:00","-30.5"
"29.10.2023 03:00 - 29.10.2023 04:00","40.5"
"""


def source_of(path, now, measure=Measure.CARBON, **options):
    if isinstance(now, str):
        now = at(now)
    basis = Basis.AVERAGE if measure is Measure.CARBON else None
    return TableFile(path, FileOptions(**options), measure, basis, "DE", lambda: now)


@pytest.fixture
def file(tmp_path):
    def write(text, name="grid.csv"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def latest(source, zone="DE"):
    return asyncio.run(source.latest(zone))


def refused(source, zone="DE"):
    with pytest.raises(GridSourceError) as raised:
        latest(source, zone)
    return str(raised.value)


def test_hourly_export_gives_life_cycle_intensities_by_zone(file):
    source = source_of(file(EXPORT), "2021-01-01 01:30")
    seen = latest(source, "US-CAL-CISO")
    assert (seen.value, seen.time_s, seen.until_s) == (291.01, at("2021-01-01 01:00"), at("2021-01-01 02:00"))
    assert seen.provenance.estimated
    assert "begins in the future" in refused(source, "DE")
    assert "no values of zone FR" in refused(source, "FR")


def test_the_direct_column_by_name(file):
    name = "Carbon Intensity gCO₂eq/kWh (direct)"
    assert latest(source_of(file(EXPORT), "2021-01-01 00:30", value=name), "us-cal-ciso").value == 226.05


def test_a_file_without_zones_is_of_the_default_zone(file):
    source = source_of(file(DATA_SET), "2020-01-01 00:20")
    assert latest(source).value == 375.5
    assert "no values of zone FR" in refused(source, "FR")


def test_past_and_future_are_apart(file):
    path = file(DATA_SET)

    async def both(source):
        return await source.history("DE", 0.0, 1e12), await source.forecast("DE", 3600)

    now_s = at("2020-01-01 00:20")
    past, ahead = asyncio.run(both(source_of(path, now_s)))
    assert (past.values.tolist(), past.end_s) == ([374.03, 375.5], now_s)
    assert ahead is None
    past, ahead = asyncio.run(both(source_of(path, now_s, forecast=True)))
    assert (ahead.values.tolist(), ahead.start_s) == ([375.5, 376.25], now_s)


def test_day_ahead_prices_per_mwh_over_the_hour_that_is_there_twice(file):
    path = file(DAY_AHEAD)
    # 02:00 CEST is 00:00 UTC, 02:00 CET is 01:00 UTC.
    values = [latest(source_of(path, f"2023-10-29 0{hour}:10", Measure.PRICE)).value for hour in range(3)]
    assert values == pytest.approx([0.0205, -0.0305, 0.0405])


@pytest.mark.parametrize("bad", ["", "n/e", "nan", "inf", "-12", "null"])
def test_trap_a_line_that_cannot_be_read_is_reported_by_number_and_never_zero(file, caplog, bad):
    caplog.set_level(logging.WARNING)
    text = DATA_SET.replace("375.5", bad)
    source = source_of(file(text), "2020-01-01 00:20")
    seen = latest(source)
    assert seen.value == 374.03
    assert seen.until_s <= at("2020-01-01 00:30")
    (record,) = caplog.records
    assert record.first.startswith("line 3: ")
    assert record.lines == 1


@pytest.mark.parametrize(
    ("column", "factor"),
    [
        ("carbon_intensity (gCO2eq/kWh)", 1.0),
        ("Carbon intensity [kg CO2eq/MWh]", 1.0),
        ("carbon_intensity lbs/MWh", 0.45359237),
        ("Carbon intensity (lbs CO2 per MWh)", 0.45359237),
        ("Carbon Intensity tCO2/MWh", 1000.0),
        ("carbon_intensity_avg", 1.0),
    ],
)
def test_the_unit_of_the_header_counts(file, column, factor):
    table = read_table(file(f"time;{column}\n2020-01-01 00:00:00;200\n"), FileOptions(), Measure.CARBON)
    assert table.zones[""].series.values[0] == pytest.approx(200.0 * factor)
    assert table.column == column


def test_times_in_seconds_since_the_epoch(file):
    table = read_table(file("timestamp,intensity\n1577836800,3\n1577840400,4\n"), FileOptions(), Measure.CARBON)
    assert table.zones[""].series.starts_s.tolist() == [at("2020-01-01 00:00"), at("2020-01-01 01:00")]


def test_a_hole_does_not_stretch_a_value(file):
    text = "Time,Carbon Intensity\n" + "".join(
        f"2020-01-01 {hour:02}:00:00,{hour}00\n" for hour in (0, 1, 2, 3, 12, 13, 14)
    )
    assert latest(source_of(file(text), "2020-01-01 09:00")).until_s == at("2020-01-01 04:00")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no time column"),
        ("a,b\n1,2\n", "no time column among a, b"),
        ("Time,b\n2020-01-01,2\n", "no carbon column"),
        ("Time,Carbon Intensity\n", "no valid line"),
        ("Time,Carbon Intensity\nsoon,300\n", "line 2: invalid time 'soon'"),
        ("Time,Carbon Intensity\n2020-01-01 00:00:00\n", "line 2: "),
    ],
)
def test_a_file_that_is_none_says_so(file, text, says):
    assert says in refused(source_of(file(text), "2020-01-01 00:20"))


def test_a_file_that_is_missing_unreadable_or_of_no_known_zone(tmp_path, file):
    assert "No such file" in refused(source_of(tmp_path / "none.csv", 0.0))
    (tmp_path / "bytes.csv").write_bytes(b"Time,\xff\xfe\n")
    assert "bytes.csv" in refused(source_of(tmp_path / "bytes.csv", 0.0))
    assert "unknown time zone 'Mars'" in refused(source_of(file(DATA_SET), 0.0, time_zone="Mars"))


def test_a_changed_file_is_read_again(file):
    source = source_of(file(DATA_SET), "2020-01-01 00:20")
    assert latest(source).value == 375.5
    file(DATA_SET.replace("375.5", "99.25"))
    assert latest(source).value == 99.25


def test_semicolons_and_times_with_an_offset(file):
    text = "timestamp;price EUR/kWh\n2020-01-01T01:00:00+01:00;0.25\n"
    assert latest(source_of(file(text), "2020-01-01 00:20", Measure.PRICE)).value == 0.25


def test_parquet(tmp_path):
    path = tmp_path / "grid.parquet"
    times = [datetime(2020, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
    pl.DataFrame({"time": times, "zone": ["DE"] * 3, "carbon_intensity": [100.0, None, 300.0]}).write_parquet(path)
    assert latest(source_of(path, "2020-01-01 00:20")).value == 100.0
    assert latest(source_of(path, "2020-01-01 02:20")).value == 300.0
    Path(path).write_bytes(b"PAR1 not really")
    assert "grid.parquet" in refused(source_of(path, 0.0))
