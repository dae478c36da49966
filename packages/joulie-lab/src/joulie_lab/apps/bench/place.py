"""``joulie bench place``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.adapters.published.intensity import synthetic_zones
from joulie_lab.apps.bench.data import published_zones
from joulie_lab.apps.bench.figures import bar_sets, horizontal_bars, legend_below, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.place import (
    BEST,
    BOTH,
    FULL,
    OPPOSITE_H,
    PLACE,
    RULES,
    RUN_KWH,
    RUNTIME_H,
    SLACK_H,
    SMALL,
    TIME,
    WH_PER_GB,
    PlaceResult,
    measure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ZONES = ("CISO-2022", "DE")
"""Published years of the full benchmark: one rich in solar power, one in wind power."""


def tables(result: PlaceResult) -> Iterator[Table]:
    """Emissions, savings, waits and moves by zone, data and rule."""
    yield Table(
        "A zone and its opposite",
        ("zone", "data", "rule", "gCO2eq/kWh", "saved, %", "of the best", "mean wait, h", "moved", "late"),
        [
            (
                zone,
                data,
                rule,
                found.g_per_kwh.text(1),
                found.saved_pct.text(1),
                f"{found.share.text(1, 100.0)} %",
                f"{found.wait_h:.1f}",
                f"{found.moved:.0%}",
                str(found.late),
            )
            for zone, cases in result.zones.items()
            for data, rules in cases.items()
            for rule, found in rules.items()
        ],
        labels=3,
    )


def figure(result: PlaceResult) -> Figure:
    """Savings by rule, a panel for each zone."""
    drawn, axes = panels(len(result.zones))
    for panel, (zone, cases) in zip(axes, result.zones.items(), strict=True):
        saved = {rule: [cases[data][rule].saved_pct.mean for data in cases] for rule in (*RULES, BEST)}
        horizontal_bars(panel, list(cases), bar_sets(saved))
        title(panel, f"Saved, %: {zone} and the same {OPPOSITE_H} h later")
        legend_below(panel, 2)
    return drawn


def _page(result: PlaceResult) -> dict[str, Any]:
    (table,) = tables(result)
    return {
        "table": table,
        "free": {zone: next(iter(cases.values())) for zone, cases in result.zones.items()},
        "BOTH": BOTH,
        "TIME": TIME,
        "PLACE": PLACE,
        "BEST": BEST,
        "OPPOSITE_H": OPPOSITE_H,
        "RUNTIME_H": RUNTIME_H,
        "SLACK_H": SLACK_H,
        "RUN_KWH": RUN_KWH,
        "WH_PER_GB": WH_PER_GB,
        "jobs": result.arrivals * len(result.seeds),
    }


REPORT = Report(tables, figure)
PAGE = Page(PlaceResult, "experiments/place.md", _page, {"img/place.png": figure})


@benchmark("place", REPORT)
@click.option("--data", type=PATH, help="Folder with published carbon intensities; --small uses a synthetic zone.")
def place(*, small: bool, data: Path | None) -> PlaceResult:
    """Measure waiting, moving, and both by one decision, against the best possible."""
    zones = synthetic_zones(seed=1) if small else published_zones(data)
    chosen = ("sunny",) if small else _ZONES
    return measure({name: zones[name] for name in chosen}, SMALL if small else FULL, tell)
