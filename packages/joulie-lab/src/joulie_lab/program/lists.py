"""Parses options whose values are comma-separated lists."""

from __future__ import annotations

from collections.abc import Iterable

from joulie.program.errors import UserError


def items(values: Iterable[str]) -> list[str]:
    """Split the values of a repeatable option at their commas."""
    return [item.strip() for value in values for item in value.split(",")]


def whole(text: str, option: str) -> int:
    """Parse a whole number.

    Raises:
        UserError: the text is not a whole number; the message names the option.
    """
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{option}: {text!r} is not a whole number") from None
