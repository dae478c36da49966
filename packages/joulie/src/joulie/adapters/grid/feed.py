"""Feed of carbon intensity and prices by zone, kept up to date in the background.

Each measure has two tasks: one polls the value of whichever zone is due first, the other fetches forecasts and
histories. A zone is watched from `GridFeed.want` until nobody has read it for a day. Readers get the signal from
memory, so no decision waits for a source, and a failing source delays no other measure. An outage is a state of the
signal (stale, then missing), never an exception, and missing is never zero.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joulie.adapters.grid.chain import SourceChain
from joulie.adapters.grid.state import StateError, read_state, write_state
from joulie.adapters.grid.zone import HISTORY_S, ZoneWatch
from joulie.domain.grid.forecast import forecast
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.grid.zones import is_unmapped_region
from joulie.ports.grid import GridSource, GridSourceError
from joulie.waiting import set_within

MAX_ZONES = 64
_ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,62}", re.ASCII)
"""Valid zone names: they go into URLs, queries and metric labels."""
_IDLE_TIMEOUT_S = 86400.0
"""Time after which a zone that nobody reads is no longer watched."""
_RETRY_S = 60.0
"""Time between two polls while all sources fail."""
_MAX_SLEEP_S = 60.0
"""Maximum sleep of the polling task, so that a change of the system clock is noticed."""
_MAX_PAUSE_S = 3600.0
"""Maximum time between two polls, even if a source asks for a longer pause."""
_FORECAST_INTERVAL_S = 3600.0
_OWN_FORECAST = "joulie"
_MIN_FORECAST_INTERVAL_S = 900.0
"""Minimum time between two forecasts: values of every five minutes change little."""
_LARGE_STEPS = 1000
"""Number of steps of a history from which Joulie's forecast is computed in a thread, to keep the event loop free."""
_BACKFILL_RETRY_S = 3600.0
_SAVE_INTERVAL_S = 600.0

Listener = Callable[[Measure, str], None]
_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedLimits:
    """How long values are used, and how far forecasts look.

    Attributes:
        ttl_s: time between two polls of a source, s.
        max_age_s: maximum age of the last good value while sources fail, s; then the signal is missing.
        horizon_s: forecast horizon, s.
    """

    ttl_s: float = 300.0
    max_age_s: float = 3600.0
    horizon_s: float = 48 * 3600.0


class GridFeed:
    """Grid signals of zones, by measure.

    Args:
        sources: sources of each measure in order of preference; a measure without an entry is not watched.
        limits: age limits and forecast horizon.
        now_s: current time, s since the epoch.
        zone: default zone, which is always watched; empty for none.
        state_file: file that keeps values and histories over restarts; None for memory only.
        fetched: called after every request with the source and ``ok`` or ``error``.

    Raises:
        ValueError: sources of one measure have different bases.
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
        """Set when zones were added."""
        self._incomplete = {measure: asyncio.Event() for measure in self._sources}
        """Set when zones lack a history or forecast."""
        self._refused: set[str] = set()
        self._restore()
        if zone:
            self.want(zone)

    # ---- reading

    def carbon(self, zone: str) -> GridSignal:
        """Current carbon intensity of a zone, gCO2eq/kWh."""
        return self._signal(Measure.CARBON, zone)

    def price(self, zone: str) -> GridSignal | None:
        """Current electricity price of a zone, currency/kWh; None if prices are not watched."""
        return self._signal(Measure.PRICE, zone) if Measure.PRICE in self._sources else None

    def history(self, measure: Measure, zone: str) -> Series | None:
        """History of a zone, at most about seven months; None if there is none.

        Gaps of up to six hours are filled with the value before them; after a longer gap the history starts again.
        """
        watch = self._watches.get((measure, zone))
        return None if watch is None else watch.history

    def gaps(self, measure: Measure, zone: str) -> Sequence[tuple[float, float]]:
        """Starts and ends of the parts of a history that no source has given, s since the epoch."""
        watch = self._watches.get((measure, zone))
        return () if watch is None else watch.gaps_s

    def signals(self) -> Iterator[GridSignal]:
        """Signals of all watched zones."""
        now_s = self._now_s()
        return (watch.signal(now_s, self._limits.max_age_s) for watch in list(self._watches.values()))

    def confirmed(self, zone: str) -> bool:
        """Whether the zone exists: the default zone, a cloud's region, or one for which a source returned a value."""
        return (
            zone == self._zone
            or is_unmapped_region(zone)
            or any(watch.observation is not None for (_, name), watch in self._watches.items() if name == zone)
        )

    def asked(self, zone: str) -> bool:
        """Whether every measure of the zone has been fetched, forecast included, or its sources have failed."""
        return all(watch.settled for (_, name), watch in self._watches.items() if name == zone)

    def want(self, zone: str) -> bool:
        """Watch a zone until nobody has read it for a day.

        Returns:
            False if the name is invalid or the maximum number of zones is reached.
        """
        new = [measure for measure in self._sources if (measure, zone) not in self._watches]
        is_watched = len(new) < len(self._sources)
        if not is_watched and not (_ZONE.fullmatch(zone) and self._make_room()):
            self._log_refused(zone)
            return False
        self._touch(zone)
        now_s = self._now_s()
        for measure in new:
            self._watches[measure, zone] = ZoneWatch(measure, zone, wanted_s=now_s, due_s=now_s)
            self._wake[measure].set()
        return True

    def add_listener(self, callback: Listener) -> None:
        """Call `callback` after the first poll of a zone, and when its signal or forecast changes or goes missing."""
        self._listeners.append(callback)

    async def run(self) -> None:
        """Keep all watched zones up to date until cancelled; errors of sources do not end it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for measure in self._sources:
                    tasks.create_task(self._poll_values(measure))
                    tasks.create_task(self._fetch_series(measure))
                tasks.create_task(self._save_periodically())
        finally:
            self._save()

    async def refresh(self) -> None:
        """Poll every zone that is due, once; for callers that do not run the feed."""
        watches = list(self._watches.values())
        for watch in watches:
            if watch.due_s <= self._now_s():
                await self._guarded(watch, self._poll(watch))
        for watch in watches:
            await self._guarded(watch, self._fetch_forecast(watch))
            await self._guarded(watch, self._fetch_history(watch))

    # ---- zones

    def _signal(self, measure: Measure, zone: str) -> GridSignal:
        watch = self._watches.get((measure, zone))
        if watch is None:
            why = "is not watched" if measure in self._sources else "is not watched: no source is configured"
            return GridSignal(measure, zone, problem=f"{measure} of this zone {why}")
        watch.wanted_s = self._now_s()
        return watch.signal(watch.wanted_s, self._limits.max_age_s)

    def _touch(self, zone: str) -> None:
        for measure in self._sources:
            if watch := self._watches.get((measure, zone)):
                watch.wanted_s = self._now_s()

    def _make_room(self) -> bool:
        """Whether another zone may be watched; if the feed is full, evict a zone of which a measure never had data.

        One measure with data does not save a zone: a tariff has a price for any name that somebody invents.
        """
        if len({zone for _, zone in self._watches}) < MAX_ZONES:
            return True
        zones_without_data = (zone for (_, zone), watch in self._watches.items() if watch.observation is None)
        evicted = next((zone for zone in zones_without_data if zone != self._zone), None)
        if evicted is not None:
            self._drop(evicted)
        return evicted is not None

    def _drop(self, zone: str) -> None:
        for measure in self._sources:
            self._watches.pop((measure, zone), None)

    def _log_refused(self, zone: str) -> None:
        if zone not in self._refused and len(self._refused) < MAX_ZONES:
            self._refused.add(zone)
            _log.warning("zone is not watched: invalid name, or too many zones", extra={"zone": zone[:63]})

    # ---- polling

    async def _poll_values(self, measure: Measure) -> None:
        """Poll one zone after the other, whichever is due first."""
        wake = self._wake[measure]
        while True:
            self._drop_idle()
            wake.clear()
            now_s = self._now_s()
            first = min(self._of(measure), key=lambda watch: watch.next_s(now_s), default=None)
            wait_s = _MAX_SLEEP_S if first is None else min(_MAX_SLEEP_S, first.next_s(now_s) - now_s)
            if first is not None and wait_s <= 0.0:
                await self._guarded(first, self._poll(first))
                continue
            await set_within(wake, wait_s)

    async def _fetch_series(self, measure: Measure) -> None:
        """Fetch histories and forecasts, in a task beside the values: a rate limit is then shared evenly by both."""
        incomplete = self._incomplete[measure]
        while True:
            incomplete.clear()
            watches = self._of(measure)
            without_forecast = [watch for watch in watches if watch.future_source is not None]
            without_history = [watch for watch in watches if watch.past_source is not None]
            if without_forecast:
                watch = min(without_forecast, key=lambda watch: watch.forecast_asked_s)
                await self._guarded(watch, self._fetch_forecast(watch))
            elif without_history:  # last, since months may be a dozen requests
                await self._guarded(without_history[0], self._fetch_history(without_history[0]))
            else:
                await incomplete.wait()

    def _of(self, measure: Measure) -> list[ZoneWatch]:
        return [watch for watch in self._watches.values() if watch.measure is measure]

    def _drop_idle(self) -> None:
        limit_s = self._now_s() - _IDLE_TIMEOUT_S
        wanted = {watch.zone for watch in self._watches.values() if watch.wanted_s >= limit_s} | {self._zone}
        for zone in {zone for _, zone in self._watches} - wanted:
            self._drop(zone)

    async def _guarded(self, watch: ZoneWatch, update: Awaitable[None]) -> None:
        """Update a zone; an unexpected exception is logged and must not stop the updates of other zones."""
        try:
            await update
        except Exception:
            _log.exception("grid signal could not be updated", extra=_log_fields(watch))
            watch.completed = True
            watch.asked_s = self._now_s()
            watch.due_s = watch.asked_s + _RETRY_S

    async def _poll(self, watch: ZoneWatch) -> None:
        if watch.asked_s > self._now_s():
            watch.clock_was_set_back()
        outcome = await self._poll_chain(watch)
        self._log_transition(watch, outcome)
        now_s = watch.asked_s = self._now_s()
        watch.failing, watch.problem = outcome.failed, outcome.problem
        watch.due_s = now_s + self._pause_s(watch, outcome, now_s)
        self._notify(watch)

    def _log_transition(self, watch: ZoneWatch, outcome: _Outcome) -> None:
        """Log when sources start or stop failing, and only then: the text of a failure may change with every try."""
        before = (watch.failing, bool(watch.problem)) if watch.is_asked else (False, False)
        if before == (outcome.failed, bool(outcome.problem)):
            return
        if outcome.problem:
            _log.warning("grid source fails", extra=_log_fields(watch) | {"problem": outcome.problem})
        else:
            _log.info("grid sources answer", extra=_log_fields(watch))

    def _pause_s(self, watch: ZoneWatch, outcome: _Outcome, now_s: float) -> float:
        """Time until the next poll of a zone, s."""
        if outcome.failed:
            return min(max(outcome.retry_after_s, min(_RETRY_S, self._limits.ttl_s)), _MAX_PAUSE_S)
        until_s = watch.observation.until_s if watch.observation is not None else None
        if until_s is None:
            return self._limits.ttl_s
        # After the end of its period a value is likely to be replaced soon.
        return min(self._limits.ttl_s, until_s - now_s if until_s > now_s else _RETRY_S)

    async def _poll_chain(self, watch: ZoneWatch) -> _Outcome:
        """Query the sources in order until one returns a valid value."""
        problems: list[str] = []
        pauses_s: list[float] = []
        chain = self._sources[watch.measure]
        for source in chain:
            try:
                seen = await chain.latest(source, watch.zone)
            except GridSourceError as error:
                problems.append(f"{source.name}: {error}")
                pauses_s.append(error.retry_after_s or 0.0)
                if self._has_recent_value(watch, source):
                    break  # switching to another source would show a step that did not happen in the grid
                continue
            now_s = self._now_s()
            is_new = watch.record(seen, now_s)
            if now_s - watch.forecast_asked_s >= (_MIN_FORECAST_INTERVAL_S if is_new else _FORECAST_INTERVAL_S):
                watch.future_source = source
            if watch.lacks_past(now_s):
                watch.past_source = source
            self._incomplete[watch.measure].set()
            return _Outcome("; ".join(problems))
        if is_unmapped_region(watch.zone):
            problems.append("a cloud region without a known grid zone: name its zone in GRID_ZONES")
        # The shortest pause that a source asked for: those with longer ones refuse early polls themselves.
        return _Outcome("; ".join(problems), failed=True, retry_after_s=min(pauses_s, default=0.0))

    def _has_recent_value(self, watch: ZoneWatch, source: GridSource) -> bool:
        """Whether the last good value is this source's and not older than the limit."""
        seen = watch.observation
        mine = seen is not None and seen.provenance.source == source.name
        return mine and watch.signal(self._now_s(), self._limits.max_age_s).known

    # ---- history and forecast

    async def _fetch_forecast(self, watch: ZoneWatch) -> None:
        """Fetch the forecast of a zone's source if one is due; without one, compute Joulie's own."""
        source, watch.future_source = watch.future_source, None
        if source is None:
            return
        given = await self._source_forecast(watch, source)
        if given is not None:
            watch.forecast, watch.forecast_source = given, source.name
        else:
            await self._forecast(watch)
        watch.completed |= given is not None or watch.past_source is None
        self._notify(watch)

    async def _source_forecast(self, watch: ZoneWatch, source: GridSource) -> Series | None:
        """Forecast of a source; None if it has none, or only one that is over."""
        now_s = watch.forecast_asked_s = self._now_s()
        try:
            given = await self._sources[watch.measure].forecast(source, watch.zone, self._limits.horizon_s)
        except GridSourceError as error:
            _log.info("no forecast from grid source", extra=_log_fields(watch) | {"problem": str(error)})
            # The provider's previous forecast is better than Joulie's own.
            given = watch.forecast if watch.forecast_source == source.name else None
        return given if given is not None and given.end_s > now_s else None

    async def _fetch_history(self, watch: ZoneWatch) -> None:
        """Backfill the history of a zone; then compute Joulie's own forecast if the source has none."""
        source, watch.past_source = watch.past_source, None
        if source is None:
            return
        await self._backfill(watch, source)
        if watch.forecast_source != source.name:
            await self._forecast(watch)
        watch.completed = True
        self._notify(watch)

    async def _backfill(self, watch: ZoneWatch, source: GridSource) -> None:
        now_s = self._now_s()
        if watch.missing_from_s is None:
            return
        watch.backfill_due_s = now_s + _BACKFILL_RETRY_S
        from_s = max(watch.missing_from_s, now_s - HISTORY_S)
        if from_s >= now_s:  # a restart within the last known step
            watch.missing_from_s = None
            return
        try:
            earlier = await self._sources[watch.measure].history(source, watch.zone, from_s, now_s)
        except GridSourceError as error:
            _log.info("no history from grid source", extra=_log_fields(watch) | {"problem": str(error)})
        else:
            watch.add_history(earlier, now_s)

    async def _forecast(self, watch: ZoneWatch) -> None:
        """Compute Joulie's own forecast from the history, if that is long enough."""
        history, now_s = watch.history, self._now_s()
        expected = None
        if history is not None:
            arguments = (history, now_s, self._limits.horizon_s, watch.step_s)
            large = len(history) > _LARGE_STEPS
            expected = await asyncio.to_thread(forecast, *arguments) if large else forecast(*arguments)
        watch.forecast, watch.forecast_source = expected, "" if expected is None else _OWN_FORECAST

    def _notify(self, watch: ZoneWatch) -> None:
        """Call the listeners if the signal or forecast differs from what they were last called for."""
        state = _listener_state(watch.signal(self._now_s(), self._limits.max_age_s), watch.forecast)
        if state == watch.notified:
            return
        watch.notified = state
        for listener in self._listeners:
            try:
                listener(watch.measure, watch.zone)
            except Exception:
                _log.exception("listener to grid signals failed", extra=_log_fields(watch))

    # ---- state file

    def _restore(self) -> None:
        if self._state_file is None:
            return
        try:
            watches = read_state(self._state_file)
        except StateError as error:
            _log.warning("grid state not restored", extra={"problem": str(error)})
            return
        now_s = self._now_s()
        for watch in watches:
            chain, seen = self._sources.get(watch.measure), watch.observation
            if chain is None or seen is None or watch.fetched_s > now_s or seen.provenance.basis is not chain.basis:
                continue
            if seen.provenance.source in {source.name for source in chain}:
                watch.problem = "not polled since the program started"
                self._watches[watch.measure, watch.zone] = watch

    async def _save_periodically(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_INTERVAL_S)
            self._save()

    def _save(self) -> None:
        if self._state_file is None:
            return
        try:
            write_state(self._state_file, list(self._watches.values()))
        except (OSError, TypeError) as error:  # TypeError: a plug-in's values may not be serialisable
            _log.warning("grid state not saved", extra={"problem": str(error)})


@dataclass(frozen=True)
class _Outcome:
    """Result of a poll of a zone's sources.

    Attributes:
        problem: errors of the sources that failed; empty if none did.
        failed: whether no source returned a valid value.
        retry_after_s: shortest pause that the failed sources asked for, s.
    """

    problem: str
    failed: bool = False
    retry_after_s: float = 0.0


def _listener_state(signal: GridSignal, forecast: Series | None) -> tuple[object, ...]:
    """The parts of a signal that decisions depend on; a recomputed forecast counts as a change."""
    return signal.quality, signal.value, signal.time_s, signal.period, signal.provenance, forecast


def _log_fields(watch: ZoneWatch) -> dict[str, str]:
    return {"measure": watch.measure.value, "zone": watch.zone}
