"""Bounded cardinality of metric labels whose values users choose."""

from __future__ import annotations

OTHER = "other"


class BoundedLabel:
    """Keeps the first values of a label, up to a limit; later ones become ``other``.

    Args:
        limit: number of values that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """The label value: the given one, or ``other`` past the limit."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
