"""The source watttime: marginal or average carbon intensity. Source: WattTime's API reference, version 3.

A login with user and password returns a token that is valid for half an hour. The current value is the first one of
the forecast.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from joulie.adapters.grid.provider import Provider, RefusedError, Secret
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.wire import decoded, instant_s, iso, series_of, value_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports.grid import GridSourceError
from joulie.settings import choice, path, text

_UNITS = "lbs_co2_per_mwh"
G_PER_KWH = 0.45359237
"""Conversion of 1 lb/MWh to g/kWh."""
_TOKEN_S = 25 * 60.0
"""Time after which a token is renewed; it is valid for 30 min."""
_MAX_HORIZON_H = 72
_HISTORY_S = 28 * 24 * SECONDS_PER_HOUR
"""Maximum length of a history of five-minute values: enough for the forecaster."""
_RANGE_S = 14 * 24 * SECONDS_PER_HOUR
"""Maximum range of one request; the API accepts 32 days, but the response would be large."""
_UNAUTHORIZED = 401
_NOT_IN_PLAN = {403, 404}


class SignalType(StrEnum):
    """Signal of WattTime in units of carbon intensity."""

    MOER = "co2_moer"
    """Marginal operating emissions rate."""
    AOER = "co2_aoer"
    """Average operating emissions rate."""

    @property
    def basis(self) -> Basis:
        """Whether it is marginal or average."""
        return Basis.MARGINAL if self is SignalType.MOER else Basis.AVERAGE


@dataclass(frozen=True, kw_only=True)
class WattTimeSettings:
    """Account and URL of the WattTime API."""

    username: str | None = text("WATTTIME_USERNAME", None, "User name of the WattTime account.")
    password: str | None = text("WATTTIME_PASSWORD", None, "Password of that user.", secret=True)
    password_file: Path | None = path("WATTTIME_PASSWORD_FILE", None, "File with that password; read at each login.")
    url: str = text("WATTTIME_API_URL", "https://api.watttime.org", "Base URL of the WattTime API.")
    signal_type: SignalType = choice(
        "WATTTIME_SIGNAL_TYPE",
        SignalType.MOER,
        "Signal to read: co2_moer is marginal carbon intensity, co2_aoer is average.",
        SignalType,
    )


def watttime(settings: WattTimeSettings, context: SourceContext) -> WattTime:
    """Create the source watttime."""
    password = Secret("WATTTIME_PASSWORD or WATTTIME_PASSWORD_FILE", settings.password, settings.password_file)
    url, signal = settings.url.rstrip("/"), settings.signal_type
    return WattTime(context.provider(), settings.username, password, url, context.now_s, signal)


class _Token(msgspec.Struct):
    token: str


class _Point(msgspec.Struct):
    point_time: str
    value: float | None = None


class _Meta(msgspec.Struct):
    region: str = ""
    signal_type: str = ""
    units: str = ""
    data_point_period_seconds: float | None = None


class _Answer(msgspec.Struct):
    data: list[_Point]
    meta: _Meta


@dataclass
class WattTime:
    """Source that queries the WattTime API.

    Attributes:
        provider: HTTP client.
        username: user name of the account; None if not configured.
        password: password of that user.
        url: base URL of the API.
        now_s: current time, s since the epoch.
        signal: signal to read.
    """

    provider: Provider
    username: str | None
    password: Secret
    url: str
    now_s: Callable[[], float]
    signal: SignalType = SignalType.MOER
    name: str = "watttime"
    measure: Measure = Measure.CARBON
    basis: Basis | None = field(init=False)
    _token: str = field(default="", repr=False)
    _token_until_s: float = 0.0

    def __post_init__(self) -> None:
        self.basis = self.signal.basis

    async def latest(self, zone: str) -> Observation:
        """Intensity of the current five minutes, or of the last ones that are known."""
        series = self._series(await self._query("forecast", zone, {"horizon_hours": "1"}))
        if series is None:
            raise GridSourceError(f"no value for region {zone}")
        index = max(0, int(np.searchsorted(series.starts_s, self.now_s(), side="right")) - 1)
        began_s = float(series.starts_s[index])
        until_s = series.next_change_s(began_s) or series.end_s
        where = Provenance(self.name, zone, self.basis, estimated=True)
        return Observation(float(series.values[index]), began_s, where, until_s=until_s)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Forecast of at most 72 hours."""
        hours = min(_MAX_HORIZON_H, max(1, round(horizon_s / SECONDS_PER_HOUR)))
        return self._series(await self._query("forecast", zone, {"horizon_hours": str(hours)}))

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """History of at most four weeks; None if the account's plan does not include it."""
        from_s = max(from_s, until_s - _HISTORY_S)
        points: dict[float, float] = {}
        while from_s < until_s:
            end_s = min(until_s, from_s + _RANGE_S)
            try:
                answer = await self._query("historical", zone, {"start": iso(from_s), "end": iso(end_s)})
            except RefusedError as error:
                if error.status in _NOT_IN_PLAN:
                    return None
                raise
            points |= dict(self._points(answer))
            from_s = end_s
        return series_of(points.items(), self.name)

    async def _query(self, part: str, region: str, params: dict[str, str]) -> _Answer:
        query = {"region": region, "signal_type": self.signal.value, **params}
        token = await self._login()
        try:
            body = await self._get(part, query, token)
        except RefusedError as error:
            if error.status != _UNAUTHORIZED:
                raise
            self._token_until_s = 0.0  # the token has expired early: log in again, once
            body = await self._get(part, query, await self._login())
        answer = decoded(body, _Answer, self.name)
        self._check(answer.meta, region)
        return answer

    async def _get(self, part: str, params: dict[str, str], token: str) -> bytes:
        return await self.provider.get(f"{self.url}/v3/{part}", params, {"authorization": f"Bearer {token}"})

    async def _login(self) -> str:
        if self.now_s() < self._token_until_s:
            return self._token
        if not self.username:
            raise GridSourceError("no user name: set WATTTIME_USERNAME")
        password = self.password.read()
        user = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        body = await self.provider.get(f"{self.url}/login", headers={"authorization": f"Basic {user}"}, hide=[password])
        self._token = decoded(body, _Token, self.name).token
        self._token_until_s = self.now_s() + _TOKEN_S
        return self._token

    def _check(self, meta: _Meta, region: str) -> None:
        """Check region, signal and unit of a response.

        Raises:
            GridSourceError: one of them is not the requested one.
        """
        if meta.region and meta.region.casefold() != region.casefold():
            raise GridSourceError(f"response for region {meta.region[:40]} instead of {region}")
        if meta.signal_type and meta.signal_type != self.signal:
            raise GridSourceError(f"response with signal {meta.signal_type[:40]} instead of {self.signal}")
        if meta.units != _UNITS:
            raise GridSourceError(f"response in {meta.units[:40] or 'no unit'} instead of {_UNITS}")

    def _series(self, answer: _Answer) -> Series | None:
        return series_of(self._points(answer), self.name, answer.meta.data_point_period_seconds)

    def _points(self, answer: _Answer) -> Iterator[tuple[float, float]]:
        for point in answer.data:
            yield instant_s(point.point_time, self.name), value_of(point.value, self.name) * G_PER_KWH
