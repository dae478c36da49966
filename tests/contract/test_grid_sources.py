"""What every source of grid signals must do, whatever it asks."""

import asyncio
import math

import httpx2
import pytest

from joulie.adapters.grid.constant import Constant
from joulie.adapters.grid.day_ahead import EnergyCharts, Entsoe
from joulie.adapters.grid.electricity_maps import ElectricityMaps
from joulie.adapters.grid.files import FileOptions, TableFile
from joulie.adapters.grid.http_json import HttpJson
from joulie.adapters.grid.price_schedules import parse_price_schedules
from joulie.adapters.grid.promql import PrometheusQuery
from joulie.adapters.grid.provider import Provider, RequestPolicy, Secret
from joulie.adapters.grid.tariff import TimeOfUse
from joulie.adapters.grid.uk import CarbonIntensityUk
from joulie.adapters.grid.watttime import WattTime
from joulie.adapters.prometheus import Prometheus
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation
from joulie.ports.grid import GridSourceError
from support.grid_providers import FORECAST, GB, HISTORY, LATEST, MOER, NOW_S, POINTERS, PRICES, Server
from support.prometheus_answers import matrix, vector
from support.scripted_server import serving

DAY_S = 86400.0
QUICK = RequestPolicy(timeout_s=1.0, retries=0, first_pause_s=0.001, calls_per_minute=6000)
SCHEDULES = """
schedules:
  - {dayOfWeek: "*", startTime: "16:00", endTime: "21:00", timezone: UTC, peakRate: 0.4, offPeakRate: 0.1}
"""
TABLE = "time,carbon intensity\n2023-11-14 21:00,300\n2023-11-14 22:00,310\n2023-11-14 23:00,320\n"


def now_s():
    return NOW_S


CHARTS = {"unix_seconds": [NOW_S - 7200, NOW_S - 3600, NOW_S], "price": [80.0, 75.5, 60.0], "unit": "EUR / MWh"}
ENTSOE = b"""<Publication_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"><TimeSeries>
<in_Domain.mRID codingScheme="A01">10Y1001A1001A82H</in_Domain.mRID><currency_Unit.name>EUR</currency_Unit.name>
<price_Measure_Unit.name>MWH</price_Measure_Unit.name><curveType>A03</curveType><Period><timeInterval>
<start>2023-11-13T23:00Z</start><end>2023-11-14T23:00Z</end></timeInterval><resolution>PT60M</resolution>
<Point><position>1</position><price.amount>73.24</price.amount></Point></Period></TimeSeries>
</Publication_MarketDocument>"""


class World(Server):
    """All providers, and a Prometheus."""

    def __init__(self):
        super().__init__(
            **{
                "/carbon-intensity/latest": LATEST,
                "/carbon-intensity/forecast": FORECAST,
                "/carbon-intensity/history": HISTORY,
                "/login": {"token": "t"},
                "/v3/forecast": MOER,
                "/v3/historical": MOER,
                "/intensity": GB,
                "/fw48h": GB,
                "T22:20Z": GB,
                "/json": PRICES,
                "/price": CHARTS,
                "/entsoe": ENTSOE,
                "/query": vector(({}, 250.0)),
                "/query_range": matrix(({}, [(1800, 240.0), (0, 250.0)])),
            }
        )


def sources(provider, client, url, folder):
    """Every source with a zone that it knows."""
    table = folder / "grid.csv"
    table.write_text(TABLE)
    tariff = parse_price_schedules(SCHEDULES, "schedules.yaml")
    options = FileOptions(forecast=True)
    prometheus = Prometheus(url, client)
    return {
        "electricity-maps": (ElectricityMaps(provider, Secret("KEY", "k"), url, now_s), "DE"),
        "watttime": (WattTime(provider, "ada", Secret("PASSWORD", "p"), url, now_s), "CAISO_NORTH"),
        "uk": (CarbonIntensityUk(provider, url, now_s), "GB"),
        "energy-charts": (EnergyCharts(provider, url, now_s), "DE"),
        "entsoe": (Entsoe(provider, f"{url}/entsoe", now_s, token=Secret("TOKEN", "t")), "DE"),
        "file": (TableFile(table, options, Measure.CARBON, Basis.AVERAGE, "DE", now_s), "DE"),
        "json": (HttpJson(provider, f"{url}/{{zone}}/json", POINTERS, Measure.PRICE, None, now_s), "DE"),
        "prometheus": (PrometheusQuery(prometheus, "grid", Measure.CARBON, Basis.MARGINAL), "DE"),
        "static": (Constant(300.0, Measure.CARBON, Basis.AVERAGE, now_s), "DE"),
        "tou": (TimeOfUse(lambda: tariff, now_s), "DE"),
    }


def with_source(name, folder, talk):
    async def main():
        server = World()
        async with serving(server.handle) as url, httpx2.AsyncClient() as client:
            source, zone = sources(Provider(client, QUICK), client, url, folder)[name]
            return source, zone, await talk(source, zone)

    return asyncio.run(main())


KNOW_ZONES = ["electricity-maps", "watttime", "uk", "entsoe", "file", "json"]
NAMES = [*KNOW_ZONES, "energy-charts", "prometheus", "static", "tou"]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_says_where_it_comes_from_and_when_it_is_true(name, tmp_path):
    source, zone, seen = with_source(name, tmp_path, lambda source, zone: source.latest(zone))
    assert isinstance(seen, Observation)
    assert source.name == name == seen.provenance.source
    assert seen.provenance.zone == zone
    assert seen.provenance.basis is source.basis
    assert (source.basis is None) == (source.measure is Measure.PRICE)
    assert math.isfinite(seen.value)
    if name != "prometheus":  # whose clock is the server's
        assert NOW_S - 3600 <= seen.time_s <= NOW_S
        assert seen.until_s is None or seen.until_s > NOW_S


@pytest.mark.parametrize("name", NAMES)
def test_past_and_future_are_series_or_nothing(name, tmp_path):
    async def talk(source, zone):
        return await source.forecast(zone, DAY_S), await source.history(zone, NOW_S - 2 * DAY_S, NOW_S)

    _, _, (ahead, past) = with_source(name, tmp_path, talk)
    for series in (ahead, past):
        assert series is None or isinstance(series, Series)
    assert ahead is None or ahead.end_s > NOW_S


@pytest.mark.parametrize("name", KNOW_ZONES)
def test_a_zone_that_it_does_not_know_is_an_error_of_the_port(name, tmp_path):
    async def talk(source, _):
        with pytest.raises(GridSourceError):
            await source.latest("XX")

    with_source(name, tmp_path, talk)
