"""Many writes, few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

Job = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Failure:
    """A job that raised.

    Attributes:
        index: of the job, from 0.
        error: what it raised.
    """

    index: int
    error: Exception


async def write_all(jobs: Iterable[Job], *, concurrency: int = 16) -> list[Failure]:
    """Run all jobs, at most `concurrency` at once; one that fails stops no other.

    Busy servers and lost connections are retried within the client; a conflict is its caller's to solve.

    Returns:
        The failures, by index.

    Raises:
        ValueError: a concurrency below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}, at least 1 is needed")
    failures: list[Failure] = []
    queue = enumerate(jobs)

    async def work() -> None:
        for index, job in queue:  # shared: each worker takes the next
            try:
                await job()
            except Exception as error:
                failures.append(Failure(index, error))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return sorted(failures, key=lambda failure: failure.index)
