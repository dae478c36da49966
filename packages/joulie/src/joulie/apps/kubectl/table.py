"""Tables that fit a terminal: what matters least is hidden first, and what is hidden is said."""

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
    """A column as it is laid out.

    Attributes:
        title: header.
        right: numbers stand on the right.
        rank: 0 is never hidden; of the others the highest goes first.
        least: narrowest width of a column that may be shortened; 0 for one that may not.
        ends: shortened at its end instead of in the middle, where names differ least.
    """

    title: str
    right: bool = False
    rank: int = 0
    least: int = 0
    ends: bool = False


@dataclass(frozen=True)
class Cell:
    """Text and its style on a terminal."""

    text: str
    style: str = ""


def console() -> Console:
    """A console that never breaks the lines of what goes into a file or pipe."""
    on_terminal = Console(highlight=False)
    return on_terminal if on_terminal.is_terminal else Console(width=_UNLIMITED_WIDTH, highlight=False)


def table(headings: Sequence[Heading], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """Lines of a table.

    Args:
        headings: the columns.
        rows: a cell for each column.
        width: characters that a line may have.

    Returns:
        The header, the rows, and a last line where columns had to be hidden.
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
        widths = natural  # the terminal breaks the lines
    shown = [place for place in range(len(headings)) if place not in hidden]
    header = [Cell(heading.title, "bold") for heading in headings]
    lines = [_line([(row[i], headings[i], widths[i]) for i in shown]) for row in (header, *rows)]
    if hidden:
        titles = ", ".join(heading.title for place, heading in enumerate(headings) if place in hidden)
        lines.append(Text(f"not shown in {width} columns: {titles}", style="dim"))
    return lines


def _fitted(headings: Sequence[Heading], natural: Sequence[int], hidden: set[int], width: int) -> list[int] | None:
    """Widths with which the columns that are not hidden fit, None where they cannot."""
    shown = [place for place in range(len(headings)) if place not in hidden]
    widths = [
        min(natural[place], heading.least) if heading.least else natural[place]
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
    if heading.ends:
        return text[: width - 1] + _ELLIPSIS
    tail = (width - 1) // 2
    return text[: width - 1 - tail] + _ELLIPSIS + text[len(text) - tail :]
