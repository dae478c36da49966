"""The sources energy-charts and entsoe: day-ahead prices of Europe's bidding zones, by the hour or quarter of an hour.

Both publish the prices of a day on the day before, at about 13:00 in Brussels. Times are in UTC, so that days of 23 and
25 hours need no care. Zones have the names of Electricity Maps; other names are passed on as they are.
Sources: ENTSO-E, Transparency Platform RESTful API, document A44 (12.1.D); Energy-Charts API, Fraunhofer ISE, /price.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np

from joulie.adapters.grid.provider import Provider, Secret
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.wire import decoded, instant_s, series_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSourceError
from joulie.settings import path, text

_KWH_PER_MWH = 1000.0
_DAY_S = 86400.0
_RANGE_S = 30 * _DAY_S
"""Maximum range of one request, so that its response stays well below a megabyte."""
_AHEAD_S = 2 * _DAY_S
_UNITS = {"EUR/MWh", "EUR / MWh"}

BIDDING_ZONES: Mapping[str, str] = {
    "AT": "10YAT-APG------L",
    "BE": "10YBE----------2",
    "BG": "10YCA-BULGARIA-R",
    "CH": "10YCH-SWISSGRIDZ",
    "CZ": "10YCZ-CEPS-----N",
    "DE": "10Y1001A1001A82H",
    "DK-DK1": "10YDK-1--------W",
    "DK-DK2": "10YDK-2--------M",
    "EE": "10Y1001A1001A39I",
    "ES": "10YES-REE------0",
    "FI": "10YFI-1--------U",
    "FR": "10YFR-RTE------C",
    "GR": "10YGR-HTSO-----Y",
    "HR": "10YHR-HEP------M",
    "HU": "10YHU-MAVIR----U",
    "IE": "10Y1001A1001A59C",
    "IT-CNO": "10Y1001A1001A70O",
    "IT-CSO": "10Y1001A1001A71M",
    "IT-NO": "10Y1001A1001A73I",
    "IT-SAR": "10Y1001A1001A74G",
    "IT-SIC": "10Y1001A1001A75E",
    "IT-SO": "10Y1001A1001A788",
    "LT": "10YLT-1001A0008Q",
    "LU": "10Y1001A1001A82H",
    "LV": "10YLV-1001A00074",
    "NL": "10YNL----------L",
    "NO-NO1": "10YNO-1--------2",
    "NO-NO2": "10YNO-2--------T",
    "NO-NO3": "10YNO-3--------J",
    "NO-NO4": "10YNO-4--------9",
    "NO-NO5": "10Y1001A1001A48H",
    "PL": "10YPL-AREA-----S",
    "PT": "10YPT-REN------W",
    "RO": "10YRO-TEL------P",
    "RS": "10YCS-SERBIATSOV",
    "SE-SE1": "10Y1001A1001A44P",
    "SE-SE2": "10Y1001A1001A45N",
    "SE-SE3": "10Y1001A1001A46L",
    "SE-SE4": "10Y1001A1001A47J",
    "SI": "10YSI-ELES-----O",
    "SK": "10YSK-SEPS-----K",
}
"""Energy Identification Code of the bidding zone of a zone."""
_ENERGY_CHARTS_ZONES = {
    "DE": "DE-LU",
    "IT-CNO": "IT-Centre-North",
    "IT-CSO": "IT-Centre-South",
    "IT-NO": "IT-North",
    "IT-SAR": "IT-Sardinia",
    "IT-SIC": "IT-Sicily",
    "IT-SO": "IT-South",
    "LU": "DE-LU",
}
_NUMBERED = re.compile(r"(DK|NO|SE)-(\1\d)")


@dataclass
class _DayAhead(ABC):
    """Source of day-ahead prices, EUR/kWh.

    Attributes:
        provider: HTTP client.
        url: URL of the API.
        now_s: current time, s since the epoch.
    """

    provider: Provider
    url: str
    now_s: Callable[[], float]
    name: str = ""
    measure: Measure = Measure.PRICE
    basis: Basis | None = None

    async def latest(self, zone: str) -> Observation:
        """Price of the current hour or quarter of an hour."""
        now_s = self.now_s()
        prices = await self._prices(zone, now_s - _DAY_S, now_s + _DAY_S)
        value = None if prices is None else prices.at(now_s)
        if prices is None or value is None:
            raise GridSourceError(f"no price for the current time in zone {zone}")
        now_from = prices.between(prices.start_s, now_s + 1.0)
        began_s = prices.start_s if now_from is None else float(now_from.starts_s[-1])
        until_s = prices.next_change_s(now_s) or prices.end_s
        return Observation(value, began_s, Provenance(self.name, zone), until_s=until_s)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Prices that are published already: of today, and in the afternoon of tomorrow."""
        now_s = self.now_s()
        return await self._prices(zone, now_s, now_s + min(horizon_s, _AHEAD_S))

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past prices, fetched in ranges of at most a month."""
        points: dict[float, float] = {}
        last_s = None
        while from_s < until_s:
            part = await self._prices(zone, from_s, min(until_s, from_s + _RANGE_S))
            if part is not None:
                points |= zip(part.starts_s.tolist(), part.values.tolist(), strict=True)
                last_s = part.end_s - float(part.starts_s[-1])
            from_s += _RANGE_S
        known = series_of(points.items(), self.name, last_s)
        return None if known is None else known.between(known.start_s, until_s)

    @abstractmethod
    async def _prices(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Prices of at least this range as far as they are published, EUR/kWh; None if none are."""


# ---- Energy-Charts

ENERGY_CHARTS_URL_SETTING = text(
    "ENERGY_CHARTS_API_URL", "https://api.energy-charts.info", "Base URL of the Energy-Charts API, which needs no key."
)


def energy_charts(url: str, context: SourceContext) -> EnergyCharts:
    """Create the source energy-charts."""
    return EnergyCharts(context.provider(), url.rstrip("/"), context.now_s)


class _Table(msgspec.Struct):
    unix_seconds: list[float]
    price: list[float | None]
    unit: str = ""


@dataclass
class EnergyCharts(_DayAhead):
    """Source that queries the Energy-Charts API."""

    name: str = "energy-charts"

    async def _prices(self, zone: str, from_s: float, until_s: float) -> Series | None:
        # Dates are local, so a day is added on both sides.
        first, last = (datetime.fromtimestamp(at, UTC).date() for at in (from_s - _DAY_S, until_s + _DAY_S))
        numbered = _NUMBERED.fullmatch(zone)
        area = numbered[2] if numbered else _ENERGY_CHARTS_ZONES.get(zone, zone)
        query = {"bzn": area, "start": first.isoformat(), "end": last.isoformat()}
        answer = decoded(await self.provider.get(f"{self.url}/price", query), _Table, self.name)
        if answer.unit not in _UNITS:
            raise GridSourceError(f"response in {answer.unit[:40] or 'no unit'} instead of EUR/MWh")
        if len(answer.unix_seconds) != len(answer.price):
            raise GridSourceError("invalid response: as many prices as times expected")
        pairs = zip(answer.unix_seconds, answer.price, strict=True)
        points = [(time_s, None if price is None else price / _KWH_PER_MWH) for time_s, price in sorted(pairs)]
        known = series_of(points, self.name, _last_step_s(points))
        return None if known is None else known.between(from_s, max(until_s, known.end_s))


def _last_step_s(points: Sequence[tuple[float, float | None]]) -> float | None:
    """Duration of the last price, s: to the time after it, which has none, else that of the step before it.

    The steps of a response differ where a market has changed from hours to quarters of an hour.
    """
    times_s = [time_s for time_s, _ in points]
    last = max((index for index, (_, price) in enumerate(points) if price is not None), default=-1)
    steps_s = np.diff(times_s[max(last - 1, 0) : last + 2])
    return float(steps_s[-1]) if last >= 0 and steps_s.size else None


# ---- ENTSO-E


@dataclass(frozen=True, kw_only=True)
class EntsoeSettings:
    """Token and URL of the ENTSO-E Transparency Platform."""

    token: str | None = text(
        "ENTSOE_SECURITY_TOKEN",
        None,
        "Security token of the ENTSO-E Transparency Platform. Prefer ENTSOE_SECURITY_TOKEN_FILE.",
        secret=True,
    )
    token_file: Path | None = path("ENTSOE_SECURITY_TOKEN_FILE", None, "File with that token; read at each request.")
    url: str = text("ENTSOE_API_URL", "https://web-api.tp.entsoe.eu/api", "URL of its RESTful API.")


def entsoe(settings: EntsoeSettings, context: SourceContext) -> Entsoe:
    """Create the source entsoe."""
    token = Secret("ENTSOE_SECURITY_TOKEN or ENTSOE_SECURITY_TOKEN_FILE", settings.token, settings.token_file)
    return Entsoe(context.provider(), settings.url, context.now_s, token=token)


@dataclass
class Entsoe(_DayAhead):
    """Source that queries ENTSO-E's Transparency Platform.

    Attributes:
        token: security token.
    """

    name: str = "entsoe"
    token: Secret = field(kw_only=True)

    async def _prices(self, zone: str, from_s: float, until_s: float) -> Series | None:
        area, token = BIDDING_ZONES.get(zone, zone), self.token.read()
        query = {
            "securityToken": token,
            "documentType": "A44",
            "in_Domain": area,
            "out_Domain": area,
            "periodStart": _minute(from_s),
            "periodEnd": _minute(until_s),
        }
        body = await self.provider.get(self.url, query, hide=[token])
        known = _price_document(body, area)
        return None if known is None else known.between(from_s, max(until_s, known.end_s))


def _minute(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%d%H%M")


def _price_document(body: bytes, area: str) -> Series | None:
    """Prices of a document A44, EUR/kWh; None if it says that there are none.

    Raises:
        GridSourceError: the document is invalid, of another area, or in another unit.
    """
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise GridSourceError("invalid response: a document type in XML")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - of bounded size, and without entities
    except ElementTree.ParseError as error:
        raise GridSourceError(f"invalid response: {error}") from None
    if root.tag.endswith("}Acknowledgement_MarketDocument"):
        reason = root.findtext("{*}Reason/{*}text", "")
        if root.findtext("{*}Reason/{*}code") == "999":  # no matching data
            return None
        raise GridSourceError(f"request refused: {reason[:120]}")
    steps = sorted(step for period in _periods(root, area) for step in _steps(period))
    last_s = steps[-1][1] if steps else None
    return series_of(((start_s, price) for start_s, _, price in steps), "entsoe", last_s)


def _periods(root: ElementTree.Element, area: str) -> Iterator[ElementTree.Element]:
    """Periods of the coupled day-ahead auction; a zone may have another auction, at a later position."""
    for one in root.iterfind("{*}TimeSeries"):
        told = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in one}
        if told.get("classificationSequence_AttributeInstanceComponent.position", "1") != "1":
            continue
        unit = f"{told.get('currency_Unit.name', '')}/{told.get('price_Measure_Unit.name', '')}"
        if unit != "EUR/MWH":
            raise GridSourceError(f"response in {unit[:40]} instead of EUR/MWH")
        if told.get("in_Domain.mRID", area) != area:
            raise GridSourceError(f"response for area {told['in_Domain.mRID'][:40]} instead of {area}")
        yield from one.iterfind("{*}Period")


_MAX_STEPS = 10_000
_RESOLUTIONS_S = {"PT15M": 900.0, "PT30M": 1800.0, "PT60M": 3600.0, "PT1H": 3600.0}


def _steps(period: ElementTree.Element) -> Iterator[tuple[float, float, float]]:
    """Start of each step of a period, s since the epoch, its duration, s, and its price, EUR/kWh."""
    resolution = period.findtext("{*}resolution", "")
    step_s = _RESOLUTIONS_S.get(resolution)
    if step_s is None:
        raise GridSourceError(f"invalid response: unknown resolution {resolution[:20]!r}")
    start_s, end_s = (
        instant_s(period.findtext(f"{{*}}timeInterval/{{*}}{edge}", ""), "entsoe") for edge in ("start", "end")
    )
    try:
        prices = {
            int(point.findtext("{*}position", "")): float(point.findtext("{*}price.amount", ""))
            for point in period.iterfind("{*}Point")
        }
    except ValueError:
        raise GridSourceError("invalid response: a point without position or price") from None
    count = round((end_s - start_s) / step_s)
    if not 0 < count <= _MAX_STEPS or not all(1 <= position <= count for position in prices):
        raise GridSourceError("invalid response: a position outside of its period")
    price = None
    for position in range(1, count + 1):
        # A position that is left out has the price of the one before.
        price = prices.get(position, price)
        if price is not None:
            yield start_s + (position - 1) * step_s, step_s, price / _KWH_PER_MWH
