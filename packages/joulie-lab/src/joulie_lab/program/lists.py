"""Options whose values are lists between commas."""

from __future__ import annotations

from collections.abc import Iterable

from joulie.program.errors import UserError


def items(values: Iterable[str]) -> list[str]:
    """The items of an option that may be given several times."""
    return [item.strip() for value in values for item in value.split(",")]


def whole(text: str, option: str) -> int:
    """A whole number.

    Raises:
        UserError: it is none; the message names the option.
    """
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{option}: {text!r} is not a whole number") from None
