"""``joulie bench profiles``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulie.output_files import output_file
from joulie.program.errors import UserError
from joulie_lab.apps.bench.figures import horizontal_bars, panels, title
from joulie_lab.apps.bench.report import Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.profiles import (
    CONTENDERS,
    FULL,
    SMALL,
    TRAINING,
    ProfilesResult,
    measure,
    module_of,
    trained,
)
from joulie_lab.simulation.report.bars import BarSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: ProfilesResult) -> Iterator[Table]:
    """Accuracy of levels, and cost of wrong levels, by contender."""
    yield Table(
        "Right, % / cost of a wrong level",
        ("workloads", "what", *(name.replace("_", " ") for name in CONTENDERS), "saved against the rules"),
        list(_rows(result)),
        labels=2,
    )


def _rows(result: ProfilesResult) -> Iterator[tuple[str, ...]]:
    for world, groups in result.worlds.items():
        for target, figures in groups["all"].items():
            found = (figures.of(name) for name in CONTENDERS)
            cells = ("" if one is None else f"{one.right_pct.mean:.1f} / {one.cost.mean:.3f}" for one in found)
            gain = figures.gain.cost
            yield world, target, *cells, f"{gain.mean:+.3f} ±{gain.half_width or 0.0:.3f}"


def figure(result: ProfilesResult) -> Figure:
    """Cost of wrong levels by contender, on workloads like those of training and on shifted ones."""
    drawn, all_axes = panels(len(result.worlds))
    for axes, (world, groups) in zip(all_axes, result.worlds.items(), strict=True):
        targets = groups["all"]
        bars = []
        for style, name in enumerate(CONTENDERS):
            found = [one.cost for figures in targets.values() if (one := figures.of(name)) is not None]
            if found:
                means, half_widths = tuple(one.mean for one in found), tuple(one.half_width for one in found)
                bars.append(BarSet(name.replace("_", " "), means, half_widths, style))
        names = [target.replace("-", " ") for target in targets]
        horizontal_bars(axes, names if axes is all_axes[0] else [""] * len(names), bars)
        title(axes, f"Cost of wrong levels, {world} workloads")
    all_axes[0].legend(frameon=False, fontsize="small")
    return drawn


REPORT = Report(tables, figure)


@benchmark("profiles", REPORT)
@click.option("--train", "trees_file", type=PATH, help="Write the trained trees as a Python module for the classifier.")
def profiles(*, small: bool, trees_file: Path | None) -> ProfilesResult:
    """Measure the classifier's rules and trees on simulated workloads."""
    if small:
        if trees_file is not None:
            raise UserError("--train needs all workloads: omit --small")
        return measure(SMALL, None, tell)
    try:
        found = trained(TRAINING, tell)
    except ImportError as error:
        raise UserError(f"training needs the extra `learn`: {error}") from error
    if trees_file is not None:
        with output_file(trees_file) as part:
            part.write_text(module_of(found.trees), encoding="utf-8")
    return measure(FULL, found, tell)
