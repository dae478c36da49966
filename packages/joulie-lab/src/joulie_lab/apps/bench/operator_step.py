"""``joulie bench operator-step``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks.operator_step import SIZES, OperatorStepResult, measure
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALL = (200,)


def tables(result: OperatorStepResult) -> Iterator[Table]:
    """CPU time of steps, and memory."""
    yield Table(
        "Step of the operator",
        (
            "nodes, pods, step",
            "snapshot to decision, ms",
            "comparison with what is stored, ms",
            "both, ms",
            "news of what was written, ms",
            f"decision about {result.budgets} budgets, ms",
            "resident memory, MB",
        ),
        [
            (
                f"{one.nodes:,}, {one.pods:,}, {name}",
                f"{step.decide_ms:.0f}",
                f"{step.compare_ms:.0f}",
                f"{step.step_ms:.0f}",
                *(
                    ("–", "–", "–")
                    if name == "calm"
                    else (f"{one.watch_ms:.0f}", f"{one.budgets_ms:.0f}", f"{one.resident_mb:.0f}")
                ),
            )
            for one in result.sizes.values()
            for name, step in (("calm", one.calm), ("busy", one.busy))
        ],
    )


def figure(result: OperatorStepResult) -> Figure:
    """Steps by size."""
    sizes = tuple(f"{one.nodes:,} nodes" for one in result.sizes.values())
    bars = bar_sets(
        {
            "calm": [one.calm.step_ms for one in result.sizes.values()],
            "busy": [one.busy.step_ms for one in result.sizes.values()],
        }
    )
    return draw(
        Bars("operator-step", "CPU time of a step of the operator", sizes, "CPU time, ms", tuple(bars)), "medians"
    )


REPORT = Report(tables, figure)
PAGE = Page(
    OperatorStepResult,
    "design/0009-operator-step.md",
    lambda result: {"block": "\n\n".join(str(one) for one in tables(result))},
)


@benchmark("operator-step", REPORT)
@click.option("--pods-per-node", type=click.IntRange(min=1), default=10, show_default=True, help="Pods on each node.")
@click.option("--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Calm and busy steps each.")
def operator_step(*, small: bool, pods_per_node: int, steps: int) -> OperatorStepResult:
    """Measure steps of the operator on a fake cluster."""
    return measure(_SMALL if small else SIZES, pods_per_node, steps, tell)
