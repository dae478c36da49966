"""``joulie bench rack``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks import rack as model
from joulie_lab.benchmarks.rack import RackResult, measure
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: RackResult) -> Iterator[Table]:
    """How budgets were kept, and who gave what."""
    yield Table(
        "Budgets",
        ("budget", "nodes", "limit without the event, W", "longest above the limit in force, s", "most above it, W"),
        [
            (name, str(one.nodes), f"{one.limit_w:,.0f}", f"{one.over_s:.0f}", f"{one.over_w:.0f}")
            for name, one in result.budgets.items()
        ],
    )
    yield Table(
        "Who gave what during the event",
        ("nodes", "count", "power without limits, W", "given, W", "given, %", "work lost, %"),
        [
            (
                name,
                str(one.nodes),
                f"{one.natural_w:,.0f}",
                f"{one.given_w:,.0f}",
                f"{100.0 * one.given_w / one.natural_w:.1f}",
                f"{one.work_lost_pct:.1f}",
            )
            for name, one in result.given.items()
        ],
    )


def figure(result: RackResult) -> Figure:
    """Power, worst case and limit over time."""
    drawn = canvas(10.0, 4.5)
    axes = drawn.subplots()
    minutes = [60.0 * hour for hour in result.hours]
    series = (
        ("without limits", result.natural_w, 0.8, "-"),
        ("drawn", result.power_w, 1.2, "-"),
        ("worst case under the limits in force", result.worst_w, 1.2, "--"),
    )
    for color, (name, values, width, style) in zip(PALETTE, series, strict=False):
        kilowatts = [value / 1000.0 for value in values]
        axes.plot(minutes, kilowatts, color=color, linewidth=width, linestyle=style, label=name)
    limit_kw = [value / 1000.0 for value in result.limit_w]
    axes.plot(minutes, limit_kw, color="black", linewidth=1.2, label="budget: the promise")
    axes.set(xlabel="minutes", ylabel="kW", ylim=(0.0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="lower left", ncols=2)
    return drawn


def _page(result: RackResult) -> dict[str, Any]:
    budgets, given = tables(result)
    return {"budgets": budgets, "given": given, "model": model}


REPORT = Report(tables, figure)
PAGE = Page(RackResult, "experiments/rack.md", _page, {"img/rack.png": figure})


@benchmark("rack", REPORT)
@click.option("--seed", default=1, show_default=True, help="Seed of the demand and of the agents' delays.")
def rack(*, small: bool, seed: int) -> RackResult:
    """Measure nested PowerBudgets through a demand-response event."""
    return measure(seed, tell, hour_s=120 if small else model.HOUR_S)
