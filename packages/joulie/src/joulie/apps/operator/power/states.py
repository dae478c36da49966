"""How the sources fare: what failed, said once, and for how long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


class SourceStates:
    """Remembers how the last reading of each source went.

    Args:
        count_failure: called with the name of a source for each reading that failed.
    """

    def __init__(self, count_failure: Callable[[str], None] = lambda _source: None) -> None:
        self._count_failure = count_failure
        self._problems: dict[str, str | None] = {}
        self._nodes: dict[str, int] = {}

    def answered(self, source: str, nodes: int) -> None:
        """A reading went well, and told of so many nodes (pods, where the source is about pods)."""
        if self._problems.get(source) is not None:
            _log.info("source is back", extra={"source": source})
        self._problems[source] = None
        self._nodes[source] = nodes

    def failed(self, source: str, problem: str) -> None:
        """A reading failed. It is logged when a source begins to fail, and not again until it is back."""
        self._count_failure(source)
        if self._problems.get(source) is None:
            _log.warning("source failed", extra={"source": source, "error": problem})
        self._problems[source] = problem
        self._nodes[source] = 0

    def down(self, source: str) -> bool:
        """Whether the last reading of a source failed."""
        return self._problems.get(source) is not None

    @property
    def up(self) -> Mapping[str, bool]:
        """Whether the last reading went well, by source; sources that were never read are left out."""
        return {source: problem is None for source, problem in self._problems.items()}

    @property
    def told_of(self) -> Mapping[str, int]:
        """Of how many nodes or pods each source told last."""
        return self._nodes
