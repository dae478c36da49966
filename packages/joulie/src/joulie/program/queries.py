"""Query parameters of HTTP APIs: choices, numbers and paging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

MAX_PAGE = 5000
"""Default maximum number of items in an answer."""

T = TypeVar("T")


class QueryError(ValueError):
    """An invalid query parameter; the message names it and says what is allowed."""


def choice(query: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    """One of several values.

    Raises:
        QueryError: another value.
    """
    value = query.get(name) or default
    if value not in allowed:
        raise QueryError(f"invalid {name} {value[:60]!r}: it must be one of {', '.join(filter(None, allowed))}")
    return value


def page_of(
    items: Sequence[T], query: Mapping[str, str], default_limit: int, max_limit: int = MAX_PAGE
) -> tuple[list[T], str | None]:
    """The requested items, and the value of ``continue`` for those after them; None if there are none.

    Raises:
        QueryError: an invalid ``limit`` or ``continue``.
    """
    limit = _count(query, "limit", default_limit)
    start = _count(query, "continue", 0)
    if not 1 <= limit <= max_limit:
        raise QueryError(f"invalid limit: it must be 1 to {max_limit}")
    after = start + limit
    return list(items[start:after]), str(after) if after < len(items) else None


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name) or str(default)
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise QueryError(f"invalid {name} {text[:60]!r}: it must be a number")
    return int(text)
