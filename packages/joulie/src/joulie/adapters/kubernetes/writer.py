"""Runs many writes with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

Job = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Failure:
    """A job that raised.

    Attributes:
        index: position of the job, from 0.
        error: exception that it raised.
    """

    index: int
    error: Exception


async def write_all(jobs: Iterable[Job], *, concurrency: int = 16) -> list[Failure]:
    """Run all jobs, at most `concurrency` at once; a failed job does not stop the others.

    The client retries overloaded servers and lost connections; conflicts are left to the caller.

    Returns:
        The failures, in order of the jobs.

    Raises:
        ValueError: `concurrency` is below 1.
    """
    if concurrency < 1:
        raise ValueError(f"invalid concurrency {concurrency}: must be at least 1")
    failures: list[Failure] = []
    queue = enumerate(jobs)

    async def work() -> None:
        for index, job in queue:  # shared: each worker takes the next job
            try:
                await job()
            except Exception as error:
                failures.append(Failure(index, error))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return sorted(failures, key=lambda failure: failure.index)
