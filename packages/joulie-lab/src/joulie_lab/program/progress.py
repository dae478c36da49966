"""Progress of runs on stderr: bars on a terminal, otherwise one line for each run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from joulie_lab.simulation.results import RunRecord

RunT = TypeVar("RunT")


def shown(
    runs: Iterable[RunT],
    n_runs: int,
    what: str,
    described: Callable[[RunT], str],
    prepare: Callable[[], None] | None = None,
) -> Generator[RunT, None, None]:
    """Yield runs as they finish, with progress on stderr.

    Args:
        runs: runs in any order, consumed lazily.
        n_runs: number of runs.
        what: label of the progress bar.
        described: summarises a run in one line.
        prepare: compiles what the runs need, before the first one; None if nothing is compiled.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task("compiling (once an installation)" if prepare else what, total=None)
        if prepare:
            prepare()
        bars.reset(bar, description=what, total=n_runs)
        for done, run in enumerate(runs, start=1):
            yield run
            bars.update(bar, completed=done)
            if not console.is_terminal:
                line = f"[{done}/{n_runs}] {described(run)}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)


class RunProgress:
    """Shows the current run and its progress."""

    def __init__(self, n_runs: int) -> None:
        self._console = Console(stderr=True)
        self._n_runs = n_runs
        self._done = 0
        self._task: TaskID | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Remove the bars."""
        self._bars.stop()

    def begin(self, what: str) -> None:
        """Start a task."""
        self._task = self._bars.add_task(what, total=None)

    def step(self, done: int, total: int) -> None:
        """Update the number of steps of the current task that are done."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def end(self, record: RunRecord | None = None) -> None:
        """End the current task, and print the record if it was a run."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        if record is None:
            return
        self._done += 1
        self._console.print(
            f"[{self._done}/{self._n_runs}] {record.scheduler}, seed {record.seed}:"
            f" mean {record.mean_kw:,.1f} kW, {record.seconds:.2f} s",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def note(self, text: str) -> None:
        """Print a note for the user."""
        self._console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
