"""Waits of the programs: they end in time, and never lose a cancellation."""

import asyncio
from pathlib import Path

import pytest

from joulie.program.run import every
from joulie.waiting import set_within


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_that_comes_with_the_event_counts(turns: int) -> None:
    """As of a leader that loses its lease just when an object changes: asyncio.wait_for took no notice of it."""

    async def goes_on_for_ever() -> str:
        wake = asyncio.Event()

        async def loop() -> None:
            while True:
                await set_within(wake, 1000.0)
                wake.clear()

        task = asyncio.create_task(loop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=1.0)
        return "cancelled" if task.cancelled() else "goes on"

    assert asyncio.run(goes_on_for_ever()) == "cancelled"


def test_it_says_whether_the_event_came() -> None:
    async def answers() -> list[bool]:
        event = asyncio.Event()
        before = [await set_within(event, seconds) for seconds in (0.001, 0.0, -1.0)]
        event.set()
        return [*before, await set_within(event, 0.0), await set_within(event, 1000.0)]

    assert asyncio.run(answers()) == [False, False, False, True, True]


def test_rounds_follow_each_other_until_told_to_stop() -> None:
    async def rounds() -> int:
        stop, done = asyncio.Event(), 0
        async for _ in every(0.0, stop):
            done += 1
            if done == 3:
                stop.set()
        return done

    assert asyncio.run(rounds()) == 3


def test_no_program_waits_by_what_loses_cancellations() -> None:
    packages = Path(__file__).parents[2] / "packages"
    assert [
        file.name for file in packages.rglob("*.py") if "asyncio.wait_for(" in file.read_text(encoding="utf-8")
    ] == []
