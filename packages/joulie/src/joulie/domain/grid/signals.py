"""Carbon intensity and price in one zone at one moment, with their quality and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from joulie.domain.signal import Quality

if TYPE_CHECKING:  # imports NumPy, which the commands that only read amounts do not need
    from joulie.domain.grid.series import Series


class Measure(StrEnum):
    """What a grid signal measures."""

    CARBON = "carbon"
    """Carbon intensity, gCO2eq/kWh."""
    PRICE = "price"
    """Price of electricity, currency/kWh."""


class Basis(StrEnum):
    """Average or marginal carbon intensity. The two are never mixed: they answer different questions."""

    AVERAGE = "average"
    """Of all that is generated."""
    MARGINAL = "marginal"
    """Of what would be generated for a little more load."""


class Period(StrEnum):
    """Where a time-of-use tariff stands."""

    PEAK = "peak"
    OFF_PEAK = "off-peak"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Source of a number.

    Attributes:
        source: electricity-maps, watttime, uk, file, prometheus, json, tou, static, or a plug-in's name.
        zone: of the grid, as the source names it.
        basis: of carbon intensity; None for prices.
        estimated: the source has modelled the value, not measured it.
    """

    source: str
    zone: str
    basis: Basis | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One value as a source gave it.

    Attributes:
        value: finite; gCO2eq/kWh or currency/kWh; None of a tariff that knows its periods but no rates.
        time_s: since when it is true, s since the epoch.
        provenance: where it comes from.
        period: of a tariff; None where there is none.
        until_s: until when it is true, s since the epoch; None where the source does not say.
    """

    value: float | None
    time_s: float
    provenance: Provenance
    period: Period | None = None
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class GridSignal:
    """One measure in one zone at one moment.

    Attributes:
        measure: carbon or price.
        zone: Joulie's name of the zone.
        quality: fresh, stale (the last good value, still within its age limit) or missing. Missing holds nothing back.
        value: gCO2eq/kWh or currency/kWh; None where missing, or where a tariff knows its periods but no rates.
        time_s: since when the value is true, s since the epoch; None where missing.
        provenance: where the value comes from; None where missing.
        period: of a tariff.
        forecast: expected values from now on; None without a forecast.
        forecast_source: the provider, or ``joulie``.
        problem: why it is stale or missing, in words for people, without secrets; empty while all is well.
    """

    measure: Measure
    zone: str
    quality: Quality = Quality.MISSING
    value: float | None = None
    time_s: float | None = None
    provenance: Provenance | None = None
    period: Period | None = None
    forecast: Series | None = None
    forecast_source: str = ""
    problem: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a value to decide by."""
        return self.quality is not Quality.MISSING
