"""A measured value with its time, and how far measurements can be relied on.

Missing is a quality, never a zero. This module needs no numpy. Source: architecture, habit 5.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Quality(StrEnum):
    """How far a sample can be relied on."""

    FRESH = "fresh"
    STALE = "stale"
    """Measured, but too long ago to conclude anything from."""
    MISSING = "missing"
    """Never measured."""


class Reading(NamedTuple):
    """A value and when it was true.

    Attributes:
        time_s: s since the epoch.
        value: finite; the function that returns it states the unit.
    """

    time_s: float
    value: float
