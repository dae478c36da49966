"""Data of grouped bar charts: figures of several contenders with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass

from joulie_lab.simulation.report.charts import PALETTE


@dataclass(frozen=True)
class BarSet:
    """The bars of one contender, one per group.

    Attributes:
        name: name of the contender.
        values: value of each group; None for no bar.
        half_widths: half widths of the confidence intervals; None for no interval.
        style: index of the colour, the same for a contender in all charts.
    """

    name: str
    values: tuple[float | None, ...]
    half_widths: tuple[float | None, ...]
    style: int

    dash = "solid"
    """Line style of the outline, as for lines of a chart."""

    @property
    def color(self) -> str:
        """Hexadecimal colour."""
        return PALETTE[self.style % len(PALETTE)]


@dataclass(frozen=True)
class Bars:
    """A grouped bar chart.

    Attributes:
        key: file name of the plot, without extension.
        title: title of the chart.
        groups: names of the groups.
        y_label: label of the y axis with its unit.
        lines: the contenders; same attribute name as in `Chart`.
        x_label: label of the groups.
    """

    key: str
    title: str
    groups: tuple[str, ...]
    y_label: str
    lines: tuple[BarSet, ...]
    x_label: str = ""
