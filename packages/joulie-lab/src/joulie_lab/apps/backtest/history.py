"""The history of a zone as a backtest plays it: whole steps without long gaps, and what was forecast at each.

Forecasts are those that the grid controller makes: the models learn anew at midnight in UTC, and every value
makes a new forecast. What is not known at a moment, given the delay of the signal, plays no part in its forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.adapters.grid.zone import MAX_GAP_S, ZoneWatch
from joulie.domain.grid.forecast import DAY_S, MIN_HISTORY_DAYS, rolling
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure, Observation, Provenance
from joulie.domain.units import FloatArray

JOULIE, YESTERDAY, USUAL_DAY = "joulie", "yesterday", "usual day"
FORECASTERS = (JOULIE, YESTERDAY, USUAL_DAY)


@dataclass(frozen=True)
class Gaps:
    """Steps of a history that its source does not have.

    Attributes:
        filled_h: in gaps that the grid controller fills with the value before them, h.
        left_out_h: in longer ones, where the history begins again, h.
    """

    filled_h: float
    left_out_h: float


def parts(series: Series, step_s: float) -> tuple[list[Series], Gaps]:
    """The parts of a history between its long gaps, each from a midnight in UTC.

    Args:
        series: values; where steps are missing the one before them lasts.
        step_s: longest time that a value lasts if nothing is missing, s.
    """
    ends_s = np.append(series.starts_s[1:], series.end_s)
    missing_s = ends_s - series.starts_s - step_s
    long = np.flatnonzero(missing_s > MAX_GAP_S)
    filled_s = missing_s[(missing_s > 1e-3) & (missing_s <= MAX_GAP_S)].sum()
    first_s = np.concatenate(([series.start_s], ends_s[long]))
    last_s = np.append(series.starts_s[long] + step_s, series.end_s)
    cut = (
        series.between(DAY_S * float(np.ceil(from_s / DAY_S)), float(until_s))
        for from_s, until_s in zip(first_s, last_s, strict=True)
    )
    return [part for part in cut if part is not None], Gaps(
        float(filled_s) / 3600.0, float(missing_s[long].sum()) / 3600.0
    )


class History:
    """One part of the history of one measure, in whole steps.

    Args:
        measure: carbon or price.
        series: the part, from a midnight in UTC.
        step_s: step of decisions, s.
        delay: after how many steps a value is known; 0: when its step begins.
        horizon: number of steps that forecasts look ahead.
        max_age_s: maximum age of a value; an older one is missing, s.
    """

    def __init__(
        self, measure: Measure, series: Series, step_s: float, delay: int, horizon: int, max_age_s: float
    ) -> None:
        self.measure = measure
        self.step_s = step_s
        self.start_s = series.start_s
        count = int((series.end_s - series.start_s) // step_s)
        self._edges_s = self.start_s + step_s * np.arange(count + horizon + delay + 1)
        self.truth = Series(
            self._edges_s[:count],
            series.integral(self._edges_s[:count], self._edges_s[1 : count + 1]) / step_s,
            self._edges_s[count],
        )
        self._delay = delay
        self._columns = horizon + delay
        self._max_age_s = max_age_s
        self._expected: dict[str, FloatArray] = {}

    def expect(self, forecaster: str) -> None:
        """Make the forecasts of all steps."""
        values, a_day = self.truth.values, round(DAY_S / self.step_s)
        if forecaster == JOULIE:
            self._expected[forecaster] = _own(self.truth, self.step_s, self._columns)
        else:
            self._expected[forecaster] = as_before(values, a_day, self._columns, 1 if forecaster == YESTERDAY else 7)

    def signal(self, forecaster: str | None, step: int) -> GridSignal:
        """The grid controller's signal when a step begins; without a forecaster it has no forecast."""
        origin = step - self._delay
        now_s = float(self._edges_s[step])
        watch = ZoneWatch(self.measure, "history", wanted_s=now_s, due_s=now_s)
        if origin >= 0:
            start_s = float(self._edges_s[origin])
            watch.observation = Observation(
                float(self.truth.values[origin]), start_s, Provenance("file", "history"), until_s=start_s + self.step_s
            )
            watch.fetched_s = now_s
            expected = None if forecaster is None else self._expected[forecaster][origin]
            if expected is not None and not np.isnan(expected[-1]):
                edges_s = self._edges_s[origin : origin + len(expected) + 1]
                watch.forecast = Series(edges_s[:-1], expected, edges_s[-1])
        return watch.signal(now_s, self._max_age_s)


def as_before(values: FloatArray, a_day: int, columns: int, days: int) -> FloatArray:
    """Forecasts of the same time of the last days again.

    Args:
        values: (n,), mean of each step.
        a_day: number of steps of a day.
        columns: number of steps to forecast, the one in force counted.
        days: number of days that are averaged.

    Returns:
        (n, columns): a row for each step, which begins with the value in force; NaN where nothing is known.
    """
    steps = np.arange(len(values))
    expected = np.full((len(values), columns), np.nan)
    expected[:, 0] = values
    for lead in range(1, columns):
        back = -(-lead // a_day)
        same_time = [steps + lead - (back + day) * a_day for day in range(days)]
        made = np.mean([values[np.maximum(index, 0)] for index in same_time], axis=0)
        expected[:, lead] = np.where(same_time[-1] >= 0, made, np.nan)
    return expected


def _own(truth: Series, step_s: float, columns: int) -> FloatArray:
    """Joulie's forecasts, learned anew after each day."""
    a_day = round(DAY_S / step_s)
    expected = np.full((len(truth), columns), np.nan)
    days = np.arange(MIN_HISTORY_DAYS, len(truth) // a_day + 1)
    if days.size:
        expected[days[0] * a_day - 1 :] = rolling(truth.values, truth.start_s, step_s, columns, days)
    return expected
