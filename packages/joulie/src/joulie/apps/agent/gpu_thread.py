"""GPU work in a thread of its own.

A call into a GPU driver may take seconds, and a driver that hangs never returns; a thread inside such a call cannot be
interrupted. So a cycle starts its GPU work first, caps the CPUs meanwhile, and then waits a short time only. Work that
has not ended by then is left to end: no other is started until it has, and the cycles go on without it. Its outcome
counts for later cycles that ask for the same, since a driver that is merely slow would otherwise never be heard. The
thread is a daemon, so that it never delays the end of the agent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from joulie.apps.agent.outcome import Outcome


@dataclass(frozen=True)
class _Work:
    """Work that was started: what was asked for, when, and what became of it."""

    asked: Hashable
    started_at_s: float
    result: asyncio.Future[Outcome]


class GpuThread:
    """Runs one piece of GPU work at a time, outside the event loop and its threads."""

    def __init__(self) -> None:
        self._work: _Work | None = None
        self._ended: _Work | None = None

    def start(self, work: Callable[[], Outcome], asked: Hashable, now_s: float) -> bool:
        """Start work; False if earlier work is still running.

        Args:
            work: what to run.
            asked: what is asked for; equal for work whose outcome is the same.
            now_s: monotonic time, s.
        """
        if self._work is not None:
            if not self._work.result.done():
                return False
            self._ended = self._work
        result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._work = _Work(asked, now_s, result)
        threading.Thread(target=_run, args=(work, result), name="gpu", daemon=True).start()
        return True

    async def idle(self, patience_s: float) -> bool:
        """Wait until no work runs, at most `patience_s`; whether none does."""
        if self._work is not None:
            await asyncio.wait({self._work.result}, timeout=patience_s)
        return self._work is None or self._work.result.done()

    async def outcome(self, asked: Hashable, patience_s: float, not_before_s: float) -> Outcome | None:
        """Outcome of the latest work that was asked for this; None without one.

        Args:
            asked: what is asked for.
            patience_s: time to wait for the work that runs, s.
            not_before_s: earliest start of work that ended late, and whose outcome counts until the next one, s.

        Raises:
            Exception: what the work raised.
        """
        await self.idle(patience_s)
        for work in (self._work, self._ended):
            if work is not None and work.asked == asked and work.result.done() and work.started_at_s >= not_before_s:
                return work.result.result()
        return None


def _run(work: Callable[[], Outcome], result: asyncio.Future[Outcome]) -> None:
    deliver: partial[None]
    try:
        deliver = partial(result.set_result, work())
    except Exception as error:
        deliver = partial(result.set_exception, error)
    with suppress(RuntimeError):  # the agent has ended meanwhile
        result.get_loop().call_soon_threadsafe(deliver)
