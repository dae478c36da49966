"""Asynchronous access to the ledger: one call at a time, each in a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from joulie.ports.ledger import Ledger

T = TypeVar("T")


class AsyncLedger:
    """Calls a blocking ledger without blocking the event loop.

    Args:
        ledger: the ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = asyncio.Lock()

    async def call(self, function: Callable[[Ledger], T]) -> T:
        """Run a function on the ledger in a worker thread and return its result.

        Raises:
            LedgerError: see `Ledger`.
        """
        async with self._lock:
            running = asyncio.ensure_future(asyncio.to_thread(function, self._ledger))
            try:
                return await asyncio.shield(running)
            finally:
                # A cancelled caller leaves its thread in the ledger: the lock is held until that returns.
                await asyncio.wait([running])
