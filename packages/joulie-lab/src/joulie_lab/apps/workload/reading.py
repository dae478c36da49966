"""Traces as commands read them: broken lines are named on stderr and counted, and progress is shown."""

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
    """A trace on its way through a command.

    Attributes:
        path: the file.
        status: shows how far it is.
        jobs: read so far.
        broken_lines: left out so far.
    """

    path: Path
    status: Status
    jobs: int = 0
    broken_lines: int = 0

    def lines(self) -> Iterator[TraceLine]:
        """The lines that can be used."""
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

    def whole_lines(self, *, skip_bad_lines: bool) -> Iterator[TraceLine]:
        """The same, for a command that writes them.

        Raises:
            click.ClickException: at the end, where there were broken lines that are not to be skipped.
        """
        yield from self.lines()
        if self.broken_lines and not skip_bad_lines:
            raise click.ClickException(
                f"{self.path}: {self.broken_lines:,} broken lines, nothing is written;"
                " mend them, or leave them out by --skip-bad-lines"
            )


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """Read a trace, and say of a file that cannot be read why."""
    with progress(f"Reading {path.name}") as status, said_plainly():
        yield Reading(path, status)


@contextmanager
def progress(what: str) -> Iterator[Status]:
    """A line on the terminal that says what is done."""
    with Console(stderr=True).status(what) as status:
        yield status


@contextmanager
def said_plainly() -> Iterator[None]:
    """Errors of traces, and quantities that cannot be, as those of the user."""
    try:
        yield
    except (JobTraceError, InvalidQuantityError) as error:
        raise click.UsageError(str(error)) from error
