"""``joulie bench consolidation``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks import consolidation as model
from joulie_lab.benchmarks.consolidation import OFFICE_DAYS, SEEDS, ConsolidationResult, Load, judge_all, summarise
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: ConsolidationResult) -> Iterator[Table]:
    """By load and case, what emptying nodes changes."""
    for load, cases in result.compared.items():
        yield Table(
            f"Change where nodes are emptied, {load}, {len(result.seeds[load])} seeds;"
            f" without: {result.without[load].kwh.text(1)} kWh a day, mean wait"
            f" {result.without[load].mean_wait_s.text(1)} s, {result.without[load].wakes.text(1)} wakes a day",
            ("", "energy, %", "mean wait, s", "wakes a day", "moves a day", "of the jobs, %", "work done twice, %"),
            [
                (
                    name,
                    one.energy_pct.text(2),
                    one.wait_s.text(1),
                    one.wakes.text(1),
                    one.moves.text(1),
                    one.moved_pct.text(2),
                    one.redone_pct.text(2),
                )
                for name, one in cases.items()
            ],
        )


def figure(result: ConsolidationResult) -> Figure:
    """Change of the energy by case."""
    cases = tuple(next(iter(result.compared.values())))
    saved = {load: [-found[case].energy_pct.mean for case in cases] for load, found in result.compared.items()}
    bars = bar_sets(saved)
    return draw(Bars("consolidation", "Energy saved by emptying nodes", cases, "%", tuple(bars)), "")


def _page(result: ConsolidationResult) -> dict[str, Any]:
    best, *_, worst = model.MOVING
    names = {Load.OFFICE.value: "Workdays with habits", Load.DAY.value: "A day without habits"}
    by_load = dict(zip(result.compared, tables(result), strict=True))
    unfinished = [cases[worst].unfinished for cases in result.compared.values()]
    return {
        "tables": by_load, "model": model, "best": best, "worst": worst, "names": names, "unfinished": unfinished,
    }  # fmt: skip


REPORT = Report(tables, figure)
PAGE = Page(ConsolidationResult, "experiments/consolidation.md", _page)


@benchmark("consolidation", REPORT)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
def consolidation(*, small: bool, jobs: int | None) -> ConsolidationResult:
    """Measure what it saves to empty nodes that have few jobs, and what that costs the jobs."""
    n_workers = jobs or os.cpu_count() or 1
    if small:
        return summarise(judge_all({Load.OFFICE: SEEDS[Load.OFFICE][:1]}, n_workers, days=1))
    return summarise(judge_all(SEEDS, n_workers, days=OFFICE_DAYS, note=tell))
