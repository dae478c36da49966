"""The feed of grid signals: outages, restarts, several sources, forecasts; in a time that jumps."""

import asyncio
import json
import logging
import math

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from joulie.adapters.grid import feed as grid_feed
from joulie.adapters.grid.feed import MAX_ZONES, FeedLimits, GridFeed
from joulie.adapters.grid.metrics import GridMetrics
from joulie.adapters.grid.zone import HISTORY_S, ZoneWatch, forecast_step_s
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, Measure, Observation, Period, Provenance
from joulie.domain.signal import Quality
from joulie.ports.grid import GridSourceError
from support.virtual_time import run_virtually

START_S = 1_699_999_200.0  # 2023-11-14 22:00 UTC
HOUR_S = 3600.0
MINUTE_S = 60.0


class Source:
    """Answers by the hour, 100 more each; `down` makes it fail, `answer` replaces its answer."""

    def __init__(self, name="source", measure=Measure.CARBON, basis=Basis.AVERAGE, zones=("DE",)):
        self.name, self.measure, self.basis, self.zones = name, measure, basis, zones
        self.down = None
        self.answer = None
        self.ahead = None
        self.past = None
        self.asked = []

    def now_s(self):
        return START_S + asyncio.get_running_loop().time()

    def seen(self, value=None, time_s=None, **more):
        time_s = self.now_s() // HOUR_S * HOUR_S if time_s is None else time_s
        value = 100.0 * (1 + (time_s - START_S) // HOUR_S) if value is None else value
        return Observation(value, time_s, Provenance(self.name, "DE", self.basis), **more)

    async def latest(self, zone):
        self.asked.append((self.now_s() - START_S, "latest", zone))
        if self.down is not None:
            raise self.down
        if zone not in self.zones:
            raise GridSourceError(f"no zone {zone}")
        return self.seen() if self.answer is None else self.answer()

    async def forecast(self, zone, horizon_s):
        self.asked.append((self.now_s() - START_S, "forecast", zone))
        if isinstance(self.ahead, Exception):
            raise self.ahead
        return self.ahead

    async def history(self, zone, from_s, until_s):
        self.asked.append((self.now_s() - START_S, "history", zone))
        assert from_s < until_s
        if isinstance(self.past, Exception):
            raise self.past
        return None if self.past is None else self.past.between(from_s, until_s)

    def times(self, what="latest"):
        return [time_s for time_s, kind, _ in self.asked if kind == what]


OUT = GridSourceError("503: out of order")


def feeding(*sources, talk, **settings):
    """Run `talk` beside a feed of these sources, in virtual time."""

    async def main():
        clock = asyncio.get_running_loop().time
        chains = {}
        for source in sources:
            chains.setdefault(source.measure, []).append(source)
        feed = GridFeed(chains, FeedLimits(), lambda: START_S + clock(), **{"zone": "DE"} | settings)
        running = asyncio.create_task(feed.run())
        try:
            return await talk(feed)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return run_virtually(main())


def test_a_value_is_fresh_asked_again_every_five_minutes_and_has_its_provenance():
    source = Source()

    async def talk(feed):
        assert not feed.asked("DE")
        assert feed.carbon("DE").quality is Quality.MISSING
        await asyncio.sleep(1)
        signal = feed.carbon("DE")
        assert (signal.quality, signal.value, signal.problem) == (Quality.FRESH, 100.0, "")
        assert signal.provenance == Provenance("source", "DE", Basis.AVERAGE)
        assert feed.asked("DE")
        assert feed.price("DE") is None
        await asyncio.sleep(15 * MINUTE_S)

    feeding(source, talk=talk)
    assert source.times() == [0.0, 300.0, 600.0, 900.0]


def test_trap_a_failed_fetch_is_stale_then_missing_and_never_zero():
    source = Source()

    async def talk(feed):
        await asyncio.sleep(1000)
        before = feed.carbon("DE")
        source.down = OUT
        await asyncio.sleep(400)
        stale = feed.carbon("DE")
        assert (stale.quality, stale.value, stale.time_s) == (Quality.STALE, before.value, before.time_s)
        assert "503" in stale.problem
        await asyncio.sleep(3600)
        gone = feed.carbon("DE")
        assert (gone.quality, gone.value, gone.provenance, gone.forecast) == (Quality.MISSING, None, None, None)
        assert "503" in gone.problem
        assert not gone.known
        source.down = None
        await asyncio.sleep(61)
        assert feed.carbon("DE").quality is Quality.FRESH

    feeding(source, talk=talk)


def test_the_last_good_value_counts_from_when_it_came():
    source = Source()
    source.answer = lambda: source.seen(300.0, until_s=source.now_s() + 10 * HOUR_S)

    async def talk(feed):
        await asyncio.sleep(1)
        source.down = OUT
        await asyncio.sleep(HOUR_S - 2)
        assert feed.carbon("DE").value == 300.0
        await asyncio.sleep(3)
        assert feed.carbon("DE").quality is Quality.MISSING

    feeding(source, talk=talk)


def test_retry_after_is_honoured():
    source = Source()
    source.down = GridSourceError("429", retry_after_s=1800.0)
    feeding(source, talk=lambda feed: asyncio.sleep(3500))
    assert source.times() == [0.0, 1800.0]


def test_one_source_that_wants_to_be_left_alone_does_not_silence_the_others():
    first, second = Source("first"), Source("second")
    first.down, second.down = GridSourceError("429", retry_after_s=1800.0), OUT

    async def talk(feed):
        await asyncio.sleep(1)
        second.down = None
        await asyncio.sleep(61)
        assert feed.carbon("DE").provenance.source == "second"

    feeding(first, second, talk=talk)


@pytest.mark.parametrize(
    ("value", "age_s", "says"),
    [
        (300.0, 5 * HOUR_S, "too old"),
        (300.0, -HOUR_S, "in the future"),
        (-1.0, 0.0, "must be within"),
        (math.nan, 0.0, "must be finite"),
        (math.inf, 0.0, "must be finite"),
        (None, 0.0, "neither a value nor a period"),
    ],
)
def test_an_answer_that_cannot_be_is_no_answer(value, age_s, says):
    source = Source()
    source.answer = lambda: Observation(value, source.now_s() - age_s, Provenance("source", "DE", Basis.AVERAGE))

    async def talk(feed):
        await asyncio.sleep(1)
        signal = feed.carbon("DE")
        assert signal.quality is Quality.MISSING
        assert says in signal.problem

    feeding(source, talk=talk)


def test_trap_average_and_marginal_are_never_mixed():
    average, marginal = Source("a"), Source("m", basis=Basis.MARGINAL)
    with pytest.raises(ValueError, match="never mixed"):
        feeding(average, marginal, talk=lambda feed: asyncio.sleep(0))
    liar = Source()
    liar.answer = lambda: Observation(300.0, liar.now_s(), Provenance("source", "DE", Basis.MARGINAL))

    async def talk(feed):
        await asyncio.sleep(1)
        assert feed.carbon("DE").quality is Quality.MISSING
        assert "marginal intensity where average is used" in feed.carbon("DE").problem

    feeding(liar, talk=talk)


def test_the_next_source_answers_only_once_the_first_is_missing():
    first, second = Source("first"), Source("second")
    second.answer = lambda: second.seen(77.0)

    async def talk(feed):
        await asyncio.sleep(1000)
        first.down = OUT
        await asyncio.sleep(1800)
        assert feed.carbon("DE").provenance.source == "first"
        assert not second.asked
        await asyncio.sleep(3600)
        signal = feed.carbon("DE")
        assert (signal.value, signal.quality, signal.provenance.source) == (77.0, Quality.FRESH, "second")
        assert "first: 503" in signal.problem
        first.down = None
        await asyncio.sleep(301)
        assert feed.carbon("DE").provenance.source == "first"
        assert feed.carbon("DE").problem == ""

    feeding(first, second, talk=talk)


def test_whatever_a_source_does_the_feed_goes_on(caplog):
    broken, hanging, good = Source(), Source(measure=Measure.PRICE, basis=None), Source("good")
    broken.down = RuntimeError("plug-in bug")

    async def hang(zone):
        await asyncio.sleep(1e9)

    hanging.latest = hang

    async def talk(feed):
        await asyncio.sleep(1)
        assert feed.carbon("DE").provenance.source == "good"
        await asyncio.sleep(301)
        assert feed.price("DE").problem == "source: no response in 300 s"

    feeding(broken, good, hanging, talk=talk)
    assert "grid source is broken" in caplog.text


def test_g6_a_cloud_region_without_a_known_zone_is_missing_and_says_so(caplog):
    registry = CollectorRegistry()

    async def talk(feed):
        GridMetrics(registry, lambda: (signal for signal in feed.signals() if feed.confirmed(signal.zone)))
        assert feed.want("aws:moon-1")
        await asyncio.sleep(1)
        signal = feed.carbon("aws:moon-1")
        assert signal.quality is Quality.MISSING
        assert "name its zone in GRID_ZONES" in signal.problem
        assert feed.carbon("DE").problem == ""
        labels = {"measure": "carbon", "zone": "aws:moon-1"}
        assert registry.get_sample_value("joulie_grid_signal_missing", labels) == 1.0

    feeding(Source(), talk=talk)
    (warning,) = [record for record in caplog.records if getattr(record, "zone", "") == "aws:moon-1"]
    assert "GRID_ZONES" in warning.problem


def test_problems_are_logged_once(caplog):
    caplog.set_level(logging.INFO, "joulie.adapters.grid.feed")
    source = Source()
    source.down = OUT

    async def talk(feed):
        await asyncio.sleep(2000)
        source.down = None
        await asyncio.sleep(2000)

    feeding(source, talk=talk)
    messages = [record.message for record in caplog.records if "history" not in record.message]
    assert messages == ["grid source fails", "grid sources answer"]


def test_an_outage_whose_words_change_is_logged_once(caplog):
    caplog.set_level(logging.INFO, "joulie.adapters.grid.feed")
    source = Source()

    def fail():
        raise GridSourceError(f"request not sent: next try in {source.now_s() % 300:.0f} s")

    source.answer = fail

    async def talk(feed):
        await asyncio.sleep(2000)
        source.answer = None
        await asyncio.sleep(100)

    feeding(source, talk=talk)
    messages = [record.message for record in caplog.records if "history" not in record.message]
    assert messages == ["grid source fails", "grid sources answer"]


@pytest.mark.parametrize(
    ("time_s", "until_s", "says"),
    [
        (1.7e12, None, "in the future"),  # microseconds for milliseconds
        (START_S, math.nan, "until_s"),
        (START_S, START_S, "until_s"),
    ],
)
def test_a_time_that_cannot_be_is_the_sources_failure(time_s, until_s, says, caplog):
    source = Source()
    source.answer = lambda: source.seen(300.0, time_s, until_s=until_s)

    async def talk(feed):
        await asyncio.sleep(1)
        assert feed.carbon("DE").quality is Quality.MISSING
        assert says in feed.carbon("DE").problem

    feeding(source, talk=talk)
    assert "could not be updated" not in caplog.text


def test_nobody_is_left_alone_for_ever():
    source = Source()
    source.down = GridSourceError("busy", retry_after_s=math.inf)
    feeding(source, talk=lambda feed: asyncio.sleep(1.1 * HOUR_S))
    assert len(source.times()) == 2


# ---- zones


@pytest.mark.slow
def test_trap_sixty_four_zones_within_a_rate_limit_keep_values_and_get_forecasts():
    """Ten calls a minute are fewer than 64 zones want, and the first histories take most of them."""
    zones = [f"Z{number}" for number in range(MAX_ZONES)]
    source = Source(zones=zones)
    answers = {"latest": source.latest, "forecast": source.forecast, "history": source.history}

    def limited(kind, calls):
        async def answer(*asked):
            for _ in range(calls):
                async with turn:
                    await asyncio.sleep(6)
            return await answers[kind](*asked)

        return answer

    source.latest, source.forecast, source.history = (
        limited("latest", 1),
        limited("forecast", 1),
        limited("history", 11),
    )

    async def talk(feed):
        nonlocal turn
        turn = asyncio.Lock()
        for zone in zones:
            feed.want(zone)
        await asyncio.sleep(4 * HOUR_S)
        assert all(feed.carbon(zone).known for zone in zones)

    turn = None
    feeding(source, talk=talk, zone=zones[0])
    for zone in zones:
        times = [time_s for time_s, kind, asked in source.asked if kind == "latest" and asked == zone]
        assert max(np.diff(times)) < 20 * MINUTE_S
    early = {zone for time_s, kind, zone in source.asked if kind == "forecast" and time_s < 20 * MINUTE_S}
    assert early == set(zones)
    assert {zone for _, kind, zone in source.asked if kind == "history"} == set(zones)


def test_trap_a_clock_that_is_set_back_delays_no_zone():
    source = Source(zones=("DE", "FR", "ES"))
    back_s = 0.0

    async def main():
        nonlocal back_s
        clock = asyncio.get_running_loop().time
        feed = GridFeed({Measure.CARBON: [source]}, FeedLimits(), lambda: START_S + clock() - back_s, zone="DE")
        for zone in source.zones:
            feed.want(zone)
        running = asyncio.create_task(feed.run())
        await asyncio.sleep(2 * HOUR_S)
        back_s = 2 * HOUR_S
        source.asked.clear()
        await asyncio.sleep(61)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        # Who says at which time a past or forecast was asked for was wrong, too.
        assert {(kind, zone) for _, kind, zone in source.asked} >= {("latest", zone) for zone in source.zones}
        assert {zone for _, kind, zone in source.asked if kind == "forecast"} == set(source.zones)

    source.answer = lambda: source.seen(300.0, START_S)
    run_virtually(main())


@pytest.mark.slow
def test_zones_are_watched_when_wanted_and_dropped_after_a_day():
    source = Source(zones=("DE", "FR"))

    async def talk(feed):
        assert feed.carbon("FR").problem == "carbon of this zone is not watched"
        assert feed.want("FR")
        await asyncio.sleep(0.9 * 86400)
        assert feed.carbon("FR").known
        await asyncio.sleep(0.9 * 86400)
        assert feed.carbon("FR").known
        await asyncio.sleep(1.1 * 86400)
        assert not feed.carbon("FR").known
        assert feed.carbon("DE").known

    feeding(source, talk=talk)


@pytest.mark.parametrize("zone", ["", "a" * 64, 'DE"} or vector(0)', "DE/../x", "DE FR", "{zone}", "ü"])
def test_a_name_that_is_no_zone_never_reaches_a_source(zone):
    source = Source()

    async def talk(feed):
        assert not feed.want(zone)
        await asyncio.sleep(1)
        assert not feed.carbon(zone).known

    feeding(source, talk=talk)
    assert {asked for _, _, asked in source.asked} == {"DE"}


def test_zones_are_bounded_and_invented_ones_give_way():
    source = Source(zones=("DE", "FR"))

    async def talk(feed):
        for number in range(2 * MAX_ZONES):
            feed.want(f"X{number}")
        assert feed.want("FR")
        await asyncio.sleep(10)
        assert feed.carbon("FR").known
        assert feed.confirmed("FR")
        assert feed.carbon("DE").known
        assert len(list(feed.signals())) == MAX_ZONES
        assert [signal.zone for signal in feed.signals() if feed.confirmed(signal.zone)] == ["DE", "FR"]

    feeding(source, talk=talk)


def test_a_tariff_that_knows_every_zone_leaves_room_for_real_ones():
    source, tariff = Source(zones=("DE", "FR")), Source("tou", Measure.PRICE, None)
    tariff.zones = ["DE", "FR", *(f"X{number}" for number in range(MAX_ZONES))]

    async def talk(feed):
        for zone in tariff.zones[2:]:
            feed.want(zone)
        await asyncio.sleep(10)
        assert feed.want("FR")
        await asyncio.sleep(10)
        assert feed.carbon("FR").known
        assert feed.carbon("DE").known

    feeding(source, tariff, talk=talk)


def test_slow_histories_keep_no_zone_waiting_for_its_value():
    source = Source(zones=("DE", "FR", "ES"))
    slow = source.history

    async def history(zone, from_s, until_s):
        await asyncio.sleep(100)
        return await slow(zone, from_s, until_s)

    source.history = history

    async def talk(feed):
        for zone in ("FR", "ES"):
            feed.want(zone)
        await asyncio.sleep(1)
        assert all(feed.carbon(zone).known for zone in source.zones)
        assert not feed.asked("ES")
        await asyncio.sleep(300)
        assert all(feed.asked(zone) for zone in source.zones)

    feeding(source, talk=talk)


# ---- past and future


def days(count, until_s=START_S, step_s=HOUR_S):
    steps = round(count * 86400 / step_s)
    starts_s = until_s // HOUR_S * HOUR_S - step_s * (steps - 1 - np.arange(steps))
    return Series(starts_s, 200.0 + 100.0 * ((starts_s % 86400.0) > 43200.0), float(starts_s[-1]) + step_s)


def test_history_is_filled_from_the_source_and_grows():
    source = Source()
    source.past = days(7)

    async def talk(feed):
        await asyncio.sleep(3 * HOUR_S + 600)
        return feed.history(Measure.CARBON, "DE")

    history = feeding(source, talk=talk)
    assert history.start_s == source.past.start_s
    assert history.at(START_S - 86400.0) == source.past.at(START_S - 86400.0)
    assert history.values[-4:].tolist() == [100.0, 200.0, 300.0, 400.0]
    assert (history.starts_s[1:] - history.starts_s[:-1] == HOUR_S).all()
    assert source.times("history") == [0.0]


def test_an_outage_leaves_no_hole_where_the_source_remembers():
    source = Source()
    source.past = days(2, START_S + 86400)

    async def talk(feed):
        await asyncio.sleep(HOUR_S)
        source.down = OUT
        await asyncio.sleep(4 * HOUR_S)
        source.down = None
        await asyncio.sleep(HOUR_S)
        return feed.history(Measure.CARBON, "DE")

    history = feeding(source, talk=talk)
    assert (history.starts_s[1:] - history.starts_s[:-1] == HOUR_S).all()


def test_history_begins_anew_after_a_long_hole_that_nobody_remembers():
    source = Source()

    async def talk(feed):
        await asyncio.sleep(2 * HOUR_S)
        source.down = OUT
        await asyncio.sleep(9 * HOUR_S)
        source.down = None
        await asyncio.sleep(HOUR_S)
        return feed.history(Measure.CARBON, "DE")

    assert feeding(source, talk=talk).start_s > START_S + 9 * HOUR_S


@pytest.mark.parametrize(("step_s", "most_s"), [(HOUR_S, HISTORY_S), (300.0, 10_000 * 300.0)])
def test_history_is_bounded(step_s, most_s):
    watch = ZoneWatch(Measure.CARBON, "DE", wanted_s=START_S, due_s=START_S)
    watch.add_history(days(230, step_s=step_s), START_S)
    assert most_s - 2 * HOUR_S <= watch.history.end_s - watch.history.start_s <= most_s + 2 * HOUR_S


def test_a_value_whose_period_is_over_is_not_expected_to_last():
    """A source that publishes late: the last hour's value was taken for the present hour's."""
    hour_s = START_S // HOUR_S * HOUR_S
    watch = ZoneWatch(Measure.CARBON, "DE", wanted_s=START_S, due_s=START_S)
    watch.record(Observation(400.0, hour_s - HOUR_S, Provenance("source", "DE"), until_s=hour_s), START_S)
    watch.forecast = Series(hour_s + HOUR_S * np.arange(-1, 3), [400.0, 300.0, 200.0, 100.0], hour_s + 3 * HOUR_S)
    signal = watch.signal(hour_s + 60.0, HOUR_S)
    assert (signal.value, signal.quality) == (400.0, Quality.STALE)
    assert signal.forecast.values.tolist() == [300.0, 200.0, 100.0]
    assert watch.signal(hour_s - 60.0, HOUR_S).forecast.values.tolist() == [400.0, 300.0, 200.0, 100.0]


@pytest.mark.parametrize(
    ("offset_s", "length_s", "step_s"), [(0, HOUR_S, HOUR_S), (0, 900, 1800), (1800, HOUR_S, 1800)]
)
def test_the_step_of_forecasts_fits_the_history(offset_s, length_s, step_s):
    starts_s = offset_s + length_s * np.arange(50)
    assert forecast_step_s(Series(starts_s, np.ones(50), starts_s[-1] + length_s)) == step_s


def test_the_providers_forecast_is_used_and_begins_with_what_is_true_now():
    source = Source()
    hour_s = START_S // HOUR_S * HOUR_S
    source.ahead = Series([hour_s, hour_s + HOUR_S, hour_s + 2 * HOUR_S], [111, 222, 333], hour_s + 3 * HOUR_S)

    async def talk(feed):
        await asyncio.sleep(1)
        return feed.carbon("DE")

    signal = feeding(source, talk=talk)
    assert signal.forecast_source == "source"
    assert signal.forecast.values.tolist() == [100.0, 222.0, 333.0]
    assert signal.forecast.start_s == START_S + 1


@pytest.mark.parametrize(
    "ahead", [None, GridSourceError("500"), constant(-5.0, START_S, START_S + 86400), constant(5.0, 0.0, START_S - 1)]
)
def test_joulie_forecasts_where_the_provider_has_nothing_of_use(ahead):
    source = Source()
    source.past, source.ahead = days(14), ahead

    async def talk(feed):
        await asyncio.sleep(1)
        return feed.carbon("DE")

    signal = feeding(source, talk=talk)
    assert signal.quality is Quality.FRESH
    assert signal.forecast_source == "joulie"
    assert signal.forecast.at(START_S + 1) == signal.value
    assert signal.forecast.end_s >= START_S + 47 * HOUR_S


def test_a_provider_that_fails_to_forecast_keeps_its_last_one():
    source = Source()
    source.ahead = constant(222.0, START_S, START_S + 86400)

    async def talk(feed):
        await asyncio.sleep(1)
        source.ahead = GridSourceError("500")
        await asyncio.sleep(2 * HOUR_S)
        return feed.carbon("DE")

    assert feeding(source, talk=talk).forecast_source == "source"


def test_a_zone_is_asked_only_once_its_forecast_is_there():
    source = Source()
    quick = source.forecast

    async def forecast(zone, horizon_s):
        await asyncio.sleep(100)
        return await quick(zone, horizon_s)

    source.forecast, source.ahead = forecast, constant(222.0, START_S, START_S + 86400)

    async def talk(feed):
        await asyncio.sleep(50)
        assert feed.carbon("DE").known
        assert not feed.asked("DE")
        await asyncio.sleep(51)
        assert feed.asked("DE")
        assert feed.carbon("DE").forecast is not None

    feeding(source, talk=talk)


def test_without_a_past_there_is_no_forecast():
    async def talk(feed):
        await asyncio.sleep(1)
        return feed.carbon("DE")

    signal = feeding(Source(), talk=talk)
    assert (signal.forecast, signal.forecast_source) == (None, "")


def test_a_forecaster_that_fails_costs_nobody_the_signal(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("bug")

    monkeypatch.setattr(grid_feed, "forecast", fail)
    source = Source()

    async def talk(feed):
        await asyncio.sleep(200)
        assert feed.carbon("DE").quality is Quality.FRESH

    feeding(source, talk=talk)
    assert source.times() == [0.0, 60.0]
    assert "could not be updated" in caplog.text


# ---- tariffs


def test_a_tariff_without_rates_has_periods_and_is_asked_when_they_change():
    source = Source("tou", Measure.PRICE, None)

    def now():
        peak = source.now_s() >= START_S + 1000
        return Observation(
            None,
            START_S,
            Provenance("tou", "DE"),
            Period.PEAK if peak else Period.OFF_PEAK,
            START_S + (90_000 if peak else 1000),
        )

    source.answer = now
    told = []

    async def talk(feed):
        feed.add_listener(lambda measure, zone: told.append((measure, zone, source.now_s() - START_S)))
        await asyncio.sleep(999)
        assert feed.price("DE").period is Period.OFF_PEAK
        await asyncio.sleep(2)
        signal = feed.price("DE")
        assert (signal.period, signal.value, signal.quality) == (Period.PEAK, None, Quality.FRESH)
        assert signal.known

    feeding(source, talk=talk)
    assert told == [(Measure.PRICE, "DE", 0.0), (Measure.PRICE, "DE", 1000.0)]


# ---- listeners


def test_listeners_hear_of_changes_of_outages_and_of_the_first_failure(caplog):
    source = Source()
    source.down = OUT
    told = []

    def callback(measure, zone):
        told.append((source.now_s() - START_S, feed_of["it"].carbon("DE").quality.value))
        raise RuntimeError("listener's own bug")

    feed_of = {}

    async def talk(feed):
        feed_of["it"] = feed
        feed.add_listener(callback)
        await asyncio.sleep(100)
        source.down = None
        await asyncio.sleep(100)
        source.down = OUT
        await asyncio.sleep(2 * HOUR_S)

    feeding(source, talk=talk)
    assert [quality for _, quality in told] == ["missing", "fresh", "stale", "missing"]
    assert told[0][0] == 0.0
    assert told[3][0] <= told[1][0] + HOUR_S + 61


# ---- restarts


def test_a_restart_within_the_last_step_asks_for_no_past_that_is_yet_to_come(tmp_path, caplog):
    file = tmp_path / "grid.json"
    for _ in range(2):
        source = Source()
        feeding(source, talk=lambda feed: asyncio.sleep(1), state_file=file)
    assert source.times("latest")
    assert not source.times("history")
    assert "broken" not in caplog.text


def test_a_restart_during_an_outage_keeps_the_last_good_value_within_its_age(tmp_path):
    file = tmp_path / "state" / "grid.json"
    source = Source()
    source.past = days(3)

    async def first(feed):
        await asyncio.sleep(1)

    feeding(source, talk=first, state_file=file)
    source.down = OUT

    async def second(feed):
        signal = feed.carbon("DE")
        assert (signal.quality, signal.value) == (Quality.STALE, 100.0)
        assert not feed.asked("DE")
        await asyncio.sleep(1)
        assert feed.asked("DE")
        assert len(feed.history(Measure.CARBON, "DE")) == 72
        await asyncio.sleep(HOUR_S + 1)
        assert feed.carbon("DE").quality is Quality.MISSING

    feeding(source, talk=second, state_file=file)


def test_a_state_of_another_basis_or_source_is_not_taken_over(tmp_path):
    file = tmp_path / "grid.json"
    feeding(Source(), talk=lambda feed: asyncio.sleep(1), state_file=file)

    async def talk(feed):
        assert feed.carbon("DE").quality is Quality.MISSING

    other = Source(basis=Basis.MARGINAL)
    other.down = OUT
    feeding(other, talk=talk, state_file=file)
    feeding(Source("another"), talk=talk, state_file=file)


def test_prices_that_are_watched_since_the_restart_are_asked_for(tmp_path):
    file = tmp_path / "grid.json"
    feeding(Source(), talk=lambda feed: asyncio.sleep(1), state_file=file)

    async def talk(feed):
        await asyncio.sleep(1)
        assert feed.price("DE").known

    feeding(Source(), Source("price", Measure.PRICE, None), talk=talk, state_file=file)


def test_a_plug_ins_kinds_of_numbers_do_not_end_the_feed(tmp_path):
    file = tmp_path / "grid.json"
    source = Source()
    source.answer = lambda: source.seen(np.float64(300.0), np.float64(source.now_s()))

    async def main():
        clock = asyncio.get_running_loop().time
        feed = GridFeed({Measure.CARBON: [source]}, FeedLimits(), lambda: START_S + clock(), zone="DE", state_file=file)
        running = asyncio.create_task(feed.run())
        await asyncio.sleep(1000)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())
    assert json.loads(file.read_bytes())[0]["observation"]["value"] == 300.0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'[{"measure": "carbon"}]', b"\xff\xfe"])
def test_a_state_that_cannot_be_read_is_a_fresh_start(tmp_path, content):
    file = tmp_path / "grid.json"
    file.write_bytes(content)

    async def talk(feed):
        await asyncio.sleep(1)
        assert feed.carbon("DE").known

    feeding(Source(), talk=talk, state_file=file)
    assert json.loads(file.read_bytes())


def test_a_state_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    file = tmp_path / "file" / "grid.json"
    (tmp_path / "file").write_text("no folder")
    feeding(Source(), talk=lambda feed: asyncio.sleep(1), state_file=file)
    assert "not saved" in caplog.text


# ---- metrics


def test_metrics_show_missing_without_a_number():
    registry = CollectorRegistry()
    source, other = Source(), Source("price", Measure.PRICE, None)
    other.down = OUT

    async def talk(feed):
        metrics.signals = feed.signals
        await asyncio.sleep(61)

    metrics = GridMetrics(registry, now_s=lambda: START_S + 61)
    feeding(source, other, talk=talk, fetched=metrics.fetched)
    labels = {"measure": "price", "zone": "DE"}
    assert registry.get_sample_value("joulie_grid_signal_missing", labels) == 1.0
    for quality in Quality:
        assert registry.get_sample_value("joulie_grid_signal", labels | {"quality": quality}) is None
    carbon = {"measure": "carbon", "zone": "DE"}
    assert registry.get_sample_value("joulie_grid_signal", carbon | {"quality": "fresh"}) == 100.0
    assert registry.get_sample_value("joulie_grid_signal_missing", carbon) == 0.0
    assert registry.get_sample_value("joulie_grid_fetches_total", {"source": "price", "result": "error"}) == 2.0
