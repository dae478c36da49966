"""Table output of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 200
"""Width of text written to a file or a pipe, characters."""
_UNLIMITED_WIDTH = 100_000
Cells = Sequence[str]


def console() -> Console:
    """Console for the standard output, of a fixed width if that is a file or a pipe."""
    from rich.console import Console

    on_terminal = Console()
    return on_terminal if on_terminal.is_terminal else Console(width=_PIPE_WIDTH)


def print_whole(table: Table) -> None:
    """Print a table with all its text: on a terminal too narrow for it, the lines wrap."""
    from rich.console import Console

    needed = Console(width=_UNLIMITED_WIDTH).measure(table).maximum
    Console(width=max(needed, Console().width)).print(table)


def print_table(title: str, columns: Cells, rows: Iterable[Cells]) -> None:
    """Print a table with a title, headings and rows of text."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_edge=False)
    for index, label in enumerate(columns):
        table.add_column(label, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        # Names come from users' files and must not be parsed as rich markup.
        table.add_row(*map(Text, row))
    print_whole(table)
    console().print()
