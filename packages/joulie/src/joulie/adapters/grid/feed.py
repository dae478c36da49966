"""Carbon intensity and prices of the zones that somebody asks about, kept up to date in the background.

Whoever decides reads from memory: nothing here blocks a decision, and a source that fails costs nobody else anything.
An outage is a state of the signal (stale, then missing), never an exception, and missing is never zero.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joulie.adapters.grid.chain import SourceChain
from joulie.adapters.grid.state import StateError, read_state, write_state
from joulie.adapters.grid.zone import HISTORY_S, ZoneWatch
from joulie.domain.grid.forecast import forecast
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.ports import GridSource, GridSourceError

MAX_ZONES = 64
_ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,62}", re.ASCII)
"""What a zone may look like: it goes into addresses, queries and labels of metrics."""
_UNWANTED_AFTER_S = 86400.0
_AFTER_FAILURE_S = 60.0
_LONGEST_WAIT_S = 60.0
"""So that a clock that is set is noticed."""
_LONGEST_PAUSE_S = 3600.0
"""However long a source asks to be left alone."""
_FORECAST_EVERY_S = 3600.0
_OWN = "joulie"
_FORECAST_SOONEST_S = 900.0
"""Between two forecasts: values of every five minutes change little."""
_LARGE_STEPS = 1000
"""Of a history from which a forecast is made in a thread: it takes long enough for others to notice."""
_BACKFILL_AGAIN_S = 3600.0
_SAVE_EVERY_S = 600.0

Listener = Callable[[Measure, str], None]
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedLimits:
    """How long answers are used, s.

    Attributes:
        ttl_s: until a source is asked again.
        max_age_s: while it fails; then the signal is missing.
        horizon_s: how far forecasts look.
    """

    ttl_s: float = 300.0
    max_age_s: float = 3600.0
    horizon_s: float = 48 * 3600.0


class GridFeed:
    """Signals of zones, by measure.

    Args:
        sources: by measure, in order of trust; a measure without an entry is not watched.
        limits: how long answers are used.
        now_s: s since the epoch.
        zone: that is always wanted.
        state_file: keeps what is known over restarts; None for memory only.
        fetched: told of every request: source, and ``ok`` or ``error``.

    Raises:
        ValueError: sources of one measure whose bases differ.
    """

    def __init__(
        self,
        sources: Mapping[Measure, Sequence[GridSource]],
        limits: FeedLimits,
        now_s: Callable[[], float],
        *,
        zone: str = "",
        state_file: Path | None = None,
        fetched: Callable[[str, str], None] = lambda source, result: None,
    ) -> None:
        self._sources = {
            measure: SourceChain(measure, chain, max_age_s=limits.max_age_s, now_s=now_s, fetched=fetched)
            for measure, chain in sources.items()
            if chain
        }
        self._limits = limits
        self._now_s = now_s
        self._zone = zone
        self._state_file = state_file
        self._watches: dict[tuple[Measure, str], ZoneWatch] = {}
        self._listeners: list[Listener] = []
        self._wake = {measure: asyncio.Event() for measure in self._sources}
        """Zones are new."""
        self._incomplete = {measure: asyncio.Event() for measure in self._sources}
        """Zones lack past or future."""
        self._refused: set[str] = set()
        self._restore()
        if zone:
            self.want(zone)

    # ---- what others read

    def carbon(self, zone: str) -> GridSignal:
        """Carbon intensity of a zone now, gCO2eq/kWh."""
        return self._signal(Measure.CARBON, zone)

    def price(self, zone: str) -> GridSignal | None:
        """Price of electricity in a zone now, currency/kWh; None where prices are not watched."""
        return self._signal(Measure.PRICE, zone) if Measure.PRICE in self._sources else None

    def history(self, measure: Measure, zone: str) -> Series | None:
        """What has been in a zone, at most some three months; None where nothing is known.

        Gaps of up to six hours are filled with the value before them; at a longer one it begins anew.
        """
        watch = self._watches.get((measure, zone))
        return None if watch is None else watch.history

    def signals(self) -> Iterator[GridSignal]:
        """Signals of all zones that are watched, whoever wants them."""
        now_s = self._now_s()
        return (watch.signal(now_s, self._limits.max_age_s) for watch in list(self._watches.values()))

    def confirmed(self, zone: str) -> bool:
        """Whether some source has known the zone, so that it is no user's invention."""
        return zone == self._zone or any(
            watch.observation is not None for (_, name), watch in self._watches.items() if name == zone
        )

    def asked(self, zone: str) -> bool:
        """Whether there is nothing to wait for: all of the zone is known, forecasts included, or its sources fail."""
        return all(watch.settled for (_, name), watch in self._watches.items() if name == zone)

    def want(self, zone: str) -> bool:
        """Watch a zone from now on, until nobody has asked about it for a day; whether there is room for it."""
        new = [measure for measure in self._sources if (measure, zone) not in self._watches]
        is_watched = len(new) < len(self._sources)
        if not is_watched and not (_ZONE.fullmatch(zone) and self._room()):
            self._refuse(zone)
            return False
        self._touch(zone)
        now_s = self._now_s()
        for measure in new:
            self._watches[measure, zone] = ZoneWatch(measure, zone, wanted_s=now_s, due_s=now_s)
            self._wake[measure].set()
        return True

    def add_listener(self, callback: Listener) -> None:
        """Call back when a zone was first asked about, and when its signal or forecast has changed or gone missing."""
        self._listeners.append(callback)

    async def run(self) -> None:
        """Keep everything up to date until cancelled; whatever sources do, it goes on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for measure in self._sources:
                    tasks.create_task(self._follow_values(measure))
                    tasks.create_task(self._follow_series(measure))
                tasks.create_task(self._keep())
        finally:
            self._save()

    async def refresh(self) -> None:
        """Ask the sources of every zone that is due, once; for whoever does not run the feed."""
        watches = list(self._watches.values())
        for watch in watches:
            if watch.due_s <= self._now_s():
                await self._guarded(watch, self._poll(watch))
        for watch in watches:
            await self._guarded(watch, self._look_ahead(watch))
            await self._guarded(watch, self._look_back(watch))

    # ---- zones

    def _signal(self, measure: Measure, zone: str) -> GridSignal:
        watch = self._watches.get((measure, zone))
        if watch is None:
            why = "is not watched" if measure in self._sources else "is not watched: there is no source"
            return GridSignal(measure, zone, problem=f"{measure} of this zone {why}")
        watch.wanted_s = self._now_s()
        return watch.signal(watch.wanted_s, self._limits.max_age_s)

    def _touch(self, zone: str) -> None:
        for measure in self._sources:
            if watch := self._watches.get((measure, zone)):
                watch.wanted_s = self._now_s()

    def _room(self) -> bool:
        """Whether another zone may be watched; one gives its place up of which a measure has never been known.

        One measure is not enough: a tariff has a price for every zone that somebody invents.
        """
        if len({zone for _, zone in self._watches}) < MAX_ZONES:
            return True
        unknown_zones = (zone for (_, zone), watch in self._watches.items() if watch.observation is None)
        unknown = next((zone for zone in unknown_zones if zone != self._zone), None)
        if unknown is not None:
            self._drop(unknown)
        return unknown is not None

    def _drop(self, zone: str) -> None:
        for measure in self._sources:
            self._watches.pop((measure, zone), None)

    def _refuse(self, zone: str) -> None:
        if zone not in self._refused and len(self._refused) < MAX_ZONES:
            self._refused.add(zone)
            _log.warning("zone is not watched: no such name, or too many of them", extra={"zone": zone[:63]})

    # ---- asking

    async def _follow_values(self, measure: Measure) -> None:
        """Ask about one zone after the other, whichever is due first."""
        wake = self._wake[measure]
        while True:
            self._forget_unwanted()
            wake.clear()
            now_s = self._now_s()
            first = min(self._of(measure), key=lambda watch: watch.next_s(now_s), default=None)
            wait_s = _LONGEST_WAIT_S if first is None else min(_LONGEST_WAIT_S, first.next_s(now_s) - now_s)
            if first is not None and wait_s <= 0.0:
                await self._guarded(first, self._poll(first))
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), wait_s)

    async def _follow_series(self, measure: Measure) -> None:
        """Ask for past and future, beside the values: each gets every other turn where a provider limits the rate."""
        incomplete = self._incomplete[measure]
        while True:
            incomplete.clear()
            watches = self._of(measure)
            no_future = [watch for watch in watches if watch.future_source is not None]
            no_past = [watch for watch in watches if watch.past_source is not None]
            if no_future:
                watch = min(no_future, key=lambda watch: watch.forecast_asked_s)
                await self._guarded(watch, self._look_ahead(watch))
            elif no_past:  # months of it may be a dozen requests
                await self._guarded(no_past[0], self._look_back(no_past[0]))
            else:
                await incomplete.wait()

    def _of(self, measure: Measure) -> list[ZoneWatch]:
        return [watch for watch in self._watches.values() if watch.measure is measure]

    def _forget_unwanted(self) -> None:
        limit_s = self._now_s() - _UNWANTED_AFTER_S
        wanted = {watch.zone for watch in self._watches.values() if watch.wanted_s >= limit_s} | {self._zone}
        for zone in {zone for _, zone in self._watches} - wanted:
            self._drop(zone)

    async def _guarded(self, watch: ZoneWatch, update: Awaitable[None]) -> None:
        """Update a zone; a bug in here must not cost the others their signals."""
        try:
            await update
        except Exception:
            _log.exception("grid signal could not be updated", extra=_about(watch))
            watch.completed = True
            watch.asked_s = self._now_s()
            watch.due_s = watch.asked_s + _AFTER_FAILURE_S

    async def _poll(self, watch: ZoneWatch) -> None:
        if watch.asked_s > self._now_s():
            watch.clock_was_set_back()
        outcome = await self._ask(watch)
        self._report(watch, outcome)
        now_s = watch.asked_s = self._now_s()
        watch.failing, watch.problem = outcome.failed, outcome.problem
        watch.due_s = now_s + self._pause_s(watch, outcome, now_s)
        self._tell(watch)

    def _report(self, watch: ZoneWatch, outcome: _Outcome) -> None:
        """Log that sources begin or cease to fail; the words of a failure change with every try."""
        before = (watch.failing, bool(watch.problem)) if watch.is_asked else (False, False)
        if before == (outcome.failed, bool(outcome.problem)):
            return
        if outcome.problem:
            _log.warning("grid source fails", extra=_about(watch) | {"problem": outcome.problem})
        else:
            _log.info("grid sources answer", extra=_about(watch))

    def _pause_s(self, watch: ZoneWatch, outcome: _Outcome, now_s: float) -> float:
        """Until the sources of a zone are asked again, s."""
        if outcome.failed:
            return min(max(outcome.retry_after_s, min(_AFTER_FAILURE_S, self._limits.ttl_s)), _LONGEST_PAUSE_S)
        until_s = watch.observation.until_s if watch.observation is not None else None
        if until_s is None:
            return self._limits.ttl_s
        # A value that has ended will soon be followed by the next one.
        return min(self._limits.ttl_s, until_s - now_s if until_s > now_s else _AFTER_FAILURE_S)

    async def _ask(self, watch: ZoneWatch) -> _Outcome:
        """Ask the sources in turn, until one has a good answer."""
        problems: list[str] = []
        pauses_s: list[float] = []
        chain = self._sources[watch.measure]
        for source in chain:
            try:
                seen = await chain.latest(source, watch.zone)
            except GridSourceError as error:
                problems.append(f"{source.name}: {error}")
                pauses_s.append(error.retry_after_s or 0.0)
                if self._still_good(watch, source):
                    break  # another source's numbers would make a step that no grid has made
                continue
            now_s = self._now_s()
            is_new = watch.observed(seen, now_s)
            if now_s - watch.forecast_asked_s >= (_FORECAST_SOONEST_S if is_new else _FORECAST_EVERY_S):
                watch.future_source = source
            if watch.lacks_past(now_s):
                watch.past_source = source
            self._incomplete[watch.measure].set()
            return _Outcome("; ".join(problems))
        # Those that want to be left alone for longer see to it themselves.
        return _Outcome("; ".join(problems), failed=True, retry_after_s=min(pauses_s, default=0.0))

    def _still_good(self, watch: ZoneWatch, source: GridSource) -> bool:
        """Whether the last good value is this source's, and young enough."""
        seen = watch.observation
        mine = seen is not None and seen.provenance.source == source.name
        return mine and watch.signal(self._now_s(), self._limits.max_age_s).known

    # ---- past and future

    async def _look_ahead(self, watch: ZoneWatch) -> None:
        """The future of a zone that lacks it: the forecast of its source, else Joulie's own."""
        source, watch.future_source = watch.future_source, None
        if source is None:
            return
        given = await self._given_forecast(watch, source)
        if given is not None:
            watch.forecast, watch.forecast_source = given, source.name
        else:
            await self._forecast(watch)
        watch.completed |= given is not None or watch.past_source is None
        self._tell(watch)

    async def _given_forecast(self, watch: ZoneWatch, source: GridSource) -> Series | None:
        """What the source expects; None where it does not say, or nothing of use."""
        now_s = watch.forecast_asked_s = self._now_s()
        try:
            given = await self._sources[watch.measure].forecast(source, watch.zone, self._limits.horizon_s)
        except GridSourceError as error:
            _log.info("no forecast from grid source", extra=_about(watch) | {"problem": str(error)})
            # The provider's last one is still better than none.
            given = watch.forecast if watch.forecast_source == source.name else None
        return given if given is not None and given.end_s > now_s else None

    async def _look_back(self, watch: ZoneWatch) -> None:
        """What has been before the first value, and in a gap; then Joulie's own forecast, where the source has none."""
        source, watch.past_source = watch.past_source, None
        if source is None:
            return
        await self._backfill(watch, source)
        if watch.forecast_source != source.name:
            await self._forecast(watch)
        watch.completed = True
        self._tell(watch)

    async def _backfill(self, watch: ZoneWatch, source: GridSource) -> None:
        now_s = self._now_s()
        if watch.missing_from_s is None:
            return
        watch.backfill_due_s = now_s + _BACKFILL_AGAIN_S
        from_s = max(watch.missing_from_s, now_s - HISTORY_S)
        if from_s >= now_s:  # a restart within the last step that is known
            watch.missing_from_s = None
            return
        try:
            earlier = await self._sources[watch.measure].history(source, watch.zone, from_s, now_s)
        except GridSourceError as error:
            _log.info("no history from grid source", extra=_about(watch) | {"problem": str(error)})
        else:
            watch.remembers(earlier, now_s)

    async def _forecast(self, watch: ZoneWatch) -> None:
        """Joulie's own forecast from the history, where that is long enough."""
        history, now_s = watch.history, self._now_s()
        expected = None
        if history is not None:
            asked = (history, now_s, self._limits.horizon_s, watch.step_s)
            large = len(history) > _LARGE_STEPS
            expected = await asyncio.to_thread(forecast, *asked) if large else forecast(*asked)
        watch.forecast, watch.forecast_source = expected, "" if expected is None else _OWN

    def _tell(self, watch: ZoneWatch) -> None:
        """Call the listeners where they were last told of something else."""
        shown = _visible(watch.signal(self._now_s(), self._limits.max_age_s), watch.forecast)
        if shown == watch.shown:
            return
        watch.shown = shown
        for listener in self._listeners:
            try:
                listener(watch.measure, watch.zone)
            except Exception:
                _log.exception("listener to grid signals failed", extra=_about(watch))

    # ---- over restarts

    def _restore(self) -> None:
        if self._state_file is None:
            return
        try:
            watches = read_state(self._state_file)
        except StateError as error:
            _log.warning("state of the grid is not read", extra={"problem": str(error)})
            return
        now_s = self._now_s()
        for watch in watches:
            chain, seen = self._sources.get(watch.measure), watch.observation
            if chain is None or seen is None or watch.fetched_s > now_s or seen.provenance.basis is not chain.basis:
                continue
            if seen.provenance.source in {source.name for source in chain}:
                watch.problem = "not asked since the program started"
                self._watches[watch.measure, watch.zone] = watch

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_EVERY_S)
            self._save()

    def _save(self) -> None:
        if self._state_file is None:
            return
        try:
            write_state(self._state_file, list(self._watches.values()))
        except (OSError, TypeError) as error:  # what a plug-in has given may be of kinds that cannot be written
            _log.warning("state of the grid is not saved", extra={"problem": str(error)})


@dataclass(frozen=True)
class _Outcome:
    """What came of asking: what is wrong, and after a failure how long all sources want to be left alone, s."""

    problem: str
    failed: bool = False
    retry_after_s: float = 0.0


def _visible(signal: GridSignal, forecast: Series | None) -> tuple[object, ...]:
    """What decisions go by. A forecast that was made anew is another one."""
    return signal.quality, signal.value, signal.time_s, signal.period, signal.provenance, forecast


def _about(watch: ZoneWatch) -> dict[str, str]:
    return {"measure": watch.measure.value, "zone": watch.zone}
