"""Columns of any rows: what a cell says, what rows are sorted by, and numbers as people read them."""

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
        heading: how it is laid out.
        text: cell of a row.
        key: what rows are sorted by.
        wide: shown with ``-o wide`` only.
        descending: order of ``--sort-by``: what deserves attention comes first.
        style: of a cell on a terminal.
    """

    heading: Heading
    text: Callable[[R], str]
    key: Callable[[R], Any]
    wide: bool = False
    descending: bool = False
    style: Callable[[R], str] = lambda _row: ""


def measured(
    title: str,
    value: Callable[[R], float | None],
    form: str = "{:.0f}",
    *,
    rank: int = 0,
    wide: bool = False,
    descending: bool = True,
) -> Column[R]:
    """A column of numbers; rows without one come last, whichever way it is sorted."""

    def key(row: R) -> float:
        found = value(row)
        if found is None:
            return -math.inf if descending else math.inf
        return found

    heading = Heading(title, right=True, rank=rank)
    return Column(heading, lambda row: number(value(row), form), key, wide=wide, descending=descending)


def named(
    title: str,
    value: Callable[[R], str | None],
    *,
    rank: int = 0,
    least: int = 0,
    ends: bool = False,
    wide: bool = False,
) -> Column[R]:
    """A column of words; rows without one come last."""
    heading = Heading(title, rank=rank, least=least, ends=ends)
    return Column(heading, lambda row: value(row) or "-", lambda row: (value(row) is None, value(row) or ""), wide=wide)


def aged(title: str, value: Callable[[R], float | None], *, rank: int = 0) -> Column[R]:
    """A column of ages, s; the oldest first."""
    return replace(measured(title, value, rank=rank), text=lambda row: age(value(row)))


def sorted_rows(rows: Iterable[R], column: Column[R], *, reverse: bool = False) -> list[R]:
    """Rows in the order of a column: what matters most comes first. Equals stay as they are."""
    return sorted(rows, key=column.key, reverse=column.descending != reverse)


def laid_out(columns: Mapping[str, Column[R]], rows: Sequence[R], width: int, *, wide: bool) -> list[Text]:
    """Lines of a table."""
    shown = [column for column in columns.values() if wide or not column.wide]
    # Who asks for everything gets it, if need be over several lines.
    headings = [replace(column.heading, rank=0) if wide else column.heading for column in shown]
    cells = [[Cell(column.text(row), column.style(row)) for column in shown] for row in rows]
    return table(headings, cells, width)


def number(value: float | None, form: str = "{:.0f}") -> str:
    """A number, or a dash where it is not known."""
    return "-" if value is None else form.format(value)


def age(seconds: float | None) -> str:
    """A time span in the unit that suits it."""
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0.0):.0f}s"


def watts(power_w: float) -> str:
    """A power in the unit that suits it."""
    return f"{power_w:.0f} W" if power_w < _KILO else f"{power_w / _KILO:.1f} kW"


def count(amount: int, thing: str) -> str:
    """So many of a thing."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"
