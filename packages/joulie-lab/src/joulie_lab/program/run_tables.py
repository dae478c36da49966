"""Prints runs as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from joulie_lab.simulation.report.metrics import Row, comparison

if TYPE_CHECKING:
    from rich.console import Console

    from joulie_lab.simulation.results import RunRecord

_MARGIN = 4
_LABEL_WIDTH = 30


def print_runs(console: Console, records: Sequence[RunRecord]) -> None:
    """Print runs as tables: one row for each metric, one column for each scheduler, differences to the first in %."""
    from rich.table import Table

    from joulie.program.tables import print_whole

    for seed, group in groupby(records, key=lambda record: record.seed):
        runs = list(group)
        rows = comparison(runs)
        columns = [_column(run.scheduler, rows, index) for index, run in enumerate(runs)]
        widest = max(len(text) for column in columns for text in column)
        fitting = max(1, (console.width - _LABEL_WIDTH) // (widest + _MARGIN))
        for first in range(0, len(runs), fitting):
            table = Table(title=f"{runs[0].scenario}, seed {seed}", title_justify="left", show_edge=False)
            table.add_column("")
            for column in columns[first : first + fitting]:
                table.add_column(column[0], justify="right", no_wrap=True)
            for index, row in enumerate(rows, start=1):
                table.add_row(row.label, *(column[index] for column in columns[first : first + fitting]))
            print_whole(table)
            console.print()


def _column(scheduler: str, rows: Sequence[Row], index: int) -> list[str]:
    """Header and cells of one run."""
    texts = [f"{row.cells[index]} ({row.changes[index]})" if row.changes[index] else row.cells[index] for row in rows]
    return [scheduler, *texts]
