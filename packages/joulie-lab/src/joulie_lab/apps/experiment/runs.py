"""Executes the runs of an experiment, with progress on stderr."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW
from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.experiment.artefacts import FinishedRun, Provenance
from joulie_lab.apps.experiment.jobs import trace_jobs
from joulie_lab.apps.experiment.native import NativeWork, play
from joulie_lab.program.parallel import Executor, executed
from joulie_lab.program.progress import shown
from joulie_lab.simulation.experiment.plan import RunKey
from joulie_lab.simulation.experiment.scenario import Experiment


def play_native(
    experiment: Experiment, keys: Sequence[RunKey], executor: Executor
) -> Generator[FinishedRun, None, None]:
    """Execute native runs in parallel, and yield them as they finish.

    Args:
        experiment: the experiment.
        keys: runs to execute.
        executor: where. Workers elsewhere read traces and files by the same paths.

    Raises:
        UserError: a worker was lost, or Dask does not answer.
        ValueError: a run failed; the message says why.
    """
    if not keys:
        return
    text = experiment.model_dump_json(exclude_defaults=True)
    work = [NativeWork(text, key) for key in keys]
    try:
        with closing(executed(play, work, executor)) as runs:
            yield from shown(runs, len(keys), f"runs, {executor.n_workers} at a time", _described)
    except ExecutorError as error:
        raise UserError(str(error)) from error


def on_control_plane(
    experiment: Experiment, keys: Sequence[RunKey], time_scale: float, folder: Path
) -> Generator[FinishedRun, None, None]:
    """Execute runs on a real control plane, one after the other.

    Args:
        experiment: the experiment.
        keys: runs to execute.
        time_scale: simulated seconds per wall second.
        folder: folder in which each run gets a subfolder for its logs.

    Raises:
        UserError: a run cannot start, or a program failed during it.
    """
    from joulie_lab.apps.experiment.control_plane import ControlPlaneRunError, run_on_control_plane

    variants = {variant.name: variant for variant in experiment.variants}
    for number, key in enumerate(keys, start=1):
        started = perf_counter()
        with _Bar(f"[{number}/{len(keys)}] {key}") as bar:
            try:
                outcome = run_on_control_plane(
                    experiment,
                    variants[key.variant],
                    key.seed,
                    key.physics,
                    time_scale=time_scale,
                    folder=folder / "logs" / key.folder,
                    progress=bar.show,
                )
            except ControlPlaneRunError as error:
                raise UserError(str(error)) from error
        digest = trace_jobs(experiment, key.seed).digest
        how = Provenance("control-plane", digest, perf_counter() - started, time_scale)
        run = FinishedRun(key, outcome, how)
        bar.console.print(f"[{number}/{len(keys)}] {_described(run)}", markup=False, highlight=False, soft_wrap=True)
        yield run


class _Bar:
    """Progress of one run: a bar on a terminal, otherwise a line for each tenth of the run."""

    _EVERY = 0.1

    def __init__(self, what: str) -> None:
        self.console = Console(stderr=True)
        self._what = what
        self._printed_share = 0.0
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task = self._bars.add_task(what, total=None)

    def __enter__(self) -> _Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, done_s: float, total_s: float, words: str) -> None:
        """Show the simulated time that is done."""
        self._bars.update(self._task, completed=done_s, total=total_s, description=f"{self._what}: {words}")
        share = done_s / total_s if total_s else 0.0
        if not self.console.is_terminal and share >= self._printed_share + self._EVERY:
            self._printed_share = share
            line = f"{self._what}: {done_s / SECONDS_PER_HOUR:.1f} of {total_s / SECONDS_PER_HOUR:.1f} h, {words}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _described(run: FinishedRun) -> str:
    """Summary of a run in one line."""
    mean_kw = run.outcome.it_j / run.outcome.duration_s / WATTS_PER_KW
    return f"{run.key}: mean {mean_kw:,.2f} kW, {run.how.seconds:.1f} s"
