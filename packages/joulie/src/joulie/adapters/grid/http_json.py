"""Carbon intensity or prices from any address that answers JSON; JSON pointers (RFC 6901) say where in it."""

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
from joulie.ports import GridSource, GridSourceError
from joulie.settings import group, json_object, path, text

_MILLISECONDS_FROM = 1e11
"""A number of seconds since the epoch above this is one of milliseconds."""


class JsonOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where in an answer is what.

    Attributes:
        value: pointer to the number.
        time: pointer to its time, ISO 8601 or seconds or milliseconds since the epoch; without one it is now.
        zone: pointer to the zone that the answer is for; with one, an answer for another zone is refused.
        forecast: pointer to a list of what is expected.
        forecast_value: pointer to the number, within an item of that list.
        forecast_time: pointer to its time there.
        factor: what numbers are multiplied by, to gCO2eq/kWh or currency/kWh: 0.001 for a price per MWh.
        header: that the key is sent in; ``authorization`` sends it as a bearer token.
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
    """Which address, and where in its answers is what."""

    url: str
    options: JsonOptions
    key_file: Path | None


def json_settings(measure: Measure) -> Any:
    """The settings of the source json."""
    prefix = f"{measure.name}_JSON"
    return group(
        JsonSettings,
        url=text(f"{prefix}_URL", "", "Address of the source json; {zone} stands for the zone."),
        options=json_object(
            f"{prefix}_OPTIONS",
            "JSON pointers value, time, zone, forecast, forecast_value, forecast_time; factor; header of the key.",
            to=options(JsonOptions),
        ),
        key_file=path(f"{prefix}_KEY_FILE", None, "File with the key to send; read at each request."),
    )


def http_json(settings: JsonSettings, context: SourceContext) -> GridSource:
    """The source json.

    Raises:
        GridSourceError: there is no address.
    """
    url, prefix = settings.url, f"{context.measure.name}_JSON"
    if not url:
        raise GridSourceError(f"no address: set {prefix}_URL")
    key = None if settings.key_file is None else Secret(f"{prefix}_KEY_FILE", file=settings.key_file)
    source = HttpJson(context.provider(), url, settings.options, context.measure, context.basis, context.now_s, key)
    return source if "{zone}" in url else OneZone(source, context.zone)


@dataclass
class HttpJson:
    """One address, as a source.

    Attributes:
        provider: how it is asked.
        url: with ``{zone}`` where the zone stands.
        options: where in the answer is what.
        measure: of the numbers.
        basis: of carbon intensities.
        now_s: s since the epoch.
        key: to send; None for none.
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
        """The number that the answer has."""
        answer = await self._answer(zone)
        time_s = self._instant_s(_at(answer, self.options.time)) if self.options.time else self.now_s()
        return Observation(
            self._number(_at(answer, self.options.value)), time_s, Provenance(self.name, zone, self.basis)
        )

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """The list of the answer, where the options say that it has one."""
        if not self.options.forecast:
            return None
        return series_of(self._expected(await self._answer(zone)), self.name)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Nothing: one answer knows no past."""
        return None

    def _expected(self, answer: Any) -> Iterator[tuple[float, float | None]]:
        items = _at(answer, self.options.forecast)
        if not isinstance(items, list | None):
            raise GridSourceError(f"no list at {self.options.forecast}")
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
            raise GridSourceError(f"an answer for another zone than {zone}")
        return answer

    def _number(self, found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            raise GridSourceError(f"no number at {self.options.value}")
        try:
            return value_of(float(found), self.name) * self.options.factor
        except ValueError:
            raise GridSourceError(f"no number at {self.options.value}") from None

    def _instant_s(self, found: Any) -> float:
        if isinstance(found, str):
            return instant_s(found, self.name)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise GridSourceError("no time where the options say that there is one")
        return found / 1000.0 if found > _MILLISECONDS_FROM else float(found)


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer points to.

    Raises:
        GridSourceError: there is nothing.
    """
    here = document
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        try:
            here = here[int(name)] if isinstance(here, list) else here[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise GridSourceError(f"nothing at {pointer} of the answer") from None
    return here
