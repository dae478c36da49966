"""Drawing functions for the figures of benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.png import canvas, draw_bars

_GROUP_HEIGHT = 0.85


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Create a figure with panels side by side."""
    figure = canvas(11.0, 4.5)
    axes = [figure.add_subplot(1, count, index + 1) for index in range(count)]
    for one in axes:
        one.grid(alpha=0.3)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def title(axes: Axes, text: str) -> None:
    """Write the title of a panel."""
    axes.set_title(text, loc="left", fontweight="bold", fontsize="medium")


def legend_below(axes: Axes, columns: int) -> None:
    """Draw the legend below a panel."""
    axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=columns)


def horizontal_bars(
    axes: Axes, groups: Sequence[str], bars: Sequence[BarSet], *, notes: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Draw a grouped horizontal bar chart, from top to bottom.

    Args:
        axes: the panel.
        groups: names of the groups.
        bars: one bar set per contender.
        notes: by contender, the labels beside its bars.
    """
    height = _GROUP_HEIGHT / len(bars)
    for place, one in enumerate(bars):
        rows = [row + place * height for row in range(len(groups))]
        widths = [value or 0.0 for value in one.values]
        half_widths = [half or 0.0 for half in one.half_widths]
        axes.barh(
            rows,
            widths,
            height,
            xerr=half_widths if any(half_widths) else None,
            color=one.color,
            label=one.name,
            error_kw={"elinewidth": 1.2, "capsize": 3},
        )
        for row, width, half, note in zip(rows, widths, half_widths, (notes or {}).get(one.name, ()), strict=False):
            axes.annotate(
                note, (width + half, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="x-small"
            )
    axes.set_yticks([row + (_GROUP_HEIGHT - height) / 2.0 for row in range(len(groups))], list(groups))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def bar_sets(values: Mapping[str, Iterable[float | None]]) -> list[BarSet]:
    """Bar sets without intervals, one colour per contender."""
    made = ((name, tuple(own)) for name, own in values.items())
    return [BarSet(name, own, (None,) * len(own), style) for style, (name, own) in enumerate(made)]


def vertical_bars(axes: Axes, chart: Bars) -> None:
    """Draw a bar chart in a panel."""
    draw_bars(axes, chart)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    title(axes, chart.title)
    axes.legend(frameon=False, fontsize="small")
