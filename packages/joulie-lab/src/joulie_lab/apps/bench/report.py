"""How results are shown: tables for the terminal and for Markdown, figures, and pages of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from joulie_lab.benchmarks.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: above it on the terminal.
        columns: its heads.
        rows: a text for each column.
        labels: number of columns that name a row; the others are numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    labels: int = 1

    def __str__(self) -> str:
        """As Markdown."""
        rule = ["---"] * self.labels + ["---:"] * (len(self.columns) - self.labels)
        return "\n".join(_line(cells) for cells in (self.columns, rule, *self.rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Page(Generic[Result]):
    """A page of the documentation with the figures of a committed result.

    Attributes:
        result: what is read of ``benchmarks/results``.
        path: of the page, below ``docs``. With a template of the benchmark's name it is written as a whole; else a
            block of it is, between two marks.
        values: what the template shows beside the result, by name; of a page without one the ``block``.
        images: by their paths beside the page; None leaves one out.
    """

    result: type[Result]
    path: str
    values: Callable[[Result], Mapping[str, Any]]
    images: Mapping[str, Callable[[Result], Figure | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report(Generic[Result]):
    """How the result of one benchmark is shown.

    Attributes:
        tables: on the terminal.
        figure: of ``--plots``.
    """

    tables: Callable[[Result], Iterable[Table]]
    figure: Callable[[Result], Figure]
