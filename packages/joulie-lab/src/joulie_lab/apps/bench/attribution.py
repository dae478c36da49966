"""``joulie bench attribution``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from joulie_lab.apps.bench.figures import horizontal_bars, panels, title
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks.attribution import FULL, SMALL, Attributed, AttributionResult, RuleError, measure
from joulie_lab.simulation.report.bars import BarSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def tables(result: AttributionResult) -> Iterator[Table]:
    """Conservation of power, and the error of each pod's power."""
    yield Table(
        "Measured power against the sum of its parts",
        ("", "powers", "largest relative difference", "smallest part, W", "known, %", "pods told, %"),
        [
            (
                name,
                f"{found.powers:,}",
                f"{found.conservation_error:.1e}",
                f"{found.smallest_part_w:g}",
                f"{found.known_pct:.1f}",
                f"{found.told_pct:.1f}",
            )
            for name, found in _kinds(result)
        ],
    )
    yield Table(
        "Attributed power of pods against true power",
        ("", "pods", "mean error, W", "mean error, %", "charged, %"),
        [
            (
                f"{name}, {rule.replace('_', ' ')}",
                f"{found.pods_told:,}",
                f"{error.mean_abs_error_w:.2f}",
                f"{error.error_pct:.1f}",
                f"{error.charged_pct:.1f}",
            )
            for name, found in _kinds(result)
            for rule, error in found.rules.items()
        ],
    )


def _kinds(result: AttributionResult) -> list[tuple[str, Attributed]]:
    return [("CPU", result.cpu), *((f"GPU {sharing}", found) for sharing, found in result.gpu.items())]


def figure(result: AttributionResult) -> Figure:
    """Error of the power of pods by rule, on a logarithmic scale."""
    drawn, (cpu, gpu) = panels(2)
    _draw_errors(cpu, {name.replace("_", " "): rule for name, rule in result.cpu.rules.items()})
    title(cpu, "CPU: mean error of a pod's power, %")
    # The power of pods with whole GPUs is exact: there is no error to draw.
    shared = {
        f"{sharing}, {name.replace('_', ' ')}": rule
        for sharing, found in result.gpu.items()
        if sharing != "whole"
        for name, rule in found.rules.items()
    }
    _draw_errors(gpu, shared)
    title(gpu, "Shared GPUs: mean error of a pod's power, %")
    return drawn


def _draw_errors(axes: Axes, rules: Mapping[str, RuleError]) -> None:
    errors = tuple(rule.error_pct for rule in rules.values())
    bars = BarSet("", errors, (None,) * len(errors), 0)
    axes.set(xscale="log", xlim=(1.0, 10_000.0))
    horizontal_bars(axes, list(rules), [bars], notes={"": [f"{error:,.1f}" for error in errors]})
    axes.xaxis.set_major_formatter("{x:,g}")


REPORT = Report(tables, figure)


@benchmark("attribution", REPORT)
def attribution(*, small: bool) -> AttributionResult:
    """Measure the attribution of power to pods."""
    return measure(SMALL if small else FULL, perf_counter, tell)
