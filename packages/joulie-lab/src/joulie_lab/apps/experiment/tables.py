"""Prints the results of experiments as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import click

from joulie.program.tables import print_table
from joulie_lab.simulation.experiment.compare import Comparison
from joulie_lab.simulation.experiment.fidelity import ENERGY_TARGET_PCT, WORK_TARGET_PCT, Fidelity
from joulie_lab.simulation.experiment.plan import RunKey
from joulie_lab.simulation.experiment.tables import (
    EXPLANATION_COLUMNS,
    FIDELITY_COLUMNS,
    PART_COLUMNS,
    explanation_rows,
    fidelity_row,
    figure_rows,
    part_rows,
    side_by_side_columns,
    side_by_side_rows,
    title,
    unequal_work,
)


def print_comparison(name: str, comparison: Comparison) -> None:
    """Print one table for each physics (figures in rows, variants in columns), then the savings and their parts."""
    for physics in comparison.physics:
        results = comparison.under(physics)
        print_table(title(name, results), ("", *(result.variant for result in results)), figure_rows(results))
        for sentence in unequal_work(results):
            click.echo(f"{sentence}\n")
    for sentence in comparison.left_out:
        click.echo(f"{sentence}\n")
    if not comparison.parts:
        return
    print_table(
        f"IT energy per work saved against {comparison.baseline}, %",
        side_by_side_columns(comparison),
        side_by_side_rows(comparison),
    )
    print_table("Where it comes from, points", PART_COLUMNS, part_rows(comparison))


def print_fidelity(found: Mapping[RunKey, Fidelity]) -> None:
    """Print one row for each pair of runs, then the differences within each pair."""
    print_table(
        f"The second against the first; targets: energy {ENERGY_TARGET_PCT:g} %, work {WORK_TARGET_PCT:g} %",
        FIDELITY_COLUMNS,
        [fidelity_row(key.folder, value) for key, value in found.items()],
    )
    for key, value in found.items():
        print_table(f"{key}: what differs", EXPLANATION_COLUMNS, explanation_rows(value))
