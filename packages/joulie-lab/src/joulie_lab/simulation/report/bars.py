"""Bar charts of a report as plain data: figures of several contenders, in groups, with confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass

from joulie_lab.simulation.report.charts import PALETTE


@dataclass(frozen=True)
class BarSet:
    """The bars of one contender, one a group.

    Attributes:
        name: of the contender.
        values: None where there is none.
        half_widths: of the confidence intervals; None where there is none.
        style: index of the colour, the same for a contender in all charts.
    """

    name: str
    values: tuple[float | None, ...]
    half_widths: tuple[float | None, ...]
    style: int

    dash = "solid"
    """As lines have one; bars have an outline."""

    @property
    def color(self) -> str:
        """Hexadecimal colour."""
        return PALETTE[self.style % len(PALETTE)]


@dataclass(frozen=True)
class Bars:
    """Bars side by side.

    Attributes:
        key: names the file of the plot.
        title: what is shown.
        groups: names of the groups.
        y_label: with its unit.
        lines: the contenders; called as those of a chart with lines are.
        x_label: of the groups.
    """

    key: str
    title: str
    groups: tuple[str, ...]
    y_label: str
    lines: tuple[BarSet, ...]
    x_label: str = ""
