"""Waits that end at a time, and at once when they are cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether an event is set, or becomes so within a time.

    Not by `asyncio.wait_for`: until Python 3.12 it takes no notice of a cancellation that comes together with the event
    (https://github.com/python/cpython/issues/86296), so that a leader that has lost its lease would go on.

    Args:
        event: the event.
        seconds: the time, s; at or below zero it does not wait.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
