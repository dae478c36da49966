"""The report as a person sees it: in a real browser, wide and on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from joulie_lab.simulation.report.html import render_report
from joulie_lab.simulation.results import CoolingSeries, Run, RunRecord, RunSeries
from joulie_lab.simulation.scenario_files import load_scenario

pytestmark = pytest.mark.ui
SCHEDULERS = (
    "most-allocated",
    "joulie",
    "joulie-legacy",
    "most-allocated-trend",
    "gpu-most-allocated",
    "t10",
    "pwr",
    "t20",
)
WITH_COLOUR = """(colour => [...document.querySelectorAll('.plot canvas')].filter(canvas => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] == 255 && colour.every((part, of) => data[i + of] == part)) return true;
    return false;
}).length)"""
"""The number of charts that have a pixel of a colour."""


def make_run(scheduler: str, n_steps: int = 2880) -> Run:
    rng = np.random.default_rng(len(scheduler))
    counts = rng.integers(0, 500, n_steps)
    it_w = 2.5e6 + 1e5 * rng.standard_normal(n_steps).cumsum() / 50.0
    figures = dict.fromkeys(RunRecord.__dataclass_fields__, 1234.5)
    labels = {"scenario": "published-2500", "scheduler": scheduler, "seed": 42, "unfinished": None}
    return Run(
        RunRecord(**{**figures, **labels}),
        RunSeries(np.arange(n_steps) * 60.0, it_w, counts, counts, counts, counts, counts),
        CoolingSeries(np.full(n_steps, 290.0), np.full(n_steps, 298.0), it_w * 0.35, np.full(n_steps, 2.9)),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    runs = [make_run(name) for name in SCHEDULERS]
    file.write_text(render_report(load_scenario("published-2500", ("cooling=dx",)), runs), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (360, True)])
def test_the_page_works(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    charts = len(re.findall(r"data-chart=", page.read_text()))
    assert browser.evaluate(f"{WITH_COLOUR}([0, 114, 178])") == charts == 12
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_every_chart_fits_its_card_on_a_phone(browser, page):
    browser.open(page, 390)
    sticking_out = """[...document.querySelectorAll('.plot')].filter(p =>
        p.querySelector('.uplot').getBoundingClientRect().right > p.getBoundingClientRect().right + 1).length"""
    assert browser.evaluate(sticking_out) == 0


def test_charts_follow_the_colour_scheme(browser, page):
    browser.open(page, 1280)
    light, dark = "[217, 221, 227]", "[54, 60, 68]"
    assert [browser.evaluate(f"{WITH_COLOUR}({grid})") for grid in (light, dark)] == [12, 0]
    browser.open(page, 1280, dark=True)
    assert [browser.evaluate(f"{WITH_COLOUR}({grid})") for grid in (light, dark)] == [0, 12]


def test_values_under_the_cursor_are_shown(browser, page):
    browser.open(page, 1280)
    browser.evaluate("document.querySelector('.plot').chart.setCursor({left: 100, top: 100})")
    values = (
        "[...document.querySelector('.values').querySelectorAll('.u-value')].map(value => Number(value.textContent))"
    )
    browser.evaluate("new Promise(requestAnimationFrame)")
    time_h, *powers = browser.evaluate(values)
    assert 0.0 < time_h < 48.0
    assert len(powers) == len(SCHEDULERS)
    assert all(2.0 < power_mw < 3.5 for power_mw in powers)


def test_u10_a_logarithmic_axis_has_several_ticks(browser, page):
    browser.open(page, 1280)
    ticks = "document.querySelector('[data-chart=ramp-distribution]').chart.axes[1]._values.filter(Boolean).length"
    assert browser.evaluate(ticks) >= 3


def test_the_table_scrolls_in_its_own_box(browser, page):
    browser.open(page, 390)
    box = "(b => [b.scrollWidth > b.clientWidth, b.clientWidth <= innerWidth])(document.querySelector('.scroll'))"
    assert browser.evaluate(box) == [True, True]
