"""``joulie bench consolidation``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import benchmark
from joulie_lab.benchmarks.consolidation import SEEDS, ConsolidationResult, Load, judge_all, summarise
from joulie_lab.benchmarks.sleep_forecast import HELD_OUT_DAYS
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: ConsolidationResult) -> Iterator[Table]:
    """By load and case, what emptying nodes changes."""
    for load, cases in result.compared.items():
        yield Table(
            f"Change where nodes are emptied, {load}, {len(result.seeds[load])} seeds",
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


REPORT = Report(tables, figure)


@benchmark("consolidation", REPORT)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
def consolidation(*, small: bool, jobs: int | None) -> ConsolidationResult:
    """Measure what it saves to empty nodes that have few jobs, and what that costs the jobs."""
    n_workers = jobs or os.cpu_count() or 1
    if small:
        return summarise(judge_all({Load.OFFICE: SEEDS[Load.OFFICE][:1]}, n_workers, days=1))
    return summarise(judge_all(SEEDS, n_workers, days=HELD_OUT_DAYS))
