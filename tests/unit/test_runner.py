"""From a play to a record: windows, what does not apply, jobs from tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from joulie_lab.simulation import runner as runner_module
from joulie_lab.simulation.engine import EngineResult
from joulie_lab.simulation.jobs import JobColumns, JobTableError
from joulie_lab.simulation.results import RunSeries
from joulie_lab.simulation.runner import Runner
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.scenario_files import load_scenario

IT_W = 1000.0 + 10.0 * np.sin(np.arange(10_000.0)) + np.where(np.arange(10_000) < 120, -500.0, 0.0)
TABLE = ("workload={csv: jobs.csv, columns: {arrival: a, duration: d, cores: c}}",)


class Engine:
    """Stands in for the compiled engine: a fixed power, and what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[dict[str, object]] = []

    def session(self, cluster, jobs, scheduler, *, n_steps, step_s, seed, queue) -> StandIn:
        self.calls.append({"jobs": jobs, "scheduler": scheduler, "seed": seed, "queue": queue})
        return StandIn(len(jobs), n_steps, step_s, queue is not None)


class StandIn:
    """A session whose result is already computed."""

    def __init__(self, n_jobs: int, n_steps: int, step_s: float, queueing: bool) -> None:
        self.n_jobs, self.n_steps, self.step_s, self.queueing = n_jobs, n_steps, step_s, queueing
        self.it_w = IT_W[:n_steps]

    def run(self, on_progress) -> None:
        pass

    def result(self) -> EngineResult:
        zeros = np.zeros(self.n_steps, dtype=np.int64)
        arrived, dropped = zeros.copy(), zeros.copy()
        arrived[0], dropped[1] = self.n_jobs, 2
        return EngineResult(
            series=RunSeries(np.arange(self.n_steps) * self.step_s, self.it_w, arrived, dropped, zeros, zeros, zeros),
            core_hours=12.0,
            gpu_hours=3.0,
            useful_work_kwh=4.0,
            wait_min=np.array([0.0, 1.0, 2.0]) if self.queueing else None,
            wakes=5 if self.queueing else None,
            unfinished=0 if self.queueing else None,
        )


@pytest.fixture
def engine(monkeypatch) -> Iterator[Engine]:
    stand_in = Engine()
    monkeypatch.setattr(runner_module, "Session", stand_in.session)
    monkeypatch.setattr(runner_module, "warm_up", lambda: None)
    monkeypatch.setattr(runner_module, "_refuse_unplaceable_draws", lambda table, cluster: None)
    monkeypatch.setattr(runner_module, "published_jobs", lambda seed, hours, rate: range(int(hours * 10)))
    return stand_in


def columns(**changes) -> JobColumns:
    values = {
        "place": "jobs.csv:",
        "line": np.array([2, 3, 4]),
        "arrival_s": np.array([7200.0, 60.0, 1e9]),
        "duration_s": np.array([60.0, 120.0, 60.0]),
        "cores": np.array([8, 200, 1]),
        "gpus": np.array([0, 0, 0]),
        "cpu_util": np.array([0.5, 0.25, 0.5]),
        "gpu_util": np.array([0.0, 0.0, 0.0]),
        "job_class": np.array([0, 1, 0]),
        "class_names": ("batch", "urgent"),
    }
    return JobColumns(**{**values, **changes})


def runner(scenario: Scenario, read=None) -> Runner:
    ticks = count()
    return Runner(scenario, clock=lambda: float(next(ticks)), read_jobs=read and (lambda spec: read))


def test_record_of_a_dropping_run(engine):
    record = runner(load_scenario("quick")).run("joulie", 7).record
    power_kw = IT_W[:720] / 1000.0
    assert record.std_kw == pytest.approx(np.std(power_kw, ddof=1))
    assert record.std_after_2h_kw == pytest.approx(np.std(power_kw[120:], ddof=1))
    assert record.p99_ramp_kw == pytest.approx(np.percentile(np.abs(np.diff(power_kw)), 99))
    assert record.it_kwh == pytest.approx(power_kw.sum() / 60.0)
    assert record.kwh_per_job == pytest.approx(record.it_kwh / 118)
    assert (record.jobs, record.arrived, record.dropped, record.hours) == (120, 120, 2, 12.0)
    nothing = ("cooling_kwh", "facility_kwh", "mean_pue", "mean_cop", "mean_wait_min", "wakes", "unfinished")
    assert [getattr(record, name) for name in nothing] == [None] * len(nothing)
    assert engine.calls[0]["queue"] is None


def test_a_queueing_run_counts_hours_2_to_24(engine):
    record = runner(load_scenario("equal-work-2500", ("workload.published={}",))).run("joulie", 1).record
    window_kw = IT_W[120 : 24 * 60] / 1000.0
    assert record.std_kw == pytest.approx(np.std(window_kw, ddof=1))
    assert record.p99_ramp_kw == pytest.approx(np.percentile(np.abs(np.diff(window_kw)), 99))
    assert record.it_kwh == pytest.approx(IT_W[: 36 * 60].sum() / 60_000.0)
    assert (record.mean_wait_min, record.wakes, record.unfinished) == (1.0, 5, 0)
    assert engine.calls[0]["queue"] is not None


def test_a_short_run_has_no_spread_after_two_hours(engine):
    assert runner(load_scenario("quick", ("hours=2",))).run("joulie", 1).record.std_after_2h_kw is None


def test_cooling_makes_the_facility(engine):
    run = runner(load_scenario("quick", ("cooling=dx", "hours=3"))).run("joulie", 1)
    assert run.cooling is not None
    record = run.record
    assert record.cooling_kwh == pytest.approx(run.cooling.cooling_w.sum() / 60_000.0)
    assert record.facility_kwh == pytest.approx(record.it_kwh + record.cooling_kwh)
    assert record.mean_pue == pytest.approx(np.mean(1.0 + run.cooling.cooling_w / IT_W[:180]))


def test_the_weather_is_of_the_seed(engine):
    player = runner(load_scenario("quick", ("cooling=dx", "hours=3")))
    first, other, second = (player.run("joulie", seed).cooling for seed in (1, 2, 1))
    assert np.array_equal(first.outdoor_k, second.outdoor_k)
    assert not np.array_equal(first.outdoor_k, other.outdoor_k)


def test_schedulers_share_jobs_and_each_counts_their_time(engine):
    player = runner(load_scenario("quick"))
    first, second = player.run("joulie", 1), player.run("t10", 1)
    assert engine.calls[0]["jobs"] is engine.calls[1]["jobs"]
    assert (first.record.seconds, second.record.seconds) == (2.0, 2.0)


def test_table_jobs_are_sorted_and_late_ones_counted(engine):
    player = runner(load_scenario("quick", TABLE), columns())
    jobs = player.jobs(1)
    assert jobs.late == 1
    np.testing.assert_array_equal(jobs.table.arrival_s, [60.0, 7200.0])
    np.testing.assert_array_equal(jobs.table.cores, [200, 8])
    assert not jobs.table.performance.any()


def test_performance_classes(engine):
    sets = (*TABLE, "workload.performance_classes=[urgent]")
    np.testing.assert_array_equal(
        runner(load_scenario("quick", sets), columns()).jobs(1).table.performance, [True, False]
    )
    with pytest.raises(JobTableError, match="no job is of class 'gone'; classes are batch, urgent"):
        runner(load_scenario("quick", (*TABLE, "workload.performance_classes=[gone]")), columns()).jobs(1)


def test_wide_jobs_are_split_evenly(engine):
    sets = (*TABLE, "workload.split_at_cores=96", "mode=queue")
    table = runner(load_scenario("quick", sets), columns(gpus=np.array([0, 4, 0]))).jobs(1).table
    np.testing.assert_array_equal(table.cores, [67, 67, 66, 8])
    np.testing.assert_array_equal(table.gpus, [2, 1, 1, 0])


def test_a_job_wider_than_every_node_cannot_queue(engine):
    player = runner(load_scenario("quick", (*TABLE, "mode=queue")), columns())
    with pytest.raises(JobTableError, match=r"jobs\.csv:3: a job of 200 cores fits no node and would wait for ever"):
        player.run("joulie", 1)


def test_too_many_classes(engine):
    names = tuple(map(str, range(200)))
    with pytest.raises(JobTableError, match=r"^jobs\.csv: 200 classes"):
        runner(load_scenario("quick", TABLE), columns(class_names=names)).jobs(1)


def test_an_fmu_needs_its_adapter(engine):
    with pytest.raises(ValueError, match="an FMU is run by its adapter"):
        runner(load_scenario("quick", ("cooling={fmu: {file: x.fmu}}",))).run("joulie", 1)


@pytest.mark.slow
def test_cooling_in_the_loop_is_cooling_afterwards() -> None:
    after = runner(load_scenario("quick", ("hours=1.0", "cooling={dx: {}}"))).run("joulie", 1)
    in_loop = runner(load_scenario("quick", ("hours=1.0", "cooling={dx: {}, coupling: in-loop}"))).run("joulie", 1)
    assert in_loop.cooling is not None
    assert after.cooling is not None
    assert np.array_equal(in_loop.cooling.cooling_w, after.cooling.cooling_w)
    assert np.array_equal(in_loop.series.it_w, after.series.it_w)


def test_drawn_jobs_that_fit_no_node_cannot_queue() -> None:
    small = ("mode=queue", "hours=3", "cluster.pools=[{name: cpu, count: 50, cores: 96, cpu_max_w: 700}]")
    with pytest.raises(
        JobTableError, match=r"fit no node and would wait for ever, such as one of \d+ cores and \d GPU"
    ):
        runner(load_scenario("quick", small)).jobs(1)
