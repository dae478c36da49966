import asyncio
from collections.abc import Iterator

import pytest

from joulie.adapters.kubernetes.writer import Job, write_all
from support.virtual_time import run_virtually


def test_writes_run_side_by_side_and_no_more_than_allowed() -> None:
    running = most = 0

    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1.0)
        running -= 1

    async def main() -> float:
        assert await write_all([job] * 10, concurrency=3) == []
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 4.0
    assert most == 3


def test_a_failure_is_returned_with_its_job_and_stops_no_other() -> None:
    done: list[int] = []

    def job(index: int) -> Job:
        async def write() -> None:
            await asyncio.sleep(10 - index)
            if index % 3 == 0:
                raise ValueError(index)
            done.append(index)

        return write

    failures = run_virtually(write_all(map(job, range(8)), concurrency=4))
    assert [(failure.index, str(failure.error)) for failure in failures] == [(0, "0"), (3, "3"), (6, "6")]
    assert sorted(done) == [1, 2, 4, 5, 7]


def test_jobs_are_made_only_when_their_turn_comes() -> None:
    made = 0

    async def nothing() -> None:
        await asyncio.sleep(1.0)

    def jobs() -> Iterator[Job]:
        nonlocal made
        for _ in range(100):
            made += 1
            yield nothing

    async def main() -> None:
        task = asyncio.create_task(write_all(jobs(), concurrency=4))
        await asyncio.sleep(0.5)
        assert made == 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(main())


def test_nothing_to_write_is_fine_and_no_writers_are_not() -> None:
    assert run_virtually(write_all([])) == []
    with pytest.raises(ValueError, match="at least 1"):
        run_virtually(write_all([], concurrency=0))
