"""``joulie bench equal-work``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import click

from joulie_lab.apps.bench.figures import horizontal_bars, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import EXECUTOR, JOBS, benchmark
from joulie_lab.benchmarks.equal_work import (
    PARITY_SEED,
    EqualWorkResult,
    bound_of_seed_kwh,
    full_plan,
    small_plan,
    summarise,
)
from joulie_lab.program.lists import items, whole
from joulie_lab.program.parallel import Executor, played
from joulie_lab.simulation.report.bars import BarSet
from joulie_lab.simulation.sweep import plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = {
    "it_kwh": ("energy, kWh", 0),
    "above_bound_pct": ("above bound, %", 2),
    "std_kw": ("std, kW", 1),
    "p99_ramp_kw": ("P99 ramp, kW", 2),
    "peak_kw": ("peak, kW", 0),
    "mean_wait_min": ("mean wait, min", 3),
    "p99_wait_min": ("P99 wait", 1),
    "wakes": ("wakes", 0),
    "unfinished": ("unfinished", 0),
}
_PANELS = {
    "above_bound_pct": ("Energy above the lower bound, %", 2),
    "p99_ramp_kw": ("P99 ramp, kW/min", 1),
    "mean_wait_min": ("Mean wait, min", 3),
}


def tables(result: EqualWorkResult) -> Iterator[Table]:
    """Energy, waiting times and ramps compared with the lower bound."""
    n_seeds = len(result.seeds)
    yield Table(
        f"Mean of {n_seeds} seeds ± 95 % confidence interval; lower bound {result.bound_kwh.text(0)} kWh",
        ("", *(label for label, _ in _COLUMNS.values())),
        [
            (name, *(getattr(row, key).text(digits) for key, (_, digits) in _COLUMNS.items()))
            for name, row in result.reported.items()
        ],
    )
    references = next(iter(result.reported.values())).saving_pct
    yield Table(
        "Energy saved, %, and seeds on which the P99 ramp is not above most-allocated's",
        ("", *(f"against {name}" for name in references), "seeds"),
        [
            (
                name,
                *(value.text(2) for value in row.saving_pct.values()),
                f"{row.ramp_not_above_most_allocated} of {n_seeds}",
            )
            for name, row in result.reported.items()
        ],
    )
    yield Table(
        "Seed 42",
        ("", "energy, kWh", "jobs", "P99 ramp, kW", "mean wait, min", "wakes", "s a run"),
        [
            (
                name,
                f"{run.it_kwh:,.1f}",
                f"{run.jobs:,}",
                f"{run.p99_ramp_kw:.2f}",
                f"{run.mean_wait_min:.4f}",
                f"{run.wakes:,}",
                f"{run.seconds:.2f}",
            )
            for name, run in result.parity.items()
        ],
    )


def figure(result: EqualWorkResult) -> Figure:
    """Energy above the lower bound, ramp and wait of every scheduler, with confidence intervals."""
    drawn, all_axes = panels(3)
    names = sorted(result.reported, key=lambda name: result.reported[name].above_bound_pct.mean)
    for axes, (metric, (label, digits)) in zip(all_axes, _PANELS.items(), strict=True):
        found = [getattr(result.reported[name], metric) for name in names]
        bars = BarSet("", tuple(one.mean for one in found), tuple(one.half_width for one in found), 0)
        groups = names if axes is all_axes[0] else [""] * len(names)
        horizontal_bars(axes, groups, [bars], notes={"": [f"{one.mean:.{digits}f}" for one in found]})
        axes.margins(x=0.18)
        axes.set_xlim(left=0.0)
        title(axes, label)
    drawn.supxlabel(f"Mean of {len(result.seeds)} seeds; whiskers: 95 % confidence interval", fontsize="small")
    return drawn


REPORT = Report(tables, figure)
_REFERENCE = "most-allocated"


def _page(result: EqualWorkResult) -> dict[str, str]:
    """The tables of the page, as its generated block."""
    rows: list[tuple[str, ...]] = [
        (
            name,
            row.it_kwh.text(0),
            "" if name == _REFERENCE else f"{-row.saving_pct[_REFERENCE].mean:+.1f} %",
            f"{row.above_bound_pct.mean:.1f} %",
            row.p99_ramp_kw.text(1),
            f"{row.mean_wait_min.mean:.3f}",
            f"{row.wakes.mean:,.0f}",
        )
        for name, row in result.reported.items()
    ]
    rows.append(("*ideal packing, a lower bound*", result.bound_kwh.text(0), *[""] * 5))
    columns = ("energy, kWh", f"against {_REFERENCE}", "above the bound", "P99 ramp, kW/min", "mean wait, min", "wakes")
    means = Table("", (f"mean of {len(result.seeds)} seeds, ± 95 % CI", *columns), rows)
    saving = result.reported["marginal-energy-ramp"].saving_pct
    paired = ", ".join(f"{saved.text(2)} % against {name}" for name, saved in saving.items())
    base_kwh = result.parity[_REFERENCE].it_kwh
    one = Table(
        "",
        ("seed 42", "energy, kWh", f"against {_REFERENCE}", "wakes", "mean wait, min", "P99 ramp, kW/min"),
        [
            (
                name,
                f"{run.it_kwh:,.0f}",
                "" if name == _REFERENCE else f"{100.0 * (run.it_kwh / base_kwh - 1.0):+.1f} %",
                f"{run.wakes:,}",
                f"{run.mean_wait_min:.2f}",
                f"{run.p99_ramp_kw:.1f}",
            )
            for name, run in result.parity.items()
        ],
    )
    text = (
        f"Seeds {', '.join(map(str, result.seeds))}; nothing was tuned on them. No run left a job unfinished. The\n"
        "intervals are those of the absolute energy, which varies with the load of the seed; compared seed by seed,\n"
        f"`marginal-energy-ramp` saves {paired}."
    )
    return {"block": f"{means}\n\n{text}\n\n{one}"}


PAGE = Page(EqualWorkResult, "experiments/honest-metrics.md", _page)


@benchmark("equal-work", REPORT)
@click.option("--seeds", metavar="N,...", help="Seeds to report.  [default: the eight held-out seeds]")
@JOBS
@EXECUTOR
def equal_work(*, small: bool, seeds: str | None, jobs: int | None, executor: str) -> EqualWorkResult:
    """Measure schedulers at equal work."""
    where = Executor.parse(executor, jobs)
    chosen = small_plan() if small else full_plan()
    reported = chosen.seeds if seeds is None else seeds_of(seeds)
    every = tuple(dict.fromkeys((PARITY_SEED, *reported)))
    tasks = plan(chosen.scenario.schedulers, every)
    with closing(played(chosen.scenario, tasks, where)) as records:
        runs = list(records)
    bounds = {seed: bound_of_seed_kwh(chosen.scenario, seed) for seed in every}
    by_task = {(run.scheduler, run.seed): run for run in runs}
    return summarise([by_task[task] for task in tasks], bounds, reported)


def seeds_of(text: str) -> tuple[int, ...]:
    """Parse the seeds of option ``--seeds``."""
    return tuple(whole(item, "--seeds") for item in items([text]))
