"""``joulie bench binding``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulie.program.errors import UserError
from joulie_lab.apps.bench.figures import bar_sets, panels, vertical_bars
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.binding import FULL, RATIOS, SMALL, WAYS, BindingResult, measure
from joulie_lab.control_plane.chart import find_chart
from joulie_lab.simulation.report.bars import Bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: BindingResult) -> Iterator[Table]:
    """Binding rate of each configuration, and ratios with their intervals."""
    columns = ("nodes", *WAYS, *(name.replace("_to_", " / ") for name in RATIOS))
    yield Table("Bound pods per second; 95 % intervals of ratios", columns, list(_rows(result)))


def _rows(result: BindingResult) -> Iterator[tuple[str, ...]]:
    for nodes, found in result.bound_per_s.items():
        ratios = ((getattr(found, name), *found.intervals_95[name]) for name in RATIOS)
        shown = (f"{ratio:.2f} ({low:.2f}-{high:.2f})" for ratio, low, high in ratios)
        yield f"{int(nodes):,}", *(f"{getattr(found, way):.0f}" for way in WAYS), *shown


def figure(result: BindingResult) -> Figure:
    """Bound pods per second by configuration and number of nodes, with a dot per round."""
    drawn, (axes,) = panels(1)
    rates = result.bound_per_s
    bars = bar_sets({way: [getattr(found, way) for found in rates.values()] for way in WAYS})
    groups = tuple(f"{int(nodes):,}" for nodes in rates)
    vertical_bars(axes, Bars("binding", "Bound pods a second", groups, "pods/s", tuple(bars), "nodes"))
    for way, drawn_bars in zip(WAYS, axes.containers, strict=True):
        for bar, found in zip(drawn_bars, rates.values(), strict=True):
            rounds = found.rounds[way]
            axes.scatter([bar.get_x() + bar.get_width() / 2.0] * len(rounds), rounds, color="black", s=6)
    return drawn


REPORT = Report(tables, figure)


@benchmark("binding", REPORT)
@click.option(
    "--chart",
    type=PATH,
    help="Folder of Joulie's Helm chart, with its admission policies.  [default: the one beside this program]",
)
def binding(*, small: bool, chart: Path | None) -> BindingResult:
    """Measure the scheduler's throughput on a local control plane."""
    chart = chart or find_chart()
    if chart is None or not (chart / "Chart.yaml").exists():
        raise UserError(f"{chart or 'nothing here'} is not Joulie's chart: name its folder with --chart")
    return measure(SMALL if small else FULL, chart, tell)
