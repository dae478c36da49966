"""``joulie bench deferral-trial``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.apps.bench.trials import coverage_figure
from joulie_lab.benchmarks.deferral_trial import (
    SETTINGS,
    DeferralTrialResult,
    Judged,
    Setting,
    Work,
    summed_up,
    trials_of,
)
from joulie_lab.program.parallel import Executor, executed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FULL, _SMALL = 1000, 20
_SEEDS_A_TASK = 25


def tables(result: DeferralTrialResult) -> Iterator[Table]:
    """What was said in each setting."""
    heads = (
        "",
        "trials",
        "interval holds the truth, %",
        "lower bound above 0, %",
        "half the interval, points",
        "true saving, %",
        "waited longer, h",
    )
    rows = [
        (
            name,
            str(one.trials),
            f"{one.holds_pct:.1f}",
            f"{one.above_zero_pct:.1f}",
            f"{one.half_width_pct:.2f}",
            f"{result.true_saving_pct[name]:.1f}",
            f"{result.waited_h[name]:.1f}",
        )
        for name, one in result.settings.items()
    ]
    yield Table("Trials of deferral", heads, rows)


def figure(result: DeferralTrialResult) -> Figure:
    """How often the interval holds the truth, by setting."""
    return coverage_figure(result.settings)


def _page(result: DeferralTrialResult) -> dict[str, Any]:
    return {"tables": {table.title: table for table in tables(result)}}


REPORT = Report(tables, figure)
PAGE = Page(DeferralTrialResult, "experiments/deferral-trial.md", _page, {"img/deferral-trial.png": figure})


@benchmark("deferral-trial", REPORT)
@click.option(
    "--executor", metavar="local|dask[://HOST:PORT]", default="local", show_default=True, help="Where to run."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: all cores]")
def deferral_trial(*, small: bool, executor: str, jobs: int | None) -> DeferralTrialResult:
    """Count how often intervals of trials of deferral hold the truth."""
    where, count = Executor.parse(executor, jobs), _SMALL if small else _FULL
    work = [
        Work(name, tuple(range(first, min(first + _SEEDS_A_TASK, count))))
        for name in SETTINGS
        for first in range(0, count, _SEEDS_A_TASK)
    ]
    tell(f"{count} trials in each of {len(SETTINGS)} settings")
    found: defaultdict[str, list[Judged]] = defaultdict(list)
    try:
        for name, some in executed(trials_of, work, where):
            found[name] += some
    except ExecutorError as error:
        raise UserError(str(error)) from error
    means = {
        name: [sum(column) / count for column in zip(*(one[2:] for one in found[name]), strict=True)]
        for name in SETTINGS
    }
    return DeferralTrialResult(
        Setting(None).workloads,
        {name: summed_up(found[name]) for name in SETTINGS},
        {name: 100.0 * truth for name, (truth, _) in means.items()},
        {name: waited_h for name, (_, waited_h) in means.items()},
    )
