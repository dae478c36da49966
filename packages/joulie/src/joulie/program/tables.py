"""Table output of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PIPE_WIDTH = 180
"""Width of a table written to a file or a pipe, characters."""
Cells = Sequence[str]


def print_table(title: str, columns: Cells, rows: Iterable[Cells]) -> None:
    """Print a table; if the output is a file or a pipe, it is not fitted to the width of a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console = console if console.is_terminal else Console(width=_PIPE_WIDTH)
    table = Table(title=title, title_justify="left", show_edge=False)
    for index, label in enumerate(columns):
        table.add_column(label, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        # Names come from users' files and must not be parsed as rich markup.
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
