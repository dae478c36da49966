"""Two parts of benchmark deferral: Let's Wait Awhile again, and jobs on a limited number of CPUs."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.windows import best_slots, best_start
from joulie_lab.adapters.published.errors import PublishedDataError
from joulie_lab.adapters.published.pai_jobs import Jobs, read_jobs
from joulie_lab.benchmarks import deferral_capacity as capacity
from joulie_lab.benchmarks import deferral_waitawhile as waitawhile
from joulie_lab.benchmarks.deferral_waitawhile import FIRST_DAY, STEP_S, DoneBy, How
from joulie_lab.benchmarks.results import plain

HOUR_S = 3600.0


def silent(_stage):
    pass


def year(seed=1):
    """Half hours of 2020 and nine days more, with a day and noise that lasts."""
    rng = np.random.default_rng(seed)
    steps = np.arange(375 * 48)
    noise = np.convolve(rng.normal(0.0, 8.0, steps.size), np.full(24, 1.0), mode="same")
    values = 300.0 + 80.0 * np.sin(2.0 * np.pi * steps / 48.0) + noise
    start_s = FIRST_DAY.timestamp()
    return Series(start_s + STEP_S * steps, values, start_s + STEP_S * steps.size)


# Let's Wait Awhile


def test_jobs_are_those_of_the_paper():
    jobs = waitawhile.published_jobs()
    days = [FIRST_DAY + timedelta(days=int(day)) for day in jobs.arrival // 48]
    assert len(jobs.arrival) == len(jobs.length) == 3387
    assert {day.weekday() for day in days} == {0, 1, 2, 3, 4}
    assert (jobs.arrival % 48).min() == 18
    assert (jobs.arrival % 48).max() == 33
    assert jobs.length.min() == 8
    assert jobs.length.max() == 179


@pytest.mark.parametrize(
    ("end", "next_workday", "semi_weekly"),
    [  # 6 January 2020 is a Monday
        ((6, 8, 30), 0.5, 0.5),
        ((6, 9, 0), 0.0, 0.0),
        ((6, 9, 30), 0.0, 71.5),
        ((7, 17, 0), 0.0, 40.0),
        ((7, 17, 30), 15.5, 39.5),
        ((9, 9, 30), 0.0, 95.5),
        ((10, 18, 0), 15.0, 63.0),
        ((11, 3, 0), 54.0, 54.0),
        ((12, 12, 0), 21.0, 21.0),
    ],
)
def test_deadlines_are_mornings(end, next_workday, semi_weekly):
    day, hour, minute = end
    moment = datetime(2020, 1, day, hour, minute, tzinfo=UTC)
    assert waitawhile.slack(moment, DoneBy.NEXT_WORKDAY) == timedelta(hours=next_workday)
    assert waitawhile.slack(moment, DoneBy.SEMI_WEEKLY) == timedelta(hours=semi_weekly)


@pytest.mark.slow
def test_the_truth_saves_most_and_more_freedom_saves_more():
    measured = plain(waitawhile.measure({"DE": year(), "elsewhere": year()}, silent, repetitions=2))
    by_deadline = measured["zones"]["elsewhere"]
    for by_how in by_deadline.values():
        for found in by_how.values():
            saved = list(found["saved_pct"].values())
            assert saved == sorted(saved, reverse=True)
            assert saved[-1] > 0.0
        assert by_how["slots"]["saved_pct"]["0"] > by_how["whole"]["saved_pct"]["0"]
    assert (
        by_deadline["semi_weekly"]["whole"]["saved_pct"]["0"] > by_deadline["next_workday"]["whole"]["saved_pct"]["0"]
    )
    # Only what is published is compared, and a made-up year is far from it.
    assert "published_noise_cost_pct" not in by_deadline["semi_weekly"]["whole"]
    assert measured["deviation"] > 1e-3


def test_the_products_windows_plan_the_same():
    series = year()
    values = series.values
    jobs = waitawhile.Jobs(np.array([100, 5000]), np.array([20, 61]))
    latest_end = jobs.arrival + jobs.length + np.array([40, 90])
    start_s = FIRST_DAY.timestamp()
    for how in How:
        emitted = 0.0
        for first, length, end in zip(jobs.arrival, jobs.length, latest_end, strict=True):
            earliest_s, deadline_s = start_s + STEP_S * first, start_s + STEP_S * end
            work_s = STEP_S * length
            if how is How.WHOLE:
                window = best_start(series, earliest_s, deadline_s - work_s, work_s)
                emitted += window.mean_value * length
            else:
                runs = best_slots(series, earliest_s, deadline_s, work_s, STEP_S)
                emitted += sum(float(series.integral(*run)) for run in runs) / STEP_S
        assert waitawhile._emitted(values, values, jobs, latest_end, how) == pytest.approx(emitted, rel=1e-9)


def test_less_than_the_year_is_refused():
    start_s = FIRST_DAY.timestamp()
    with pytest.raises(ValueError, match="nine days more"):
        waitawhile.measure({"DE": constant(300.0, start_s, start_s + 366 * 86400.0)}, silent)


# limited CPUs


def jobs(*rows):
    arrival_h, length_h, cpus = np.array(rows, dtype=np.int64).T
    return Jobs(arrival_h, length_h, cpus)


def test_the_bound_is_the_optimum_where_it_is_known():
    intensity = np.array([5.0, 1.0, 2.0, 9.0] + [9.0] * 30)
    # One CPU: one job has the best hour, the other the second best.
    assert capacity.least_emitted_g(jobs((0, 1, 1), (0, 1, 1)), 1, intensity) == pytest.approx(3.0)
    # Two CPUs: both have the best one. A job of two hours does best in hours 1 and 2.
    assert capacity.least_emitted_g(jobs((0, 1, 1), (0, 1, 1)), 2, intensity) == pytest.approx(2.0)
    assert capacity.least_emitted_g(jobs((0, 2, 1)), 1, intensity) == pytest.approx(3.0)


def test_more_work_than_cpus_has_no_bound():
    with pytest.raises(ValueError, match="no bound"):
        capacity.least_emitted_g(jobs(*[(0, 1, 1)] * 26), 1, np.ones(80))


@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_uses_more_cpus_than_there_are_or_beats_the_bound(seed):
    rng = np.random.default_rng(seed)
    work = capacity.synthetic_jobs(seed, days=1)
    hours = 24 + capacity.SLACK_H + 2 * capacity.HORIZON_H
    intensity = rng.uniform(50.0, 400.0, hours)
    series = Series(HOUR_S * np.arange(hours), intensity, HOUR_S * hours)
    cpus = int((work.length_h * work.cpus).sum() // 12)
    decisions = capacity.decided(work, 0.0, lambda now_s: series.between(now_s, series.end_s), 12)
    run = capacity.play(work, cpus, intensity, decisions)
    used = np.zeros(hours)
    for start_h, length_h, taken in zip(run.start_h, work.length_h, work.cpus, strict=True):
        used[start_h : start_h + length_h] += taken
    assert used.max() <= cpus
    assert (run.start_h >= work.arrival_h).all()
    assert run.late == 0
    assert capacity.least_emitted_g(work, cpus, intensity) <= run.emitted_g * (1.0 + 1e-9)


def test_a_job_that_does_not_fit_is_passed_and_a_late_one_is_counted():
    work = jobs((0, 30, 2), (0, 1, 2), (0, 1, 1))
    run = capacity.play(work, 3, np.ones(80), capacity.at_once)
    assert list(run.start_h) == [0, 30, 0]
    assert run.late == 1
    with pytest.raises(ValueError, match="too few"):
        capacity.play(work, 3, np.ones(20), capacity.at_once)


@pytest.mark.slow
def test_trap_the_future_does_not_reach_the_decisions():
    rng = np.random.default_rng(3)
    history_days, hours, later_h = 14, 24 * 12, 40
    intensity = rng.uniform(100.0, 400.0, 24 * history_days + hours)
    changed = intensity.copy()
    changed[24 * history_days + later_h :] = rng.uniform(100.0, 400.0, hours - later_h)
    work = capacity.synthetic_jobs(1, days=3)
    starts = []
    for values in (intensity, changed):
        expected = capacity.forecasts(values, 0.0, history_days)
        run = capacity.play(work, 10_000, intensity[24 * history_days :], capacity.decided(work, 0.0, expected, 24))
        starts.append(np.where(run.start_h < later_h, run.start_h, -1))
    assert np.array_equal(*starts)
    assert (starts[0] >= 0).any()


def hourly(days=60):
    hours = np.arange(24 * days)
    return Series(HOUR_S * hours, 250.0 + 100.0 * np.sin(2.0 * np.pi * hours / 24.0), HOUR_S * hours.size)


@pytest.mark.slow
def test_a_known_day_is_used_and_nobody_is_late():
    measured = plain(capacity.measure({"made up": hourly()}, capacity.synthetic_jobs(1), capacity.SMALL, silent))
    found = measured["zones"]["made up"]
    assert found["late"] == 0
    assert 0.0 < found["saved_pct"] <= found["bound_pct"]
    # Each day is like the last one, so a forecast is as good as the future.
    assert found["saved_pct"] == pytest.approx(found["known_future_pct"], rel=0.05)


def test_a_short_series_is_refused():
    with pytest.raises(ValueError, match="too short"):
        capacity.measure({"made up": hourly(days=10)}, capacity.synthetic_jobs(1), capacity.SMALL, silent)


def test_a_trace_is_read_in_whole_hours():
    read = read_jobs(["arrival_time,length,cpus", "2.5,0.2,4", "0.0,25.4,1"])
    assert (list(read.arrival_h), list(read.length_h), list(read.cpus)) == ([0, 3], [26, 1], [1, 4])


@pytest.mark.parametrize("row", ["1,2", "1,x,1", "1,nan,1", "1,-2,1", "1,0,1", "-1,2,1", "1,2,0", "1,inf,1"])
def test_what_is_no_job_is_refused(row):
    with pytest.raises(PublishedDataError, match="line 2: invalid job"):
        read_jobs(["arrival_time,length,cpus", row])


def test_another_table_is_refused():
    with pytest.raises(PublishedDataError, match="no column 'length'"):
        read_jobs(["arrival_time,cpus"])
