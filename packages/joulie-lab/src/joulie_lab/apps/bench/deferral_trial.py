"""``joulie bench deferral-trial``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from joulie_lab.apps.bench.coverage import coverage_figure, play_settings
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import EXECUTOR, JOBS, benchmark
from joulie_lab.benchmarks.deferral_trial import SETTINGS, DeferralTrialResult, Setting, summed_up, trials_of
from joulie_lab.program.parallel import Executor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FULL, _SMALL = 1000, 20


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


REPORT = Report(tables, figure)
PAGE = Page(
    DeferralTrialResult, "experiments/deferral-trial.md", REPORT.tables_by_title, {"img/deferral-trial.png": figure}
)


@benchmark("deferral-trial", REPORT)
@EXECUTOR
@JOBS
def deferral_trial(*, small: bool, executor: str, jobs: int | None) -> DeferralTrialResult:
    """Count how often intervals of trials of deferral hold the truth."""
    where, count = Executor.parse(executor, jobs), _SMALL if small else _FULL
    found = play_settings(trials_of, SETTINGS, count, where, "trials")
    means = {
        name: [sum(column) / count for column in zip(*(one[2:] for one in found[name]), strict=True)]
        for name in SETTINGS
    }
    return DeferralTrialResult(
        Setting(None).workloads,
        {name: summed_up(some) for name, some in found.items()},
        {name: 100.0 * truth for name, (truth, _) in means.items()},
        {name: waited_h for name, (_, waited_h) in means.items()},
    )
