"""Joulie's own forecast of a zone's carbon intensity or price, from its history and the calendar alone.

For each lead time a ridge regression says how a value follows from what is known when the forecast is made: the usual
day (the mean of the last days at the same time), how far the last hours were from it, yesterday, a week ago, and the
weekend. Its starting point, from which data must move it, is the usual day plus a distance from it that fades. Two such
models, one with a memory of weeks and one of months, are averaged; what followed similar hours of the past is mixed in.
docs/design/0016-grid-forecast.md says why.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.grid.series import FloatArray, Series
from joulie.domain.quantities import InvalidQuantityError

DAY_S = 86400.0
MIN_HISTORY_DAYS = 2
"""Minimum number of whole days of history."""
MAX_HISTORY_DAYS = 180
"""Maximum number of days that are learned from."""
HISTORY_DAYS = MAX_HISTORY_DAYS + 28
"""Days of history that a forecast uses: those that are learned from, and what the first of these look back on."""

_FADING_H = 6.0
"""How long the last distance from the usual day is expected to last, before there is data."""
_PRIOR_DAYS = 2.0
"""Days of data that the starting point weighs as much as; with ten times as many it hardly counts."""
_SMOOTH_H = 6.0
"""Coefficients are averaged over lead times this far apart, or less close to now."""
_ROUNDING = 1e-9
_WEEKEND_SHARE = 2.0 / 7.0

_ZONES_LEARNED = 64
"""Number of zones and measures whose coefficients are kept, with the values they come from: up to 100 kB each."""

IntArray = npt.NDArray[np.int64]
Coefficients = tuple[FloatArray, ...]
"""Of each model: (steps - 1, n_features, m), learned at m times."""


class _Memory(NamedTuple):
    usual_days: int
    """Days that the usual day is the mean of."""
    half_life_days: float
    """Age at which an example weighs half."""


_MEMORIES = (_Memory(7, 20.0), _Memory(14, 120.0))

_ANALOGUES_WEIGHT = 0.15
"""Weight of what followed similar hours; the models have the rest."""
_ANALOGUES_MEMORY = _Memory(14, 90.0)
_MIN_ANALOGUES = 20
_SHAPE = ((0, 2.0), (1, 1.0), (3, 1.0), (6, 0.7), (12, 0.5), (24, 0.5))
"""Hours before a moment by which it is similar to another one, and how much each of them counts."""


def forecast(history: Series, now_s: float, horizon_s: float, step_s: float) -> Series | None:
    """What is expected from the step in force on.

    Args:
        history: what has been, weeks of it if possible. Nothing that begins after `now_s` is used.
        now_s: s since the epoch.
        horizon_s: how far from now to look, s.
        step_s: length of a step, s; a day has a whole number of them.

    Returns:
        The value in force, then what is expected, until `now_s + horizon_s` or a little more; None where less than
        `MIN_HISTORY_DAYS` are known or the history ended more than a day ago.

    Raises:
        InvalidQuantityError: a day has no whole number of steps.
    """
    a_day = _steps_a_day(step_s)
    known = history.between(history.start_s, history.next_change_s(now_s) or history.end_s)
    if known is None or now_s - known.end_s > DAY_S:
        return None
    edges_s = _edges(known, now_s, step_s, a_day)
    days = (len(edges_s) - 1) // a_day
    if days < MIN_HISTORY_DAYS:
        return None
    start_s, last_start_s = float(edges_s[0]), float(edges_s[-2])
    steps = int(np.ceil((now_s + horizon_s - last_start_s) / step_s))
    # Of the step in force, what is known of it.
    values = known.integral(edges_s[:-1], edges_s[1:]) / np.diff(np.minimum(edges_s, known.end_s))
    learned = _learned_once(values[: days * a_day].tobytes(), start_s, step_s, steps)
    now = range(len(values) - 1, len(values))
    (expected,) = _expected(_Known(values, start_s, step_s, steps), now, learned, np.zeros(1, dtype=np.int64))
    return Series(last_start_s + step_s * np.arange(steps), expected, last_start_s + step_s * steps)


def rolling(
    values: npt.ArrayLike, start_s: float, step_s: float, steps: int, learn_after_days: npt.ArrayLike
) -> FloatArray:
    """Forecasts of many moments, each from what was known at it, as if they had been made one by one.

    Args:
        values: (n,), mean of each step.
        start_s: start of the first step, s since the epoch.
        step_s: length of a step, s.
        steps: to forecast, the one in force counted.
        learn_after_days: (m,) whole days of `values`, increasing, after each of which the models learn anew.

    Returns:
        (k, steps): a row for each step from the last one of the first learned day on, until the models learn next, or a
        day later after the last time, or the values end. The first column is the value in force.
    """
    a_day = _steps_a_day(step_s)
    known = _Known(np.asarray(values, dtype=np.float64), start_s, step_s, steps)
    days = np.asarray(learn_after_days, dtype=np.int64)
    ends = np.append(days[1:], days[-1] + 1) * a_day - 1
    origins = range(int(days[0]) * a_day - 1, min(int(ends[-1]), len(known.values)))
    learned = np.searchsorted(ends, origins, side="right")
    return _expected(known, origins, _learned(known, days), learned)


@lru_cache(maxsize=_ZONES_LEARNED)
def _learned_once(days: bytes, start_s: float, step_s: float, steps: int) -> Coefficients:
    """What is learned from whole days, which is the same for all values of the next one.

    Args:
        days: values of the whole days, float64.
        start_s: start of the first step, s since the epoch.
        step_s: length of a step, s.
        steps: to forecast, the one in force counted.
    """
    known = _Known(np.frombuffer(days), start_s, step_s, steps)
    return _learned(known, np.array([len(known.values) // known.a_day]))


def _learned(known: _Known, days: IntArray) -> Coefficients:
    return tuple(_smooth(_learn(_State(known, memory), days), known) for memory in _MEMORIES)


def _expected(known: _Known, origins: range, coefficients: Coefficients, learned: IntArray) -> FloatArray:
    """(k, steps): the value in force at each of neighbouring origins, then what is expected.

    Args:
        known: the values.
        origins: (k,) their indices.
        coefficients: as learned at m times.
        learned: (k,) index of the time at which those in force at each origin were learned.
    """
    expected = np.empty((len(origins), known.steps))
    expected[:, 0] = known.values[origins.start : origins.stop]
    by_models = np.zeros((len(origins), known.steps - 1))
    for memory, by_lead in zip(_MEMORIES, coefficients, strict=True):
        past = _State(known, memory)
        for lead in range(1, known.steps):
            made = np.einsum("ij,ij->j", past.features(origins, lead), by_lead[lead - 1][:, learned])
            by_models[:, lead - 1] += made / len(_MEMORIES)
    expected[:, 1:] = by_models + _ANALOGUES_WEIGHT * (_followed(known, origins) - by_models)
    return expected


class _Known:
    """The values, with their first day repeated before them so that the first ones have a past too."""

    def __init__(self, values: FloatArray, start_s: float, step_s: float, steps: int) -> None:
        self.values = values
        self.step_s = step_s
        self.steps = steps
        self.a_day = a_day = _steps_a_day(step_s)
        self.an_hour = max(1, a_day // 24)
        before_days = max(memory.usual_days for memory in _MEMORIES) + 2 * (steps // a_day + 8)
        self.before = before_days * a_day
        self.fading = np.exp(-np.arange(1, steps) * step_s / 3600.0 / _FADING_H)
        self._padded = np.concatenate((np.tile(values[:a_day], before_days), values))
        self._sums = np.concatenate(([0.0], np.cumsum(self._padded)))
        by_day = np.resize(self._padded, (-(-len(self._padded) // a_day), a_day))
        self._day_sums = np.cumsum(by_day, axis=0).ravel()[: len(self._padded)]
        days = (start_s + step_s * np.arange(len(values) + steps)) / DAY_S
        # Days since the epoch, which was a Thursday, in UTC: Sunday is 0 here, Saturday 6.
        self.weekend = np.isin((np.floor(days) + 4) % 7, (0, 6)).astype(np.float64)
        self.daytime = np.stack([wave(2.0 * np.pi * times * days) for times in (1, 2) for wave in (np.sin, np.cos)])

    def at(self, index: IntArray) -> FloatArray:
        """Values; an index below 0 lies before the first one."""
        return self._padded[index + self.before]

    def mean(self, last: IntArray, count: int) -> FloatArray:
        """Mean of the `count` values up to and with `last`."""
        end = last + self.before + 1
        return (self._sums[end] - self._sums[end - count]) / count

    def usual(self, last: IntArray, days: int) -> FloatArray:
        """Mean of `days` values a day apart, up to and with `last`."""
        end = last + self.before
        return (self._day_sums[end] - self._day_sums[end - days * self.a_day]) / days


def _followed(known: _Known, origins: range) -> FloatArray:
    """(k, steps - 1): the usual day after each origin, and the distance from it that followed similar hours.

    Hours are similar if they are at the same time of the day, or an hour off, and values were as far from their usual
    day until then: past days have Gaussian weights.
    """
    hour, day = known.an_hour, known.a_day
    distance = _distance(known, _ANALOGUES_MEMORY)
    every = np.arange(len(distance))
    padded = np.concatenate((np.zeros(day), distance))
    shapes = np.stack([weight * padded[every + day - back * hour] for back, weight in _SHAPE], axis=1)
    beyond = np.lib.stride_tricks.sliding_window_view(np.concatenate((distance, np.zeros(known.steps))), known.steps)
    leads = np.arange(1, known.steps)
    index = np.arange(origins.start, origins.stop)[:, None]
    same_time = index + leads - -(-leads // day) * day
    expected: FloatArray = known.usual(same_time, _ANALOGUES_MEMORY.usual_days) + distance[index] * known.fading
    days_back = day * np.arange(1, MAX_HISTORY_DAYS + 1)[:, None] + hour * np.arange(-1, 2)
    for row, origin in enumerate(origins):
        past = (origin - days_back).ravel()
        # A day behind them is not made up, and all that followed is known.
        past = past[(past >= day) & (past < origin - known.steps + 2)]
        if len(past) < _MIN_ANALOGUES:
            continue
        scale = np.mean(distance[past] ** 2) or 1.0
        unlike = np.sum((shapes[past] - shapes[origin]) ** 2, axis=1) / (2.0 * scale)
        weights = np.exp(unlike.min() - unlike) * 0.5 ** ((origin - past) / day / _ANALOGUES_MEMORY.half_life_days)
        weights /= weights.sum()
        expected[row] += weights @ beyond[past, 1:] - (weights @ distance[past]) * known.fading
    return expected


def _distance(known: _Known, memory: _Memory) -> FloatArray:
    """(n,) how far values were from the usual day of the days before them."""
    distance: FloatArray = known.values - known.usual(np.arange(len(known.values)) - known.a_day, memory.usual_days)
    return distance


class _State:
    """What a model looks at: features of a moment, the origin of a forecast, and of a later one, its target.

    They are kept for all moments, a row for each feature, so that those of a lead time are slices of them.
    """

    def __init__(self, known: _Known, memory: _Memory) -> None:
        self.known = known
        self.memory = memory
        hour, day = known.an_hour, known.a_day
        every = np.arange(len(known.values))
        distance = _distance(known, memory)
        # With a day before them that was as usual.
        padded = np.concatenate((np.zeros(day + 1), distance))
        sums = np.cumsum(padded)
        ends = every + day + 1
        self._of_origin = np.stack(
            [
                *(padded[ends - hours * hour] for hours in (0, 1, 3, 12, 24)),
                (sums[ends] - sums[ends - 6 * hour]) / (6 * hour),
                (sums[ends] - sums[ends - day]) / day,
                known.mean(every, day) - known.mean(every, 7 * day),
            ]
        )
        self._usual_now = known.usual(every - day, memory.usual_days)
        self._of_target = [self._looking_back(days) for days in range(1, -(-(known.steps - 1) // day) + 1)]

    def _looking_back(self, days: int) -> FloatArray:
        """(n_target_features, n): what is known of each moment so many days before it, its usual day first."""
        known = self.known
        target = np.arange(min(len(known.values) + days * known.a_day, len(known.weekend)))
        same_time = target - days * known.a_day
        usual = known.usual(same_time, self.memory.usual_days)
        week_ago = known.at(target - 7 * -(-days // 7) * known.a_day)
        return np.stack(
            [
                usual,
                known.at(same_time) - usual,
                known.usual(same_time, 3) - usual,
                week_ago - usual,
                known.weekend[target] - _WEEKEND_SHARE,
                *known.daytime[:, target],
                np.ones(len(target)),
            ]
        )

    def features(self, origins: range, lead: int) -> FloatArray:
        """(n_features, k): what is known at each of neighbouring origins about the value `lead` steps later."""
        known = self.known
        now, then = slice(origins.start, origins.stop), slice(origins.start + lead, origins.stop + lead)
        of_origin, of_target = self._of_origin[:, now], self._of_target[-(-lead // known.a_day) - 1][:, then]
        usual, rest = of_target[0], of_target[1:]
        weekend = known.weekend[then] - known.weekend[now]
        return np.vstack((usual, of_origin, usual - self._usual_now[now], weekend, rest))


def _learn(past: _State, days: IntArray) -> FloatArray:
    """(steps - 1, n_features, m): coefficients for each lead time after each of the learned days."""
    known, last = past.known, int(days[-1])
    remembered = _remembered(days, past.memory.half_life_days)
    # A ridge in proportion needs no features of one size.
    ridge = 1.0 + (_PRIOR_DAYS / np.minimum(days, HISTORY_DAYS)[:, None]) ** 2
    learned = []
    for lead in range(1, known.steps):
        prior, examples = _examples(past, lead, last)
        by_day = examples.reshape(len(examples), last, known.a_day).transpose(1, 0, 2)
        products = by_day @ by_day.transpose(0, 2, 1)
        sums = (remembered @ products.reshape(last, -1)).reshape(len(days), *products.shape[1:])
        squares = sums[:, :-1, :-1]
        # einsum gives a view: this changes the squares in place.
        diagonals = np.einsum("ijj->ij", squares)
        diagonals *= ridge
        # What has hardly differed from nothing yet teaches nothing but rounding.
        diagonals += _ROUNDING * np.maximum(diagonals.max(axis=1, keepdims=True), 1.0)
        learned.append(prior + np.linalg.solve(squares, sums[:, :-1, -1:])[:, :, 0])
    return np.stack(learned).transpose(0, 2, 1)


def _examples(past: _State, lead: int, days: int) -> tuple[FloatArray, FloatArray]:
    """The prior's coefficients, and (n_features + 1, n): features and what the prior misses, by target.

    Targets are all steps of so many days. The first ones have no day behind them that is not made up: zeros.
    """
    known, end = past.known, days * past.known.a_day
    origins = range(known.a_day, max(known.a_day, end - lead))
    features = past.features(origins, lead)
    prior = np.zeros(len(features))
    # The usual day, and how far it is from it now, fading.
    prior[:2] = 1.0, known.fading[lead - 1]
    examples = np.zeros((len(features) + 1, end))
    first = end - len(origins)
    examples[:-1, first:] = features
    examples[-1, first:] = known.values[first:end] - prior @ features
    return prior, examples


def _remembered(days: IntArray, half_life_days: float) -> FloatArray:
    """(m, n_days): how much the examples of each day count after each of the learned days; older ones weigh less."""
    age = days[:, None] - 1 - np.arange(days[-1])
    weights: FloatArray = np.where((age >= 0) & (age < MAX_HISTORY_DAYS), 0.5 ** (age / half_life_days), 0.0)
    return weights


def _smooth(coefficients: FloatArray, known: _Known) -> FloatArray:
    """Means over neighbouring lead times that look the same number of days back."""
    leads = np.arange(1, len(coefficients) + 1)
    back = -(-leads // known.a_day)
    reach = np.minimum(round(_SMOOTH_H * 3600.0 / known.step_s), leads - 1)
    low = np.maximum(leads - reach, (back - 1) * known.a_day + 1)
    high = np.minimum(np.minimum(leads + reach, back * known.a_day), leads[-1])
    sums = np.concatenate((np.zeros((1, *coefficients.shape[1:])), np.cumsum(coefficients, axis=0)))
    smooth: FloatArray = (sums[high] - sums[low - 1]) / (high - low + 1)[:, None, None]
    return smooth


def _edges(known: Series, now_s: float, step_s: float, a_day: int) -> FloatArray:
    """Edges of the known steps from a midnight in UTC to the step in force or the last known one.

    Days begin at midnight, so the models learn anew once a day, from the same days at every hour of it.
    """
    last = int(min(now_s, np.nextafter(known.end_s, -np.inf)) // step_s)
    first_day = max(int(np.ceil(known.start_s / DAY_S)), last // a_day - HISTORY_DAYS)
    return step_s * np.arange(first_day * a_day, last + 2, dtype=np.float64)


def _steps_a_day(step_s: float) -> int:
    steps = round(DAY_S / step_s) if step_s > 0.0 else 0
    if steps < 1 or steps * step_s != DAY_S:
        raise InvalidQuantityError("step_s", f"a day must have a whole number of steps of {step_s} s")
    return steps
