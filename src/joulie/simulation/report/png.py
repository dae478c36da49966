"""The charts as PNG images."""

from __future__ import annotations

from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from joulie.simulation.report.charts import Chart

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def render_png(chart: Chart, subtitle: str) -> bytes:
    """One chart as a PNG image, 1500 x 750 pixels.

    Args:
        chart: what to draw.
        subtitle: what was run, shown beside the title.
    """
    figure = Figure(figsize=(10.0, 5.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
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
    axes.set_title(chart.title, loc="left", fontweight="bold")
    axes.set_title(subtitle, loc="right", fontsize="small", color="#555555")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.margins(x=0.01)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.log_y:
        axes.set_yscale("log")
    if len(chart.lines) > 1:
        figure.legend(loc="outside lower center", ncols=min(5, len(chart.lines)), frameon=False)
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
