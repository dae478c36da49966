"""Renders reports as one self-contained HTML file: uPlot, data and styles are embedded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from joulie import __version__
from joulie.domain.units import WATTS_PER_KW
from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.charts import Chart, Line, charts, downsample
from joulie_lab.simulation.report.metrics import comparison, verdict
from joulie_lab.simulation.results import Run
from joulie_lab.simulation.scenario import Scenario, Workload

_DIGITS = 5
"""Significant digits of chart data: finer than a screen shows, and half the file size."""
_POINTS = 4000
"""Maximum number of points of a chart, which keeps a page below 1 MB; four lines still exceed a screen's resolution."""
_UPLOT = ("apps", "kubectl", "web", "static", "uplot-1.6.32")
"""Where the product's pages keep the charting library, which reports use as well."""


def render_report(scenario: Scenario, runs: Sequence[Run]) -> str:
    """Render the report of the runs of a scenario.

    Args:
        scenario: the scenario.
        runs: at least one run, ordered by seed; the first of each seed is the baseline of that seed. Charts show the
            first seed.

    Returns:
        Self-contained HTML.
    """
    by_seed = {seed: list(group) for seed, group in groupby(runs, key=lambda run: run.record.seed)}
    first_seed, shown = next(iter(by_seed.items()))
    return render_page(
        "report.html",
        charts(shown),
        scenario=scenario,
        verdict=verdict([run.record for run in shown]),
        facts=_facts(scenario),
        tables=[
            {
                "seed": seed,
                "schedulers": [run.record.scheduler for run in group],
                "rows": comparison(run.record for run in group),
            }
            for seed, group in by_seed.items()
        ],
        chart_seed=first_seed,
        different_work=scenario.mode == "drop" and len(shown) > 1,
    )


def render_page(template: str, drawn: Sequence[Chart | Bars], **values: Any) -> str:
    """Render a self-contained page with charts.

    Args:
        template: name of a template file of this package.
        drawn: the charts.
        values: further values of the template.
    """
    environment = Environment(
        loader=PackageLoader("joulie_lab.simulation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    uplot = files("joulie").joinpath(*_UPLOT)
    return environment.get_template(template).render(
        version=__version__,
        charts=drawn,
        bar_groups=bar_groups,
        figures=Markup(_script_json({one.key: figure(one) for one in drawn if isinstance(one, Chart)})),  # noqa: S704
        uplot_js=Markup(uplot.joinpath("uPlot.iife.min.js").read_text("utf-8")),  # noqa: S704 - the library's code
        uplot_css=Markup(uplot.joinpath("uPlot.min.css").read_text("utf-8")),  # noqa: S704
        **values,
    )


def figure(chart: Chart) -> dict[str, Any]:
    """A line chart as the page's script reads it."""
    return {
        "x": chart.x_label,
        "y": chart.y_label,
        "steps": chart.steps,
        "log": chart.log_y,
        "lines": [_line(line, _POINTS // len(chart.lines)) for line in chart.lines],
    }


def _line(line: Line, n_points: int) -> dict[str, Any]:
    x, y = downsample(line.x, line.y, n_points)
    return {"name": line.name, "color": line.color, "dash": line.dash, "x": _rounded(x), "y": _rounded(y)}


class Bar(NamedTuple):
    """A bar of a bar chart; positions are percent of the chart's width.

    Attributes:
        name: name of the contender.
        color: hexadecimal colour.
        text: its value.
        start: where the bar starts.
        width: its width.
        interval: ends of the confidence interval; None for no interval.
    """

    name: str
    color: str
    text: str
    start: float
    width: float
    interval: tuple[float, float] | None


def bar_groups(chart: Bars) -> list[tuple[str, list[Bar]]]:
    """The bars of each group of a chart, on one scale that begins or ends at zero or holds it."""
    ends = [
        value + side * (half_width or 0.0)
        for bars in chart.lines
        for value, half_width in zip(bars.values, bars.half_widths, strict=True)
        if value is not None
        for side in (-1.0, 0.0, 1.0)
    ]
    low, high = min(0.0, *ends), max(0.0, *ends)
    percent = 100.0 / ((high - low) or 1.0)

    def bar(bars: BarSet, value: float, half_width: float | None) -> Bar:
        text, interval = f"{value:.4g}", None
        if half_width is not None:
            text += f" ± {half_width:.2g}"
            interval = ((value - half_width - low) * percent, (value + half_width - low) * percent)
        return Bar(bars.name, bars.color, text, (min(value, 0.0) - low) * percent, abs(value) * percent, interval)

    return [
        (
            group.replace("\n", ", "),
            [
                bar(bars, value, bars.half_widths[index])
                for bars in chart.lines
                if (value := bars.values[index]) is not None
            ],
        )
        for index, group in enumerate(chart.groups)
    ]


def _facts(scenario: Scenario) -> list[tuple[str, str]]:
    cluster = scenario.cluster
    drain = f" and {scenario.drain_hours:g} h to finish" if scenario.drain_hours else ""
    does = "jobs that do not fit are dropped" if scenario.mode == "drop" else "jobs wait, empty nodes sleep"
    pools = ", ".join(f"{pool.count:,} × {pool.name}" for pool in cluster.pools)
    return [
        ("Cluster", f"{cluster.n_nodes:,} nodes ({pools})"),
        ("Capacity", f"{cluster.total_cores:,} cores, {cluster.total_gpus:,} GPUs"),
        ("Peak power", f"{cluster.peak_w / WATTS_PER_KW:,.6g} kW"),
        ("Time", f"{scenario.hours:g} h of arrivals{drain}, steps of {scenario.step_s:g} s"),
        ("Jobs", _jobs(scenario.workload)),
        ("Mode", f"{scenario.mode}: {does}"),
        ("Cooling", scenario.cooling.kind),
        ("Seeds", ", ".join(map(str, scenario.seeds))),
    ]


def _jobs(workload: Workload) -> str:
    """Description of the source of the jobs, with everything that is assumed or changed."""
    if workload.published is not None:
        kept = ", ".join(f"{share:.3g} of {name}" for name, share in workload.published.keep.items())
        rate = f"the published generator at {workload.published.rate:g} of its rate"
        return f"{rate}, thinned to {kept}" if kept else rate
    spec = workload.table()
    assumed = ", ".join(f"{name} {value:g}" for name, value in spec.defaults.items() if name not in spec.columns)
    split = f"; those of over {workload.split_at_cores} cores split" if workload.split_at_cores else ""
    return f"{spec.path.name}{split}; assumed: {assumed or 'nothing'}"


def _rounded(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]


def _script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
