"""Providers of grid data over real sockets: what they answer, and what must never come of it."""

import asyncio
import json
import logging

import httpx2
import pytest

from joulie.adapters.grid.electricity_maps import ElectricityMaps, base_url
from joulie.adapters.grid.http_json import HttpJson, JsonOptions
from joulie.adapters.grid.provider import Provider, RefusedError, RequestPolicy, Secret
from joulie.adapters.grid.uk import CarbonIntensityUk
from joulie.adapters.grid.watttime import G_PER_KWH, SignalType, WattTime
from joulie.domain.grid.signals import Basis, Measure
from joulie.ports.grid import GridSourceError
from joulie.program.settings import settings_from
from support.grid_feeds import WatcherSettings
from support.grid_providers import FORECAST, GB, GB_REGION, HISTORY, LATEST, MOER, NOW_S, POINTERS, PRICES, Server
from support.scripted_server import serving
from support.virtual_time import run_virtually

KEY = "em-key-7f3a"
PASSWORD = "wt-password-91c"
QUICK = RequestPolicy(timeout_s=0.3, retries=2, first_pause_s=0.001, calls_per_minute=6000)


def asking(server, make, talk, rules=QUICK):
    """Run `talk` with the source that `make` makes of a provider and the server's address."""

    async def main():
        async with serving(server.handle) as url, httpx2.AsyncClient() as client:
            return await talk(make(Provider(client, rules), url))

    return asyncio.run(main())


def electricity_maps(provider, url):
    return ElectricityMaps(provider, Secret("ELECTRICITY_MAP_API_KEY", KEY), url, lambda: NOW_S)


def watttime(provider, url):
    return WattTime(provider, "ada", Secret("WATTTIME_PASSWORD", PASSWORD), url, lambda: NOW_S)


def uk(provider, url):
    return CarbonIntensityUk(provider, url, lambda: NOW_S)


def latest(zone="DE"):
    return lambda source: source.latest(zone)


def failing(server, make=electricity_maps, zone="DE", rules=QUICK):
    """The error of asking for the latest value, and how long that took."""

    async def talk(source):
        clock = asyncio.get_running_loop().time
        began_s = clock()
        with pytest.raises(GridSourceError) as raised:
            await source.latest(zone)
        return raised.value, clock() - began_s

    return asking(server, make, talk, rules)


# ---- Electricity Maps


def test_latest_value_of_a_zone():
    server = Server(latest=LATEST)
    seen = asking(server, electricity_maps, latest())
    assert (seen.value, seen.time_s) == (302.0, NOW_S - 1200)
    assert seen.provenance.estimated
    assert (seen.provenance.source, seen.provenance.zone, seen.provenance.basis) == (
        "electricity-maps",
        "DE",
        Basis.AVERAGE,
    )
    (request,) = server.requests
    assert request.path == "/v3/carbon-intensity/latest"
    assert request.headers["auth-token"] == KEY
    assert request.query == {"zone": "DE", "shouldUseFallbackCallerLookup": "false"}


@pytest.mark.parametrize(
    ("zone", "query"),
    [
        ("geo:50.1,8.6", {"lat": "50.1", "lon": "8.6"}),
        ("aws:eu-central-1", {"dataCenterProvider": "aws", "dataCenterRegion": "eu-central-1"}),
    ],
)
def test_coordinates_and_data_centres_are_asked_for_as_such(zone, query):
    server = Server(latest=LATEST)
    seen = asking(server, electricity_maps, latest(zone))
    assert query.items() <= server.requests[0].query.items()
    assert seen.provenance.zone == "DE"


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("https://api.electricitymap.org/v3/carbon-intensity/latest?zone=", "https://api.electricitymap.org/v3"),
        ("https://api.electricitymaps.com/v3", "https://api.electricitymaps.com/v3"),
        ("https://api.electricitymaps.com/", "https://api.electricitymaps.com/v3"),
        ("http://proxy:8080/em/v4/", "http://proxy:8080/em/v4"),
    ],
)
def test_the_address_is_read_in_the_seeds_form_and_as_a_base(given, base):
    assert base_url(given) == base


def test_forecast_leaves_null_hours_out():
    server = Server(forecast=FORECAST)
    series = asking(server, electricity_maps, lambda source: source.forecast("DE", 30 * 3600))
    assert server.requests[0].query["horizonHours"] == "48"
    assert series.values.tolist() == [326.0, 297.0, 262.0]
    assert series.end_s == NOW_S - 1200 + 4 * 3600


@pytest.mark.parametrize("body", [{"zone": "DE", "forecast": None}, {"zone": "DE", "forecast": []}])
def test_a_null_forecast_is_no_forecast(body):
    assert asking(Server(forecast=body), electricity_maps, lambda source: source.forecast("DE", 3600)) is None


def test_a_key_without_forecasts_is_no_outage_and_is_not_asked_again():
    server = Server(forecast=(401, {"message": "not in your plan"}), latest=LATEST)

    async def talk(source):
        assert await source.forecast("DE", 3600) is None
        assert await source.forecast("DE", 3600) is None
        return await source.latest("DE")

    assert asking(server, electricity_maps, talk).value == 302.0
    assert [request.path.rpartition("/")[2] for request in server.requests] == ["forecast", "latest"]


def test_history_of_a_free_key_is_the_last_day():
    server = Server(**{"past-range": (403, {}), "history": HISTORY})
    series = asking(server, electricity_maps, lambda source: source.history("DE", NOW_S - 28 * 86400, NOW_S))
    assert len(series) == 12
    assert series.values.tolist() == [302.0] * 12


def test_history_of_a_paid_key_is_asked_for_in_ranges():
    server = Server(**{"past-range": {"zone": "DE", "data": HISTORY["history"]}})
    asking(server, electricity_maps, lambda source: source.history("DE", NOW_S - 28 * 86400, NOW_S))
    spans = [(request.query["start"], request.query["end"]) for request in server.requests]
    assert [start for start, _ in spans[:-1]] == [end for _, end in spans[1:]]
    assert (spans[-1][0], spans[0][1]) == ("2023-10-17T22:20Z", "2023-11-14T22:20Z")


def test_a_key_with_a_right_to_some_weeks_gets_those():
    server = Server(**{"past-range": [{"zone": "DE", "data": HISTORY["history"]}, (403, {})], "history": (500, {})})
    series = asking(server, electricity_maps, lambda source: source.history("DE", NOW_S - 28 * 86400, NOW_S))
    assert len(series) == 12


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (dict(LATEST, zone="FR"), "zone FR instead of DE"),
        ({key: value for key, value in LATEST.items() if key != "zone"}, "response without a zone"),
        (dict(LATEST, carbonIntensity=None), "no value"),
        (dict(LATEST, carbonIntensity="302"), "invalid response"),
        (dict(LATEST, datetime="yesterday"), "invalid time"),
        (dict(LATEST, datetime="2023-11-14T22:00:00"), "no UTC offset"),
        (b'{"zone": "DE", "carbonIntensity": NaN, "datetime": "2023-11-14T22:00:00Z"}', "invalid response"),
        (b'{"zone": "DE", "carbonInt', "invalid response"),
        (b"<html>maintenance</html>", "invalid response"),
        (b"", "invalid response"),
    ],
)
def test_an_answer_that_must_not_be_used_is_an_error_that_says_why(body, says):
    error, _ = failing(Server(latest=body))
    assert says in str(error)


# ---- WattTime


def test_marginal_intensity_in_grams():
    server = Server(login={"token": "t0k3n"}, forecast=MOER)
    seen = asking(server, watttime, latest("CAISO_NORTH"))
    assert seen.value == pytest.approx(870.0 * 0.45359237)
    assert (seen.time_s, seen.until_s) == (NOW_S, NOW_S + 300)
    assert seen.provenance.basis is Basis.MARGINAL
    login, forecast = server.requests
    assert login.headers["authorization"].startswith("Basic ")
    assert forecast.headers["authorization"] == "Bearer t0k3n"
    assert forecast.query == {"region": "CAISO_NORTH", "signal_type": "co2_moer", "horizon_hours": "1"}


def test_g14_the_signal_is_a_setting_and_so_is_its_basis():
    answer = {**MOER, "meta": MOER["meta"] | {"signal_type": "co2_aoer"}}
    server = Server(login={"token": "t"}, forecast=answer)

    def average(provider, url):
        password = Secret("WATTTIME_PASSWORD", PASSWORD)
        return WattTime(provider, "ada", password, url, lambda: NOW_S, SignalType.AOER)

    seen = asking(server, average, latest("CAISO_NORTH"))
    assert seen.provenance.basis is Basis.AVERAGE
    assert server.requests[-1].query["signal_type"] == "co2_aoer"
    settings = settings_from(WatcherSettings, {"WATTTIME_SIGNAL_TYPE": "co2_aoer"})
    assert settings.source_settings[Measure.CARBON]["watttime"].signal_type is SignalType.AOER


def test_a_token_that_has_ended_is_renewed_once():
    server = Server(login=[{"token": "old"}, {"token": "new"}], historical=[(401, {}), MOER])
    series = asking(server, watttime, lambda source: source.history("CAISO_NORTH", NOW_S - 60 * 86400, NOW_S))
    assert series.values[1] == pytest.approx(500 * G_PER_KWH)
    paths = ["/login", "/v3/historical"] * 2 + ["/v3/historical"]
    assert [request.path for request in server.requests] == paths
    assert server.requests[-1].headers["authorization"] == "Bearer new"
    spans = [(request.query["start"], request.query["end"]) for request in server.requests[3:]]
    assert spans == [("2023-10-17T22:20Z", "2023-10-31T22:20Z"), ("2023-10-31T22:20Z", "2023-11-14T22:20Z")]


def test_a_login_that_is_refused_is_not_tried_twice():
    server = Server(login=(401, {}))
    failing(server, watttime, "CAISO_NORTH")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"units": "percentile"}, "response in percentile"),
        ({"units": ""}, "no unit"),
        ({"region": "PJM_DC"}, "region PJM_DC instead of CAISO_NORTH"),
        ({"signal_type": "health_damage"}, "health_damage"),
    ],
)
def test_trap_a_number_of_another_unit_region_or_signal_is_refused(meta, says):
    server = Server(login={"token": "t"}, forecast=dict(MOER, meta=MOER["meta"] | meta))
    error, _ = failing(server, watttime, "CAISO_NORTH")
    assert says in str(error)


# ---- Great Britain


def test_half_hours_without_an_actual_value_are_estimates():
    server = Server(intensity=GB)
    seen = asking(server, uk, latest("GB"))
    assert (seen.value, seen.provenance.estimated) == (146.0, True)
    assert (seen.time_s, seen.until_s) == (NOW_S - 1200, NOW_S + 600)
    measured = json.loads(json.dumps(GB).replace("null", "150"))
    seen = asking(Server(intensity=measured), uk, latest("GB"))
    assert (seen.value, seen.provenance.estimated) == (150.0, False)


@pytest.mark.parametrize(
    ("zone", "path"),
    [("GB-13", "/regional/regionid/13"), ("GB-RG10", "/regional/postcode/RG10")],
)
def test_regions_by_number_and_postcode(zone, path):
    server = Server(**{path: GB_REGION})
    assert asking(server, uk, latest(zone)).value == 146.0
    assert server.requests[0].path == path


def test_forecast_and_history_of_a_region_are_one_object():
    one = {"data": GB_REGION["data"][0]}
    server = Server(**{"/13": one})

    async def talk(source):
        return await source.forecast("GB-13", 3600), await source.history("GB-13", NOW_S - 20 * 86400, NOW_S)

    forecast, _ = asking(server, uk, talk)
    assert forecast.values.tolist() == [146.0]
    assert [request.path for request in server.requests] == [
        "/regional/intensity/2023-11-14T22:20Z/fw48h/regionid/13",
        "/regional/intensity/2023-10-25T22:20Z/2023-11-07T22:20Z/regionid/13",
        "/regional/intensity/2023-11-07T22:20Z/2023-11-14T22:20Z/regionid/13",
    ]


def test_an_answer_for_another_region_is_refused():
    error, _ = failing(Server(**{"/12": GB_REGION}), uk, "GB-12")
    assert "region 13 instead of GB-12" in str(error)


def test_a_zone_elsewhere_is_refused_without_a_request():
    server = Server()
    error, _ = failing(server, uk, "US-CAL-CISO")
    assert "of Great Britain: write GB" in str(error)
    assert not server.requests


# ---- any JSON


def any_json(options):
    def make(provider, url):
        key = Secret("PRICE_JSON_KEY_FILE", KEY)
        return HttpJson(provider, url + "/{zone}?all=1", options, Measure.PRICE, None, lambda: NOW_S, key)

    return make


def test_pointers_into_any_json_and_negative_prices_are_legal():
    server = Server(DE=PRICES)

    async def talk(source):
        return await source.latest("DE"), await source.forecast("DE", 3600)

    seen, ahead = asking(server, any_json(POINTERS), talk)
    assert (seen.value, seen.time_s) == (-0.0125, 1_699_999_200.0)
    assert ahead.values.tolist() == [0.09]
    assert server.requests[0].headers["x-key"] == KEY
    assert server.requests[0].query == {"all": "1"}


def test_json_for_another_zone_is_refused():
    error, _ = failing(Server(FR=PRICES), any_json(POINTERS), "FR")
    assert "a zone other than FR" in str(error)


@pytest.mark.parametrize("value", [True, None, {}, "much", "nan"])
def test_json_without_a_number_is_an_error(value):
    error, _ = failing(Server(DE={"value": value}), any_json(JsonOptions()))
    assert "no " in str(error)


# ---- the request policy


def test_429_with_a_short_retry_after_is_waited_for():
    server = Server(latest=[(429, {}, "retry-after: 0\r\n"), LATEST])
    assert asking(server, electricity_maps, latest()).value == 302.0
    assert len(server.requests) == 2


def test_429_with_a_long_retry_after_leaves_the_provider_alone():
    server = Server(latest=(429, {}, "retry-after: 300\r\n"))

    async def talk(source):
        for _ in range(5):
            with pytest.raises(GridSourceError) as raised:
                await source.latest("DE")
            assert raised.value.retry_after_s == pytest.approx(300, abs=5)

    asking(server, electricity_maps, talk)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503])
def test_failures_of_the_server_are_repeated(status):
    server = Server(latest=[(status, {}), (status, {}), LATEST])
    assert asking(server, electricity_maps, latest()).value == 302.0


async def stalls(answer):
    await answer.begin()
    await asyncio.sleep(30)


async def drips(answer):
    await answer.begin()
    for _ in range(100):
        await answer.chunk(b" ")
        await asyncio.sleep(0.05)


async def breaks(answer):
    await answer.begin()
    await answer.chunk(b'{"zone"')
    answer.drop()


async def floods(answer):
    await answer.begin()
    for _ in range(40):
        await answer.chunk(b" " * 65536)


@pytest.mark.parametrize("reply", [stalls, drips, breaks, floods])
def test_nothing_takes_longer_than_its_deadline(reply):
    error, took_s = failing(Server(latest=reply))
    assert took_s < 3 * 0.3 + 0.5
    assert "/v3/carbon-intensity/latest" in str(error)


def test_a_huge_answer_is_given_up_early():
    server = Server(latest=floods)
    error, _ = failing(server)
    assert "more than 1048576 bytes" in str(error)
    assert len(server.requests) == 1


def test_after_three_failures_nobody_waits_for_a_dead_provider():
    server = Server(latest=(500, {}))

    async def talk(source):
        for _ in range(10):
            with pytest.raises(GridSourceError):
                await source.latest("DE")

    asking(server, electricity_maps, talk)
    assert len(server.requests) == 3 * (1 + QUICK.retries)


def test_the_key_does_not_follow_a_redirect():
    elsewhere = Server(latest=LATEST)

    async def main():
        async with serving(elsewhere.handle) as other:
            server = Server(latest=(302, b"", f"location: {other}/v3/carbon-intensity/latest\r\n"))
            async with serving(server.handle) as url, httpx2.AsyncClient() as client:
                with pytest.raises(RefusedError):
                    await electricity_maps(Provider(client, QUICK), url).latest("DE")

    asyncio.run(main())
    assert not elsewhere.requests


def test_g10_calls_wait_for_their_turn_under_the_rate_limit():
    times = []

    async def handle(request):
        times.append(asyncio.get_running_loop().time())
        return httpx2.Response(200, content=b"{}")

    async def main():
        clock = asyncio.get_running_loop().time
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            provider = Provider(client, RequestPolicy(calls_per_minute=10), clock)
            for _ in range(25):
                await provider.get("http://provider/")
            with pytest.raises(GridSourceError, match="rate limit"):
                await asyncio.gather(*(provider.get("http://provider/") for _ in range(20)))

    run_virtually(main())
    # Ten in any minute, also in the first one.
    assert times[:25] == [0.0] * 10 + [60.0] * 10 + [120.0] * 5


def test_a_request_has_the_whole_timeout_of_the_settings():
    limits = []

    def handle(request):
        limits.append(set(request.extensions["timeout"].values()))
        return httpx2.Response(200, content=b"{}")

    async def main():
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            await Provider(client, RequestPolicy(timeout_s=30.0)).get("http://provider/")

    asyncio.run(main())
    assert limits == [{None}]  # the deadline of the whole request is the only one


def test_an_address_that_is_none_is_an_error():
    async def main():
        async with httpx2.AsyncClient() as client:
            with pytest.raises(GridSourceError, match="invalid address"):
                await Provider(client, QUICK).get("http://provider:port/?key=" + KEY)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "asks_s"),
    [
        ("retry-after: 7200\r\n", 3600.0),
        ("date: Tue, 14 Nov 2023 22:20:00 GMT\r\nretry-after: Tue, 14 Nov 2023 22:50:00 GMT\r\n", 1800.0),
        ("date: Tue, 14 Nov 2023 22:20:00 GMT\r\nretry-after: Tue, 14 Nov 2023 22:10:00 GMT\r\n", 0.0),
        ("retry-after: Tue, 14 Nov 2023 22:50:00 GMT\r\n", None),
        ("retry-after: soon\r\n", None),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(headers, asks_s):
    error, _ = failing(Server(latest=(503, {}, headers)))
    assert error.retry_after_s == asks_s


@pytest.mark.parametrize(("status", "asks"), [(400, True), (401, False), (403, True), (404, True)])
def test_a_zone_that_is_refused_is_not_asked_every_minute(status, asks):
    error, _ = failing(Server(latest=(status, {})))
    assert bool(error.retry_after_s) is asks


# ---- secrets


def everything(text, caplog, *errors):
    logged = "".join(str(record.__dict__) for record in caplog.records)
    return (
        text
        + caplog.text
        + logged
        + "".join(f"{error!r}{error}{error.__cause__!r}{error.__context__!r}" for error in errors)
    )


@pytest.mark.parametrize(
    "reply",
    [
        (401, f'{{"error": "Invalid auth-token {KEY}"}}'.encode()),
        (500, f"token {KEY} crashed us".encode()),
        (200, f'{{"zone": "{KEY}"}}'.encode()),
        (302, b"", f"location: http://127.0.0.1:1/?key={KEY}\r\n"),
        breaks,
        stalls,
    ],
)
def test_no_key_in_any_error_or_log(reply, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("httpx2", "httpcore2"):  # as configure() of the programs sets them
        caplog.set_level(logging.WARNING, name)
    error, _ = failing(Server(latest=reply))
    assert KEY not in everything(repr(Secret("NAME", KEY)), caplog, error)


def test_no_password_in_an_error_of_the_login(caplog):
    caplog.set_level(logging.DEBUG)
    server = Server(login=(403, f"bad password {PASSWORD} for ada".encode()))
    error, _ = failing(server, watttime, "CAISO_NORTH")
    assert "bad password ***" in str(error)
    assert PASSWORD not in everything("", caplog, error)


def test_secrets_of_an_address_are_not_shown():
    def make(provider, url):
        url = url.replace("://", "://user:pass-5511@") + "/{zone}?token=query-8822"
        return HttpJson(provider, url, JsonOptions(), Measure.PRICE, None, lambda: NOW_S)

    error, _ = failing(Server(), make)
    assert "404" in str(error)
    assert "pass-5511" not in str(error)
    assert "query-8822" not in str(error)


def test_a_key_file_is_read_at_each_request(tmp_path):
    file = tmp_path / "key"
    file.write_text("one\n")
    server = Server(latest=LATEST)

    def make(provider, url):
        return ElectricityMaps(provider, Secret("ELECTRICITY_MAP_API_KEY_FILE", file=file), url, lambda: NOW_S)

    async def talk(source):
        await source.latest("DE")
        file.write_text("two\n")
        await source.latest("DE")
        file.unlink()
        with pytest.raises(GridSourceError, match="cannot be read: No such file"):
            await source.latest("DE")
        file.write_text("three")
        await source.latest("DE")

    asking(server, make, talk)
    assert [request.headers["auth-token"] for request in server.requests] == ["one", "two", "three"]


@pytest.mark.parametrize("text", ["", " \n", "two\nlines", "schlüssel"])
def test_a_key_that_is_none_says_what_to_set(text):
    with pytest.raises(GridSourceError, match="ELECTRICITY_MAP_API_KEY"):
        Secret("ELECTRICITY_MAP_API_KEY", text).read()
