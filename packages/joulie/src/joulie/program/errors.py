"""Errors of the command line."""

from __future__ import annotations

from typing import IO, Any

import click


class UserError(click.ClickException):
    """An error that the user can correct: one line per problem on stderr, exit status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error as ``joulie: error: ...``."""
        for line in self.format_message().splitlines():
            click.echo(f"joulie: error: {line}", file=file, err=file is None)
