"""Reports: chart data, HTML, PNG, metrics."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.charts import Chart, Line, charts, downsample
from joulie_lab.simulation.report.html import bar_groups, render_report
from joulie_lab.simulation.report.metrics import comparison, format_value, verdict
from joulie_lab.simulation.report.png import render_png
from joulie_lab.simulation.results import CoolingSeries, Run, RunRecord, RunSeries
from joulie_lab.simulation.scenario_files import load_scenario


def make_run(scheduler: str = "joulie", seed: int = 42, n_steps: int = 300, *, queue=False, cooling=False) -> Run:
    rng = np.random.default_rng(len(scheduler) + seed)
    ones = np.ones(n_steps, dtype=np.int64)
    it_w = 2e6 + 1e5 * rng.random(n_steps)
    record = RunRecord(
        **{
            **dict.fromkeys(RunRecord.__dataclass_fields__, None),
            "scenario": "quick",
            "scheduler": scheduler,
            "seed": seed,
            "hours": 5.0,
            "jobs": 1000,
            "arrived": 990,
            "dropped": 0 if queue else 100 + len(scheduler),
            "mean_kw": float(it_w.mean()) / 1e3,
            "peak_kw": 2100.0,
            "std_kw": 1.0,
            "p99_ramp_kw": 1.0,
            "it_kwh": 10_000.0,
            "core_hours": 1.0,
            "gpu_hours": 1.0,
            "useful_work_kwh": 8_000.0,
            "unfinished": 0 if queue else None,
            "seconds": 0.1,
        }
    )
    series = RunSeries(np.arange(n_steps) * 60.0, it_w, ones, ones, ones, ones, ones)
    temperatures = np.full(n_steps, 298.15)
    cooled = CoolingSeries(temperatures, temperatures, it_w * 0.3, np.full(n_steps, 3.0)) if cooling else None
    return Run(record, series, cooled, np.array([0.0, 1.0, 5.0]) if queue else None)


def keys(runs: list[Run]) -> set[str]:
    return {chart.key for chart in charts(runs)}


def test_charts_show_what_there_is():
    dropping = {"power", "running", "arrivals", "drops", "power-distribution", "ramp-distribution"}
    queueing = (dropping - {"drops"}) | {"waiting", "awake", "wait-distribution"}
    facility = {"facility", "cooling", "pue", "cop", "room", "outdoor"}
    assert keys([make_run()]) == dropping
    assert keys([make_run(queue=True)]) == queueing
    assert keys([make_run(cooling=True)]) == dropping | facility


def test_chart_values_and_units():
    by_key = {chart.key: chart for chart in charts([make_run(cooling=True)])}
    run = make_run(cooling=True)
    np.testing.assert_allclose(by_key["power"].lines[0].y, run.series.it_w / 1e6)
    assert (by_key["power"].y_label, by_key["power"].x_label) == ("MW", "time, h")
    np.testing.assert_allclose(by_key["pue"].lines[0].y, 1.3)
    np.testing.assert_allclose(by_key["room"].lines[0].y, 25.0)
    np.testing.assert_array_equal(by_key["drops"].lines[0].y, [60.0] * 5)
    np.testing.assert_allclose(by_key["power-distribution"].lines[0].y[:-1].sum(), 100.0)
    above = by_key["ramp-distribution"].lines[0].y
    assert np.all(np.diff(above) <= 0.0)
    assert np.all(above > 0.0)


def test_every_scheduler_looks_the_same_everywhere_and_differs_from_the_others():
    names = [f"s{i}" for i in range(12)]
    drawn = charts([make_run(name) for name in names])
    looks = [(line.color, line.dash) for line in drawn[0].lines]
    assert len(set(looks)) == 12
    for chart in drawn:
        for line in chart.lines:
            if line.name in names:
                assert (line.color, line.dash) == looks[names.index(line.name)]


def test_downsampling_keeps_the_spike():
    x, y = np.arange(100_000.0), np.zeros(100_000)
    y[54_321] = 1.0
    thin_x, thin_y = downsample(x, y, 500)
    assert len(thin_x) == 500
    assert (thin_x[0], thin_x[-1], thin_y.max()) == (0.0, 99_999.0, 1.0)
    assert downsample(x[:10], y[:10], 500)[0] is not None


def test_a_long_run_is_shown_by_day():
    run = make_run(n_steps=60 * 24 * 20)
    drawn = {chart.key: chart for chart in charts([run])}
    drops, power = drawn["drops"], drawn["power"]
    assert power.title == "IT power, daily mean"
    np.testing.assert_allclose(power.lines[0].y, run.series.it_w.reshape(20, -1).mean(axis=1) / 1e6)
    assert (drops.x_label, drops.y_label) == ("time, days", "jobs per day")
    np.testing.assert_array_equal(drops.lines[0].y, [1440.0] * 20)


@pytest.mark.slow
def test_u10_the_page_of_a_large_comparison_stays_below_1_mb():
    runs = [make_run(f"scheduler-{index}", n_steps=20_000, queue=True, cooling=True) for index in range(12)]
    assert len(render_report(load_scenario("quick"), runs).encode()) < 1_000_000


def test_u10_bars_are_placed_on_one_scale_with_their_intervals():
    saved = BarSet("saves", (4.0, None), (1.0, None), 0)
    lost = BarSet("loses", (-5.0, 2.5), (None, None), 1)
    (first, bars), (second, alone) = bar_groups(Bars("k", "Saved", ("idle\nlinear", "deep"), "%", (saved, lost)))
    assert (first, second) == ("idle, linear", "deep")
    assert [(bar.name, bar.text, bar.start, bar.width, bar.interval) for bar in bars] == [
        ("saves", "4 ± 1", 50.0, 40.0, (80.0, 100.0)),
        ("loses", "-5", 0.0, 50.0, None),
    ]
    assert [(bar.name, bar.start, bar.width) for bar in alone] == [("loses", 50.0, 25.0)]


def test_the_page_is_complete_in_itself():
    page = render_report(
        load_scenario("quick"), [make_run("most-allocated"), make_run("joulie"), make_run("joulie", 7)]
    )
    assert re.findall(r"""<(?:script|link|img|iframe)[^>]*\b(?:src|href)=["'](?!data:)""", page) == []
    assert page.count("<summary>Seed") == 2
    assert "does a different amount of work" in page
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    figures = json.loads(data[1], parse_constant=lambda name: pytest.fail(f"{name} in the page"))
    assert set(figures) == set(re.findall(r'data-chart="([\w-]+)"', page)) == keys([make_run()])


def test_u10_the_page_begins_with_what_came_out():
    frugal = make_run("joulie")
    frugal = replace(frugal, record=replace(frugal.record, it_kwh=9_000.0))
    page = render_report(load_scenario("quick"), [make_run("most-allocated"), make_run("random"), frugal])
    said = "joulie used 10.0% less energy per useful work than most-allocated."
    assert page.index(said) < page.index("<h2>Results</h2>")
    assert verdict([make_run("a").record, make_run("b").record]).startswith("No scheduler used less energy")
    assert verdict([make_run("a").record]).startswith("a used 10,000 kWh of IT energy")


def test_names_from_scenarios_are_text_not_markup():
    scenario = load_scenario("quick", ("description=<script>alert(1)</script>",))
    page = render_report(scenario, [make_run("</script><b>")])
    assert "<script>alert" not in page
    assert "</script><b>" not in page


@pytest.mark.slow
def test_png():
    line = Line("joulie", np.array([0.0, 1.0]), np.array([1.0, 10.0]), 8)
    image = render_png(Chart("k", "Title", "x", "y", (line, line), steps=True, log_y=True), "quick, seed 1")
    assert image.startswith(b"\x89PNG")
    assert len(image) > 5000


def test_comparison_is_to_the_first():
    rows = {row.label: row for row in comparison([make_run("a").record, make_run("abc").record])}
    assert rows["dropped"].cells == ("101", "103")
    assert rows["dropped"].changes == ("", "+1.98 %")
    assert rows["energy per useful work"].cells == ("1.2500", "1.2500")
    assert rows["arrived"].changes == ("", "")
    assert "mean PUE" not in rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (1818845, "1,818,845"),
        (127454.9, "127,455"),
        (2655.31, "2,655.3"),
        (35.838, "35.84"),
        (1.34986, "1.3499"),
    ],
)
def test_numbers_for_people(value, text):
    assert format_value(value) == text
