"""Table columns over typed rows: cell text, sort key, and formatting of numbers, ages and power."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.text import Text

from joulie.apps.kubectl.table import Cell, Heading, table

R = TypeVar("R")
_KILO = 1000.0


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table.

    Attributes:
        heading: title and layout.
        text: returns the cell text of a row.
        key: returns the sort key of a row.
        wide: whether the column is shown with ``-o wide`` only.
        descending: default order of ``--sort-by``, which puts the most notable rows first.
        style: returns the terminal style of a row's cell.
    """

    heading: Heading
    text: Callable[[R], str]
    key: Callable[[R], Any]
    wide: bool = False
    descending: bool = False
    style: Callable[[R], str] = lambda _row: ""


def number_column(
    title: str,
    value: Callable[[R], float | None],
    number_format: str = "{:.0f}",
    *,
    rank: int = 0,
    wide: bool = False,
    descending: bool = True,
) -> Column[R]:
    """Column of numbers; rows without a value come last in the default order."""

    def key(row: R) -> float:
        found = value(row)
        if found is None:
            return -math.inf if descending else math.inf
        return found

    heading = Heading(title, right=True, rank=rank)
    return Column(heading, lambda row: format_number(value(row), number_format), key, wide=wide, descending=descending)


def text_column(
    title: str,
    value: Callable[[R], str | None],
    *,
    rank: int = 0,
    min_width: int = 0,
    truncate_end: bool = False,
    wide: bool = False,
) -> Column[R]:
    """Column of text; rows without a value come last."""
    heading = Heading(title, rank=rank, min_width=min_width, truncate_end=truncate_end)
    return Column(heading, lambda row: value(row) or "-", lambda row: (value(row) is None, value(row) or ""), wide=wide)


def age_column(title: str, value: Callable[[R], float | None], *, rank: int = 0) -> Column[R]:
    """Column of ages in s; oldest first."""
    return replace(number_column(title, value, rank=rank), text=lambda row: format_age(value(row)))


def sorted_rows(rows: Iterable[R], column: Column[R], *, reverse: bool = False) -> list[R]:
    """Rows sorted by a column in its default order, or reversed; the sort is stable."""
    return sorted(rows, key=column.key, reverse=column.descending != reverse)


def table_lines(columns: Mapping[str, Column[R]], rows: Sequence[R], width: int, *, wide: bool) -> list[Text]:
    """Lines of a table of rows; with `wide` all columns are shown."""
    shown = [column for column in columns.values() if wide or not column.wide]
    # -o wide never hides columns; lines may wrap instead.
    headings = [replace(column.heading, rank=0) if wide else column.heading for column in shown]
    cells = [[Cell(column.text(row), column.style(row)) for column in shown] for row in rows]
    return table(headings, cells, width)


def format_number(value: float | None, number_format: str = "{:.0f}") -> str:
    """A formatted number; "-" for None."""
    return "-" if value is None else number_format.format(value)


def format_age(seconds: float | None) -> str:
    """A duration in days, hours, minutes or seconds; "-" for None."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0.0):.0f}s"


def format_power(power_w: float) -> str:
    """A power in W or kW."""
    return f"{power_w:.0f} W" if power_w < _KILO else f"{power_w / _KILO:.1f} kW"


def format_count(amount: int, thing: str) -> str:
    """A number with its noun in singular or plural: ``1 node``, ``2 nodes``."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"
