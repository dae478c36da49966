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
    drawn = "[...document.querySelectorAll('.plot')].filter(p => p.querySelectorAll('path.js-line').length > 0).length"
    assert browser.evaluate(drawn) == charts == 12
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_every_chart_fits_its_card_on_a_phone(browser, page):
    browser.open(page, 390)
    sticking_out = """[...document.querySelectorAll('.plot')].filter(p =>
        p.querySelector('.main-svg').getBoundingClientRect().right > p.getBoundingClientRect().right + 1).length"""
    assert browser.evaluate(sticking_out) == 0


def test_text_follows_the_colour_scheme(browser, page):
    colour = "getComputedStyle(document.querySelector('.xtick text')).fill"
    browser.open(page, 1280)
    light = browser.evaluate(colour)
    browser.open(page, 1280, dark=True)
    assert browser.evaluate(colour) != light


def test_the_table_scrolls_in_its_own_box(browser, page):
    browser.open(page, 390)
    box = "(b => [b.scrollWidth > b.clientWidth, b.clientWidth <= innerWidth])(document.querySelector('.scroll'))"
    assert browser.evaluate(box) == [True, True]
