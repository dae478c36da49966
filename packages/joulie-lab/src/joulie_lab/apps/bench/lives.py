"""``joulie bench lives``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import JOBS, benchmark, tell
from joulie_lab.benchmarks.lives.machine_table import Cap
from joulie_lab.benchmarks.lives.runs import FULL_RUNS, SEED, SMALL_RUNS, LivesResult, measure
from joulie_lab.machines.library import MACHINES, public_sources
from joulie_lab.program.parallel import usable_cores
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: LivesResult) -> Iterator[Table]:
    """What the agent does without faults, and the counts of lives with faults."""
    yield _machines(result)
    yield _counts(result)
    yield _faults(result)
    if result.shown:
        yield Table("Violations", ("",), [(line,) for line in result.shown])


def _machines(result: LivesResult) -> Table:
    return Table(
        "The agent on each machine, without faults",
        ("machine", "found", "metered", "CPUs capped", "GPUs capped", "lifted", "restored after kill"),
        [
            (
                row.title,
                row.found,
                "no" if row.power_error is None else f"±{max(0.1, 100.0 * row.power_error):.1f} %",
                _cap(row.cpu),
                _cap(row.gpu) if row.gpu else "-",
                _yes(row.lifted),
                _yes(row.restored),
            )
            for row in result.table.values()
        ],
        labels=7,
    )


def _counts(result: LivesResult) -> Table:
    return Table(
        "Lives with faults",
        ("machine", "lives", "cycles with a cap", "faults", "violations"),
        [
            (name, *(f"{count:,}" for count in (one.lives, one.caps, one.faults, one.violations)))
            for name, one in result.machines.items()
        ],
    )


def _faults(result: LivesResult) -> Table:
    return Table(
        "Faults by kind",
        ("kind", "lives", "accesses or moments"),
        [(kind, f"{lives:,}", f"{result.faults[kind]:,}") for kind, lives in result.lives_with.items()],
    )


def _machines_by_source() -> dict[str, list[str]]:
    machines: dict[str, list[str]] = {}
    for spec in MACHINES.values():
        for source in public_sources(spec):
            machines.setdefault(source, []).append(spec.name)
    return machines


def _cap(cap: Cap) -> str:
    if cap.backend == "none":
        return cap.result
    return f"{cap.result}, {cap.backend}, {100.0 * cap.power_share:.0f} %"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def figure(result: LivesResult) -> Figure:
    """Lives by kind of fault."""
    kinds = tuple(result.lives_with)
    bars = bar_sets({"lives": [float(result.lives_with[kind]) for kind in kinds]})
    return draw(Bars("lives", "Lives with a fault of each kind", kinds, "lives", tuple(bars)), "")


def _page(result: LivesResult) -> dict[str, Any]:
    return {
        "machines": _machines(result),
        "counts": _counts(result),
        "faults": _faults(result),
        "sources": _machines_by_source(),
    }


REPORT = Report(tables, figure)
PAGE = Page(LivesResult, "experiments/machines.md", _page)


@benchmark("lives", REPORT)
@click.option(
    "--runs", type=click.IntRange(min=1), help=f"Number of lives.  [default: {FULL_RUNS}; small: {SMALL_RUNS}]"
)
@click.option("--seed", default=SEED, show_default=True, help="Seed of all lives.")
@click.option(
    "--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first life, to repeat one."
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    type=click.Choice(list(MACHINES)),
    help="Machine; repeatable.  [default: all]",
)
@JOBS
def lives(
    *, small: bool, runs: int | None, seed: int, first: int, machines: tuple[str, ...], jobs: int | None
) -> LivesResult:
    """Measure the agent's lives."""
    return measure(
        runs=runs or (SMALL_RUNS if small else FULL_RUNS),
        seed=seed,
        first=first,
        machines=machines,
        n_workers=jobs or usable_cores(),
        tell=tell,
    )
