"""State of the sources that a program reads: asks them within a time limit, and logs a failure once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sized
from typing import TypeVar

from joulie.ports import SourceError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SourceStates:
    """Remembers how the last reading of each source went.

    Args:
        count_failure: called with the name of a source for each reading that failed.
    """

    def __init__(self, count_failure: Callable[[str], None] = lambda _source: None) -> None:
        self._count_failure = count_failure
        self._problems: dict[str, str | None] = {}
        self._told_of: dict[str, int] = {}

    async def ask(
        self, source: str, asking: Awaitable[T], timeout_s: float, told_of: Callable[[T], Sized] = lambda _answer: ()
    ) -> T | None:
        """What a source says; None where it fails, which is noted.

        Args:
            source: its name.
            asking: a reading of it, which may raise `SourceError`.
            timeout_s: how long it may take, s: a source that hangs must not hold up the others for long.
            told_of: what the answer tells of.
        """
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asking
        except TimeoutError:
            self.failed(source, f"no answer within {timeout_s:g} s")
        except SourceError as error:
            self.failed(source, str(error))
        else:
            self.answered(source, len(told_of(answer)))
            return answer
        return None

    def answered(self, source: str, told_of: int) -> None:
        """A reading went well, and told of so many nodes (pods, where the source is about pods)."""
        if self._problems.get(source) is not None:
            _log.info("source is back", extra={"source": source})
        self._problems[source] = None
        self._told_of[source] = told_of

    def failed(self, source: str, problem: str) -> None:
        """A reading failed. It is logged when a source begins to fail, and not again until it is back."""
        self._count_failure(source)
        if self._problems.get(source) is None:
            _log.warning("source failed", extra={"source": source, "error": problem})
        self._problems[source] = problem
        self._told_of[source] = 0

    def down(self, source: str) -> bool:
        """Whether the last reading of a source failed."""
        return self._problems.get(source) is not None

    @property
    def up(self) -> Mapping[str, bool]:
        """Whether the last reading went well, by source; sources that were never read are left out."""
        return {source: problem is None for source, problem in self._problems.items()}

    @property
    def told_of(self) -> Mapping[str, int]:
        """Number of nodes or pods that each source told of last."""
        return self._told_of
