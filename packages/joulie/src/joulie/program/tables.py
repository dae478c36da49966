"""Tables of commands on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PIPE_WIDTH = 180
"""Columns of a table that goes to a file or a pipe."""
Cells = Sequence[str]


def print_table(title: str, columns: Cells, rows: Iterable[Cells]) -> None:
    """A table; what goes to a file or a pipe is wide enough for all of its columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPE_WIDTH)
    table = Table(title=title, title_justify="left", show_edge=False)
    for index, label in enumerate(columns):
        table.add_column(label, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        # Names come from users' files: what looks like markup in them is none.
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
