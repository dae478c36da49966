"""``joulie bench holdout``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from joulie.domain.trial.holdout import MAX_UNITS
from joulie_lab.apps.bench.coverage import play_settings
from joulie_lab.apps.bench.figures import panels
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import EXECUTOR, JOBS, benchmark
from joulie_lab.benchmarks.holdout import HOLDOUT, SETTINGS, HoldoutResult, courses, summed_up
from joulie_lab.program.parallel import Executor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FULL, _SMALL = 400, 8


def tables(result: HoldoutResult) -> Iterator[Table]:
    """What was said in each setting."""
    heads = (
        "",
        "courses",
        "holds the truth at all looks, %",
        "one-look interval does, %",
        "lower bound ever above 0, %",
        "said to have stopped paying, %",
        "half the last interval, points",
        "seen after windows",
    )
    yield Table(
        "Holdout",
        heads,
        [
            (
                name,
                str(one.courses),
                f"{one.holds_pct:.1f}",
                f"{one.one_look_holds_pct:.1f}",
                f"{one.above_zero_pct:.1f}",
                f"{one.stopped_pct:.1f}",
                f"{one.half_width_pct:.2f}",
                f"{one.seen_after:.0f}" if one.seen_after else "",
            )
            for name, one in result.settings.items()
        ],
    )


def figure(result: HoldoutResult) -> Figure:
    """How often each interval holds the truth at all looks, by setting; 95 % is what is promised."""
    drawn_figure, (axes,) = panels(1)
    for place, one in enumerate(result.settings.values()):
        axes.plot(one.holds_pct, place, "o", color="C0", label="" if place else "for all looks")
        axes.plot(one.one_look_holds_pct, place, "x", color="C1", label="" if place else "for one look")
    axes.axvline(95.0, linestyle="--", color="grey")
    axes.set_yticks(range(len(result.settings)), list(result.settings))
    axes.invert_yaxis()
    axes.set(xlabel="courses whose interval holds the truth at all looks, %")
    axes.legend()
    return drawn_figure


REPORT = Report(tables, figure)
PAGE = Page(HoldoutResult, "experiments/holdout.md", REPORT.tables_by_title, {"img/holdout.png": figure})


@benchmark("holdout", REPORT)
@EXECUTOR
@JOBS
def holdout(*, small: bool, executor: str, jobs: int | None) -> HoldoutResult:
    """Count how often live intervals hold the truth, and what is reported falsely."""
    where, count = Executor.parse(executor, jobs), _SMALL if small else _FULL
    found = play_settings(courses, SETTINGS, count, where, "courses")
    return HoldoutResult(MAX_UNITS, HOLDOUT.share, {name: summed_up(some) for name, some in found.items()})
