"""State of one measure in one zone: the last good value, its history and forecast, and when to poll next.

`ZoneWatch.signal` derives the signal of a moment: fresh, stale while sources fail or the value's period is over, and
missing once the value exceeds its maximum age.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid.forecast import DAY_S, HISTORY_DAYS
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import GridSignal, Measure, Observation
from joulie.domain.signal import Quality
from joulie.ports.grid import GridSource

ASSUMED_STEP_S = 3600.0
"""Duration of a value whose source does not state it: most grids publish hourly values."""
HISTORY_S = (HISTORY_DAYS + 1) * DAY_S
"""Maximum length of a history, which is as much as the forecaster can use."""
MAX_GAP_S = 6 * 3600.0
"""Maximum gap in a history that is filled with the value before it; after a longer one the history starts again."""
_MAX_STEPS = 10_000
_HALF_HOUR_S = 1800.0
_NEVER_S = -math.inf


@dataclass
class ZoneWatch:
    """State of one measure in one zone; only its feed changes it. Times are in s since the epoch.

    Attributes:
        measure: carbon or price.
        zone: Joulie's name of the zone.
        wanted_s: time when it was last read.
        due_s: time of the next poll of its sources.
        asked_s: time of the last poll.
        observation: the last good value; None before the first.
        fetched_s: time when that value was fetched.
        failing: whether no source returned a valid value at the last poll.
        problem: error of the last poll; empty if there was none.
        history: past values, at most `HISTORY_S` long, and shorter if steps are short; None before the first value.
        gaps_s: starts and ends of the parts of the history that no source has given, only the value before them.
        missing_from_s: start of the missing part of the history; None if nothing is missing.
        backfill_due_s: time of the next attempt to fetch it.
        forecast: expected values; None without a forecast.
        forecast_source: source of the forecast.
        forecast_asked_s: time when the source's forecast was last requested.
        future_source: source whose forecast is to be fetched; None if no forecast is due.
        past_source: source whose history is to be fetched; None if no history is due.
        completed: whether forecast and history were requested once, successfully or not.
        notified: signal and forecast that listeners were last called for; None before the first call.
    """

    measure: Measure
    zone: str
    wanted_s: float
    due_s: float
    asked_s: float = _NEVER_S
    observation: Observation | None = None
    fetched_s: float = _NEVER_S
    failing: bool = False
    problem: str = "not polled yet"
    history: Series | None = None
    gaps_s: tuple[tuple[float, float], ...] = ()
    missing_from_s: float | None = _NEVER_S
    backfill_due_s: float = _NEVER_S
    forecast: Series | None = None
    forecast_source: str = ""
    forecast_asked_s: float = _NEVER_S
    future_source: GridSource | None = None
    past_source: GridSource | None = None
    completed: bool = False
    notified: tuple[object, ...] | None = None

    def signal(self, now_s: float, max_age_s: float) -> GridSignal:
        """The signal at a time.

        Args:
            now_s: s since the epoch.
            max_age_s: maximum age of the last good value, counted from its fetch and from the end of its period, s.
        """
        seen = self.observation
        if seen is None:
            return GridSignal(self.measure, self.zone, problem=self.problem)
        ended_s = end_of(seen)
        age_s = max(now_s - self.fetched_s, now_s - ended_s)
        if age_s > max_age_s:
            reason = f"no valid value for {age_s / 60.0:.0f} min" + (f": {self.problem}" if self.problem else "")
            return GridSignal(self.measure, self.zone, problem=reason)
        stale = self.failing or now_s > ended_s
        problem = self.problem or (f"the last value is {(now_s - seen.time_s) / 60.0:.0f} min old" if stale else "")
        return GridSignal(
            self.measure,
            self.zone,
            Quality.STALE if stale else Quality.FRESH,
            seen.value,
            seen.time_s,
            seen.provenance,
            seen.period,
            self._forecast_from(now_s, seen.value, ended_s),
            self.forecast_source,
            problem,
        )

    def record(self, seen: Observation, now_s: float) -> bool:
        """Record a valid value; returns whether it differs from the last one."""
        before, self.observation = self.observation, seen
        self.fetched_s = now_s
        if seen.value is not None:
            self._append(constant(seen.value, seen.time_s, end_of(seen)), now_s)
        return before is None or (before.time_s, before.value, before.provenance) != (
            seen.time_s,
            seen.value,
            seen.provenance,
        )

    def lacks_past(self, now_s: float) -> bool:
        """Whether part of the history is missing and the next attempt to fetch it is due."""
        return self.missing_from_s is not None and self.backfill_due_s <= now_s

    @property
    def settled(self) -> bool:
        """Whether value, forecast and history have been fetched, or the sources have failed."""
        return self.is_asked and (self.failing or self.completed)

    @property
    def is_asked(self) -> bool:
        """Whether its sources have been polled since the program started."""
        return self.asked_s > _NEVER_S

    def next_s(self, now_s: float) -> float:
        """Time of the next poll, s since the epoch; immediately if the clock was set back."""
        return self.due_s if self.asked_s <= now_s else _NEVER_S

    def clock_was_set_back(self) -> None:
        """Reset the times of requests, which are in the future after the clock was set back."""
        self.forecast_asked_s = self.backfill_due_s = _NEVER_S

    def add_history(self, earlier: Series | None, now_s: float) -> None:
        """Merge a source's history, None if it has none; values that were observed take precedence."""
        self.missing_from_s = None
        if earlier is not None:
            self.gaps_s = tuple(gap for gap in self.gaps_s if not earlier.covers(*gap))
            self.history = earlier if self.history is None else _merged(earlier, self.history)
            self._trim(now_s)

    def _append(self, step: Series, now_s: float) -> None:
        known = self.history
        gap_s = math.inf if known is None else step.start_s - known.end_s
        if known is None or gap_s > MAX_GAP_S:
            self.history, self.gaps_s, self.missing_from_s = step, (), _NEVER_S
        else:
            self.history = _merged(known, step)
            if gap_s > 0.0:
                self.gaps_s = (*self.gaps_s, (known.end_s, step.start_s))
            if gap_s >= ASSUMED_STEP_S:
                self.missing_from_s = min(known.end_s, self.missing_from_s or known.end_s)
        self._trim(now_s)

    @property
    def step_s(self) -> float:
        """Step of Joulie's own forecast, s."""
        return ASSUMED_STEP_S if self.history is None else forecast_step_s(self.history)

    def _trim(self, now_s: float) -> None:
        known = self.history
        if known is None:
            return
        first_s = now_s - HISTORY_S
        if len(known) > _MAX_STEPS:
            first_s = max(first_s, float(known.starts_s[-_MAX_STEPS]))
        if known.start_s < first_s:
            self.history = known.between(first_s, known.end_s)
            self.gaps_s = tuple(gap for gap in self.gaps_s if gap[1] > first_s)

    def _forecast_from(self, now_s: float, value: float | None, ended_s: float) -> Series | None:
        """The forecast from `now_s` on, starting with the current value; with what is expected once that is over."""
        ahead = self.forecast
        if ahead is None or value is None or ahead.end_s <= now_s:
            return None
        if ended_s <= now_s and ahead.start_s <= now_s:
            return ahead.between(now_s, ahead.end_s)
        later = int(np.searchsorted(ahead.starts_s, now_s, side="right"))
        starts_s = np.concatenate(([now_s], ahead.starts_s[later:]))
        return Series(starts_s, np.concatenate(([value], ahead.values[later:])), ahead.end_s)


def forecast_step_s(history: Series) -> float:
    """Step of a forecast, s: half an hour if the history has such steps or begins them at half past, else an hour."""
    usual_s = float(np.median(np.diff(history.starts_s))) if len(history) > 1 else ASSUMED_STEP_S
    on_the_hour = float(np.median(history.starts_s % ASSUMED_STEP_S)) == 0.0
    return ASSUMED_STEP_S if usual_s > _HALF_HOUR_S and on_the_hour else _HALF_HOUR_S


def end_of(seen: Observation) -> float:
    """End of an observation's period, s since the epoch."""
    return seen.time_s + ASSUMED_STEP_S if seen.until_s is None else seen.until_s


def _merged(series: Series, better: Series) -> Series:
    """All steps of two series; of two steps that start at the same time, `better` wins."""
    starts_s = np.concatenate((series.starts_s, better.starts_s))
    values = np.concatenate((series.values, better.values))
    order = np.argsort(starts_s, kind="stable")
    starts_s, values = starts_s[order], values[order]
    last_of_its_time = np.append(np.diff(starts_s) > 0.0, True)
    return Series(starts_s[last_of_its_time], values[last_of_its_time], max(series.end_s, better.end_s))
