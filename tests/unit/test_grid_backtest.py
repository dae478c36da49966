"""`joulie grid backtest`: the histories that it reads, that it knows no future, and what it says."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.apps.cli.main import main
from joulie.domain.grid.deferral import Conditions, Release, Waiting, decide
from joulie.domain.grid.forecast import DAY_S, forecast
from joulie.domain.grid.request import Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Measure
from joulie_lab.apps.backtest import judge
from joulie_lab.apps.backtest.history import FORECASTERS, JOULIE, YESTERDAY, History, parts

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
MONDAY_S = 1_704_067_200.0  # 1 January 2024
START = datetime(2024, 1, 1, tzinfo=UTC)


def weather(days, seed=1):
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    noise = np.convolve(rng.normal(0.0, 6.0, hours.size + 23), 0.9 ** np.arange(24), mode="valid")
    return 300.0 - 60.0 * np.cos(2.0 * np.pi * hours / 24.0) - 30.0 * (hours // 24 % 7 >= 5) + noise


def hourly(values):
    return Series(MONDAY_S + HOUR_S * np.arange(len(values)), values, MONDAY_S + HOUR_S * len(values))


def history(values, delay=0, forecasters=FORECASTERS):
    made = History(Measure.CARBON, hourly(values), HOUR_S, delay, 30, HOUR_S * max(1, delay))
    for forecaster in forecasters:
        made.expect(forecaster)
    return made


def write(path, values, header="Datetime (UTC),Carbon Intensity gCO₂eq/kWh (LCA)", drop=()):
    lines = [f"{START + timedelta(hours=hour):%Y-%m-%d %H:%M:%S},{value:.3f}" for hour, value in enumerate(values)]
    kept = [line for hour, line in enumerate(lines) if hour not in drop]
    path.write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    return path


def backtest(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["grid", "backtest", *map(str, arguments)])
    told = capsys.readouterr()
    return caught.value.code, told.out, told.err


def document(capsys, *arguments):
    code, out, err = backtest(capsys, *arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


# What is known when


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_forecasts_are_those_that_the_controller_makes(delay):
    values = weather(40)
    played = history(values, delay)
    for step in (20 * 24 + delay, 27 * 24 - 1, 31 * 24 + 7, 38 * 24 + 23):
        now_s = MONDAY_S + HOUR_S * step
        made = forecast(hourly(values[: step - delay + 1]), now_s, 30 * HOUR_S, HOUR_S).between(now_s, np.inf)
        expected = played.signal(JOULIE, step).forecast
        assert expected.starts_s.tolist() == made.starts_s.tolist()
        assert expected.values == pytest.approx(made.values, rel=1e-9)


@given(st.integers(15 * 24, 18 * 24), st.integers(0, 3), st.sampled_from(FORECASTERS), st.floats(-200.0, 1e4))
@settings(max_examples=20, deadline=None)
def test_what_is_not_known_yet_plays_no_part(step, delay, forecaster, change):
    values = weather(20)
    changed = values.copy()
    changed[step - delay + 1 :] += change
    now_s = MONDAY_S + HOUR_S * step
    one, other = (history(each, delay, [forecaster]).signal(forecaster, step) for each in (values, changed))
    assert one == other
    assert one.forecast.start_s == now_s


def test_a_delayed_signal_starts_with_what_is_expected_not_with_the_last_value():
    values = weather(20)
    played = history(values, delay=2, forecasters=[YESTERDAY])
    step = 16 * 24
    signal = played.signal(YESTERDAY, step)
    assert signal.value == pytest.approx(values[step - 2])
    assert signal.forecast.values[0] == pytest.approx(values[step - 24])


# Jobs


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize(("mode", "forecaster"), [(Mode.OPTIMAL, JOULIE), (Mode.OPTIMAL, None), (Mode.THRESHOLD, None)])
@pytest.mark.parametrize("slack_h", [24.0, 7.5, 0.0])
def test_every_start_is_the_controllers_own_decision_asked_hour_by_hour(delay, mode, forecaster, slack_h):
    values = weather(25) - 60.0
    played = history(values, delay)
    arrival_s = MONDAY_S + HOUR_S * np.sort(np.random.default_rng(1).integers(15 * 24, 22 * 24, 25))
    runtime_s = HOUR_S * np.resize([4.0, 1.0, 2.5, 40.0], 25)
    jobs = judge.Jobs(arrival_s, runtime_s, np.ones(25))
    rule = judge.Rule("", mode, {Measure.CARBON: forecaster}, [Measure.CARBON])
    starts_s = judge.starts_s(rule, jobs, slack_h * HOUR_S, {Measure.CARBON: played}, lambda _count: None)
    assert (starts_s >= arrival_s).all()
    assert (starts_s <= arrival_s + slack_h * HOUR_S).all()
    for job in range(25):
        waiting = Waiting(judge._request(rule, slack_h * HOUR_S, float(runtime_s[job])), float(arrival_s[job]))
        for now_s in (*np.arange(arrival_s[job], starts_s[job], HOUR_S), starts_s[job]):
            step = int((now_s - MONDAY_S) // HOUR_S)
            conditions = Conditions(carbon=played.signal(forecaster, step))
            if now_s % HOUR_S:  # it began as planned, between two values
                continue
            assert isinstance(decide(waiting, conditions, now_s), Release) == (now_s == starts_s[job])


def test_the_oracle_runs_in_the_best_hours_and_no_rule_beats_it():
    values = weather(25)
    played = history(values)
    arrival_s = MONDAY_S + HOUR_S * np.arange(15 * 24, 22 * 24, 7)
    jobs = judge.Jobs(arrival_s, np.full(len(arrival_s), 4 * HOUR_S), np.ones(len(arrival_s)))
    best = judge.best_means(played, jobs, DAY_S)
    runs = np.convolve(values, np.full(4, 0.25), mode="valid")
    first = np.round((arrival_s - MONDAY_S) / HOUR_S).astype(int)
    assert best == pytest.approx([runs[at : at + 25].min() for at in first])
    for rule in judge.rules_of([Measure.CARBON]):
        starts_s = judge.starts_s(rule, jobs, DAY_S, {Measure.CARBON: played}, lambda _count: None)
        assert (judge.run_means(played, starts_s, jobs.runtime_s) >= best - 1e-9).all()


# Files


def test_what_is_said(tmp_path, capsys):
    found = document(capsys, "--intensity", write(tmp_path / "x.csv", weather(45)), "--arrivals", 150)
    assert found["column"] == "Carbon Intensity gCO₂eq/kWh (LCA)"
    assert found["mean_g_per_kwh"] == pytest.approx(weather(45).mean(), abs=0.01)
    assert found["arrivals"] == "150 jobs of 4 h, at random steps"
    assert found["late"] == 0
    assert set(found["rules"]) == {"joulie", "yesterday", "usual day", "threshold 200"}
    ours = found["rules"]["joulie"]
    assert ours["share"] == pytest.approx(ours["saved_pct"] / found["oracle_pct"])
    assert ours["interval"][0] < ours["share"] < ours["interval"][1]
    assert found["interval_of"] == "the share; 95 %, 5 weeks resampled"
    assert found["rules"]["yesterday"]["share"] < ours["share"]


def test_the_same_seed_says_the_same(tmp_path, capsys):
    arguments = ("--intensity", write(tmp_path / "x.csv", weather(30)), "--arrivals", 40, "--delay", "1h")
    first = document(capsys, *arguments)
    assert document(capsys, *arguments) == first
    assert document(capsys, *arguments, "--seed", 2) != first


def test_bad_lines_are_reported_and_never_zero(tmp_path, capsys):
    values = weather(30)
    path = write(tmp_path / "x.csv", values, drop=range(20 * 24, 20 * 24 + 3))
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[100] = lines[100].split(",")[0] + ",NaN"
    lines[200] = lines[200].split(",")[0] + ","
    lines[300] = "soon,250"
    lines.append(lines[-1])
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    found = document(capsys, "--intensity", path, "--arrivals", 20)
    notes = " ".join(found["notes"])
    assert "left out as invalid: 3 lines: line 101: invalid value NaN" in notes
    assert "line 201: no value" in notes
    assert "line 301: invalid time 'soon'" in notes
    assert "1 line with the time of an earlier one" in notes
    assert "6 h are missing in gaps of up to 6 h" in notes
    assert found["mean_g_per_kwh"] == pytest.approx(values.mean(), rel=0.01)


def test_no_job_waits_or_runs_over_a_long_gap(tmp_path, capsys):
    gap = range(35 * 24, 36 * 24)
    found = document(capsys, "--intensity", write(tmp_path / "x.csv", weather(70), drop=gap), "--arrivals", 60)
    assert "24 h are missing in longer gaps" in found["notes"][0]
    assert found["late"] == 0
    assert found["weeks"] < 7


def test_the_parts_of_a_history_begin_at_midnight():
    before = Series(MONDAY_S + HOUR_S * np.arange(5, 50), np.ones(45), MONDAY_S + 50 * HOUR_S)
    after = Series(MONDAY_S + HOUR_S * np.arange(101, 200), np.full(99, 2.0), MONDAY_S + 200 * HOUR_S)
    (first, second), gaps = parts(before.then(after), HOUR_S)
    assert (first.start_s, first.end_s) == (MONDAY_S + DAY_S, MONDAY_S + 50 * HOUR_S)
    assert (second.start_s, second.end_s) == (MONDAY_S + 5 * DAY_S, MONDAY_S + 200 * HOUR_S)
    assert (gaps.filled_h, gaps.left_out_h) == pytest.approx((0.0, 51.0))


def test_the_hour_that_occurs_twice_counts_twice(tmp_path, capsys):
    path = tmp_path / "x.csv"
    berlin = [(START + timedelta(days=290, hours=hour)) for hour in range(30 * 24)]
    from zoneinfo import ZoneInfo

    local = [moment.astimezone(ZoneInfo("Europe/Berlin")).strftime("%Y-%m-%d %H:%M") for moment in berlin]
    rows = [f"{time};{value:.2f}" for time, value in zip(local, weather(30), strict=True)]
    path.write_text("\n".join(["Time;Carbon Intensity", *rows]), encoding="utf-8")
    found = document(capsys, "--intensity", path, "--time-zone", "Europe/Berlin", "--arrivals", 20)
    assert found["notes"] == []
    assert found["from"] == "2024-10-17T00:00Z"


def test_prices_are_judged_alone_and_together_in_currency_where_they_are_negative(tmp_path, capsys):
    intensity = write(tmp_path / "x.csv", weather(30))
    price = write(tmp_path / "p.csv", weather(30, seed=2) - 400.0, "Time,Price [EUR/MWh]")
    found = document(capsys, "--intensity", intensity, "--price", price, "--arrivals", 40)
    assert found["price"]["column"] == "Price [EUR/MWh]"
    assert found["price"]["mean_per_kwh"] == pytest.approx((weather(30, seed=2).mean() - 400.0) / 1000.0, rel=0.01)
    assert found["price"]["oracle_pct"] is None
    assert found["price"]["rules"]["joulie"]["saved_pct"] is None
    assert found["price"]["rules"]["joulie"]["saved_per_kwh"] > 0.0
    together = found["rules"][judge.JOINT]["share"], found["price"]["rules"][judge.JOINT]["share"]
    assert all(0.0 < share < 1.0 for share in together)


def test_jobs_of_a_trace(tmp_path, capsys):
    trace = tmp_path / "jobs.csv"
    trace.write_text("arrival_time,length,cpus\n1.0,3.2,1\n5,2,4\n9000,1,1\n", encoding="utf-8")
    found = document(capsys, "--intensity", write(tmp_path / "x.csv", weather(30)), "--jobs", trace)
    assert found["arrivals"] == "2 of the 2 jobs of jobs.csv that the history covers"
    assert found["rules"]["joulie"]["interval"] is None
    assert found["interval_of"] == "the share; none, since jobs arrive in fewer than 3 weeks"


def test_jobs_of_a_trace_run_for_steps_of_the_history_not_for_whole_hours(tmp_path, capsys):
    values = [
        f"{START + timedelta(minutes=30 * step):%Y-%m-%d %H:%M:%S},{100 + 100 * (step % 2)}" for step in range(1400)
    ]
    intensity, trace = tmp_path / "x.csv", tmp_path / "jobs.csv"
    intensity.write_text("\n".join(["Time,Carbon Intensity", *values]) + "\n", encoding="utf-8")
    trace.write_text(
        "arrival_time,length,cpus\n" + "".join(f"{at + 0.4},0.4,1\n" for at in range(200)), encoding="utf-8"
    )
    found = document(capsys, "--intensity", intensity, "--jobs", trace)
    # They arrive at the half hour, when it is dirty, and half an hour later it is clean.
    assert found["oracle_pct"] == pytest.approx(50.0)


def test_a_table_and_a_picture(tmp_path, capsys):
    intensity = write(tmp_path / "x.csv", weather(40))
    code, out, err = backtest(capsys, "--intensity", intensity, "--plots", tmp_path / "plots")
    assert code == 0, err
    assert err.split("\n")[:4] == ["forecasts", "joulie", "yesterday", "usual day"], "progress without a terminal too"
    assert "597 jobs of 4 h, one at each step, slack 24 h, values known 0 h late" in out
    assert "Intervals are those of the share" in out
    assert (tmp_path / "plots" / "backtest.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("Time,Carbon Intensity\n2024-01-01,3\n2024-01-02,4\n", "the history is too short: it needs about 16 days"),
        ("Time,Load\n2024-01-01,3\n", "no carbon column among Time, Load"),
        ("Time,Zone Id,Carbon Intensity\n2024-01-01,DE,3\n2024-01-01,FR,3\n", "choose one with --zone: de, fr"),
        ("", "no time column"),
    ],
)
def test_a_file_of_no_use_is_one_line(tmp_path, capsys, content, says):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="utf-8")
    code, out, err = backtest(capsys, "--intensity", path)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("option", ["--intensity", "--price", "--jobs"])
@pytest.mark.parametrize("value", ["", "nowhere.csv", "/"])
def test_a_file_that_is_not_there_is_named_by_its_option(tmp_path, capsys, option, value):
    files = ["--intensity", write(tmp_path / "x.csv", weather(30))] if option != "--intensity" else []
    code, _, err = backtest(capsys, *files, option, value, "--delay", "1h")
    assert code == 2
    assert f"Invalid value for '{option}'" in err
