"""Presentation of results: tables for terminal and Markdown, figures, and documentation pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from joulie_lab.benchmarks.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Attributes:
        title: title on the terminal.
        columns: column headers.
        rows: rows with one text per column.
        labels: number of leading label columns; the others are numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    labels: int = 1

    def __str__(self) -> str:
        """The table as Markdown."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.columns) - self.labels)
        return "\n".join(_line(cells) for cells in (self.columns, rule, *self.rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Page(Generic[Result]):
    """A documentation page with the figures of a committed result.

    Attributes:
        result: type of the result in ``benchmarks/results``.
        path: path of the page below ``docs``. If there is a template with the benchmark's name, the whole page is
            written; otherwise only a block between two marks.
        values: further values of the template by name; for a page without a template, the ``block``.
        images: images by their paths relative to the page; None omits one.
    """

    result: type[Result]
    path: str
    values: Callable[[Result], Mapping[str, Any]]
    images: Mapping[str, Callable[[Result], Figure | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report(Generic[Result]):
    """Presentation of the result of one benchmark.

    Attributes:
        tables: tables for the terminal.
        figure: figure of ``--plots``.
    """

    tables: Callable[[Result], Iterable[Table]]
    figure: Callable[[Result], Figure]

    def tables_by_title(self, result: Result) -> dict[str, Any]:
        """The tables as values of a page's template."""
        return {"tables": {table.title: table for table in self.tables(result)}}
