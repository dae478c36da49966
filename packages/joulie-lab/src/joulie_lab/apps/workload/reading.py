"""Reads traces for commands: reports invalid lines on stderr, counts them, and shows progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from joulie.domain.quantities import InvalidQuantityError
from joulie_lab.adapters.job_trace import JobTraceError, read_lines
from joulie_lab.simulation.trace import TraceJob, TraceLine

_SHOWN_PROBLEMS = 20
_STATUS_EVERY = 1000


@dataclass
class Reading:
    """A trace that a command is reading.

    Attributes:
        path: path of the file.
        status: progress display.
        jobs: number of jobs read so far.
        broken_lines: number of invalid lines so far.
    """

    path: Path
    status: Status
    jobs: int = 0
    broken_lines: int = 0

    def lines(self) -> Iterator[TraceLine]:
        """Yield the valid lines."""
        for item in read_lines(self.path):
            if isinstance(item, JobTraceError):
                self.broken_lines += 1
                if self.broken_lines <= _SHOWN_PROBLEMS:
                    click.echo(str(item), err=True)
                continue
            if isinstance(item, TraceJob):
                self.jobs += 1
                if self.jobs % _STATUS_EVERY == 0:
                    self.status.update(f"{self.path.name}: {self.jobs:,} jobs")
            yield item
        if self.broken_lines > _SHOWN_PROBLEMS:
            click.echo(f"and {self.broken_lines - _SHOWN_PROBLEMS:,} more broken lines", err=True)

    def checked_lines(self, *, skip_bad_lines: bool) -> Iterator[TraceLine]:
        """Yield the valid lines, for a command that writes them.

        Raises:
            click.ClickException: after the last line, if there were invalid lines that are not to be skipped.
        """
        yield from self.lines()
        if self.broken_lines and not skip_bad_lines:
            raise click.ClickException(
                f"{self.path}: {self.broken_lines:,} broken lines, nothing is written;"
                " fix them, or skip them with --skip-bad-lines"
            )


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """Open a trace for reading, with progress; errors become usage errors."""
    with progress(f"Reading {path.name}") as status, usage_errors():
        yield Reading(path, status)


@contextmanager
def progress(what: str) -> Iterator[Status]:
    """Show a status line on the terminal."""
    with Console(stderr=True).status(what) as status:
        yield status


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors of traces and invalid quantities into usage errors."""
    try:
        yield
    except (JobTraceError, InvalidQuantityError) as error:
        raise click.UsageError(str(error)) from error
