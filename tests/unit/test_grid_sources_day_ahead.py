"""Day-ahead prices of Energy-Charts and ENTSO-E, in the providers' own form, over the real HTTP client."""

import asyncio
import math
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import msgspec
import pytest

from joulie.adapters.grid.day_ahead import BIDDING_ZONES, EnergyCharts, Entsoe
from joulie.adapters.grid.provider import Provider, RequestPolicy, Secret
from joulie.domain.grid.signals import Measure
from joulie.ports.grid import GridSourceError
from support.grid_feeds import feed_from
from support.grid_providers import Server
from support.scripted_server import serving

QUICK = RequestPolicy(timeout_s=1.0, retries=0, first_pause_s=0.001, calls_per_minute=6000)
RECORDED = Path(__file__).parents[1] / "golden" / "entsoe" / "a44-be.xml"
TOKEN = "8f1c2d9e-token"
DE_LU = "10Y1001A1001A82H"
# The answer of api.energy-charts.info for DE-LU on 4 May 2024, as it came.
DE_PRICES = (
    b'{"license_info":"CC BY 4.0 (creativecommons.org/licenses/by/4.0) from Bundesnetzagentur | SMARD.de",'
    b'"unix_seconds":[1714773600,1714777200,1714780800,1714784400,1714788000,1714791600,1714795200,1714798800,'
    b"1714802400,1714806000,1714809600,1714813200,1714816800,1714820400,1714824000,1714827600,1714831200,1714834800,"
    b'1714838400,1714842000,1714845600,1714849200,1714852800,1714856400],"price":[90.8,87.79,86.26,87.72,90.64,98.34,'
    b"94.19,90.02,78.48,62.38,41.17,31.18,24.93,14.53,13.34,26.03,63.62,79.36,98.01,121.92,135.4,113.56,90.26,83.6],"
    b'"unit":"EUR/MWh","deprecated":false}'
)
NO_DATA = b"""<?xml version="1.0" encoding="utf-8"?>
<Acknowledgement_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:7:0">
  <mRID>d1f3c0b2-1c7e-4</mRID>
  <createdDateTime>2026-02-17T09:45:56Z</createdDateTime>
  <Reason>
    <code>999</code>
    <text>No matching data found for Data item Day-ahead Prices [12.1.D]</text>
  </Reason>
</Acknowledgement_MarketDocument>"""


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def time_series(start, end, resolution, points, *, area=DE_LU, position=None, unit="MWH"):
    sequence = "classificationSequence_AttributeInstanceComponent.position"
    auction = "" if position is None else f"<{sequence}>{position}</{sequence}>"
    prices = "".join(
        f"<Point><position>{place}</position><price.amount>{price}</price.amount></Point>" for place, price in points
    )
    return f"""
  <TimeSeries>
    <mRID>1</mRID>
    <auction.type>A01</auction.type>
    <businessType>A62</businessType>
    <in_Domain.mRID codingScheme="A01">{area}</in_Domain.mRID>
    <out_Domain.mRID codingScheme="A01">{area}</out_Domain.mRID>
    <contract_MarketAgreement.type>A01</contract_MarketAgreement.type>
    <currency_Unit.name>EUR</currency_Unit.name>
    <price_Measure_Unit.name>{unit}</price_Measure_Unit.name>
    {auction}
    <curveType>A03</curveType>
    <Period>
      <timeInterval><start>{start}</start><end>{end}</end></timeInterval>
      <resolution>{resolution}</resolution>
      {prices}
    </Period>
  </TimeSeries>"""


def document(*parts):
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<Publication_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3">'
        "<mRID>67528d12b93146ee8254870e5a2f78ab</mRID><revisionNumber>1</revisionNumber><type>A44</type>"
        f"{''.join(parts)}</Publication_MarketDocument>"
    ).encode()


def asking(make, body, talk, now_s):
    """What `talk` gets of the source, and the requests."""
    server = Server(price=body, api=body)

    async def main():
        async with serving(server.handle) as url, httpx2.AsyncClient() as client:
            return await talk(make(Provider(client, QUICK), url, lambda: now_s))

    return asyncio.run(main()), server.requests


def charts(provider, url, now_s):
    return EnergyCharts(provider, url, now_s)


def entsoe(provider, url, now_s):
    return Entsoe(provider, f"{url}/api", now_s, token=Secret("ENTSOE_SECURITY_TOKEN", TOKEN))


def test_g14_energy_charts_prices_are_per_kwh_and_of_their_hour():
    now_s = at("2024-05-04T12:30")
    seen, (request,) = asking(charts, DE_PRICES, lambda source: source.latest("DE"), now_s)
    assert seen.value == pytest.approx(0.01334)
    assert (seen.time_s, seen.until_s) == (at("2024-05-04T12:00"), at("2024-05-04T13:00"))
    assert request.path == "/price"
    assert request.query == {"bzn": "DE-LU", "start": "2024-05-02", "end": "2024-05-06"}
    ahead, _ = asking(charts, DE_PRICES, lambda source: source.forecast("DE", 86400.0), now_s)
    assert (ahead.start_s, ahead.end_s) == (now_s, at("2024-05-04T22:00"))
    assert ahead.at(at("2024-05-04T18:00")) == pytest.approx(0.1354)


@pytest.mark.parametrize(("zone", "area"), [("SE-SE3", "SE3"), ("DK-DK1", "DK1"), ("IT-NO", "IT-North"), ("FR", "FR")])
def test_g14_energy_charts_has_names_of_its_own(zone, area):
    _, (request,) = asking(charts, DE_PRICES, lambda source: source.latest(zone), at("2024-05-04T12:30"))
    assert request.query["bzn"] == area


@pytest.mark.parametrize(
    ("day", "hours", "start", "end"),
    [
        ("2026-02-17", 24, "2026-02-16T23:00Z", "2026-02-17T23:00Z"),
        ("2026-03-29", 23, "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        ("2026-10-25", 25, "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
    ],
)
def test_g14_entsoe_days_of_23_24_and_25_hours_by_the_quarter(day, hours, start, end):
    prices = [(place, 50.0 + place) for place in range(1, 4 * hours + 1)]
    body = document(time_series(start, end, "PT15M", prices))
    begin_s, end_s = datetime.fromisoformat(start).timestamp(), datetime.fromisoformat(end).timestamp()
    past, (request,) = asking(entsoe, body, lambda source: source.history("DE", begin_s, end_s), end_s)
    assert (past.start_s, past.end_s, len(past)) == (begin_s, end_s, 4 * hours)
    assert past.mean(begin_s, end_s) == pytest.approx((50.0 + (4 * hours + 1) / 2.0) / 1000.0)
    assert request.query["in_Domain"] == request.query["out_Domain"] == DE_LU
    assert request.query["documentType"] == "A44"
    assert request.query["securityToken"] == TOKEN


def test_g14_entsoe_leaves_repeated_prices_out():
    body = document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "PT15M", [(1, 73.24), (5, -4.5), (9, 65.0)]))
    seen, _ = asking(entsoe, body, lambda source: source.latest("DE"), at("2026-02-17T00:40"))
    assert (seen.value, seen.time_s) == (pytest.approx(-0.0045), at("2026-02-17T00:30"))
    late, _ = asking(entsoe, body, lambda source: source.latest("DE"), at("2026-02-17T22:59"))
    assert (late.value, late.until_s) == (pytest.approx(0.065), at("2026-02-17T23:00"))


def test_g14_entsoe_a_recorded_document_with_two_resolutions():
    """Belgium's prices of three days as the Transparency Platform sent them on 7 October 2024.

    The response covers more than the day that was asked for, by quarters of an hour and by hours, and leaves repeated
    and two negative hours out.
    """
    body, begin_s, end_s = RECORDED.read_bytes(), at("2024-10-05T22:00"), at("2024-10-08T22:00")
    past, _ = asking(entsoe, body, lambda source: source.history("BE", begin_s, end_s), end_s)
    assert (past.start_s, past.end_s, len(past)) == (begin_s, end_s, 96 + 96 + 24)
    assert [1000.0 * past.at(at(time)) for time in ("2024-10-06T12:45", "2024-10-07T17:15", "2024-10-08T16:59")] == [
        pytest.approx(price) for price in (-0.01, 149.41, 98.97)
    ]
    now, _ = asking(entsoe, body, lambda source: source.latest("BE"), at("2024-10-08T21:50"))
    assert (now.value, now.time_s, now.until_s) == (pytest.approx(0.05), at("2024-10-08T21:00"), end_s)


def test_g14_entsoe_the_coupled_auction_counts_and_no_other():
    times = "2026-02-16T23:00Z", "2026-02-17T23:00Z"
    body = document(
        time_series(*times, "PT15M", [(1, 99.0)], position=2), time_series(*times, "PT60M", [(1, 70.0)], position=1)
    )
    seen, _ = asking(entsoe, body, lambda source: source.latest("DE"), at("2026-02-17T08:00"))
    assert seen.value == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("make", "body", "says"),
    [
        (entsoe, NO_DATA, "no price for the current time"),
        (entsoe, NO_DATA.replace(b"999", b"401"), "request refused: No matching data"),
        (entsoe, b"<html>maintenance", "invalid response"),
        (entsoe, b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        (entsoe, document(time_series("x", "y", "PT15M", [(1, 1)])), "invalid time"),
        (entsoe, document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "P1Y", [(1, 1)])), "resolution 'P1Y'"),
        (
            entsoe,
            document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "PT60M", [(25, 1)])),
            "outside of its period",
        ),
        (entsoe, document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "PT60M", [(1, "n/a")])), "a point"),
        (entsoe, document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "PT60M", [(1, 1)], unit="KWH")), "KWH"),
        (
            entsoe,
            document(time_series("2026-02-16T23:00Z", "2026-02-17T23:00Z", "PT60M", [(1, 1)], area="10YFR-RTE------C")),
            "instead of 10Y1001A1001A82H",
        ),
        (charts, DE_PRICES.replace(b"EUR/MWh", b"ct/kWh"), "ct/kWh instead of EUR/MWh"),
        (charts, DE_PRICES.replace(b"[90.8,", b"["), "as many prices as times"),
        (charts, DE_PRICES, "no price for the current time"),
        (charts, b'{"detail":"bzn not found"}', "invalid response"),
    ],
)
def test_g14_what_is_no_price_is_refused_in_words_without_the_token(make, body, says):
    async def talk(source):
        with pytest.raises(GridSourceError) as raised:
            await source.latest("DE")
        return str(raised.value)

    words, _ = asking(make, body, talk, at("2026-02-17T08:00"))
    assert says in words
    assert TOKEN not in words


def test_g14_a_missing_price_is_left_out():
    body = DE_PRICES.replace(b"[90.8,87.79", b"[null,87.79")
    past, _ = asking(
        charts, body, lambda source: source.history("DE", 1714773600.0, 1714860000.0), at("2024-05-05T00:00")
    )
    assert (past.start_s, len(past)) == (1714777200.0, 23)
    assert all(map(math.isfinite, past.values))


@pytest.mark.parametrize(
    ("prices", "ends_min"),
    [
        ([10.0, 10.0, 10.0, 20.0, 30.0], 210),
        ([10.0, 10.0, 10.0, 20.0, None], 195),
        ([10.0, 20.0, 30.0, None, None], 180),
    ],
)
def test_g14_the_last_price_of_energy_charts_lasts_to_the_end_of_its_own_step(prices, ends_min):
    start_s = at("2025-09-30T19:00")
    minutes = (0, 60, 120, 180, 195)
    body = msgspec.json.encode(
        {"unix_seconds": [start_s + 60 * one for one in minutes], "price": prices, "unit": "EUR / MWh"}
    )
    ahead, _ = asking(charts, body, lambda source: source.forecast("DE", 86400.0), start_s)
    assert ahead.end_s == start_s + 60 * ends_min


def test_g14_both_are_sources_of_prices_by_name():
    environment = {
        "PRICING_ENABLED": "true",
        "PRICING_PROVIDER": "energy-charts,entsoe",
        "ENERGY_CHARTS_API_URL": "http://127.0.0.1:1",
        "API_MAX_RETRIES": "0",
        "CARBON_SOURCES": "static",
    }

    async def main():
        async with feed_from(environment) as feed:
            await feed.refresh()
            return feed.price("US-CAL-CISO")

    signal = asyncio.run(main())
    assert signal.measure is Measure.PRICE
    assert "ENTSOE_SECURITY_TOKEN" in signal.problem
    assert len(set(BIDDING_ZONES.values())) == len(BIDDING_ZONES) - 1  # Luxembourg is in Germany's
