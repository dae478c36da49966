"""``joulie bench native``."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time
from typing import TYPE_CHECKING

from joulie_lab.apps.bench.figures import bar_sets
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import benchmark, tell
from joulie_lab.benchmarks.native import (
    FULL,
    POLICY_NAMES,
    SIZES,
    SMALL,
    NativeResult,
    beside_plain,
    growth_of,
)
from joulie_lab.simulation.report.bars import Bars
from joulie_lab.simulation.report.png import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: NativeResult) -> Iterator[Table]:
    """CPU time of each run, absolute and relative to the smallest run."""
    yield Table(
        "CPU time of a run",
        ("", "nodes", "jobs", "CPU s", "µs an arrival or end", "times the first"),
        [
            (
                f"{scheduler}, {name.replace('_', ' ')}",
                f"{one.nodes:,}",
                f"{one.jobs:,}",
                f"{one.cpu_s:.1f}",
                f"{one.us_per_event:,.0f}",
                f"{result.growth[scheduler].get(name, 1.0):.2f}",
            )
            for scheduler, own in result.runs.items()
            for name, one in own.items()
        ],
    )

    yield Table(
        "Beside the plain formulas",
        ("policy", "arrivals and ends", "plain, µs", "compiled, µs", "times faster", "jobs that differ"),
        [
            (
                policy,
                f"{one.events:,}",
                f"{one.plain_us:,.0f}",
                f"{one.compiled_us:,.0f}",
                f"{one.times_faster:.1f}",
                f"{one.other_ends}",
            )
            for policy, one in result.beside_plain.items()
        ],
    )


def figure(result: NativeResult) -> Figure:
    """CPU time of an event by size."""
    bars = bar_sets({name: [one.us_per_event for one in own.values()] for name, own in result.runs.items()})
    sizes = tuple(name.replace("_", " ") for name in SIZES)
    chart = Bars("native", "CPU time per arrival or end of a job", sizes, "CPU time, µs", tuple(bars))
    return draw(chart, "fastest of the rounds")


REPORT = Report(tables, figure)


PAGE = Page(
    NativeResult,
    "concepts/native-runtime.md",
    lambda result: {"block": "\n\n".join(str(one) for one in tables(result))},
)


@benchmark("native", REPORT)
def native(*, small: bool) -> NativeResult:
    """Measure the native runtime."""
    plan = SMALL if small else FULL
    runs, growth = growth_of(plan, process_time, tell)
    beside = {}
    for policy in POLICY_NAMES:
        tell(f"{plan.beside.hours} h of {plan.beside.nodes} nodes both ways, {policy}")
        beside[policy] = beside_plain(plan.beside, policy, process_time)
    return NativeResult(runs, growth, beside)
