"""Runs a command line: every mistake of its user ends in one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

_INTERRUPTED = 130
_FAILED = 1
_MAX_LINE = 800
"""Longest line of an error, characters."""


def run_command_line(  # noqa: PLR0911 - a return for each way to end
    command: click.Command, name: str, arguments: list[str] | None, *, error_prefix: str
) -> int:
    """Run a command and return the exit code.

    Exit codes: 2 for wrong usage, 1 for files, streams and networks that fail, 130 when interrupted, else that of the
    command. A reader of standard output that closes the pipe is no error.

    Args:
        command: the root command.
        name: its name, as the user typed it.
        arguments: words after the name; None for those of the process.
        error_prefix: text before each line of an error.
    """

    def tell(message: str) -> None:
        for line in message.splitlines():
            click.echo(f"{error_prefix}{_shortened(line)}", err=True)

    stdout = sys.stdout
    try:
        result: Any = command.main(args=arguments, prog_name=name, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        tell(f"{error.format_message().rstrip('.')} (see {path} --help)")
        return error.exit_code
    except click.ClickException as error:
        tell(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("interrupted")
        return _INTERRUPTED
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return 0  # the reader has closed the pipe: click replaces the stream and exits with 1
    except BrokenPipeError:
        _flush_or_discard()
        return 0
    except (OSError, MemoryError) as error:
        _flush_or_discard()
        tell(_reason(error))
        return _FAILED
    return result if isinstance(result, int) else 0


def _shortened(line: str) -> str:
    """The line without the middle of a value that fills screens."""
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE * 2 // 3]} ... {line[-_MAX_LINE // 4 :]}"


def _reason(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}".removesuffix(": ")
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}"


def _flush_or_discard() -> None:
    """Drop buffered output that cannot be written: Python would try again at exit, and fail again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
