"""Progress of runs on stderr: bars on a terminal, a line a run elsewhere."""

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
    """Runs as they are finished, counted on stderr.

    Args:
        runs: in any order; the next one is asked for when its predecessor was taken.
        n_runs: how many there will be.
        what: that is counted.
        described: a run in one line.
        prepare: what has to be compiled before the first run.
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
    """Shows which run is on its way and how far it is."""

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
        """Take the bars away."""
        self._bars.stop()

    def begin(self, what: str) -> None:
        """A piece of work begins."""
        self._task = self._bars.add_task(what, total=None)

    def step(self, done: int, total: int) -> None:
        """So many of its steps are done."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def end(self, record: RunRecord | None = None) -> None:
        """The piece of work has ended, with the record of a run if it was one."""
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
        """Say something that the user should know."""
        self._console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
