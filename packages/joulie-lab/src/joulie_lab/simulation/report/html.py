"""Renders reports as one self-contained HTML file: plotly.js, data and styles are embedded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from joulie import __version__
from joulie.domain.units import WATTS_PER_KW
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.charts import Chart, charts
from joulie_lab.simulation.report.metrics import comparison, verdict
from joulie_lab.simulation.results import Run
from joulie_lab.simulation.scenario import Scenario, Workload

_DIGITS = 6
"""Significant digits of chart data: finer than a screen shows, and half the file size."""


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
    from plotly.offline import get_plotlyjs  # imported here because it takes a second and only reports need it

    environment = Environment(
        loader=PackageLoader("joulie_lab.simulation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        version=__version__,
        charts=drawn,
        figures=Markup(_script_json({chart.key: figure(chart) for chart in drawn})),  # noqa: S704 - our own JSON
        plotly_js=Markup(get_plotlyjs()),  # noqa: S704 - the library's code
        **values,
    )


def figure(chart: Chart | Bars) -> dict[str, Any]:
    """A chart as a plotly.js figure; the page sets the colours of text and grid."""
    return _bars_figure(chart) if isinstance(chart, Bars) else _lines_figure(chart)


def _bars_figure(chart: Bars) -> dict[str, Any]:
    traces = [
        {
            "type": "bar",
            "name": bars.name,
            "x": [group.replace("\n", "<br>") for group in chart.groups],
            "y": list(bars.values),
            "marker": {"color": bars.color},
            "error_y": {"type": "data", "array": list(bars.half_widths), "visible": any(bars.half_widths)},
            "hovertemplate": "%{y:.5~g}",
        }
        for bars in chart.lines
    ]
    axes = {
        name: {"title": {"text": label}, "automargin": True}
        for name, label in (("xaxis", chart.x_label), ("yaxis", chart.y_label))
    }
    return {"data": traces, "layout": {"barmode": "group", **axes}}


def _lines_figure(chart: Chart) -> dict[str, Any]:
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": line.name,
            "x": _rounded(line.x),
            "y": _rounded(line.y),
            "line": {"color": line.color, "dash": line.dash, "width": 1.5, "shape": "hv" if chart.steps else "linear"},
            "hovertemplate": "%{y:.5~g} at %{x:.5~g}",
        }
        for line in chart.lines
    ]
    y_axis: dict[str, Any] = {"title": {"text": chart.y_label}, "automargin": True}
    if chart.log_y:
        y_axis |= {"type": "log", "exponentformat": "power"}
    layout = {"xaxis": {"title": {"text": chart.x_label}, "automargin": True}, "yaxis": y_axis}
    return {"data": traces, "layout": layout}


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
