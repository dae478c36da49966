"""Tables that fit the terminal: texts are shortened, then the least important columns hidden and named below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

_GAP = "  "
_ELLIPSIS = "…"
_UNLIMITED_WIDTH = 100_000


@dataclass(frozen=True)
class Heading:
    """Title and layout of a column.

    Attributes:
        title: header text.
        right: whether cells are right-aligned, as numbers are.
        rank: order of hiding: 0 is never hidden, the highest rank is hidden first.
        min_width: minimum width, in characters, of a column that may be shortened; 0 if it may not.
        truncate_end: whether texts are shortened at the end; else in the middle, where names differ least.
    """

    title: str
    right: bool = False
    rank: int = 0
    min_width: int = 0
    truncate_end: bool = False


@dataclass(frozen=True)
class Cell:
    """Text of a table cell and its style on a terminal."""

    text: str
    style: str = ""


def console() -> Console:
    """Console for the standard output; lines are not wrapped when it is a file or pipe."""
    on_terminal = Console(highlight=False)
    return on_terminal if on_terminal.is_terminal else Console(width=_UNLIMITED_WIDTH, highlight=False)


def table(headings: Sequence[Heading], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """Lines of a table.

    Args:
        headings: columns of the table.
        rows: cells of each row, one for each column.
        width: maximum number of characters of a line.

    Returns:
        The header, the rows, and a last line that names the hidden columns, if any.
    """
    natural = [
        max(len(heading.title), *(len(row[place].text) for row in rows)) if rows else len(heading.title)
        for place, heading in enumerate(headings)
    ]
    hidden: set[int] = set()
    widths = _fitted(headings, natural, hidden, width)
    for place in sorted((i for i, heading in enumerate(headings) if heading.rank), key=lambda i: -headings[i].rank):
        if widths is not None:
            break
        hidden.add(place)
        widths = _fitted(headings, natural, hidden, width)
    if widths is None:
        widths = natural  # too narrow in any case: the terminal wraps the lines
    shown = [place for place in range(len(headings)) if place not in hidden]
    header = [Cell(heading.title, "bold") for heading in headings]
    lines = [_line([(row[i], headings[i], widths[i]) for i in shown]) for row in (header, *rows)]
    if hidden:
        titles = ", ".join(heading.title for place, heading in enumerate(headings) if place in hidden)
        lines.append(Text(f"not shown in {width} columns: {titles}", style="dim"))
    return lines


def _fitted(headings: Sequence[Heading], natural: Sequence[int], hidden: set[int], width: int) -> list[int] | None:
    """Column widths with which the visible columns fit; None if they cannot fit."""
    shown = [place for place in range(len(headings)) if place not in hidden]
    widths = [
        min(natural[place], heading.min_width) if heading.min_width else natural[place]
        for place, heading in enumerate(headings)
    ]
    spare = width - sum(widths[place] for place in shown) - len(_GAP) * (len(shown) - 1)
    if spare < 0:
        return None
    for place in shown:
        more = min(spare, natural[place] - widths[place])
        widths[place] += more
        spare -= more
    return widths


def _line(cells: Sequence[tuple[Cell, Heading, int]]) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    for place, (cell, heading, width) in enumerate(cells):
        text = _shortened(cell.text, width, heading)
        text = text.rjust(width) if heading.right else text.ljust(width)
        line.append(_GAP if place else "")
        line.append(text, style=cell.style)
    line.rstrip()
    return line


def _shortened(text: str, width: int, heading: Heading) -> str:
    if len(text) <= width:
        return text
    if heading.truncate_end:
        return text[: width - 1] + _ELLIPSIS
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]
