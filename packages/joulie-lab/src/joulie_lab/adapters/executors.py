"""Parallel execution in processes of this machine or on the workers of a Dask cluster.

Both executors take a picklable function and its arguments, start the calls in order, and yield results as they finish.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ExecutorError(RuntimeError):
    """Parallel execution failed; the message says why and what to do."""


def in_processes(work: Callable[[T], R], items: Sequence[T], n_workers: int) -> Generator[R, None, None]:
    """Run `work` on every item in `n_workers` processes; with one worker, in this process.

    If the iteration is left early, for example by an interrupt, the workers are terminated at once.

    Raises:
        ExecutorError: a worker died.
    """
    n_workers = min(n_workers, len(items))
    if n_workers <= 1:
        yield from map(work, items)
        return
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork would copy locks of this process's threads (progress bars) in an arbitrary state.
    pool = ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker)
    try:
        for future in as_completed([pool.submit(work, item) for item in items]):
            yield future.result()
    except BrokenProcessPool as error:
        raise ExecutorError(
            "a worker process was killed, perhaps for lack of memory; run again, with fewer --jobs if so"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()


def _prepare_worker() -> None:
    """Ignore interrupts, which the parent handles, and exit when the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def on_dask(
    work: Callable[[T], R], items: Sequence[T], address: str | None, n_workers: int
) -> Generator[R, None, None]:
    """Run `work` on every item on a Dask cluster.

    Args:
        work: function that the workers can import.
        items: arguments of the calls.
        address: ``HOST:PORT`` of the scheduler; None starts a cluster on this machine.
        n_workers: number of processes of a cluster on this machine.

    Raises:
        ExecutorError: Dask is not installed, the scheduler cannot be reached or is lost, or workers died.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise ExecutorError("Dask is not installed; it comes with: pip install 'joulie-lab[dask]'") from error
    with _client(distributed, address, n_workers) as client:
        futures = [client.submit(work, item, priority=-index, pure=False) for index, item in enumerate(items)]
        try:
            for future in distributed.as_completed(futures):
                yield future.result()
        except distributed.KilledWorker as error:
            raise ExecutorError(
                "Dask workers died again and again in the same run, perhaps for lack of memory"
            ) from error
        except CancelledError as error:
            raise ExecutorError("the Dask scheduler was lost; run again when it is back") from error


def _client(distributed: Any, address: str | None, n_workers: int) -> Any:
    if address is None:
        return distributed.Client(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)
    try:
        return distributed.Client(f"tcp://{address}")
    except OSError as error:
        raise ExecutorError(f"no Dask scheduler answers at {address}: {error}") from error
