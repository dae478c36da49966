"""From a misbehaving provider to the signal, with everything in between: nothing blocks, lies or tells the key."""

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from joulie.domain.grid.deferral import Conditions, Release, ReleaseReason, Waiting, decide
from joulie.domain.grid.request import Asked, GridRequest
from joulie.domain.signal import Quality
from support.grid_feeds import feed_from
from support.scripted_server import serving

NOW_S = 1_700_000_400.0  # 2023-11-14 22:20 UTC
KEY = "em-key-7f3a"


def latest(**changes):
    return json.dumps({"zone": "DE", "carbonIntensity": 450, "datetime": "2023-11-14T22:00:00.000Z"} | changes).encode()


async def answers(answer):
    await answer.whole(200, latest())


async def too_many(answer):
    await answer.whole(429, f"slow down, {KEY}".encode(), "retry-after: 120\r\n")


async def broken(answer):
    await answer.whole(500, f"stack trace with {KEY}".encode())


async def slow(answer):
    await answer.begin()
    for _ in range(100):
        await answer.chunk(b" ")
        await asyncio.sleep(0.05)


async def truncated(answer):
    await answer.whole(200, latest()[:25])


async def stale(answer):
    await answer.whole(200, latest(datetime="2023-11-14T15:00:00.000Z"))


async def wrong_zone(answer):
    await answer.whole(200, latest(zone="FR"))


async def null(answer):
    await answer.whole(200, latest(carbonIntensity=None))


async def negative(answer):
    await answer.whole(200, latest(carbonIntensity=-3))


async def null_forecast(answer):
    await answer.whole(200, b'{"zone": "DE", "forecast": null}')


async def unfinished_history(answer):
    await answer.whole(200, b'{"zone": "DE", "history": [')


def running(behaviour, forecast=null_forecast):
    """The signal of a real feed once its provider has had its say, and the metrics then."""

    async def handle(request, answer):
        part = request.path.rpartition("/")[2]
        await {"latest": behaviour, "forecast": forecast}.get(part, unfinished_history)(answer)

    async def main():
        registry = CollectorRegistry()
        async with serving(handle) as url:
            environment = {
                "ELECTRICITY_MAP_API_KEY": KEY,
                "ELECTRICITY_MAP_API_URL": f"{url}/v3/carbon-intensity/latest?zone=",
                "ELECTRICITY_MAP_API_REGION": "DE",
                "API_TIMEOUT": "200ms",
                "API_MAX_RETRIES": "1",
                "API_RETRY_DELAY": "1ms",
                "API_RATE_LIMIT": "1000",
            }
            async with feed_from(environment, registry=registry, now_s=lambda: NOW_S) as feed:
                task = asyncio.create_task(feed.run())
                async with asyncio.timeout(5.0):
                    while not feed.asked("DE"):
                        feed.carbon("DE")  # reads memory: there is nothing to await
                        await asyncio.sleep(0.01)
                assert not task.done()
                text = generate_latest(registry).decode()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return feed.carbon("DE"), text

    return asyncio.run(main())


BEHAVIOURS = [too_many, broken, slow, truncated, stale, wrong_zone, null, negative]


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_an_outage_is_missing_holds_nothing_and_tells_nothing(behaviour, caplog):
    signal, metrics = running(behaviour)
    assert (signal.quality, signal.value) == (Quality.MISSING, None)
    assert signal.problem.startswith("electricity-maps: ")
    request = GridRequest(asked_by=Asked.POD, carbon_enabled=True, carbon_threshold_g_per_kwh=0.0)
    decision = decide(Waiting(request, held_since_s=NOW_S), Conditions(signal, None), NOW_S)
    assert isinstance(decision, Release)
    assert decision.reason is ReleaseReason.MISSING
    assert 'joulie_grid_signal_missing{measure="carbon",zone="DE"} 1.0' in metrics
    assert "joulie_grid_signal{" not in metrics
    logged = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    assert KEY not in logged + repr(signal) + metrics


@pytest.mark.parametrize("forecast", [null_forecast, broken, slow, truncated, wrong_zone])
def test_a_provider_without_forecast_or_history_still_gives_its_value(forecast, caplog):
    signal, _ = running(answers, forecast)
    assert (signal.quality, signal.value, signal.forecast) == (Quality.FRESH, 450.0, None)
