"""Runs a scenario in parallel, in processes or on a Dask cluster, for sweeps and benchmarks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeVar

from joulie import __version__
from joulie.domain.units import InvalidQuantityError
from joulie.program.errors import UserError
from joulie_lab.adapters.executors import ExecutorError, in_processes, on_dask
from joulie_lab.program.progress import shown
from joulie_lab.program.runner import runner
from joulie_lab.simulation.cooling_plant import CoolingPlantError
from joulie_lab.simulation.jobs import JobTableError
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.runner import Runner, warm_up
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.sweep import Task

T = TypeVar("T")
R = TypeVar("R")
_DASK = "dask"


class Work(NamedTuple):
    """A run, serialised for a worker."""

    scenario_json: str
    task: Task
    version: str = __version__


_of_this_thread = threading.local()
"""Caches a worker's runner, and with it the jobs of a seed; per thread, since a Dask worker may have several."""


def run_record(work: Work) -> RunRecord:
    """Execute a run in this process.

    Raises:
        ExecutorError: the worker has another version of Joulie than the caller.
    """
    if work.version != __version__:
        raise ExecutorError(f"a worker has joulie {__version__}, this is {work.version}; install the same on both")
    return _runner(work.scenario_json).run(work.task.scheduler, work.task.seed).record


def _runner(scenario_json: str) -> Runner:
    if getattr(_of_this_thread, "scenario_json", None) != scenario_json:
        _of_this_thread.runner = runner(Scenario.model_validate_json(scenario_json))
        _of_this_thread.scenario_json = scenario_json
    kept: Runner = _of_this_thread.runner
    return kept


class Executor(NamedTuple):
    """Where runs are executed.

    Attributes:
        n_workers: number of processes on this machine.
        dask: whether runs are executed by Dask.
        address: ``HOST:PORT`` of the Dask scheduler; None for a cluster on this machine.
    """

    n_workers: int
    dask: bool = False
    address: str | None = None

    @classmethod
    def parse(cls, text: str, jobs: int | None) -> Executor:
        """Parse ``--executor`` and ``--jobs``.

        Raises:
            UserError: the executor is invalid.
        """
        n_workers = jobs or usable_cores()
        if text == "local":
            return cls(n_workers)
        kind, scheme, address = text.partition("://")
        if kind != _DASK or bool(scheme) != bool(address):
            raise UserError(f"--executor: {text!r} is neither local, dask nor dask://HOST:PORT")
        return cls(n_workers, dask=True, address=address or None)


def executed(work: Callable[[T], R], items: Sequence[T], executor: Executor) -> Generator[R, None, None]:
    """Run `work`, a function that workers can import, on every item; results come as they finish.

    Raises:
        ExecutorError: a worker died, Dask is not installed, or its scheduler cannot be reached.
    """
    if executor.dask:
        return on_dask(work, items, executor.address, executor.n_workers)
    return in_processes(work, items, executor.n_workers)


def played(scenario: Scenario, tasks: Sequence[Task], executor: Executor) -> Generator[RunRecord, None, None]:
    """Execute `tasks` and yield their records as they finish, with progress on stderr.

    Raises:
        UserError: a run failed, or the executor did.
    """
    if not tasks:
        return
    what = f"runs, {executor.n_workers} at a time"
    try:
        with closing(_records(scenario, tasks, executor)) as records:
            # Compile here once, so that the workers find the compiled code in the cache.
            yield from shown(records, len(tasks), what, _described, prepare=warm_up)
    except (JobTableError, CoolingPlantError, InvalidQuantityError, ExecutorError) as error:
        raise UserError(str(error)) from error


def _described(record: RunRecord) -> str:
    """Summary of a run in one line."""
    return f"{record.scheduler}, seed {record.seed}: mean {record.mean_kw:,.1f} kW, {record.seconds:.2f} s"


def _records(scenario: Scenario, tasks: Sequence[Task], executor: Executor) -> Generator[RunRecord, None, None]:
    text = scenario.model_dump_json(by_alias=True, exclude_unset=True)
    work = [Work(text, task) for task in tasks]
    return executed(run_record, work, executor)


def usable_cores() -> int:
    """Number of cores that this process may use; in a container fewer than the machine's."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
