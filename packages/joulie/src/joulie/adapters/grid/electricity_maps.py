"""The source electricity-maps: average carbon intensity. Source: Electricity Maps' API reference, version 3.

A zone is one of Electricity Maps (``DE``), coordinates (``geo:50.1,8.6``) or a cloud region (``aws:us-east-1``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from joulie.adapters.grid.provider import Provider, RefusedError, Secret
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.wire import decoded, instant_s, iso, series_of, value_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports.grid import GridSourceError
from joulie.settings import path, text

_PATH = "/carbon-intensity"
_GEO = "geo"
_HORIZONS_H = (6, 24, 48, 72)
"""Forecast horizons that the API offers."""
_HISTORY_S = 24 * SECONDS_PER_HOUR
"""Length of the history that every plan includes."""
_RANGE_S = 10 * 24 * SECONDS_PER_HOUR
"""Maximum range of a request for hourly past values."""
_NOT_IN_PLAN = {401, 402, 403, 404}
_PLAN_RETRY_S = 24 * SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class ElectricityMapsSettings:
    """URL and key of the API; the settings are named as in the Compute Gardener Scheduler."""

    key: str | None = text(
        "ELECTRICITY_MAP_API_KEY",
        None,
        "Key of the Electricity Maps API. Prefer ELECTRICITY_MAP_API_KEY_FILE: a file can be replaced while the "
        "program runs.",
        secret=True,
    )
    key_file: Path | None = path("ELECTRICITY_MAP_API_KEY_FILE", None, "File with that key; read at each request.")
    url: str = text(
        "ELECTRICITY_MAP_API_URL",
        "https://api.electricitymaps.com/v3",
        "URL of the Electricity Maps API: its base, or the URL of the latest value as in the Compute Gardener "
        "Scheduler (.../carbon-intensity/latest?zone=).",
    )


def electricity_maps(settings: ElectricityMapsSettings, context: SourceContext) -> ElectricityMaps:
    """Create the source electricity-maps."""
    key = Secret("ELECTRICITY_MAP_API_KEY or ELECTRICITY_MAP_API_KEY_FILE", settings.key, settings.key_file)
    return ElectricityMaps(context.provider(), key, settings.url, context.now_s)


class _Value(msgspec.Struct, rename="camel"):
    datetime: str
    carbon_intensity: float | None = None


class _Latest(_Value, rename="camel"):
    zone: str = ""
    is_estimated: bool | None = None


class _Forecast(msgspec.Struct):
    zone: str = ""
    forecast: list[_Value] | None = None


class _Past(msgspec.Struct):
    zone: str = ""
    history: list[_Value] | None = None
    data: list[_Value] | None = None


@dataclass
class ElectricityMaps:
    """Source that queries the Electricity Maps API.

    Attributes:
        provider: HTTP client.
        key: key of the API.
        url: base URL of the API, or its URL of the latest value.
        now_s: current time, s since the epoch.
    """

    provider: Provider
    key: Secret
    url: str
    now_s: Callable[[], float]
    name: str = "electricity-maps"
    measure: Measure = Measure.CARBON
    basis: Basis | None = Basis.AVERAGE
    _unavailable_until_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time until which an endpoint that the key's plan does not include is not called, by endpoint and zone."""

    def __post_init__(self) -> None:
        self.url = base_url(self.url)

    async def latest(self, zone: str) -> Observation:
        """Value of the current hour, or of the last one that is known."""
        answer = decoded(await self._get("latest", zone), _Latest, self.name)
        self._check(zone, answer.zone)
        return Observation(
            value_of(answer.carbon_intensity, f"{self.name}: zone {zone}"),
            instant_s(answer.datetime, self.name),
            Provenance(self.name, answer.zone, self.basis, estimated=bool(answer.is_estimated)),
        )

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Forecast; None if the key's plan does not include forecasts."""
        hours = next((h for h in _HORIZONS_H if h * SECONDS_PER_HOUR >= horizon_s), _HORIZONS_H[-1])
        body = await self._get_if_in_plan("forecast", zone, {"horizonHours": str(hours)})
        if body is None:
            return None
        answer = decoded(body, _Forecast, self.name)
        self._check(zone, answer.zone)
        return series_of(self._points(answer.forecast), self.name, SECONDS_PER_HOUR)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """History over the whole period if the key's plan includes it, else of the last 24 hours."""
        points: dict[float, float | None] = {}
        if until_s - from_s > _HISTORY_S:
            points |= await self._past(zone, from_s, until_s)
        if not points:
            points = await self._values_of("history", zone, {})
        return series_of(points.items(), self.name, SECONDS_PER_HOUR)

    async def _past(self, zone: str, from_s: float, until_s: float) -> dict[float, float | None]:
        """Fetch range after range, the newest first: a plan may include only some of them, or none."""
        points: dict[float, float | None] = {}
        while from_s < until_s:
            start_s = max(from_s, until_s - _RANGE_S)
            found = await self._values_of("past-range", zone, {"start": iso(start_s), "end": iso(until_s)})
            if not found:
                break
            points |= found
            until_s = start_s
        return points

    async def _values_of(self, part: str, zone: str, params: dict[str, str]) -> dict[float, float | None]:
        body = await self._get_if_in_plan(part, zone, params)
        if body is None:
            return {}
        answer = decoded(body, _Past, self.name)
        self._check(zone, answer.zone)
        return dict(self._points(answer.history or answer.data))

    def _points(self, values: list[_Value] | None) -> Iterator[tuple[float, float | None]]:
        return ((instant_s(value.datetime, self.name), value.carbon_intensity) for value in values or ())

    async def _get_if_in_plan(self, part: str, zone: str, params: dict[str, str]) -> bytes | None:
        """Body of a response; None if the key's plan does not include it, which is cached for a day and no outage."""
        if self._unavailable_until_s.get((part, zone), 0.0) > self.now_s():
            return None
        try:
            return await self._get(part, zone, params)
        except RefusedError as error:
            if error.status not in _NOT_IN_PLAN:
                raise
            self._unavailable_until_s[part, zone] = self.now_s() + _PLAN_RETRY_S
            return None

    async def _get(self, part: str, zone: str, params: dict[str, str] | None = None) -> bytes:
        # Without the last parameter the API falls back to the location of the caller's IP address.
        query = {**_location(zone), **(params or {}), "shouldUseFallbackCallerLookup": "false"}
        return await self.provider.get(f"{self.url}{_PATH}/{part}", query, {"auth-token": self.key.read()})

    def _check(self, requested: str, received: str) -> None:
        """Check the zone of a response.

        Raises:
            GridSourceError: the response is for another zone.
        """
        if not received:
            raise GridSourceError(f"response without a zone instead of {requested}")
        if ":" not in requested and received.casefold() != requested.casefold():
            raise GridSourceError(f"response for zone {received[:40]} instead of {requested}")


def base_url(url: str) -> str:
    """Base URL of the API from any of the forms that users configure.

    >>> base_url("https://api.electricitymap.org/v3/carbon-intensity/latest?zone=")
    'https://api.electricitymap.org/v3'
    >>> base_url("https://api.electricitymaps.com")
    'https://api.electricitymaps.com/v3'
    """
    base = url.partition(_PATH)[0].partition("?")[0].rstrip("/")
    has_path = "/" in base.partition("://")[2]
    return base if has_path else f"{base}/v3"


def _location(zone: str) -> dict[str, str]:
    """Query parameters of a zone, coordinates or cloud region."""
    kind, colon, rest = zone.partition(":")
    if not colon:
        return {"zone": zone}
    if kind != _GEO:
        return {"dataCenterProvider": kind, "dataCenterRegion": rest}
    latitude, _, longitude = rest.partition(",")
    return {"lat": latitude, "lon": longitude}
