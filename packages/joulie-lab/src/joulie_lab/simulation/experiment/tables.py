"""Results of experiments as table rows, shared by terminal, report and documentation."""

from __future__ import annotations

from collections.abc import Sequence

from joulie_lab.simulation.experiment.compare import (
    COLUMNS,
    EQUAL_WORK_PCT,
    PER_WORK,
    Comparison,
    VariantResult,
    format_estimate,
)
from joulie_lab.simulation.experiment.fidelity import Fidelity, Row

Cells = tuple[str, ...]


def title(name: str, results: Sequence[VariantResult]) -> str:
    """Title of the table of variants under one physics."""
    seeds = results[0].seeds
    spread = " ± 95 % confidence interval" if seeds > 1 else ""
    return f"{name}, {results[0].physics}: mean of {_seeds(seeds)}{spread}"


def unequal_work(results: Sequence[VariantResult]) -> list[str]:
    """A sentence for each variant that did not do the same work as the first one."""
    return [
        f"{result.variant} did up to {result.work_pct:.1f} % more or less work than {results[0].variant}"
        f" (more than {EQUAL_WORK_PCT:g} %): only energy per unit of work is compared."
        for result in results
        if result.work_pct is not None and not result.equal_work
    ]


def figure_rows(results: Sequence[VariantResult]) -> list[Cells]:
    """Rows with each figure of each variant, and the saving against the first variant."""
    rows = []
    for column in COLUMNS:
        if all(result.values[column.key] is None for result in results):
            continue
        rows.append((column.label, *(format_estimate(result.values[column.key], column.digits) for result in results)))
        if column.saved and results[0].work_pct is not None:
            cells = (
                "" if result is results[0] else format_estimate(result.saved_pct[column.key], 2, "+")
                for result in results
            )
            rows.append(("  saved, %", *cells))
    return rows


def side_by_side_columns(comparison: Comparison) -> Cells:
    """Header with each physics and its number of seeds."""
    seeds = {result.physics: result.seeds for result in comparison.results}
    return ("", *(f"{physics} ({_seeds(seeds[physics])})" for physics in comparison.physics))


def side_by_side_rows(comparison: Comparison) -> list[Cells]:
    """Savings: one row for each variant, one column for each physics."""
    saved = {(result.variant, result.physics): result.saved_pct[PER_WORK] for result in comparison.results}
    names = dict.fromkeys(result.variant for result in comparison.results)
    return [
        (name, *(format_estimate(saved.get((name, physics)), 2, "+") for physics in comparison.physics))
        for name in names
        if name != comparison.baseline
    ]


PART_COLUMNS: Cells = ("", "physics", "seeds", "saved", "by placement", "by caps", "if only managed nodes slept")


def part_rows(comparison: Comparison) -> list[Cells]:
    """Rows with the parts of each saving: placement, caps, and the assumption about idle nodes."""
    return [
        (
            part.variant,
            str(part.physics),
            f"{part.seeds}",
            *(format_estimate(value, 2, "+") for value in (part.total, part.placement, part.caps, part.idle)),
        )
        for part in comparison.parts
    ]


FIDELITY_COLUMNS = ("", "energy, %", "work, %", "r of nodes", "in family", "node, %", "power, %", "P95 start, s", "")


def fidelity_row(name: str, value: Fidelity) -> Cells:
    """Row with the fidelity of one pair of runs."""
    return (
        name,
        f"{value.energy_pct:+.2f}",
        f"{value.work_pct:.2f}",
        _number(value.node_correlation, 4),
        _number(value.node_correlation_in_family, 3),
        f"{value.node_error_pct:.2f}",
        f"{value.power_error_pct:.2f}",
        _number(value.starts.p95_abs_s, 1),
        "holds" if value.holds else "missed",
    )


EXPLANATION_COLUMNS: Cells = ("", "first", "second", "difference, %")


def explanation_rows(value: Fidelity) -> list[Cells]:
    """Rows with each figure of a pair of runs and its difference."""
    return [_explained(row) for row in (*value.explanation, *value.families)]


def _seeds(count: int) -> str:
    return f"{count} {'seed' if count == 1 else 'seeds'}"


def _explained(row: Row) -> Cells:
    return (row.what, f"{row.native:,.2f}", f"{row.other:,.2f}", _number(row.difference_pct, 2, "+"))


def _number(value: float | None, digits: int, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign},.{digits}f}"
