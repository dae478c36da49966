"""The report of a sweep as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from joulie import __version__
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.sweep import (
    HONEST_COLUMNS,
    PUBLISHED_COLUMNS,
    Column,
    Estimate,
    Variant,
    compare,
    format_estimate,
    samples,
)

_TICK_APART = 20.0
"""Least distance of two values of an axis, percent of its width."""
_WORK = next(column for column in HONEST_COLUMNS if column.key == "kwh_per_useful_kwh")


class Row(NamedTuple):
    """A variant in a chart; positions are percent of the chart's width."""

    label: str
    text: str
    low: float
    mean: float
    high: float
    seeds: tuple[float, ...]


class Chart(NamedTuple):
    """Chart of a metric of all variants: seeds as dots, the mean as a bar, its confidence interval as a line."""

    title: str
    zero: float
    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    """Positions of the ends of the axis and of zero, and their values."""


def render_sweep(scenario: Scenario, records: Sequence[RunRecord]) -> str:
    """Render the report of a complete sweep; the scenario's first scheduler is the baseline.

    Returns:
        Self-contained HTML.
    """
    baseline = scenario.schedulers[0]
    variants = compare(records, baseline)
    environment = Environment(
        loader=PackageLoader("joulie_lab.simulation", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    columns = [
        column
        for column in (*PUBLISHED_COLUMNS, *HONEST_COLUMNS)
        if any(variant.columns[column.key] for variant in variants)
    ]
    return environment.get_template("sweep.html").render(
        scenario=scenario,
        version=__version__,
        baseline=baseline,
        verdict=verdict(variants, baseline),
        columns=columns,
        rows=[
            (
                variant.label,
                [format_estimate(column, variant.columns[column.key]) for column in columns],
                f"{variant.energy_wins}/{variant.seeds}",
            )
            for variant in variants
        ],
        charts=[_chart(column, variants, records, baseline) for column in columns],
        different_work=scenario.mode == "drop",
    )


def _chart(column: Column, variants: Sequence[Variant], records: Sequence[RunRecord], baseline: str) -> Chart:
    shown = [(variant, value) for variant in variants if (value := variant.columns[column.key]) is not None]
    by_seed = {variant.scheduler: samples(column, records, variant.scheduler, baseline) for variant, _ in shown}
    ends = [end for _, value in shown for end in _interval(value)]
    values = [0.0, *ends, *(sample for seeds in by_seed.values() for sample in seeds)]
    low, width = min(values), max(values) - min(values) or 1.0

    def place(value: float) -> float:
        return 2.0 + 96.0 * (value - low) / width

    rows = tuple(
        Row(
            variant.label,
            " ".join(format_estimate(column, value)).rstrip(),
            place(_interval(value)[0]),
            place(value.mean),
            place(_interval(value)[1]),
            tuple(map(place, by_seed[variant.scheduler])),
        )
        for variant, value in shown
    )
    marks = sorted({low, 0.0, low + width}, key=abs)
    # Ends near zero would be written over it.
    kept = [mark for index, mark in enumerate(marks) if index == 0 or abs(place(mark) - place(0.0)) > _TICK_APART]
    ticks = tuple((place(mark), format_estimate(column, Estimate(mark, None))[0]) for mark in kept)
    return Chart(column.label, place(0.0), rows, ticks)


def verdict(variants: Sequence[Variant], baseline: str) -> str:
    """What came out, in a sentence: the variant with the least energy per useful work beside the baseline."""
    found = [(value, one) for one in variants if (value := one.columns[_WORK.key]) is not None]
    if not found:
        return f"Nothing to compare with {baseline}."
    value, best = min(found, key=lambda pair: pair[0].mean)
    said = " ".join(format_estimate(_WORK, value)).rstrip()
    shown = value.mean + (value.half_width or 0.0) < 0.0
    doubt = "" if shown else ": no scheduler is shown to use less"
    return f"{best.label} has the least energy per useful work: {said} beside {baseline}, {best.seeds} seeds{doubt}."


def _interval(value: Estimate) -> tuple[float, float]:
    half_width = value.half_width or 0.0
    return value.mean - half_width, value.mean + half_width
