"""``joulie bench trials``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.bench.coverage import coverage_figure
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import EXECUTOR, JOBS, benchmark, tell
from joulie_lab.benchmarks.coverage import Coverage
from joulie_lab.benchmarks.trials import (
    EFFECTS,
    FULL,
    SMALL,
    NativeRun,
    SettingRun,
    TrialsResult,
    deviation,
    fitted,
    judged,
    native_run,
    played,
    setting_run,
    settings,
)
from joulie_lab.program.parallel import Executor, executed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

_FITTED_SEED, _JUDGED_SEED, _TRIALS_SEED = 1, 1001, 7


def tables(result: TrialsResult) -> Iterator[Table]:
    """Coverage by setting, and of native runs."""
    heads = ("", "trials", "interval holds the truth, %", "lower bound above 0, %", "half the interval, points")
    yield Table("Process", heads, _rows(result.settings))
    yield Table("Process, at equal work", heads, _rows(result.settings_equal_work))
    yield Table("Native runs", heads, _rows(result.native))
    yield Table("Native runs, at equal work", heads, _rows(result.native_equal_work))
    yield Table(
        "Variation",
        ("standard deviation of a pair", ""),
        [("native runs", f"{result.native_deviation:.4f}"), ("process", f"{result.process_deviation:.4f}")],
    )


def _rows(found: Mapping[str, Coverage]) -> list[tuple[str, ...]]:
    return [
        (name, str(one.trials), f"{one.holds_pct:.1f}", f"{one.above_zero_pct:.1f}", f"{one.half_width_pct:.2f}")
        for name, one in found.items()
    ]


def figure(result: TrialsResult) -> Figure:
    """How often the interval holds the truth, by setting."""
    return coverage_figure(result.settings)


REPORT = Report(tables, figure)
PAGE = Page(TrialsResult, "experiments/trials.md", REPORT.tables_by_title, {"img/trials.png": figure})


@benchmark("trials", REPORT)
@JOBS
@EXECUTOR
def trials(*, small: bool, jobs: int | None, executor: str) -> TrialsResult:
    """Fit the process to native runs, and count how often intervals hold the truth."""
    plan, where = SMALL if small else FULL, Executor.parse(executor, jobs)
    try:
        tell(f"{plan.fitted} native runs to fit to, {plan.native} to judge by")
        seeds = [_FITTED_SEED + number for number in range(plan.fitted)]
        seeds += [_JUDGED_SEED + number for number in range(plan.native)]
        by_seed = dict(executed(native_run, [NativeRun(plan.nodes, seed) for seed in seeds], where))
        process = fitted([by_seed[seed] for seed in seeds[: plan.fitted]])
        runs = [by_seed[seed] for seed in seeds[plan.fitted :]]
        native = {f"{effect:.0%}": judged(runs, effect) for effect in EFFECTS}
        tell(f"{plan.trials} trials in each of {len(settings())} settings")
        work = [SettingRun(process, name, plan.trials, _TRIALS_SEED) for name in settings()]
        by_name = dict(executed(setting_run, work, where))
        found = {name: by_name[name] for name in settings()}
    except ExecutorError as error:
        raise UserError(str(error)) from error
    alike = [played(process, (), np.random.default_rng([_TRIALS_SEED, number])) for number in range(10 * plan.native)]
    return TrialsResult(
        {name: one.per_work for name, one in found.items()},
        {name: one.at_equal_work for name, one in found.items()},
        {name: one.per_work for name, one in native.items()},
        {name: one.at_equal_work for name, one in native.items()},
        deviation(runs),
        deviation(alike),
    )
