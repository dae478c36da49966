"""Renders charts as PNG images."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.charts import Chart

_GROUP_WIDTH = 0.8
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def render_png(chart: Chart | Bars, subtitle: str) -> bytes:
    """Render one chart as a PNG image, 1500 x 750 pixels.

    Args:
        chart: the chart.
        subtitle: description of the run, shown beside the title.
    """
    return png(draw(chart, subtitle))


def draw(chart: Chart | Bars, subtitle: str) -> Figure:
    """Draw one chart as a separate figure."""
    figure = canvas(10.0, 5.0)
    axes = figure.add_subplot()
    if isinstance(chart, Bars):
        draw_bars(axes, chart)
    else:
        _draw_lines(axes, chart)
    axes.set_title(chart.title, loc="left", fontweight="bold")
    axes.set_title(subtitle, loc="right", fontsize="small", color="#555555")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3, axis="y" if isinstance(chart, Bars) else "both")
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.lines) > 1 or isinstance(chart, Bars):
        figure.legend(loc="outside lower center", ncols=min(5, len(chart.lines)), frameon=False)
    return figure


def canvas(width: float, height: float) -> Figure:
    """Create an empty figure of the given size in inches, without a display."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """Encode a figure as a PNG image."""
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _draw_lines(axes: Axes, chart: Chart) -> None:
    for line in chart.lines:
        axes.plot(
            line.x,
            line.y,
            label=line.name,
            color=line.color,
            linestyle=_DASHES[line.dash],
            linewidth=1.4,
            drawstyle="steps-post" if chart.steps else "default",
        )
    axes.margins(x=0.01)
    if chart.log_y:
        axes.set_yscale("log")
        axes.set_ylim(top=max(100.0, axes.get_ylim()[1]))  # at least one decade, so that the axis has labelled ticks
        axes.yaxis.set_major_formatter("{x:g}")


def draw_bars(axes: Axes, chart: Bars) -> None:
    """Draw a grouped bar chart."""
    width = _GROUP_WIDTH / len(chart.lines)
    places = np.arange(len(chart.groups))
    for index, bars in enumerate(chart.lines):
        axes.bar(
            places + (index - (len(chart.lines) - 1) / 2.0) * width,
            [np.nan if value is None else value for value in bars.values],
            width=0.92 * width,
            yerr=[half or 0.0 for half in bars.half_widths] if any(bars.half_widths) else None,
            capsize=3.0,
            label=bars.name,
            color=bars.color,
            ecolor="#333333",
        )
    axes.axhline(0.0, color="#333333", linewidth=0.8)
    axes.set_xticks(places, chart.groups)
    axes.set_xlim(-0.5, len(places) - 0.5)  # also if the outer groups have no bars
    axes.set_axisbelow(True)
