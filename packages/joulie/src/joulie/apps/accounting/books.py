"""The ledger, for those who must not wait for a disk: one question at a time, each in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from joulie.ports import Ledger

T = TypeVar("T")


class Books:
    """Asks the ledger.

    Args:
        ledger: whose methods block.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turn = asyncio.Lock()

    async def ask(self, question: Callable[[Ledger], T]) -> T:
        """The answer to a question.

        Raises:
            LedgerError: see `Ledger`.
        """
        async with self._turn:
            asked = asyncio.ensure_future(asyncio.to_thread(question, self._ledger))
            try:
                return await asyncio.shield(asked)
            finally:
                # Who is cancelled leaves a thread in the ledger: its turn ends with that.
                await asyncio.wait([asked])
