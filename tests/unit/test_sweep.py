"""Plan, estimates and the table of a sweep."""

import dataclasses
import re

import numpy as np
import pytest

from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.scenario_files import load_scenario
from joulie_lab.simulation.sweep import (
    HONEST_COLUMNS,
    PUBLISHED_COLUMNS,
    Estimate,
    Task,
    compare,
    estimate,
    format_estimate,
    plan,
    samples,
)
from joulie_lab.simulation.sweep_report import render_sweep

ENERGY, DROPS = PUBLISHED_COLUMNS[0], PUBLISHED_COLUMNS[3]


def record(scheduler, seed, it_kwh=100.0, dropped=0, **values):
    whole = dict.fromkeys((field.name for field in dataclasses.fields(RunRecord)), 1.0)
    optional = dict.fromkeys(("mean_wait_min", "p99_wait_min", "wakes", "unfinished", "kwh_per_job"))
    return RunRecord(
        **whole | optional | {"scheduler": scheduler, "seed": seed, "it_kwh": it_kwh, "dropped": dropped} | values
    )


def test_the_runs_of_a_seed_stand_together_and_finished_ones_are_left_out():
    assert plan(["a", "b"], [1, 2], [Task("b", 1)]) == [Task("a", 1), Task("a", 2), Task("b", 2)]


def test_an_estimate_is_students():
    # t(0.975, 7 degrees of freedom) = 2.3646; the standard deviation of 1..8 is sqrt(6).
    mean, half_width = estimate(np.arange(1.0, 9.0))
    assert mean == 4.5
    assert half_width == pytest.approx(2.3646243 * np.sqrt(6.0) / np.sqrt(8.0), rel=1e-6)


def test_one_seed_has_no_interval():
    assert estimate([3.0]) == Estimate(3.0, None)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_an_estimate_refuses_nothing_and_nan(values):
    with pytest.raises(InvalidQuantityError, match="samples"):
        estimate(values)


def test_each_seed_is_compared_to_its_own_baseline():
    runs = [
        record("base", 1, 100.0, 10),
        record("base", 2, 1000.0, 20),
        record("new", 1, 90.0, 7),
        record("new", 2, 1100.0, 25),
    ]
    (variant,) = compare(runs, "base")
    assert variant.scheduler == "new"
    assert variant.columns["it_kwh"].mean == pytest.approx((-10.0 + 10.0) / 2.0)
    assert variant.columns["dropped"].mean == pytest.approx((-3.0 + 5.0) / 2.0)
    assert (variant.energy_wins, variant.seeds) == (1, 2)
    assert samples(ENERGY, runs, "new", "base") == pytest.approx([-10.0, 10.0])


def test_a_metric_that_does_not_apply_has_no_column():
    (variant,) = compare([record("base", 1), record("new", 1)], "base")
    assert variant.columns["mean_wait_min"] is None
    (variant,) = compare([record("base", 1, mean_wait_min=0.1), record("new", 1, mean_wait_min=0.4)], "base")
    assert variant.columns["mean_wait_min"].mean == pytest.approx(0.3)


def test_an_incomplete_sweep_is_no_table():
    with pytest.raises(ValueError, match="not complete"):
        compare([record("base", 1), record("base", 2), record("new", 1)], "base")


@pytest.mark.parametrize(
    ("column", "value", "texts"),
    [
        (ENERGY, Estimate(-6.1649, 0.104), ("-6.16%", "±0.10")),
        (ENERGY, Estimate(3.0, None), ("+3.00%", "")),
        (DROPS, Estimate(-136928.4, 3898.2), ("-136,928", "±3,898")),
        (ENERGY, None, ("–", "")),
    ],
)
def test_cells_have_the_published_digits(column, value, texts):
    assert format_estimate(column, value) == texts


def test_u10_the_report_begins_with_what_came_out_and_its_charts_have_an_axis():
    scenario = load_scenario("quick").model_copy(update={"schedulers": ("base", "new"), "seeds": (1, 2)})

    def page(energy_kwh: float) -> str:
        return render_sweep(
            scenario,
            [record(name, seed, energy) for name, energy in (("base", 100.0), ("new", energy_kwh)) for seed in (1, 2)],
        )

    assert "new has the least energy per useful work: -10.00% ±0.00 beside base, 2 seeds.</p>" in page(90.0)
    assert "2 seeds: no scheduler is shown to use less." in page(110.0)
    axes = re.findall(r'<div class="axis" aria-hidden="true">\s*((?:<span[^>]*>[^<]*</span>\s*)+)</div>', page(90.0))
    assert len(axes) == page(90.0).count("<figure>")
    assert re.findall(r">([^<]+)</span>", axes[0]) == ["+0.00%", "-10.00%"]


def test_the_report_holds_the_table_and_a_chart_of_each_metric():
    scenario = load_scenario("quick").model_copy(update={"schedulers": ("base", "new<b>"), "seeds": (1, 2)})
    page = render_sweep(
        scenario,
        [record(name, seed, energy) for name, energy in (("base", 100.0), ("new<b>", 90.0)) for seed in (1, 2)],
    )
    assert "-10.00%" in page
    assert "new&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<figure>") == sum(
        column.key not in {"mean_wait_min", "p99_wait_min", "wakes", "unfinished", "kwh_per_job"}
        for column in (*PUBLISHED_COLUMNS, *HONEST_COLUMNS)
    )
