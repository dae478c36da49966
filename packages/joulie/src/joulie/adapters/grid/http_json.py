"""The source json: carbon intensity or prices from any URL that returns JSON, located by JSON pointers (RFC 6901)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from joulie.adapters.grid.provider import Provider, Secret
from joulie.adapters.grid.source_context import SourceContext, options
from joulie.adapters.grid.wire import decoded, instant_s, series_of, value_of
from joulie.adapters.grid.zone_names import OneZone
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSource, GridSourceError
from joulie.settings import group, json_object, path, text

_MIN_MILLISECONDS = 1e11
"""Numeric times above this are milliseconds since the epoch, not seconds."""


class JsonOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """JSON pointers to the parts of a response, and how to interpret them.

    Attributes:
        value: pointer to the value.
        time: pointer to its time, ISO 8601 or seconds or milliseconds since the epoch; empty if the value is current.
        zone: pointer to the response's zone, so that a response for another zone is rejected; empty if it has none.
        forecast: pointer to the list of forecast items; empty without a forecast.
        forecast_value: pointer to the value within an item of that list.
        forecast_time: pointer to the time within an item of that list.
        factor: factor that converts values to gCO2eq/kWh or currency/kWh: 0.001 for a price per MWh.
        header: request header for the key; ``authorization`` sends it as a bearer token.
    """

    value: str = "/value"
    time: str = ""
    zone: str = ""
    forecast: str = ""
    forecast_value: str = "/value"
    forecast_time: str = "/time"
    factor: float = 1.0
    header: str = "authorization"


@dataclass(frozen=True)
class JsonSettings:
    """URL, key and response format of the source json."""

    url: str
    options: JsonOptions
    key_file: Path | None


def json_settings(measure: Measure) -> Any:
    """Declare the settings of the source json."""
    prefix = f"{measure.name}_JSON"
    return group(
        JsonSettings,
        url=text(f"{prefix}_URL", "", "URL of the source json; {zone} stands for the zone."),
        options=json_object(
            f"{prefix}_OPTIONS",
            "Format of its responses: JSON pointers value, time, zone, forecast, forecast_value and forecast_time, "
            "conversion factor, and request header for the key.",
            to=options(JsonOptions),
        ),
        key_file=path(f"{prefix}_KEY_FILE", None, "File with the key to send; read at each request."),
    )


def http_json(settings: JsonSettings, context: SourceContext) -> GridSource:
    """Create the source json.

    Raises:
        GridSourceError: the URL is not set.
    """
    url, prefix = settings.url, f"{context.measure.name}_JSON"
    if not url:
        raise GridSourceError(f"no URL: set {prefix}_URL")
    key = None if settings.key_file is None else Secret(f"{prefix}_KEY_FILE", file=settings.key_file)
    source = HttpJson(context.provider(), url, settings.options, context.measure, context.basis, context.now_s, key)
    return source if "{zone}" in url else OneZone(source, context.zone)


@dataclass
class HttpJson:
    """Source that reads JSON from a URL.

    Attributes:
        provider: HTTP client.
        url: URL, in which ``{zone}`` stands for the zone.
        options: format of the responses.
        measure: carbon or price.
        basis: basis of carbon intensities; None for prices.
        now_s: current time, s since the epoch.
        key: key to send; None for none.
    """

    provider: Provider
    url: str
    options: JsonOptions
    measure: Measure
    basis: Basis | None
    now_s: Callable[[], float]
    key: Secret | None = None
    name: str = "json"

    async def latest(self, zone: str) -> Observation:
        """Current value of a zone."""
        answer = await self._answer(zone)
        time_s = self._instant_s(_at(answer, self.options.time)) if self.options.time else self.now_s()
        return Observation(
            self._number(_at(answer, self.options.value)), time_s, Provenance(self.name, zone, self.basis)
        )

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Forecast of the response; None if the options name no pointer to one."""
        if not self.options.forecast:
            return None
        return series_of(self._expected(await self._answer(zone)), self.name)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """None: a response has no history."""
        return None

    def _expected(self, answer: Any) -> Iterator[tuple[float, float | None]]:
        items = _at(answer, self.options.forecast)
        if not isinstance(items, list | None):
            raise GridSourceError(f"invalid response: expected a list at {self.options.forecast}")
        for item in items or ():
            number = _at(item, self.options.forecast_value)
            time_s = self._instant_s(_at(item, self.options.forecast_time))
            yield time_s, None if number is None else self._number(number)

    async def _answer(self, zone: str) -> Any:
        headers = {"accept": "application/json"}
        if self.key is not None:
            scheme = "Bearer " if self.options.header.lower() == "authorization" else ""
            headers[self.options.header] = scheme + self.key.read()
        url = self.url.replace("{zone}", quote(zone, safe=""))
        answer = decoded(await self.provider.get(url, headers=headers), object, self.name)
        if self.options.zone and str(_at(answer, self.options.zone)).casefold() != zone.casefold():
            raise GridSourceError(f"response for a zone other than {zone}")
        return answer

    def _number(self, found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            raise GridSourceError(f"invalid response: no number at {self.options.value}")
        try:
            return value_of(float(found), self.name) * self.options.factor
        except ValueError:
            raise GridSourceError(f"invalid response: no number at {self.options.value}") from None

    def _instant_s(self, found: Any) -> float:
        if isinstance(found, str):
            return instant_s(found, self.name)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise GridSourceError("invalid response: expected a time where the options point to one")
        return found / 1000.0 if found > _MIN_MILLISECONDS else float(found)


def _at(document: Any, pointer: str) -> Any:
    """Value at a JSON pointer.

    Raises:
        GridSourceError: the document has no such value.
    """
    here = document
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        try:
            here = here[int(name)] if isinstance(here, list) else here[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise GridSourceError(f"invalid response: nothing at {pointer}") from None
    return here
