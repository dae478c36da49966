"""One measured value with what is known about it: unit, time, quality and source.

Missing is a quality, never a zero: a sample without a value cannot be mistaken for one of 0 W. This module needs no
numpy. Source: architecture, habit 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.quantities import finite_number


class Unit(StrEnum):
    """Units of samples."""

    WATT = "W"
    JOULE = "J"
    PERCENT = "%"
    CORES = "cores"
    BYTES = "B"
    KELVIN = "K"
    WATT_PER_MINUTE = "W/min"


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
        value: finite; its unit is said by whoever returns it.
    """

    time_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A value with its provenance.

    Attributes:
        unit: of the value.
        quality: fresh, stale or missing.
        value: finite; None where missing.
        time_s: when it was measured, s since the epoch; None where missing.
        source: who measured it; None where missing.
    """

    unit: Unit
    quality: Quality = Quality.MISSING
    value: float | None = None
    time_s: float | None = None
    source: str | None = None

    @classmethod
    def of(cls, reading: Reading | None, unit: Unit, source: str, now_s: float, stale_after_s: float) -> Sample:
        """The sample that a reading is at `now_s`; missing without a reading.

        Args:
            reading: what was measured.
            unit: of its value.
            source: who measured it.
            now_s: time, s since the epoch.
            stale_after_s: age from which it is stale, s. One from the future by more than that is, too.

        Raises:
            InvalidQuantityError: value or time is NaN or infinite.
        """
        if reading is None:
            return cls(unit)
        value, time_s = finite_number("value", reading.value), finite_number("time_s", reading.time_s)
        quality = Quality.FRESH if abs(now_s - time_s) <= stale_after_s else Quality.STALE
        return cls(unit, quality, value, time_s, source)
