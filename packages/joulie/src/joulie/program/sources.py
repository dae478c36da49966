"""State of the telemetry sources of a program: reads them with a timeout, and logs a failure once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sized
from typing import TypeVar

from joulie.ports.telemetry import SourceError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SourceStates:
    """Keeps the result of the latest reading of each source.

    Args:
        count_failure: called with the name of the source for each failed reading.
    """

    def __init__(self, count_failure: Callable[[str], None] = lambda _source: None) -> None:
        self._count_failure = count_failure
        self._problems: dict[str, str | None] = {}
        self._told_of: dict[str, int] = {}

    async def ask(
        self, source: str, asking: Awaitable[T], timeout_s: float, told_of: Callable[[T], Sized] = lambda _answer: ()
    ) -> T | None:
        """Read a source with a timeout; None if it fails, which is recorded.

        Args:
            source: name of the source.
            asking: the reading, which may raise `SourceError`.
            timeout_s: timeout, s: a source that hangs must not delay the others for long.
            told_of: returns the nodes or pods in the result.
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
        """Record a successful reading with this number of nodes, or of pods for a source about pods."""
        if self._problems.get(source) is not None:
            _log.info("source recovered", extra={"source": source})
        self._problems[source] = None
        self._told_of[source] = told_of

    def failed(self, source: str, problem: str) -> None:
        """Record a failed reading; only the first failure in a row is logged."""
        self._count_failure(source)
        if self._problems.get(source) is None:
            _log.warning("source failed", extra={"source": source, "error": problem})
        self._problems[source] = problem
        self._told_of[source] = 0

    def down(self, source: str) -> bool:
        """Whether the latest reading of a source failed."""
        return self._problems.get(source) is not None

    @property
    def up(self) -> Mapping[str, bool]:
        """Whether the latest reading succeeded, by source; sources that were never read are absent."""
        return {source: problem is None for source, problem in self._problems.items()}

    @property
    def told_of(self) -> Mapping[str, int]:
        """Number of nodes or pods in the latest reading, by source."""
        return self._told_of
