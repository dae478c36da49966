"""``joulie bench power-estimate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulie.domain.power_estimate import GPU_BUSY_LOW
from joulie_lab.adapters.published.specpower import MOST_CHIPS, SINCE_YEAR, read_systems, synthetic_table
from joulie_lab.apps.bench.data import published_systems
from joulie_lab.apps.bench.figures import legend_below, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.power_estimate import (
    FIRST_LATER_YEAR,
    GROUPED_SPLITS,
    LEAST_SHOWN,
    MARGIN,
    SPLITS,
    measure,
)
from joulie_lab.benchmarks.power_estimate_result import ExampleServer, PowerEstimateResult
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = TypeVar("Value")
_MARKS = {"vendor": ("o", "a vendor left out"), "year": ("s", "a year"), "later_year": ("^", "all later years")}


def tables(result: PowerEstimateResult) -> Iterator[Table]:
    """Coverage of the intervals, and the calibrated factors."""
    yield _coverage(result)
    yield _calibration(result)


def _coverage(result: PowerEstimateResult) -> Table:
    rows = []
    for way, by_basis in result.held_out.items():
        for what, by_split in _ends(by_basis):
            worst = min((by_split[name] for name in GROUPED_SPLITS), key=lambda entry: entry.worst)
            covered = (f"{100.0 * entry.covered:.1f}" for entry in by_split.values())
            rows.append((what, way, *covered, f"{100.0 * worst.worst:.0f} ({worst.worst_is})"))
    columns = ("", "calibrated", *(name.replace("_", " ") for name in SPLITS), "worst")
    return Table("Servers within the interval, %, and the worst group", columns, rows, labels=2)


def _calibration(result: PowerEstimateResult) -> Table:
    return Table(
        "Calibrated factors, and the median error of the expected power",
        ("", "W", "size to the power", "low", "high", "error, %"),
        [
            (
                f"by {basis}, {load}",
                f"{end.scale_w:.3f}",
                f"{end.exponent:.3f}",
                f"{end.low:.3f}",
                f"{end.high:.2f}",
                f"{result.errors[load][basis]:.1f}",
            )
            for basis, by_load in result.calibrated.items()
            for load, end in by_load.items()
        ],
    )


def _ends(by_basis: Mapping[str, Mapping[str, Value]]) -> Iterator[tuple[str, Value]]:
    for basis, by_load in by_basis.items():
        for load, found in by_load.items():
            yield f"by {basis}, {load}", found


def figure(result: PowerEstimateResult) -> Figure:
    """Coverage of held-out vendors and years, and the intervals of one server."""
    drawn, (coverage, example) = panels(2)
    ends = [what for what, _ in _ends(result.held_out["groups"])]
    for way, color, shift in (("plain", PALETTE[1], -0.14), ("groups", PALETTE[2], 0.14)):
        for name, (marker, label) in _MARKS.items():
            covered = [100.0 * by_split[name].covered for _, by_split in _ends(result.held_out[way])]
            places = [row + shift for row in range(len(ends))]
            coverage.plot(covered, places, marker, color=color, label=f"{way}: {label}")
    coverage.axvline(100.0 * result.coverage, color="black", linewidth=1.0)
    coverage.set_yticks(range(len(ends)), ends)
    coverage.invert_yaxis()
    coverage.grid(visible=False, axis="y")
    title(coverage, "Servers within the interval, %")
    legend_below(coverage, 2)
    _draw_example(example, result.example)
    return drawn


def _draw_example(axes: Axes, example: ExampleServer) -> None:
    load_pct = [100.0 * load for load in example.loads]
    for (basis, range_w), color in zip(reversed(list(example.ranges_w.items())), PALETTE, strict=False):
        axes.fill_between(load_pct, range_w.low, range_w.high, color=color, alpha=0.18, linewidth=0.0)
        axes.plot(load_pct, range_w.expected, color=color, label=f"by {basis}")
    axes.plot(load_pct, example.measured_w, "o", color="black", label="measured")
    axes.set(xlabel="CPU utilization, %", ylabel="power at the plug, W", xlim=(0.0, 100.0))
    axes.set_ylim(bottom=0.0)
    title(axes, example.name)
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def _page(result: PowerEstimateResult) -> dict[str, Any]:
    groups = [(what, by_split) for what, by_split in _ends(result.held_out["groups"])]
    lowest, worst = min(_ends(result.held_out["plain"]), key=lambda end: end[1]["later_year"].covered)
    errors = [result.errors[load][basis] for basis, by_load in result.calibrated.items() for load in by_load]
    spans = [end.high / end.low for _, end in _ends(result.calibrated)]
    years = sorted({year for _, by_split in groups for year in by_split["later_year"].of_splits})
    return {
        "FIRST_LATER_YEAR": FIRST_LATER_YEAR,
        "GPU_BUSY_LOW": GPU_BUSY_LOW,
        "LEAST_SHOWN": LEAST_SHOWN,
        "MARGIN": MARGIN,
        "MOST_CHIPS": MOST_CHIPS,
        "SINCE_YEAR": SINCE_YEAR,
        "corrected": "; ".join(f"{count} x {reason}" for reason, count in result.data.corrected.items()),
        "errors": errors,
        "spans": spans,
        "left_out_alone": min(by_split[name].worst for _, by_split in groups for name in ("vendor", "year")),
        "later": min(by_split["later_year"].covered for _, by_split in groups),
        "lowest": lowest,
        "lowest_covered": worst["later_year"].covered,
        "coverage": _coverage(result),
        "calibration": _calibration(result),
        "left_out": Table("", ("", "rows"), [(reason, str(n)) for reason, n in result.data.left_out.items()]),
        "worst": Table(
            "",
            ("", "worst vendor", "", "worst year", "", "worst year, by years before", ""),
            [
                (
                    what,
                    *(
                        cell
                        for name in GROUPED_SPLITS
                        for cell in (by_split[name].worst_is, _pct(by_split[name].worst))
                    ),
                )
                for what, by_split in groups
            ],
        ),
        "years": Table(
            "",
            ("", *years),
            [
                (what, *(f"{100.0 * shares[year]:.0f}" if year in shares else "" for year in years))
                for what, by_split in groups
                for shares in (by_split["later_year"].of_splits,)
            ],
        ),
        "median_errors": Table(
            "",
            ("", *(rule.replace("_", " ") for rule in result.errors["full"])),
            [(load, *(f"{error:.1f}" for error in by_rule.values())) for load, by_rule in result.errors.items()],
        ),
    }


def _pct(share: float) -> str:
    return f"{100.0 * share:.0f} %"


REPORT = Report(tables, figure)
PAGE = Page(PowerEstimateResult, "experiments/power-estimate.md", _page, {"img/power-estimate.png": figure})


@benchmark("power-estimate", REPORT)
@click.option("--data", type=PATH, help="Copy of the published results; --small uses a synthetic sample.")
def power_estimate(*, small: bool, data: Path | None) -> PowerEstimateResult:
    """Measure the intervals of power estimates on published SPECpower results."""
    return measure(read_systems(synthetic_table(seed=1)) if small else published_systems(data), tell)
