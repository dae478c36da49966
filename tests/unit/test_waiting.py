"""Waits of the programs: they end in time, and never lose a cancellation."""

import asyncio
import warnings
from pathlib import Path

import httpx2
import pytest

from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.accounting.usage import UsageReader
from joulie.apps.operator.classifier.usage import PrometheusUsage
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


READINGS = {
    "operator": lambda prometheus: PrometheusUsage(prometheus, 60.0, 30.0, kepler=True, now_s=float).read([]),
    "accounting": lambda prometheus: UsageReader(None, prometheus, window_s=60.0, timeout_s=5.0, now_s=float).read(
        {("team", "p")}, NodeIndex([], {})
    ),
}


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS)
def test_a_reading_cancelled_before_its_queries_began_leaves_none_unawaited(read) -> None:
    """As of an operator that is told to end just when it begins to read: Python warned of each query."""

    async def play() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(500))) as client:
            reading = asyncio.ensure_future(read(Prometheus("http://prometheus:9090", client)))
            await asyncio.sleep(0)  # the tasks of its queries are there; none has begun
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(play())
    assert [str(one.message) for one in seen] == []
