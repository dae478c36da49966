"""Label values that users choose, bounded: each new one would be a series for ever."""

from __future__ import annotations

OTHER = "other"


class BoundedLabel:
    """Keeps the first so many values of a label; what comes later is ``other``.

    Args:
        most: values that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, value: str) -> str:
        """The value as a label shows it."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value
