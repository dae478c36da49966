"""The source uk: half-hourly carbon intensity of Great Britain. Source: documentation of the Carbon Intensity API.

A zone is ``GB``, a region by its number (``GB-13``) or the outward part of a postcode (``GB-RG10``). Estimates from
metered generation exist for the whole country only, and after the fact; all other values are forecasts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from joulie.adapters.grid.provider import Provider
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.wire import decoded, instant_s, iso, series_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSourceError
from joulie.settings import text

_ZONE = re.compile(r"GB(?:-(?:(?P<region>\d{1,2})|(?P<postcode>[A-Z]{1,2}\d[A-Z\d]?)))?", re.ASCII | re.IGNORECASE)
_HALF_HOUR_S = 1800.0
_RANGE_S = 13 * 86400.0
"""The API refuses more than 14 days."""


URL_SETTING = text(
    "UK_CARBON_API_URL", "https://api.carbonintensity.org.uk", "Base URL of Great Britain's Carbon Intensity API."
)


def carbon_intensity_uk(url: str, context: SourceContext) -> CarbonIntensityUk:
    """Create the source uk."""
    return CarbonIntensityUk(context.provider(), url.rstrip("/"), context.now_s)


class _Intensity(msgspec.Struct):
    forecast: float | None = None
    actual: float | None = None

    @property
    def best(self) -> float | None:
        """The actual value, or the forecast if there is none yet."""
        return self.forecast if self.actual is None else self.actual


class _Slot(msgspec.Struct, rename={"start": "from", "end": "to"}):
    start: str
    end: str
    intensity: _Intensity


class _Region(msgspec.Struct):
    data: list[_Slot]
    regionid: int | None = None


class _National(msgspec.Struct):
    data: list[_Slot]


class _Regional(msgspec.Struct):
    data: list[_Region] | _Region
    """A list for the current half hour, one object for a range."""


@dataclass
class CarbonIntensityUk:
    """Source that queries the Carbon Intensity API.

    Attributes:
        provider: HTTP client.
        url: base URL of the API.
        now_s: current time, s since the epoch.
    """

    provider: Provider
    url: str
    now_s: Callable[[], float]
    name: str = "uk"
    measure: Measure = Measure.CARBON
    basis: Basis | None = Basis.AVERAGE

    async def latest(self, zone: str) -> Observation:
        """Value of the current half hour, or of the last one that the API has."""
        now_s = self.now_s()
        begun = [slot for slot in await self._slots(zone, "") if instant_s(slot.start, self.name) <= now_s]
        value = begun[-1].intensity.best if begun else None
        if value is None:
            raise GridSourceError(f"no value for this half hour in zone {zone}")
        slot = begun[-1]
        where = Provenance(self.name, zone, self.basis, estimated=slot.intensity.actual is None)
        return Observation(value, instant_s(slot.start, self.name), where, until_s=instant_s(slot.end, self.name))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Forecast of the next 48 hours at most."""
        return self._series(await self._slots(zone, f"/{iso(self.now_s())}/fw48h"))

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past values, fetched in ranges of at most two weeks."""
        slots: list[_Slot] = []
        while from_s < until_s:
            end_s = min(until_s, from_s + _RANGE_S)
            slots += await self._slots(zone, f"/{iso(from_s)}/{iso(end_s)}")
            from_s = end_s
        return self._series(slots)

    async def _slots(self, zone: str, when: str) -> list[_Slot]:
        place = _ZONE.fullmatch(zone)
        if place is None:
            raise GridSourceError(
                f"invalid zone {zone} of Great Britain: write GB, GB-13 (region) or GB-RG10 (postcode)"
            )
        if zone.upper() == "GB":
            return decoded(await self.provider.get(f"{self.url}/intensity{when}"), _National, self.name).data
        where = f"regionid/{place['region']}" if place["region"] else f"postcode/{place['postcode']}"
        span = f"/intensity{when}" if when else ""
        answer = decoded(await self.provider.get(f"{self.url}/regional{span}/{where}"), _Regional, self.name)
        regions = answer.data if isinstance(answer.data, list) else [answer.data]
        for region in regions:
            if place["region"] and region.regionid != int(place["region"]):
                raise GridSourceError(f"response for region {region.regionid} instead of {zone}")
        return [slot for region in regions for slot in region.data]

    def _series(self, slots: list[_Slot]) -> Series | None:
        points = ((instant_s(slot.start, self.name), slot.intensity.best) for slot in slots)
        return series_of(points, self.name, _HALF_HOUR_S)
