"""``joulie bench parity``."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time
from typing import TYPE_CHECKING

from matplotlib.ticker import NullLocator
from rich.console import Console

from joulie_lab.apps.bench.figures import panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks.parity import FULL, SEED, SMALL, Cost, ParityResult, measure
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: ParityResult) -> Iterator[Table]:
    """Figures and speed."""
    yield Table(
        "Figures, seed 42",
        ("", "mean kW", "peak kW", "std kW", "P99 ramp", "dropped", "jobs", "CPU s a run"),
        [
            (
                name,
                *(f"{kw:.9f}" for kw in (run.mean_kw, run.peak_kw, run.std_kw, run.p99_ramp_kw)),
                f"{run.dropped:,}",
                f"{run.jobs:,}",
                f"{run.seconds:.2f}",
            )
            for name, run in result.figures.items()
        ],
    )
    yield Table(
        "Compared with plain NumPy, same first hours",
        ("", "hours", "jobs", "plain, CPU s", "engine, CPU s", "ratio", "power differs by", "drops differ in"),
        [
            (
                name,
                f"{row.hours:g}",
                f"{row.jobs:,}",
                f"{row.plain_s:.2f}",
                f"{row.fast_s:.4f}",
                f"{row.ratio:,.0f}",
                f"{row.largest_relative_power_difference:.1e}",
                f"{row.differing_drops} steps",
            )
            for name, row in result.speed.items()
        ],
    )
    yield Table(
        "Growth with nodes, same workload",
        ("nodes", "scheduler", "jobs", "dropped", "CPU s a run", "µs a job", "plain, µs a job"),
        [(f"{row.nodes:,}", *_cells(row), f"{row.plain_us_per_job:.1f}") for row in result.growth_with_nodes],
    )
    yield Table(
        "Growth with jobs, same cluster",
        ("rate", "scheduler", "jobs", "dropped", "CPU s a run", "µs a job"),
        [(f"{row.share:g}x", *_cells(row)) for row in result.growth_with_jobs],
    )


def _cells(row: Cost) -> tuple[str, ...]:
    return row.scheduler, f"{row.jobs:,}", f"{row.dropped:,}", f"{row.seconds:.2f}", f"{row.us_per_job:.2f}"


def figure(result: ParityResult) -> Figure:
    """Cost of a job by cluster size, and cost of a run by number of jobs."""
    drawn, (by_nodes, by_jobs) = panels(2)
    nodes, jobs = result.growth_with_nodes, result.growth_with_jobs
    for name, color in zip(dict.fromkeys(row.scheduler for row in nodes), PALETTE, strict=False):
        own = [row for row in nodes if row.scheduler == name]
        sizes = [row.nodes for row in own]
        by_nodes.plot(sizes, [row.us_per_job for row in own], "o-", color=color, label=name)
        by_nodes.plot(sizes, [row.plain_us_per_job for row in own], "s:", color=color, label=f"{name}, plain NumPy")
        of_jobs = [row for row in jobs if row.scheduler == name]
        thousands = [row.jobs / 1000.0 for row in of_jobs]
        by_jobs.plot(thousands, [row.seconds for row in of_jobs], "o-", color=color, label=name)
    by_nodes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="µs a job")
    node_counts = sorted({row.nodes for row in nodes})
    by_nodes.set_xticks(node_counts, [f"{count:,}" for count in node_counts])
    by_nodes.xaxis.set_minor_locator(NullLocator())
    by_nodes.yaxis.set_major_formatter("{x:,g}")
    title(by_nodes, "Cost of a job, same workload")
    by_jobs.set(xlabel="thousand jobs", ylabel="CPU s a run")
    by_jobs.set_xlim(left=0.0)
    by_jobs.set_ylim(bottom=0.0)
    title(by_jobs, "Cost of a run, same cluster")
    for axes in (by_nodes, by_jobs):
        axes.legend(frameon=False, fontsize="small")
    return drawn


REPORT = Report(tables, figure)


def _page(result: ParityResult) -> dict[str, str]:
    """The tables of the page, as its generated block."""
    runs = result.figures
    figures = Table(
        "",
        (f"seed {SEED}", *runs),
        [
            ("mean IT power, kW", *(f"{run.mean_kw:,.9f}" for run in runs.values())),
            ("peak IT power, kW", *(f"{run.peak_kw:,.2f}" for run in runs.values())),
            ("standard deviation, kW", *(f"{run.std_kw:.2f}" for run in runs.values())),
            ("dropped jobs", *(f"{run.dropped:,}" for run in runs.values())),
            ("P99 ramp, kW/min", *(f"{run.p99_ramp_kw:.2f}" for run in runs.values())),
            ("CPU time of a run, s", *(f"{run.seconds:.2f}" for run in runs.values())),
            ("faster than plain NumPy by", *(f"{result.speed[name].ratio:.0f}" for name in runs)),
        ],
    )
    return {"block": str(figures)}


PAGE = Page(ParityResult, "experiments/published.md", _page)


@benchmark("parity", REPORT)
def parity(*, small: bool) -> ParityResult:
    """Measure parity and speed, in CPU time: other work on the machine adds little to it."""
    plan = SMALL if small else FULL
    console = Console(stderr=True)
    if not console.is_terminal:
        return measure(plan, process_time, tell)
    with console.status("") as status:
        return measure(plan, process_time, status.update)
