"""The mode of a node or namespace: whether Joulie acts on it, or only reports what it would do."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The mode of a program, a node or a namespace."""

    OBSERVE = "observe"
    """Joulie measures and plans, and changes nothing: no caps, no labels, no refusals, no gates."""
    ENFORCE = "enforce"
    """The plan is applied."""


def mode_of(label: str | None, default: Mode) -> Mode:
    """The mode of a node or namespace: its own label takes precedence over the program's setting.

    Args:
        label: value of the label joulie.io/mode; None if absent. An unknown value counts as observe, which is safe.
        default: the setting MODE.
    """
    if label is None:
        return default
    return Mode.ENFORCE if label == Mode.ENFORCE else Mode.OBSERVE
