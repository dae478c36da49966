"""What runs of an experiment come to: figures, comparison at equal work, agreement of two runs."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from joulie_lab.simulation.experiment.charts import comparison_charts, run_charts
from joulie_lab.simulation.experiment.compare import Comparison, Record, compare
from joulie_lab.simulation.experiment.fidelity import DifferentJobsError, fidelity
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.metrics import metrics
from joulie_lab.simulation.experiment.outcome import JobEnd
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie_lab.simulation.experiment.tables import (
    figure_rows,
    part_rows,
    side_by_side_columns,
    side_by_side_rows,
    unequal_work,
)
from joulie_lab.simulation.job_response import IdleStates
from support.experiment_outcomes import job, outcome, series

MANAGED = PhysicsChoice(IdleStates.MANAGED)


def test_figures_of_a_run() -> None:
    waiting = job("three", end=JobEnd.WAITING, start_s=None, end_s=None, cpu_units_done=0.0, gpu_units_done=0.0)
    slow = job("two", workload_class="performance", end_s=170.0)
    found = metrics(outcome(job("one"), slow, waiting))
    assert (found.it_kwh, found.cooling_kwh, found.facility_kwh) == (12.0, 1.0, 13.0)
    assert (found.cpu_core_h, found.gpu_h) == (2.0, 4.0)
    assert found.work_kwh == pytest.approx((2.0 * 490.0 / 96.0 + 4.0 * 700.0) / 1000.0)
    assert found.it_kwh_per_work == pytest.approx(12.0 / found.work_kwh)
    assert (found.slowdown_mean_performance, found.slowdown_mean_standard) == (1.5, 1.0)
    assert (found.completed, found.waiting, found.unfinished) == (2, 1, 1)
    assert (found.mean_kw, found.peak_kw) == (6.0, 8.0)
    assert (found.eco_node_h, found.capped_node_h) == (4.0, 1.0)
    assert (found.drains, found.drain_mean_s) == (2, 100.0)


def test_whoever_still_waits_is_not_left_out() -> None:
    starved = job("three", end=JobEnd.WAITING, start_s=None, end_s=None)
    partly_placed = job("four", end=JobEnd.WAITING, end_s=None)
    everyone = metrics(outcome(job("one"), job("two", workload_class="performance"), starved, partly_placed))
    assert everyone.wait_mean_s == (2 * 10.0 + 2 * (7200.0 - 10.0)) / 4
    assert (everyone.wait_n, everyone.wait_mean_performance_s) == (4, 10.0)
    assert everyone.makespan_h is None
    assert (everyone.slowdown_n_performance, everyone.slowdown_n_standard) == (1, 1)
    never = job("five", end=JobEnd.UNSCHEDULABLE, start_s=None, end_s=None)
    possible = metrics(outcome(job("one"), job("two", end_s=170.0), never))
    assert (possible.makespan_h, possible.wait_n, possible.wait_mean_s) == (170.0 / 3600.0, 2, 10.0)


def test_a_ramp_between_samples_is_not_smoothed() -> None:
    assert metrics(outcome()).p99_ramp_kw is None
    minutes_s, usual = np.arange(0.0, 7201.0, 60.0), series()
    columns = {
        item.name: np.interp(minutes_s, usual.time_s, getattr(usual, item.name)).astype(getattr(usual, item.name).dtype)
        for item in fields(usual)
    }
    sampled = replace(usual, **columns)
    assert metrics(outcome(series=sampled)).p99_ramp_kw == pytest.approx(2.0 / 60.0)
    one_hole = replace(sampled, **{name: np.delete(column, 7) for name, column in columns.items()})
    assert metrics(outcome(series=one_hole)).p99_ramp_kw is None
    few_seconds = replace(sampled, time_s=minutes_s * 0.5)
    assert metrics(outcome(series=few_seconds)).p99_ramp_kw == pytest.approx(4.0 / 60.0)


def test_what_has_no_meaning_is_not_zero() -> None:
    nothing = job("one", end=JobEnd.UNSCHEDULABLE, start_s=None, end_s=None, cpu_units_done=0.0, gpu_units_done=0.0)
    found = metrics(outcome(nothing, cooling_j=None, drains=()))
    assert found.it_kwh_per_work is found.facility_kwh is found.slowdown_mean is found.wait_mean_s is None
    assert found.drain_mean_s is found.makespan_h is found.carbon_kg is None
    assert found.unfinished == 0


def records(**kwh: tuple[float, ...]) -> list[Record]:
    """Runs with IT energy by variant and seed, under idle `all`; the others by ``managed_`` before the name."""
    found = []
    for name, values in kwh.items():
        physics = MANAGED if name.startswith("managed_") else PhysicsChoice()
        variant = name.removeprefix("managed_").replace("_", "-")
        found += [
            Record(RunKey(variant, seed, physics), metrics(outcome(it_j=value * 3.6e6)))
            for seed, value in enumerate(values)
        ]
    return found


def compared(**kwh: tuple[float, ...]) -> Comparison:
    return compare(load_experiment("hetero-41"), records(**kwh))


def test_savings_are_paired_by_seed() -> None:
    found = compared(A=(100.0, 200.0, 300.0), B=(90.0, 184.0, 267.0))
    saved = found.under(PhysicsChoice())[1].saved_pct["it_kwh"]
    assert saved is not None
    assert saved.half_width is not None
    assert saved.mean == pytest.approx((10.0 + 8.0 + 11.0) / 3.0)
    low, high = ttest_1samp([10.0, 8.0, 11.0], 0.0).confidence_interval(0.95)
    assert saved.half_width == pytest.approx((high - low) / 2.0)


def test_what_stands_side_by_side_is_of_the_same_seeds() -> None:
    found = compared(A=(100.0, 200.0), B=(90.0,))
    assert [result.seeds for result in found.results] == [1, 1]
    assert [result.values["it_kwh"] for result in found.results] == [(100.0, None), (90.0, None)]
    assert found.left_out == (f"{PhysicsChoice()}: of A, what another variant lacks is left out: seeds 1",)


def test_a_variant_with_seeds_of_its_own_takes_none_from_the_others() -> None:
    runs = records(A=(100.0, 200.0), B=(90.0, 180.0), C=(80.0, 80.0, 80.0))
    found = compare(load_experiment("hetero-41"), [run for run in runs if run.key.variant != "C" or run.key.seed == 2])
    assert [(result.variant, result.seeds) for result in found.results] == [("A", 2), ("B", 2)]
    assert found.left_out == (f"{PhysicsChoice()}: C is left out: the others have none of its seeds (2)",)


def test_without_the_first_variant_figures_are_told_and_nothing_is_compared() -> None:
    found = compared(B=(90.0, 92.0), C=(80.0, 81.0))
    assert [(result.values["it_kwh"] or (0.0,))[0] for result in found.results] == [91.0, 80.5]
    assert all(saved is None for result in found.results for saved in result.saved_pct.values())
    assert (found.parts, unequal_work(found.results)) == ((), [])
    assert "nothing is compared, since no run of A" in found.left_out[0]
    assert "  saved, %" not in [row[0] for row in figure_rows(found.results)]
    assert side_by_side_rows(found) == [("B", "–"), ("C", "–")]
    assert list(comparison_charts(found))
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_parts_of_a_saving_are_of_the_same_seeds() -> None:
    found = compared(A=(100.0, 100.0), B=(90.0, 80.0), B_uncapped=(97.0, 90.0), managed_A=(200.0,), managed_B=(90.0,))
    part = found.parts[0]
    assert part.placement is not None
    assert part.caps is not None
    assert part.idle is not None
    assert part.seeds == 1
    assert (part.total.mean, part.placement.mean, part.caps.mean, part.idle.mean) == pytest.approx(
        (10.0, 3.0, 7.0, 45.0)
    )
    assert side_by_side_columns(found)[1:] == (f"{PhysicsChoice()} (2 seeds)", f"{MANAGED} (1 seed)")


def test_other_work_is_said_and_compared_per_unit_only() -> None:
    base, other = records(A=(100.0,), B=(90.0,))
    half = metrics(outcome(job("one"), job("two", cpu_units_done=1800.0, gpu_units_done=3600.0), it_j=90.0 * 3.6e6))
    found = compare(load_experiment("hetero-41"), [base, Record(other.key, half)])
    result = found.under(PhysicsChoice())[1]
    assert not result.equal_work
    assert result.work_pct == pytest.approx(25.0)
    assert result.saved_pct["it_kwh"] is None
    assert result.saved_pct["it_kwh_per_work"] == (pytest.approx(-20.0), None)
    assert unequal_work(found.under(PhysicsChoice()))[0].startswith("B did up to 25.0 % more or less work than A")


def test_a_saving_is_told_apart_into_placement_caps_and_the_idle_assumption() -> None:
    found = compared(
        A=(100.0, 100.0), B=(90.0, 88.0), B_uncapped=(97.0, 95.0), managed_A=(200.0, 200.0), managed_B=(90.0, 88.0)
    )
    parts = {(part.variant, part.physics.idle_states): part for part in found.parts}
    assert set(parts) == {("B", IdleStates.ALL), ("B", IdleStates.MANAGED)}
    part = parts["B", IdleStates.ALL]
    assert part.placement is not None
    assert part.caps is not None
    assert part.idle is not None
    assert (part.total.mean, part.placement.mean, part.caps.mean) == pytest.approx((11.0, 4.0, 7.0))
    assert part.idle.mean == pytest.approx(55.5 - 11.0)
    assert parts["B", IdleStates.MANAGED].idle is None


def test_tables_charts_and_json_have_every_variant() -> None:
    found = compared(A=(100.0,), B=(90.0,), B_uncapped=(95.0,), managed_A=(200.0,), managed_B=(90.0,))
    rows = {row[0]: row[1:] for row in figure_rows(found.under(PhysicsChoice()))}
    assert rows["IT energy, kWh"] == ("100", "90", "95")
    assert side_by_side_rows(found)[0] == ("B", "+10.00", "+55.00")
    assert part_rows(found)[0][2:] == ("1", "+10.00", "+5.00", "+5.00", "+45.00")
    runs = {"A": outcome(), "B": outcome()}
    keys = [chart.key for chart in (*comparison_charts(found), *run_charts(runs))]
    assert len(keys) == len(set(keys))
    assert {"power", "energy-per-work", "saving-parts", "slowdown-standard", "families"} <= set(keys)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_run_agrees_with_itself() -> None:
    run = outcome()
    found = fidelity(run, run)
    assert found.holds
    assert (found.energy_pct, found.work_pct, found.node_correlation) == (0.0, 0.0, pytest.approx(1.0))
    assert found.starts.same_node == found.starts.within_a_minute == 1.0
    assert all(row.difference_pct in (0.0, None) for row in (*found.families, *found.explanation))
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("energy", "work", "holds"), [(1.029, 1.0, True), (1.031, 1.0, False), (1.0, 0.992, True), (1.0, 0.988, False)]
)
def test_targets_of_energy_and_work(energy: float, work: float, holds: bool) -> None:
    run = outcome()
    jobs = tuple(replace(each, gpu_units_done=each.gpu_units_done * work) for each in run.jobs)
    found = fidelity(run, replace(run, it_j=run.it_j * energy, jobs=jobs))
    assert found.holds is holds
    assert found.energy_pct == pytest.approx((energy - 1.0) * 100.0)
    assert found.work_pct == pytest.approx((1.0 - work) * 100.0)


def test_hardware_alone_gives_no_correlation_within_a_family() -> None:
    """Families differ so much that the plain correlation is high even where nodes swapped their work."""
    found = fidelity(outcome(node_kwh=(1.0, 2.0, 40.0, 50.0)), outcome(node_kwh=(2.0, 1.0, 50.0, 40.0)))
    assert found.node_correlation is not None
    assert found.node_correlation > 0.9
    assert found.node_correlation_in_family == pytest.approx(-1.0)
    even = outcome(node_kwh=(1.0, 1.0, 2.0, 2.0))
    assert fidelity(even, even).node_correlation_in_family is None


def test_starts_and_nodes_are_told() -> None:
    ours = outcome(job("one"), job("two"), job("three", start_s=None))
    theirs = outcome(job("one", start_s=21.0), job("two", start_s=120.0, node="b-0"), job("three"))
    starts = fidelity(ours, theirs).starts
    assert (starts.jobs, starts.only_native, starts.only_other) == (2, 0, 1)
    assert (starts.median_s, starts.within_a_minute, starts.same_node, starts.same_family) == (50.5, 0.5, 0.5, 0.5)


def test_power_is_compared_on_one_grid() -> None:
    other = series(time_s=np.array([0.0, 1.0, 7200.0]), it_w=np.array([7000.0, 7000.0, 7000.0]))
    found = fidelity(outcome(series=series(it_w=np.full(3, 7000.0))), outcome(series=other))
    assert math.isclose(found.power_error_pct, 0.0, abs_tol=1e-9)


def test_other_jobs_are_not_compared() -> None:
    with pytest.raises(DifferentJobsError, match="different jobs: 2 and 1"):
        fidelity(outcome(), outcome(job("one")))
    with pytest.raises(DifferentJobsError, match="lasted"):
        fidelity(outcome(), outcome(duration_s=10.0))
