"""What a feed knows of one measure in one zone, and the signal that this is at a moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid.forecast import DAY_S, MAX_HISTORY_DAYS
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import GridSignal, Measure, Observation
from joulie.domain.signal import Quality
from joulie.ports import GridSource

ASSUMED_STEP_S = 3600.0
"""How long a value holds whose source does not say: most grids publish hours."""
HISTORY_S = (MAX_HISTORY_DAYS + 14) * DAY_S
"""As much as the forecaster can use."""
LONGEST_GAP_S = 6 * 3600.0
"""In a history, that the value before it fills; after a longer one the history begins anew."""
_MOST_STEPS = 10_000
_HALF_HOUR_S = 1800.0
_NEVER_S = -math.inf


@dataclass
class ZoneWatch:
    """One measure in one zone; only its feed changes it.

    Attributes:
        measure: carbon or price.
        zone: Joulie's name of the zone.
        wanted_s: when somebody last wanted it.
        due_s: when its sources are to be asked.
        asked_s: when they were asked.
        observation: the last good value; None before the first.
        fetched_s: when that came.
        failing: none of them had a good answer the last time.
        problem: of the last time; empty if there was none.
        history: what has been, at most `HISTORY_S` of it, and less where steps are short.
        missing_from_s: from when on a source is to be asked for what has been; None where nothing is missing.
        backfill_due_s: when that is to be tried.
        forecast: what is expected.
        forecast_source: who says so.
        forecast_asked_s: when its provider was asked.
        future_source: is still to be asked about the future; None where there is nothing to ask.
        past_source: is still to be asked about the past.
        completed: all that is to be known was asked for once, whatever came of it.
        shown: what listeners were last told of.
    """

    measure: Measure
    zone: str
    wanted_s: float
    due_s: float
    asked_s: float = _NEVER_S
    observation: Observation | None = None
    fetched_s: float = _NEVER_S
    failing: bool = False
    problem: str = "not asked yet"
    history: Series | None = None
    missing_from_s: float | None = _NEVER_S
    backfill_due_s: float = _NEVER_S
    forecast: Series | None = None
    forecast_source: str = ""
    forecast_asked_s: float = _NEVER_S
    future_source: GridSource | None = None
    past_source: GridSource | None = None
    completed: bool = False
    shown: tuple[object, ...] | None = None

    def signal(self, now_s: float, max_age_s: float) -> GridSignal:
        """What is known at a time.

        Args:
            now_s: s since the epoch.
            max_age_s: how long the last good value is used, from when it came and from when it ended.
        """
        seen = self.observation
        if seen is None:
            return GridSignal(self.measure, self.zone, problem=self.problem)
        ended_s = end_of(seen)
        age_s = max(now_s - self.fetched_s, now_s - ended_s)
        if age_s > max_age_s:
            reason = f"no good answer for {age_s / 60.0:.0f} min" + (f": {self.problem}" if self.problem else "")
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
            self._ahead(now_s, seen.value),
            self.forecast_source,
            problem,
        )

    def observed(self, seen: Observation, now_s: float) -> bool:
        """Take a good value in; whether it is another one than the last."""
        before, self.observation = self.observation, seen
        self.fetched_s = now_s
        if seen.value is not None:
            self._remember(constant(seen.value, seen.time_s, end_of(seen)), now_s)
        return before is None or (before.time_s, before.value, before.provenance) != (
            seen.time_s,
            seen.value,
            seen.provenance,
        )

    def lacks_past(self, now_s: float) -> bool:
        """Whether it is time to ask for what is missing of the history."""
        return self.missing_from_s is not None and self.backfill_due_s <= now_s

    @property
    def settled(self) -> bool:
        """Whether the sources have had their say, forecasts included, or have failed."""
        return self.is_asked and (self.failing or self.completed)

    @property
    def is_asked(self) -> bool:
        """Whether its sources have been asked since the program started."""
        return self.asked_s > _NEVER_S

    def next_s(self, now_s: float) -> float:
        """When its sources are to be asked, s since the epoch; at once where the clock was set back meanwhile."""
        return self.due_s if self.asked_s <= now_s else _NEVER_S

    def clock_was_set_back(self) -> None:
        """Forget when what was asked for: those times are yet to come."""
        self.forecast_asked_s = self.backfill_due_s = _NEVER_S

    def remembers(self, earlier: Series | None, now_s: float) -> None:
        """Take in what a source has told of the past, if anything; what was seen counts more."""
        self.missing_from_s = None
        if earlier is not None:
            self.history = earlier if self.history is None else _merged(earlier, self.history)
            self._trim(now_s)

    def _remember(self, step: Series, now_s: float) -> None:
        known = self.history
        gap_s = math.inf if known is None else step.start_s - known.end_s
        if known is None or gap_s > LONGEST_GAP_S:
            self.history, self.missing_from_s = step, _NEVER_S
        else:
            self.history = _merged(known, step)
            if gap_s > ASSUMED_STEP_S:
                self.missing_from_s = known.end_s
        self._trim(now_s)

    @property
    def step_s(self) -> float:
        """The step to forecast in, s: half an hour where the history has it, else an hour."""
        known = self.history
        usual_s = ASSUMED_STEP_S if known is None or len(known) < 2 else float(np.median(np.diff(known.starts_s)))
        return _HALF_HOUR_S if usual_s <= _HALF_HOUR_S else ASSUMED_STEP_S

    def _trim(self, now_s: float) -> None:
        known = self.history
        if known is None:
            return
        first_s = now_s - HISTORY_S
        if len(known) > _MOST_STEPS:
            first_s = max(first_s, float(known.starts_s[-_MOST_STEPS]))
        if known.start_s < first_s:
            self.history = known.between(first_s, known.end_s)

    def _ahead(self, now_s: float, value: float | None) -> Series | None:
        """The forecast from now on, which begins with what is true now."""
        ahead = self.forecast
        if ahead is None or value is None or ahead.end_s <= now_s:
            return None
        later = int(np.searchsorted(ahead.starts_s, now_s, side="right"))
        starts_s = np.concatenate(([now_s], ahead.starts_s[later:]))
        return Series(starts_s, np.concatenate(([value], ahead.values[later:])), ahead.end_s)


def end_of(seen: Observation) -> float:
    """When a value ends, s since the epoch."""
    return seen.time_s + ASSUMED_STEP_S if seen.until_s is None else seen.until_s


def _merged(series: Series, better: Series) -> Series:
    """All steps of two series; where two begin at the same time, the second one's counts."""
    starts_s = np.concatenate((series.starts_s, better.starts_s))
    values = np.concatenate((series.values, better.values))
    order = np.argsort(starts_s, kind="stable")
    starts_s, values = starts_s[order], values[order]
    last_of_its_time = np.append(np.diff(starts_s) > 0.0, True)
    return Series(starts_s[last_of_its_time], values[last_of_its_time], max(series.end_s, better.end_s))
