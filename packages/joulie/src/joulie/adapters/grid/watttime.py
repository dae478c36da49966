"""Marginal carbon intensity from WattTime. Source: its API reference, version 3.

The API gives a token for a user and password, which it takes for half an hour. What is true now is the first value of
the forecast.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from joulie.adapters.grid.provider import Provider, RefusedError, Secret
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.wire import decoded, instant_s, iso, series_of, value_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports import GridSourceError
from joulie.settings import path, text

_SIGNAL = "co2_moer"
_UNITS = "lbs_co2_per_mwh"
G_PER_KWH = 0.45359237
"""Of one pound per megawatt-hour."""
_TOKEN_S = 25 * 60.0
"""It is good for 30 min."""
_LONGEST_HORIZON_H = 72
_HISTORY_S = 28 * 24 * SECONDS_PER_HOUR
"""Of five minutes each: enough to forecast by."""
_RANGE_S = 14 * 24 * SECONDS_PER_HOUR
"""Of one request; the API takes 32 days, but its answer would be large."""
_UNAUTHORIZED = 401
_NOT_IN_PLAN = {403, 404}


@dataclass(frozen=True, kw_only=True)
class WattTimeSettings:
    """The account."""

    username: str | None = text("WATTTIME_USERNAME", None, "User of WattTime.")
    password: str | None = text("WATTTIME_PASSWORD", None, "Password of that user.", secret=True)
    password_file: Path | None = path("WATTTIME_PASSWORD_FILE", None, "File with that password; read at each login.")
    url: str = text("WATTTIME_API_URL", "https://api.watttime.org", "Base of the WattTime API.")


def watttime(settings: WattTimeSettings, context: SourceContext) -> WattTime:
    """The source watttime."""
    password = Secret("WATTTIME_PASSWORD or WATTTIME_PASSWORD_FILE", settings.password, settings.password_file)
    return WattTime(context.provider(), settings.username, password, settings.url.rstrip("/"), context.now_s)


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
    """The API, as a source.

    Attributes:
        provider: how it is asked.
        username: of the account; None where there is none.
        password: of that user.
        url: base of the API.
        now_s: s since the epoch.
    """

    provider: Provider
    username: str | None
    password: Secret
    url: str
    now_s: Callable[[], float]
    name: str = "watttime"
    measure: Measure = Measure.CARBON
    basis: Basis | None = Basis.MARGINAL
    _token: str = field(default="", repr=False)
    _token_until_s: float = 0.0

    async def latest(self, zone: str) -> Observation:
        """The marginal intensity of these five minutes, or of the last ones that are known."""
        series = self._series(await self._ask("forecast", zone, {"horizon_hours": "1"}))
        if series is None:
            raise GridSourceError(f"no value for region {zone}")
        index = max(0, int(np.searchsorted(series.starts_s, self.now_s(), side="right")) - 1)
        began_s = float(series.starts_s[index])
        until_s = series.next_change_s(began_s) or series.end_s
        where = Provenance(self.name, zone, self.basis, estimated=True)
        return Observation(float(series.values[index]), began_s, where, until_s=until_s)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """What it expects."""
        hours = min(_LONGEST_HORIZON_H, max(1, round(horizon_s / SECONDS_PER_HOUR)))
        return self._series(await self._ask("forecast", zone, {"horizon_hours": str(hours)}))

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """What has been, at most four weeks of it; None where the account has no right to it."""
        from_s = max(from_s, until_s - _HISTORY_S)
        points: dict[float, float] = {}
        while from_s < until_s:
            end_s = min(until_s, from_s + _RANGE_S)
            try:
                answer = await self._ask("historical", zone, {"start": iso(from_s), "end": iso(end_s)})
            except RefusedError as error:
                if error.status in _NOT_IN_PLAN:
                    return None
                raise
            points |= dict(self._points(answer))
            from_s = end_s
        return series_of(points.items(), self.name)

    async def _ask(self, part: str, region: str, params: dict[str, str]) -> _Answer:
        asked = {"region": region, "signal_type": _SIGNAL, **params}
        token = await self._login()
        try:
            body = await self._get(part, asked, token)
        except RefusedError as error:
            if error.status != _UNAUTHORIZED:
                raise
            self._token_until_s = 0.0  # ended early; a new one, once
            body = await self._get(part, asked, await self._login())
        answer = decoded(body, _Answer, self.name)
        self._check(answer.meta, region)
        return answer

    async def _get(self, part: str, params: dict[str, str], token: str) -> bytes:
        return await self.provider.get(f"{self.url}/v3/{part}", params, {"authorization": f"Bearer {token}"})

    async def _login(self) -> str:
        if self.now_s() < self._token_until_s:
            return self._token
        if not self.username:
            raise GridSourceError("no user: set WATTTIME_USERNAME")
        password = self.password.read()
        user = base64.b64encode(f"{self.username}:{password}".encode()).decode()
        body = await self.provider.get(f"{self.url}/login", headers={"authorization": f"Basic {user}"}, hide=[password])
        self._token = decoded(body, _Token, self.name).token
        self._token_until_s = self.now_s() + _TOKEN_S
        return self._token

    def _check(self, meta: _Meta, region: str) -> None:
        """Refuse an answer of another region, signal or unit.

        Raises:
            GridSourceError: it is.
        """
        if meta.region and meta.region.casefold() != region.casefold():
            raise GridSourceError(f"an answer for region {meta.region[:40]} where {region} was asked for")
        if meta.signal_type and meta.signal_type != _SIGNAL:
            raise GridSourceError(f"an answer of signal {meta.signal_type[:40]} where {_SIGNAL} was asked for")
        if meta.units != _UNITS:
            raise GridSourceError(f"an answer in {meta.units[:40] or 'no unit'}; {_UNITS} is expected")

    def _series(self, answer: _Answer) -> Series | None:
        return series_of(self._points(answer), self.name, answer.meta.data_point_period_seconds)

    def _points(self, answer: _Answer) -> Iterator[tuple[float, float]]:
        for point in answer.data:
            yield instant_s(point.point_time, self.name), value_of(point.value, self.name) * G_PER_KWH
