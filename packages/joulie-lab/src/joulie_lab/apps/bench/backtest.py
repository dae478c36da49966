"""``joulie bench backtest``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.adapters.grid.files import FileOptions
from joulie.domain.grid.signals import Measure
from joulie_lab.adapters.published.intensity import HOUR_S, PUBLISHED, synthetic_zones
from joulie_lab.apps.backtest.history import Gaps
from joulie_lab.apps.backtest.judge import MeasureFigures, RuleFigures
from joulie_lab.apps.backtest.run import Question, Source, read, run
from joulie_lab.apps.bench.data import published_folder
from joulie_lab.apps.bench.figures import bar_sets, horizontal_bars, legend_below, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.results import Figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELAYS_H = (0, 1)
_RULE = "joulie"


class ZoneBacktest(Figures, frozen=True):
    """A backtest of one zone: the column used, how jobs arrive, and figures by delay of the signal in h."""

    column: str
    arrivals: str
    by_delay_h: Mapping[str, MeasureFigures]


class BacktestResult(Figures, frozen=True):
    """The result, by zone."""

    zones: Mapping[str, ZoneBacktest]


def tables(result: BacktestResult) -> Iterator[Table]:
    """Savings by zone and delay."""
    yield Table(
        "Saved of what the oracle saves, with the 95 % confidence interval of the share",
        (
            "zone",
            "delay, h",
            "oracle saves, %",
            "Joulie saves, %",
            "share, %",
            "above yesterday",
            "yesterday, %",
            "late",
        ),
        [
            (
                name,
                delay_h,
                _number(found.oracle_pct),
                _number(found.rules[_RULE].saved_pct),
                _share(found.rules[_RULE]),
                _interval(found.rules[_RULE].above_yesterday),
                _share(found.rules["yesterday"]),
                str(found.late),
            )
            for name, zone in result.zones.items()
            for delay_h, found in zone.by_delay_h.items()
        ],
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(rule: RuleFigures) -> str:
    return "-" if rule.share is None else f"{100.0 * rule.share:.1f} ({_interval(rule.interval)})"


def _interval(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{100.0 * ends[0]:.1f} to {100.0 * ends[1]:.1f}"


def figure(result: BacktestResult) -> Figure:
    """Shares by zone, for each delay."""
    drawn, axes = panels(len(DELAYS_H))
    for panel, delay_h in zip(axes, DELAYS_H, strict=True):
        found = [zone.by_delay_h[str(delay_h)] for zone in result.zones.values()]
        shares = {rule: [100.0 * (one.rules[rule].share or 0.0) for one in found] for rule in found[0].rules}
        horizontal_bars(panel, list(result.zones), bar_sets(shares))
        panel.set_xlim(0.0, 100.0)
        title(panel, f"Saved of what the oracle saves, %: values known {delay_h} h late")
        legend_below(panel, 4)
    return drawn


def _page(result: BacktestResult) -> dict[str, Any]:
    (shares,) = tables(result)
    columns = [(name, f"`{zone.column}`", zone.arrivals) for name, zone in result.zones.items()]
    return {"block": f"{shares}\n\n{Table('', ('zone', 'column', 'arrivals'), columns, labels=3)}"}


REPORT = Report(tables, figure)
PAGE = Page(BacktestResult, "howto/backtest.md", _page, {"img/backtest.png": figure})


@benchmark("backtest", REPORT)
@click.option("--data", type=PATH, help="Folder with published carbon intensities; --small uses synthetic ones.")
def backtest(*, small: bool, data: Path | None) -> BacktestResult:
    """Backtest published zones."""
    found = {}
    for name, source in (_synthetic() if small else _published(data)).items():
        by_delay_h = {}
        for delay_h in DELAYS_H:
            tell(f"backtest, {name}, delay {delay_h} h")
            question = Question(
                runtime_s=4 * HOUR_S,
                slack_s=24 * HOUR_S,
                delay_s=delay_h * HOUR_S,
                arrivals=None,
                seed=1,
            )
            result = run({Measure.CARBON: source}, None, question)
            by_delay_h[str(delay_h)] = result.figures[Measure.CARBON]
        found[name] = ZoneBacktest(source.column, result.arrivals, by_delay_h)
    return BacktestResult(found)


def _published(data: Path | None) -> dict[str, Source]:
    folder = published_folder(data)
    return {name: read(folder / zone.file, Measure.CARBON, FileOptions(), "") for name, zone in PUBLISHED.items()}


def _synthetic() -> dict[str, Source]:
    return {
        name: Source("", name, "synthetic", [zone.series], Gaps(0.0, 0.0), zone.step_s, (), 0)
        for name, zone in synthetic_zones(seed=1).items()
    }
