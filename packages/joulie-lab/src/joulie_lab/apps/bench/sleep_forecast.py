"""``joulie bench sleep-forecast``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks import sleep_forecast as model
from joulie_lab.benchmarks.sleep_forecast import SleepForecastResult
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: SleepForecastResult) -> Iterator[Table]:
    """Waits and energy of the held-out days, and what forecasts change."""
    yield Table(
        f"The held-out days of seed {result.seeds[0]}",
        ("", "mean wait, s", "P95, s", "waited over a minute, %", "energy, kWh", "awake, node h", "wakes"),
        [
            (
                name,
                f"{60.0 * one.run.mean_wait_min:.1f}",
                f"{60.0 * one.run.p95_wait_min:.0f}",
                f"{one.long_waits_pct:.2f}",
                f"{one.run.kwh:,.1f}",
                f"{one.run.awake_node_hours:,.0f}",
                str(one.run.wakes),
            )
            for name, one in result.judged.items()
        ],
    )
    yield Table(
        f"Change against no forecast, %, {len(result.seeds)} seeds",
        ("", "mean wait", "jobs that waited over a minute", "energy"),
        [
            (name, one.mean_wait_pct.text(1), one.long_waits_pct.text(1), one.energy_pct.text(2))
            for name, one in result.compared.items()
        ],
    )


def figure(result: SleepForecastResult) -> Figure:
    """Share of jobs that waited for long."""
    bars = bar_sets({"waited over a minute": [one.long_waits_pct for one in result.judged.values()]})
    return draw(Bars("sleep-forecast", "Jobs that waited over a minute", tuple(result.judged), "%", tuple(bars)), "")


def _page(result: SleepForecastResult) -> dict[str, Any]:
    days, compared = tables(result)
    default = result.compared[model.name_of(result.quantile)]
    return {"days": days, "compared": compared, "model": model, "default": default}


REPORT = Report(tables, figure)
PAGE = Page(SleepForecastResult, "experiments/sleep-forecast.md", _page)


@benchmark("sleep-forecast", REPORT)
def sleep_forecast(*, small: bool) -> SleepForecastResult:
    """Compare waits and energy of nodes that sleep with the forecast of demand and without."""
    by_seed = {}
    for seed in model.REPORT_SEEDS[: 1 if small else None]:
        tell(f"seed {seed}")
        by_seed[seed] = model.judge(seed, held_out_days=1 if small else model.HELD_OUT_DAYS)
    return model.summarise(by_seed)
