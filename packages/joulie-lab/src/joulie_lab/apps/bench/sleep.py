"""``joulie bench sleep``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import JOBS, benchmark, tell
from joulie_lab.benchmarks.sleep_courses import cluster, play
from joulie_lab.benchmarks.sleep_courses.play import FULL_COURSES, SMALL_COURSES, SleepResult, play_courses
from joulie_lab.program.parallel import usable_cores
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COUNTS = {
    "courses": "courses",
    "pods": "pods created",
    "finished": "pods that ran to their end",
    "lost": "running pods whose node was switched off",
    "unexplained": "pending pods without a reason in a decision",
    "stranded": "pods that could have run and have not, long after the last fault",
    "too_many_waking": "decisions by which more nodes wake than may",
    "sleeps": "nodes switched off",
    "wakes": "nodes told to wake",
    "given_up": "nodes given up",
}
_OF_MOVES = {
    "emptied": "nodes whose pods were all moved",
    "moves": "pods moved",
    "moved_fixed": "pods moved that must stay, or more nodes emptied at once than may",
}


def tables(result: SleepResult) -> Iterator[Table]:
    """What happened in all courses, and the faults in them."""
    yield _counts(result)
    yield _faults(result)


def _counts(result: SleepResult) -> Table:
    # Results of before nodes were emptied have no such counts.
    counts = _COUNTS | _OF_MOVES if result.moves else _COUNTS
    rows = [(text, f"{getattr(result, name):,}") for name, text in counts.items()]
    return Table("Courses", ("", "count"), rows)


def _faults(result: SleepResult) -> Table:
    return Table("Faults", ("fault", "count"), [(name, f"{count:,}") for name, count in result.faults.items()])


def figure(result: SleepResult) -> Figure:
    """Faults by kind."""
    bars = bar_sets({"faults": [float(count) for count in result.faults.values()]})
    return draw(Bars("sleep", "Faults in all courses", tuple(result.faults), "faults", tuple(bars)), "")


def _page(result: SleepResult) -> dict[str, Any]:
    return {"counts": _counts(result), "faults": _faults(result), "cluster": cluster, "play": play}


REPORT = Report(tables, figure)
PAGE = Page(SleepResult, "experiments/sleep.md", _page)


@benchmark("sleep", REPORT)
@click.option(
    "--courses",
    type=click.IntRange(min=1),
    help=f"Number of courses.  [default: {FULL_COURSES}; small: {SMALL_COURSES}]",
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the first course.")
@JOBS
def sleep(*, small: bool, courses: int | None, first: int, jobs: int | None) -> SleepResult:
    """Measure what sleeping nodes do to pods in random courses of faults."""
    count = courses or (SMALL_COURSES if small else FULL_COURSES)
    return play_courses(count, first=first, n_workers=jobs or usable_cores(), note=tell)
