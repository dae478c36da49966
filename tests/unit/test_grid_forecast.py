"""Windows of step functions, and forecasts from one zone's history."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulie.domain.grid.forecast import HISTORY_DAYS, MIN_HISTORY_DAYS, _learned_once, forecast, rolling
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.windows import best_slots, best_start
from joulie.domain.quantities import InvalidQuantityError
from support.plain_forecast import PlainForecast

HOUR_S = 3600.0
DAY_S = 86400.0
MONDAY_S = 1_704_067_200.0  # 1 January 2024


def hourly(values, start_s=MONDAY_S):
    values = np.asarray(values, dtype=float)
    return Series(start_s + HOUR_S * np.arange(values.size), values, start_s + HOUR_S * values.size)


def weather(days, seed=1):
    """A day, a weekend, and noise that lasts."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    noise = np.convolve(rng.normal(0.0, 6.0, hours.size + 23), 0.9 ** np.arange(24), mode="valid")
    return 300.0 - 60.0 * np.cos(2.0 * np.pi * hours / 24.0) - 30.0 * (hours // 24 % 7 >= 5) + noise


# Windows


def test_the_best_window_begins_or_ends_at_a_step():
    series = hourly([300, 100, 200, 50, 400])
    assert best_start(series, MONDAY_S, MONDAY_S + 4 * HOUR_S, 2 * HOUR_S) == (MONDAY_S + 2 * HOUR_S, 125.0)
    assert best_start(series, MONDAY_S, MONDAY_S + 4 * HOUR_S, HOUR_S / 2) == (MONDAY_S + 3 * HOUR_S, 50.0)
    # One and a half hours end with the cheap hour: the window begins within a step.
    assert best_start(series, MONDAY_S, MONDAY_S + 3 * HOUR_S, 1.5 * HOUR_S) == (MONDAY_S + 2.5 * HOUR_S, 100.0)


def test_of_equal_windows_the_first_one():
    assert best_start(constant(0.1, MONDAY_S, MONDAY_S + DAY_S), MONDAY_S + 7.0, MONDAY_S + HOUR_S, 4321.0) == (
        MONDAY_S + 7.0,
        pytest.approx(0.1),
    )


def test_windows_that_are_not_known_whole_do_not_count():
    series = hourly([300, 100, 0])
    assert best_start(series, MONDAY_S, MONDAY_S + DAY_S, 2 * HOUR_S).start_s == MONDAY_S + HOUR_S
    assert best_start(series, MONDAY_S, MONDAY_S + DAY_S, 4 * HOUR_S) is None
    assert best_start(series, MONDAY_S - 1.0, MONDAY_S + DAY_S, HOUR_S) is None
    assert best_start(series, MONDAY_S + HOUR_S, MONDAY_S, HOUR_S) is None


steps = st.lists(st.floats(-50.0, 500.0), min_size=1, max_size=30)


@pytest.mark.slow
@given(steps, st.floats(0.05, 12.0), st.floats(0.0, 12.0), st.floats(0.0, 24.0))
def test_no_other_window_is_better(values, runtime_h, earliest_h, slack_h):
    series = hourly(values)
    earliest_s = MONDAY_S + HOUR_S * earliest_h
    latest_s, runtime_s = earliest_s + HOUR_S * slack_h, HOUR_S * runtime_h
    window = best_start(series, earliest_s, latest_s, runtime_s)
    if window is None:
        assert series.mean(earliest_s, earliest_s + runtime_s) is None
        return
    assert earliest_s <= window.start_s <= latest_s
    assert window.mean_value == pytest.approx(series.mean(window.start_s, window.start_s + runtime_s), abs=1e-6)
    for start_s in np.linspace(earliest_s, latest_s, 200):
        other = series.mean(float(start_s), float(start_s) + runtime_s)
        assert other is None or window.mean_value <= other + 1e-5


def test_slots_are_the_lowest_and_neighbours_are_one_run():
    series = hourly([300, 100, 200, 50, 60, 400])
    runs = best_slots(series, MONDAY_S, MONDAY_S + 6 * HOUR_S, 3 * HOUR_S, HOUR_S)
    hours = [((start - MONDAY_S) / HOUR_S, (end - MONDAY_S) / HOUR_S) for start, end in runs]
    assert hours == [(1.0, 2.0), (3.0, 5.0)]


@pytest.mark.slow
@given(steps, st.floats(0.05, 20.0), st.sampled_from([0.5, 1.0, 2.0]))
@example([0.0, 1.0, 0.0], 1.1, 2.0)  # what rounding left was a run of its own
def test_slots_hold_the_work_in_time(values, work_h, slot_h):
    series = hourly(values)
    deadline_s = MONDAY_S + HOUR_S * len(values)
    runs = best_slots(series, MONDAY_S, deadline_s, HOUR_S * work_h, HOUR_S * slot_h)
    if runs is None:
        assert work_h > len(values)
        return
    assert sum(end - start for start, end in runs) == pytest.approx(HOUR_S * work_h)
    flat = [time_s for run in runs for time_s in run]
    assert flat == sorted(flat)
    assert flat[0] >= MONDAY_S
    assert flat[-1] <= deadline_s
    assert all(end - start >= HOUR_S * slot_h - 1e-3 for start, end in runs[:-1])
    in_one_piece = best_start(series, MONDAY_S, MONDAY_S, HOUR_S * work_h)
    if work_h % slot_h == 0.0 and len(values) % slot_h == 0.0:
        mean = sum(series.integral(*run) for run in runs) / (HOUR_S * work_h)
        assert mean <= in_one_piece.mean_value + 1e-6


# Forecasts


def test_it_begins_with_the_value_in_force():
    values = weather(20)
    now_s = MONDAY_S + 20 * DAY_S - 1234.0
    expected = forecast(hourly(values), now_s, 2 * DAY_S, HOUR_S)
    assert expected.at(now_s) == pytest.approx(values[-1])
    assert expected.start_s == MONDAY_S + 20 * DAY_S - HOUR_S
    assert expected.covers(now_s, now_s + 2 * DAY_S)


def test_it_begins_with_the_value_in_force_at_any_hour():
    values = weather(12)
    for hour in range(10 * 24, 11 * 24 + 1):
        expected = forecast(hourly(values), MONDAY_S + HOUR_S * (hour + 0.3), DAY_S, HOUR_S)
        assert expected.start_s == MONDAY_S + HOUR_S * hour
        assert expected.values[0] == pytest.approx(values[hour])
        assert expected.values[1:4] == pytest.approx(values[hour + 1 : hour + 4], abs=60.0)


def test_a_day_that_repeats_is_known():
    day = 300.0 - 80.0 * np.cos(2.0 * np.pi * np.arange(24) / 24.0)
    for hours in (10 * 24, 10 * 24 + 9):
        history = hourly(np.resize(day, hours))
        expected = forecast(history, history.end_s, DAY_S, HOUR_S)
        assert expected.values == pytest.approx(np.resize(day, hours + 24)[hours - 1 :], abs=0.5)


@pytest.mark.parametrize("change", [0.0, -1000.0, 1e6])
def test_what_comes_later_does_not_matter(change):
    values = weather(30)
    now_s = MONDAY_S + 25 * DAY_S + 5.5 * HOUR_S
    known = forecast(hourly(values[: 25 * 24 + 6]), now_s, DAY_S, HOUR_S)
    later = values.copy()
    later[25 * 24 + 6 :] += change
    assert forecast(hourly(later), now_s, DAY_S, HOUR_S) == known


@pytest.mark.slow
def test_rolling_is_what_single_forecasts_say_at_every_hour():
    values = weather(HISTORY_DAYS + 3)
    rows = rolling(values, MONDAY_S, HOUR_S, 30, np.arange(MIN_HISTORY_DAYS, HISTORY_DAYS + 4))
    for hour in (60, 24 * 9 - 1, 24 * 30 + 5, 24 * (HISTORY_DAYS + 2) + 17):
        made = forecast(hourly(values[: hour + 1]), MONDAY_S + HOUR_S * hour, 30 * HOUR_S, HOUR_S)
        assert rows[hour - (MIN_HISTORY_DAYS * 24 - 1)] == pytest.approx(made.values, rel=1e-9)


def test_rolling_is_causal_too_and_agrees_with_single_forecasts():
    values = weather(24)
    rows = rolling(values, MONDAY_S, HOUR_S, 30, np.arange(MIN_HISTORY_DAYS, 25))
    changed = values.copy()
    changed[20 * 24 + 7 :] += 500.0
    of_changed = rolling(changed, MONDAY_S, HOUR_S, 30, np.arange(MIN_HISTORY_DAYS, 25))
    seen = 20 * 24 + 7 - (MIN_HISTORY_DAYS * 24 - 1)
    assert np.array_equal(rows[:seen], of_changed[:seen])
    assert not np.array_equal(rows[: seen + 1], of_changed[: seen + 1])
    for day in (3, 11, 24):
        # At the end of a day both have just learned the same.
        now_s = MONDAY_S + day * DAY_S - HOUR_S
        one = forecast(hourly(values[: day * 24]), now_s, 29 * HOUR_S + 1.0, HOUR_S)
        assert one.values == pytest.approx(rows[(day - MIN_HISTORY_DAYS) * 24], rel=1e-9)


@pytest.mark.slow
def test_better_than_persistence_and_the_usual_day():
    values = weather(80)
    rows = rolling(values, MONDAY_S, HOUR_S, 49, np.arange(MIN_HISTORY_DAYS, 81))
    origins = np.arange(20 * 24, 78 * 24)
    for lead in (1, 4, 12, 24, 48):
        truth = values[origins + lead]
        back = 24 * -(-lead // 24)
        usual = np.mean([values[origins + lead - back - 24 * day] for day in range(7)], axis=0)
        error = np.abs(rows[origins - MIN_HISTORY_DAYS * 24 + 1, lead] - truth).mean()
        assert error < np.abs(values[origins] - truth).mean()
        assert error < np.abs(values[origins + lead - back] - truth).mean()
        # A day ahead nothing is left of this noise: what is learned about it costs a little.
        assert error < np.abs(usual - truth).mean() * (1.0 if lead <= 12 else 1.1)


def test_too_little_or_too_old_a_history_says_nothing():
    values = weather(10)
    assert forecast(hourly(values[: MIN_HISTORY_DAYS * 24 - 1]), MONDAY_S + 2 * DAY_S, DAY_S, HOUR_S) is None
    assert forecast(hourly(values), MONDAY_S + 11.1 * DAY_S, DAY_S, HOUR_S) is None
    assert forecast(hourly(values), MONDAY_S - 1.0, DAY_S, HOUR_S) is None
    assert forecast(hourly(values[: MIN_HISTORY_DAYS * 24]), MONDAY_S + 2 * DAY_S, DAY_S, HOUR_S) is not None


def test_a_late_history_is_bridged():
    expected = forecast(hourly(weather(10)), MONDAY_S + 10 * DAY_S + 3.5 * HOUR_S, DAY_S, HOUR_S)
    assert expected.covers(MONDAY_S + 10 * DAY_S, MONDAY_S + 11 * DAY_S + 3.5 * HOUR_S)


def test_finer_and_crooked_histories_are_averaged():
    fine = np.repeat(weather(9), 4)
    start_s = MONDAY_S + 400.0
    history = Series(start_s + 900.0 * np.arange(fine.size), fine, start_s + 900.0 * fine.size)
    expected = forecast(history, start_s + 8.5 * DAY_S, DAY_S, HOUR_S)
    assert expected.start_s % HOUR_S == 0.0
    assert np.isfinite(expected.values).all()


def test_only_so_much_of_the_past_counts():
    values = weather(HISTORY_DAYS + 40)
    changed = values.copy()
    changed[: 25 * 24] += 1e4
    now_s = MONDAY_S + (HISTORY_DAYS + 40) * DAY_S - 1.0
    expected = forecast(hourly(values), now_s, DAY_S, HOUR_S)
    assert forecast(hourly(changed), now_s, DAY_S, HOUR_S).values == pytest.approx(expected.values)


@pytest.mark.parametrize("step_s", [0.0, -3600.0, 7000.0, 2 * DAY_S])
def test_a_day_has_a_whole_number_of_steps(step_s):
    with pytest.raises(InvalidQuantityError, match="step_s"):
        forecast(hourly(weather(9)), MONDAY_S + 9 * DAY_S, DAY_S, step_s)


@pytest.mark.parametrize("value", [0.0, 250.0, -20.0])
def test_a_constant_stays_one(value):
    history = constant(value, MONDAY_S, MONDAY_S + 5 * DAY_S)
    expected = forecast(history, MONDAY_S + 5 * DAY_S - 1.0, DAY_S, HOUR_S)
    assert expected.values == pytest.approx(np.full(len(expected), value), abs=1e-6)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.floats(0.0, 2000.0), min_size=49, max_size=100))
def test_any_history_gives_finite_numbers(values):
    expected = forecast(hourly(values), MONDAY_S + HOUR_S * len(values) - 1.0, 30 * HOUR_S, HOUR_S)
    assert np.isfinite(expected.values).all()


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 1000), st.integers(48, 200))
@example(3, 9 * 24 + 5)
def test_it_is_its_definition_however_fast(seed, hours):
    values = weather(15, seed)[:hours]
    made = forecast(hourly(values), MONDAY_S + HOUR_S * hours - 1.0, 26 * HOUR_S, HOUR_S)
    assert made.values == pytest.approx(PlainForecast(values, len(made)).expected(), rel=1e-6)


def test_whole_days_are_learned_from_once_and_anew_when_they_are_corrected():
    values = weather(20)
    end = 19 * 24 + 6

    def expected(known, hour):
        return forecast(hourly(known[:hour]), MONDAY_S + HOUR_S * hour - 1.0, DAY_S, HOUR_S)

    _learned_once.cache_clear()
    hours = range(19 * 24, end)
    of_hours = [expected(values, hour) for hour in hours]
    assert (_learned_once.cache_info().misses, _learned_once.cache_info().hits) == (1, 5)
    for hour, before in zip(hours, of_hours, strict=True):
        _learned_once.cache_clear()
        assert expected(values, hour) == before
    corrected = values.copy()
    corrected[15 * 24] += 10.0
    assert expected(corrected, end - 1) != of_hours[-1]
    assert _learned_once.cache_info().misses == 2
