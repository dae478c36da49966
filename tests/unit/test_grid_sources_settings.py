"""From settings to a feed: names, defaults, plug-ins, what is missing."""

import asyncio
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import httpx2
import pytest
from click.testing import CliRunner

from joulie.adapters.grid import sources
from joulie.adapters.grid.constant import Constant
from joulie.adapters.grid.price_schedules import load_price_schedules
from joulie.adapters.grid.promql import PrometheusQuery
from joulie.adapters.grid.provider import RequestPolicy
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.tariff import TimeOfUse
from joulie.adapters.prometheus import Prometheus
from joulie.domain.grid.request import GridDefaults, Mode
from joulie.domain.grid.signals import Basis, Measure, Period
from joulie.domain.signal import Quality
from joulie.ports.grid import GridSourceError
from joulie.program.settings import all_settings, settings_from, settings_options
from support.grid_feeds import WatcherSettings, feed_from
from support.prometheus_answers import matrix, vector
from support.scripted_server import serving

NOW_S = 1_700_000_400.0
KEY = "em-key-7f3a"


def feed_of(environment, look, now_s=NOW_S):
    """What `look` sees of a feed after one round."""

    async def main():
        async with feed_from(environment, now_s=lambda: now_s) as feed:
            for zone in ("DE", "FR"):
                feed.want(zone)
            await feed.refresh()
            return look(feed)

    return asyncio.run(main())


def carbon(environment, zone="DE"):
    return feed_of({"ELECTRICITY_MAP_API_REGION": "DE"} | environment, lambda feed: feed.carbon(zone))


# ---- the seed's variables


def test_defaults_are_the_seeds():
    settings = settings_from(WatcherSettings, {})
    assert settings.defaults == GridDefaults()
    assert settings.request_policy == RequestPolicy(10.0, 3, 1.0, 10.0)
    assert (settings.cache_ttl_s, settings.max_cache_age_s) == (300.0, 3600.0)
    assert settings.electricity_map_api_region == "US-CAL-CISO"
    assert not settings.enable_pod_priorities


def test_the_seeds_variables_are_read_as_they_are():
    names = set(all_settings(WatcherSettings))
    assert names >= {
        "ELECTRICITY_MAP_API_KEY",
        "ELECTRICITY_MAP_API_URL",
        "ELECTRICITY_MAP_API_REGION",
        "API_TIMEOUT",
        "API_MAX_RETRIES",
        "API_RETRY_DELAY",
        "API_RATE_LIMIT",
        "CACHE_TTL",
        "MAX_CACHE_AGE",
        "ENABLE_POD_PRIORITIES",
        "CARBON_ENABLED",
        "CARBON_INTENSITY_THRESHOLD",
        "PRICING_ENABLED",
        "PRICING_PROVIDER",
        "PRICING_SCHEDULES_PATH",
        "LOG_LEVEL",
    }
    defaults = settings_from(
        WatcherSettings,
        {
            "CARBON_ENABLED": "false",
            "CARBON_INTENSITY_THRESHOLD": "150.5",
            "PRICING_ENABLED": "true",
            "PRICE_THRESHOLD": "0.2",
            "MAX_SCHEDULING_DELAY": "1h30m",
            "GRID_MODE": "optimal",
            "GRID_DEFAULT_RUNTIME": "2h",
        },
    ).defaults
    assert defaults == GridDefaults(False, 150.5, True, 0.2, 5400.0, Mode.OPTIMAL, 7200.0)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"MAX_CACHE_AGE": "1m"}, "MAX_CACHE_AGE"),
        ({"GRID_CARBON_WEIGHT": "0", "GRID_PRICE_WEIGHT": "0"}, "GRID_CARBON_WEIGHT"),
        ({"GRID_ZONES": '{"aws:eu-central-1": ["DE"]}'}, "GRID_ZONES"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environment, says):
    with pytest.raises(ValueError, match=says):
        settings_from(WatcherSettings, environment)


@pytest.mark.parametrize(
    ("delay", "hours"), [("1h", 48), ("72h", 73), ("720h", 7 * 24)], ids=["at least", "delay and run", "at most"]
)
def test_forecasts_look_as_far_as_pods_wait_up_to_a_week(delay, hours):
    environment = {
        "MAX_SCHEDULING_DELAY": delay,
        "CARBON_SOURCES": "static",
        "CARBON_STATIC_INTENSITY": "380",
        "ELECTRICITY_MAP_API_REGION": "DE",
    }
    assert carbon(environment).forecast.end_s == NOW_S + hours * 3600


# ---- keys


def test_no_key_in_help_or_print():
    @click.command()
    @settings_options(WatcherSettings)
    def program(settings):
        click.echo(repr(settings))

    secrets = {"ELECTRICITY_MAP_API_KEY": KEY, "WATTTIME_PASSWORD": "wt-91c"}
    for arguments in ([], ["--help"], ["--cache-ttl", "never"]):
        output = CliRunner(env=secrets).invoke(program, arguments).output
        assert output
        assert KEY not in output
        assert "wt-91c" not in output


def test_trap_a_missing_key_closes_nothing(tmp_path):
    signal = carbon({"CARBON_ENABLED": "true"})
    assert signal.quality is Quality.MISSING
    assert "electricity-maps: no key: set ELECTRICITY_MAP_API_KEY" in signal.problem
    signal = carbon({"ELECTRICITY_MAP_API_KEY_FILE": str(tmp_path / "deleted")})
    assert "cannot be read" in signal.problem


def test_no_key_in_the_signal_of_a_provider_that_repeats_it(caplog):
    async def refuse(request, answer):
        await answer.whole(401, f'{{"error": "Invalid auth-token {KEY}"}}'.encode())

    async def main():
        async with serving(refuse) as url:
            environment = {"ELECTRICITY_MAP_API_KEY": KEY, "ELECTRICITY_MAP_API_URL": url}
            async with feed_from(environment, now_s=lambda: NOW_S) as feed:
                await feed.refresh()
                return feed.carbon("US-CAL-CISO")

    signal = asyncio.run(main())
    assert "401" in signal.problem
    assert KEY not in repr(signal) + caplog.text + "".join(str(record.__dict__) for record in caplog.records)


# ---- sources by name


def test_static_and_order_of_trust():
    signal = carbon({"CARBON_SOURCES": "electricity-maps, static", "CARBON_STATIC_INTENSITY": "380"}, zone="FR")
    assert (signal.value, signal.quality, signal.provenance.source) == (380.0, Quality.FRESH, "static")
    assert signal.problem.startswith("electricity-maps: no key")
    assert signal.forecast.mean(NOW_S, NOW_S + 86400) == 380.0


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"CARBON_SOURCES": "file"}, "set CARBON_FILE_PATH"),
        ({"CARBON_SOURCES": "json"}, "set CARBON_JSON_URL"),
        ({"CARBON_SOURCES": "prometheus"}, "set CARBON_PROMETHEUS_QUERY"),
        ({"CARBON_SOURCES": "static"}, "set CARBON_STATIC_INTENSITY"),
        ({"CARBON_SOURCES": "watttime"}, "set WATTTIME_USERNAME"),
        (
            {"CARBON_SOURCES": "prometheus", "CARBON_PROMETHEUS_QUERY": "x", "PROMETHEUS_ADDRESS": "none"},
            "set PROMETHEUS_ADDRESS",
        ),
    ],
)
def test_a_source_without_its_settings_is_missing_and_says_what_to_set(environment, says):
    signal = carbon(environment)
    assert signal.quality is Quality.MISSING
    assert says in signal.problem


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"CARBON_SOURCES": "electricitymaps"}, "CARBON_SOURCES: unknown source 'electricitymaps'; known: electricity"),
        ({"PRICING_ENABLED": "true", "PRICING_PROVIDER": "uk"}, "PRICING_PROVIDER: unknown source 'uk'"),
        ({"CARBON_SOURCES": "electricity-maps,watttime"}, "never mixed"),
        ({"CARBON_SOURCES": "json", "CARBON_JSON_URL": "http://x", "CARBON_JSON_OPTIONS": '{"valeu": "/x"}'}, "valeu"),
        ({"GRID_ZONE_NAMES": '{"electricity-maps": "DE"}'}, "GRID_ZONE_NAMES"),
        (
            {"CARBON_SOURCES": "prometheus", "CARBON_PROMETHEUS_QUERY": "x", "PROMETHEUS_CA_FILE": "/none.pem"},
            "none.pem",
        ),
    ],
)
def test_settings_that_cannot_be_stop_the_program_at_its_start(environment, says):
    with pytest.raises(ValueError, match=says):
        carbon(environment)


def test_a_file_answers_by_the_sources_own_name_of_a_zone(tmp_path):
    path = tmp_path / "grid.csv"
    path.write_text("time,zone,carbon intensity\n2023-11-14 22:00,Allemagne,410\n2023-11-14 22:00,FR,50\n")
    environment = {
        "CARBON_SOURCES": "file",
        "CARBON_FILE_PATH": str(path),
        "GRID_ZONE_NAMES": json.dumps({"file": {"DE": "Allemagne"}}),
    }
    assert carbon(environment).value == 410.0
    assert carbon(environment, "FR").value == 50.0


def test_prices_are_not_watched_unless_enabled():
    assert feed_of({}, lambda feed: feed.price("DE")) is None


TARIFF = """
schedules:
  - name: evening
    dayOfWeek: "*"
    startTime: "16:00"
    endTime: "21:00"
    timezone: America/Los_Angeles
    peakRate: 0.40
    offPeakRate: 0.15
"""


def test_prices_of_a_time_of_use_tariff(tmp_path):
    path = tmp_path / "schedules.yaml"
    path.write_text(TARIFF)
    environment = {"PRICING_ENABLED": "true", "PRICING_SCHEDULES_PATH": str(path)}
    evening_s = 1_700_000_400.0 + 3 * 3600  # 17:20 in California
    signal = feed_of(environment, lambda feed: feed.price("US-CAL-CISO"), evening_s)
    assert (signal.value, signal.period) == (0.40, Period.PEAK)
    assert signal.forecast.at(evening_s + 5 * 3600) == 0.15
    path.write_text("schedules: []")
    signal = feed_of(environment, lambda feed: feed.price("US-CAL-CISO"), evening_s)
    assert signal.quality is Quality.MISSING
    assert "schedules.yaml" in signal.problem


def test_a_clock_that_is_set_back_is_no_outage_of_a_tariff(tmp_path):
    path = tmp_path / "schedules.yaml"
    path.write_text(TARIFF)
    tariff = load_price_schedules(path)
    now_s = NOW_S + 3 * 3600  # 17:20 in California

    async def main():
        nonlocal now_s
        source = TimeOfUse(lambda: tariff, lambda: now_s)
        await source.latest("DE")
        now_s = NOW_S
        return await source.latest("DE")

    seen = asyncio.run(main())
    assert (seen.period, seen.time_s, seen.until_s) == (Period.OFF_PEAK, NOW_S, NOW_S + 6000)


def test_schedules_are_read_again_and_a_broken_file_changes_nothing(tmp_path, caplog):
    path = tmp_path / "schedules.yaml"
    now_s = NOW_S

    async def main():
        nonlocal now_s
        environment = {"PRICING_ENABLED": "true", "PRICING_SCHEDULES_PATH": str(path)}
        rates = []
        async with feed_from(environment, now_s=lambda: now_s) as feed:
            for text in ("schedules: []", TARIFF, TARIFF.replace("0.15", "0.175"), "schedules: ["):
                path.write_text(text)
                await feed.refresh()
                rates.append(feed.price("US-CAL-CISO").value)
                now_s += 300
        return rates

    assert asyncio.run(main()) == [None, 0.15, 0.175, 0.175]
    assert caplog.text.count("price schedules cannot be read") == 2


def test_numbers_without_a_zone_are_of_the_default_zone_only():
    async def answer(request, reply):
        await reply.whole(200, b'{"value": 290}')

    async def main():
        async with serving(answer) as url:
            environment = {"CARBON_SOURCES": "json", "CARBON_JSON_URL": url, "ELECTRICITY_MAP_API_REGION": "DE"}
            async with feed_from(environment, now_s=lambda: NOW_S) as feed:
                feed.want("FR")
                await feed.refresh()
                return feed.carbon("DE"), feed.carbon("FR")

    mine, other = asyncio.run(main())
    assert mine.value == 290.0
    assert "covers zone DE only" in other.problem


# ---- Prometheus


def prometheus_source(answer):
    def handle(request):
        source.requests.append(request)
        return httpx2.Response(200, content=json.dumps(answer).encode())

    async def ask(call):
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
            prometheus = Prometheus("http://prometheus:9090", client)
            query = PrometheusQuery(prometheus, 'grid{zone="{zone}"}', Measure.CARBON, Basis.AVERAGE)
            return await call(query)

    def source(call):
        return asyncio.run(ask(call))

    source.requests = []
    return source


def test_a_query_gives_the_one_series_of_a_zone():
    source = prometheus_source(vector(({}, 321.0)))
    seen = source(lambda query: query.latest("DE"))
    assert seen.value == 321.0
    assert b"grid%7Bzone%3D%22DE%22%7D" in source.requests[0].content


@pytest.mark.parametrize("series", [[], [({"a": "1"}, 1.0), ({"a": "2"}, 2.0)], [({}, float("nan"))]])
def test_trap_several_series_or_none_are_no_answer(series):
    with pytest.raises(GridSourceError, match="series"):
        prometheus_source(vector(*series))(lambda query: query.latest("DE"))


def test_history_of_a_query():
    answer = matrix(({}, [(3600, 300.0), (1800, 310.0), (0, 320.0)]))
    series = prometheus_source(answer)(lambda query: query.history("DE", NOW_S - 3600, NOW_S))
    assert series.values.tolist() == [300.0, 310.0, 320.0]


# ---- plug-ins


def plug_in(world):
    assert isinstance(world, SourceContext)
    source = Constant(123.0, world.measure, Basis.AVERAGE, world.now_s)
    source.name = "mine"
    return source


def documented(world):
    """The plug-in of the page, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "development" / "add-a-carbon-source.md").read_text(encoding="utf-8")
    names = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    return names["Turbine"](world)


def broken_plug_in(world):
    raise RuntimeError("not today")


@pytest.fixture
def plug_ins(monkeypatch):
    def found(group, name=None):
        assert group == "joulie.grid_sources"
        entries = [
            EntryPoint("mine", f"{__name__}:plug_in", group),
            EntryPoint("turbine", f"{__name__}:documented", group),
            EntryPoint("static", "nowhere:at_all", group),
            EntryPoint("broken", f"{__name__}:broken_plug_in", group),
        ]
        return [entry for entry in entries if name in (None, entry.name)]

    monkeypatch.setattr(sources, "entry_points", found)


def test_a_plug_in_is_a_source_like_any_other(plug_ins):
    signal = carbon({"CARBON_SOURCES": "mine"})
    assert (signal.value, signal.provenance.source) == (123.0, "mine")


def test_the_plug_in_of_the_documentation_works(plug_ins):
    signal = carbon({"CARBON_SOURCES": "turbine"})
    assert (signal.value, signal.quality) == (11.0, Quality.FRESH)


def test_a_plug_in_cannot_replace_what_is_built_in(plug_ins):
    assert carbon({"CARBON_SOURCES": "static", "CARBON_STATIC_INTENSITY": "5"}).value == 5.0


def test_a_plug_in_that_is_broken_or_unknown_is_named(plug_ins):
    with pytest.raises(ValueError, match="plug-in 'broken'"):
        carbon({"CARBON_SOURCES": "broken"})
    with pytest.raises(ValueError, match="known: broken, electricity-maps, file, json, mine"):
        carbon({"CARBON_SOURCES": "my"})
