"""GPU work in a thread of its own.

A call into a GPU driver may take seconds, and a driver that hangs never returns; a thread inside such a call cannot be
interrupted. So a cycle starts its GPU work first, caps the CPUs meanwhile, and then waits a short time only. Work that
has not ended by then is left to end: no other is started until it has, and the cycles go on without it. The thread is
a daemon, so that it never delays the end of the agent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from joulie.apps.agent.outcome import Outcome


class GpuThread:
    """Runs one piece of GPU work at a time, outside the event loop and its threads."""

    def __init__(self) -> None:
        self._result: asyncio.Future[Outcome] | None = None

    def start(self, work: Callable[[], Outcome]) -> bool:
        """Start work; False if earlier work is still running."""
        if self._result is not None and not self._result.done():
            return False
        self._result = asyncio.get_running_loop().create_future()
        threading.Thread(target=_run, args=(work, self._result), name="gpu", daemon=True).start()
        return True

    async def idle(self, patience_s: float) -> bool:
        """Wait until no work runs, at most `patience_s`; whether none does."""
        if self._result is not None:
            await asyncio.wait({self._result}, timeout=patience_s)
        return self._result is None or self._result.done()

    async def ended(self, patience_s: float) -> Outcome | None:
        """Outcome of the work that was started last; None if it does not end within `patience_s`.

        Raises:
            Exception: what the work raised.
        """
        idle = await self.idle(patience_s)
        return self._result.result() if idle and self._result is not None else None


def _run(work: Callable[[], Outcome], result: asyncio.Future[Outcome]) -> None:
    deliver: partial[None]
    try:
        deliver = partial(result.set_result, work())
    except Exception as error:
        deliver = partial(result.set_exception, error)
    with suppress(RuntimeError):  # the agent has ended meanwhile
        result.get_loop().call_soon_threadsafe(deliver)
