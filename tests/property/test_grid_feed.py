"""Whatever sources do: a signal is one that they gave, young enough, or missing; never a zero of the feed's own."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.grid.feed import FeedLimits, GridFeed
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSourceError
from support.virtual_time import run_virtually

START_S = 1_699_999_200.0
LIMITS = FeedLimits()

answers = st.sampled_from(["good", "good", "error", "bug", "old", "future", "negative", "nan", "retry-later"])
steps = st.lists(st.tuples(st.floats(1.0, 6000.0), answers, answers), min_size=1, max_size=12)


class Source:
    basis, measure = Basis.AVERAGE, Measure.CARBON

    def __init__(self, name, now_s):
        self.name, self.now_s = name, now_s
        self.mood = "good"
        self.given = {}

    async def latest(self, zone):
        now_s = self.now_s()
        match self.mood:
            case "error":
                raise GridSourceError("out of order")
            case "retry-later":
                raise GridSourceError("429", retry_after_s=500.0)
            case "bug":
                raise ZeroDivisionError
        time_s = now_s + {"old": -9000.0, "future": 9000.0}.get(self.mood, 0.0)
        value = {"negative": -1.0, "nan": float("nan")}.get(self.mood, 100.0 + len(self.given))
        if self.mood == "good":
            self.given[value] = now_s
        return Observation(value, time_s, Provenance(self.name, zone, self.basis))

    async def forecast(self, zone, horizon_s):
        return None

    async def history(self, zone, from_s, until_s):
        return None


@settings(max_examples=50)
@given(steps)
def test_a_signal_is_what_a_source_gave_or_missing(steps):
    async def main():
        clock = asyncio.get_running_loop().time
        sources = [Source(name, lambda: START_S + clock()) for name in ("first", "second")]
        feed = GridFeed({Measure.CARBON: sources}, LIMITS, lambda: START_S + clock(), zone="DE")
        running = asyncio.create_task(feed.run())
        for pause_s, *moods in steps:
            for source, mood in zip(sources, moods, strict=True):
                source.mood = mood
            await asyncio.sleep(pause_s)
            check(feed.carbon("DE"), {source.name: source for source in sources}, START_S + clock())
            assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())


def check(signal, sources, now_s):
    if signal.known:
        given_s = sources[signal.provenance.source].given[signal.value]
        assert signal.time_s == given_s
        assert now_s - given_s <= LIMITS.max_age_s
    else:
        assert (signal.value, signal.time_s, signal.provenance, signal.forecast) == (None, None, None, None)
        assert signal.problem
