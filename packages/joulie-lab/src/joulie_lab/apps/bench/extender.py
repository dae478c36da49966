"""``joulie bench extender``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from joulie_lab.apps.bench.figures import bar_sets, panels, vertical_bars
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks.extender.calls import VERBS
from joulie_lab.benchmarks.extender.measure import FULL, SMALL, ExtenderResult, Times, measure
from joulie_lab.simulation.report.bars import Bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = {
    "joulie": "joulie",
    "constants": "constants",
    "performance": "joulie, performance pod",
    "long_names": "joulie, long names",
    "different": "joulie, pods all differ",
    "policies": "joulie, performance pod, namespace with power limits",
    "watts": "joulie, performance pod, power budgets",
    "watts_crowded": "joulie, performance pod, power budgets, half of the racks full",
    "marginal": "joulie, SCORING=marginal",
    "marginal_watts": "joulie, SCORING=marginal, power budgets and limits",
    "frugal": "joulie, SCORING=frugal, half a GPU",
    "frugal_watts": "joulie, SCORING=frugal, half a GPU, power budgets and limits",
}


def tables(result: ExtenderResult) -> Iterator[Table]:
    """Response times by extender, verb and number of candidates."""
    yield Table("Response times", ("", "verb", "candidates", "p50, ms", "p99, ms", "p99 of all rounds"), _rows(result))


def _rows(result: ExtenderResult) -> Iterator[tuple[str, ...]]:
    for name, label in _LABELS.items():
        for size, by_verb in getattr(result, name).items():
            for verb, times in by_verb.items():
                yield label, f"/{verb}", f"{int(size):,}", *_cells(times, 2)
    for size, times in result.decision_ms.items():
        yield "joulie", "decision alone", f"{int(size):,}", *_cells(times, 3)


def _cells(times: Times, digits: int) -> tuple[str, ...]:
    return tuple(f"{value:.{digits}f}" for value in (times.p50_ms, times.p99_ms, times.p99_of_all_ms))


def figure(result: ExtenderResult) -> Figure:
    """Response times by number of candidates."""
    drawn, all_axes = panels(len(VERBS))
    sizes = list(result.joulie)
    for axes, verb in zip(all_axes, VERBS, strict=True):
        bars = {
            f"{name}, {quantile.removesuffix('_ms')}": [
                getattr(getattr(result, name)[size][verb], quantile) for size in sizes
            ]
            for name in ("joulie", "constants")
            for quantile in ("p50_ms", "p99_ms")
        }
        groups = tuple(f"{int(size):,}" for size in sizes)
        vertical_bars(axes, Bars(verb, f"/{verb}", groups, "ms", tuple(bar_sets(bars)), "candidates"))
    return drawn


REPORT = Report(tables, figure)


@benchmark("extender", REPORT)
def extender(*, small: bool) -> ExtenderResult:
    """Measure the scheduler extender."""
    return measure(SMALL if small else FULL, tell)
