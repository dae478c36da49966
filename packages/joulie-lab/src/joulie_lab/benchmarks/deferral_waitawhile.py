"""Part of benchmark deferral: scenario II of "Let's Wait Awhile", which trains models when power is clean.

3,387 jobs of 4 to 90 hours are submitted in working hours of 2020. A job may end later than it would have, but not so
late that anybody has to wait for it: by the next working morning, or by the next Monday or Thursday morning at nine.
It runs where a forecast is lowest, in one piece or in half hours. The forecasts are the truth with noise of 0, 5 or
10 % of the year's mean. What is saved is counted on the truth.

Three details of the published simulator matter, and are kept, for its figures are to come out again: each window
reaches half an hour beyond what the deadline says; so does that of the baseline, which may therefore start a job half
an hour late; and what would end on a Friday evening must be done by Saturday morning.

Source: Wiesner et al., Let's Wait Awhile, Middleware '21, and github.com/dos-group/lets-wait-awhile, whose evaluation
notebook prints what the noise costs; the carbon intensity of Germany and Great Britain is from there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import product
from types import MappingProxyType

import numpy as np

from joulie.domain.grid.series import Series
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.benchmarks.results import Figures

JOBS = 3387
JOB_SEED = 0
REPETITIONS = 10
"""Seeds of the noise, from 0."""
NOISES_PCT = (0, 5, 10)
STEP_S = 1800
SHORTEST_STEPS, LONGEST_STEPS = 8, 180
"""Lengths of jobs, in half hours; the longest is not reached."""
FIRST_DAY = datetime(2020, 1, 1, tzinfo=UTC)
DAYS = 366
OPENS, CLOSES = 18, 34
"""Working hours from nine to five, in half hours of the day."""
TAIL_S = 9 * 86400
"""The last jobs end in the new year."""


class DoneBy(StrEnum):
    """When a job must have ended if it was not to end at once."""

    NEXT_WORKDAY = "next_workday"
    SEMI_WEEKLY = "semi_weekly"


class How(StrEnum):
    """In how many pieces a job may run."""

    WHOLE = "whole"
    SLOTS = "slots"


PUBLISHED: Mapping[tuple[str, DoneBy, How], float] = MappingProxyType(
    {
        ("DE", DoneBy.NEXT_WORKDAY, How.WHOLE): 0.23276092,
        ("DE", DoneBy.NEXT_WORKDAY, How.SLOTS): 2.89293901,
        ("DE", DoneBy.SEMI_WEEKLY, How.WHOLE): 0.17819406,
        ("DE", DoneBy.SEMI_WEEKLY, How.SLOTS): 2.15805887,
        ("GB", DoneBy.NEXT_WORKDAY, How.WHOLE): 0.22180517,
        ("GB", DoneBy.NEXT_WORKDAY, How.SLOTS): 2.18494359,
        ("GB", DoneBy.SEMI_WEEKLY, How.WHOLE): 0.16846534,
        ("GB", DoneBy.SEMI_WEEKLY, How.SLOTS): 1.77343437,
    }
)
"""By how many percent the saving without noise exceeds the one with 5 % noise, as the notebook prints it."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """What is submitted; arrays of shape ``(n_jobs,)``, in half hours since the year began."""

    arrival: IntArray
    length: IntArray


def published_jobs() -> Jobs:
    """The jobs of the paper, drawn as its simulator draws them."""
    rng = np.random.default_rng(JOB_SEED)
    days = [FIRST_DAY + timedelta(days=day) for day in range(DAYS)]
    workdays = [index for index, day in enumerate(days) if day.weekday() < 5]
    per_day = rng.multinomial(JOBS, [1.0 / len(workdays)] * len(workdays))
    hours = np.arange(OPENS, CLOSES)
    arrivals = [day * 48 + np.sort(rng.choice(hours, size=count)) for day, count in zip(workdays, per_day, strict=True)]
    return Jobs(np.concatenate(arrivals), rng.choice(np.arange(SHORTEST_STEPS, LONGEST_STEPS), size=JOBS))


def slack(end: datetime, done_by: DoneBy) -> timedelta:
    """How much later than `end` a job may end."""
    morning = end.replace(hour=9, minute=0)
    if done_by is DoneBy.SEMI_WEEKLY:
        mornings = (morning + timedelta(days=ahead) for ahead in range(8))
        return next(day - end for day in mornings if day.weekday() in (0, 3) and day >= end)
    if end.weekday() == 5:
        return morning + timedelta(days=2) - end
    if end.weekday() == 6 or end > end.replace(hour=17, minute=0):
        return morning + timedelta(days=1) - end
    return max(morning - end, timedelta())


class NoiseFigures(Figures, frozen=True):
    """Savings by noise of the forecasts, %, and what noise of 5 % costs, relative, %, here and as published."""

    saved_pct: Mapping[str, float]
    noise_cost_pct: float
    published_noise_cost_pct: float | None = None


class WaitAwhileResult(Figures, frozen=True):
    """The result, by zone, deadline and number of pieces.

    `deviation` is the largest difference from what is published, None where nothing can be compared.
    """

    jobs: int
    zones: Mapping[str, Mapping[str, Mapping[str, NoiseFigures]]]
    deviation: float | None


def measure(
    zones: Mapping[str, Series], on_stage: Callable[[str], None], repetitions: int = REPETITIONS
) -> WaitAwhileResult:
    """What is saved by zone, deadline and number of pieces.

    Args:
        zones: carbon intensity over 2020 and nine days more, gCO2eq/kWh. ``DE`` and ``GB`` are compared with what is
            published.
        on_stage: told which zone is next.
        repetitions: seeds of the noise.
    """
    jobs = published_jobs()
    deadlines = {done_by: _latest_ends(jobs, done_by) for done_by in DoneBy}
    measured: dict[str, dict[str, dict[str, NoiseFigures]]] = {}
    deviations: list[float] = []
    for zone, series in zones.items():
        on_stage(f"Let's Wait Awhile, {zone}")
        intensity = _half_hours(series)
        measured[zone] = {done_by.value: {} for done_by in DoneBy}
        for done_by, how in product(DoneBy, How):
            published = PUBLISHED.get((zone, done_by, how))
            found = _savings(intensity, jobs, deadlines[done_by], how, repetitions, published)
            measured[zone][done_by.value][how.value] = found
            if published is not None:
                deviations.append(abs(found.noise_cost_pct - published))
    return WaitAwhileResult(JOBS, measured, max(deviations, default=None))


def _latest_ends(jobs: Jobs, done_by: DoneBy) -> IntArray:
    """End of each job's window, in half hours."""
    ends = jobs.arrival + jobs.length
    step = timedelta(seconds=STEP_S)
    later: IntArray = np.array([slack(FIRST_DAY + int(end) * step, done_by) // step for end in ends])
    return ends + later + 1


def _half_hours(series: Series) -> FloatArray:
    """The value at each half hour from the beginning of the year."""
    first_s = FIRST_DAY.timestamp()
    if not series.covers(first_s, first_s + DAYS * 86400 + TAIL_S - 3600):
        raise ValueError(f"the year 2020 and nine days more are needed, {series} is less")
    times_s = np.arange(first_s, series.end_s, STEP_S)
    return series.values[np.searchsorted(series.starts_s, times_s, side="right") - 1]


def _savings(
    intensity: FloatArray, jobs: Jobs, latest_end: IntArray, how: How, repetitions: int, published_pct: float | None
) -> NoiseFigures:
    baseline = _emitted(intensity, intensity, jobs, jobs.arrival + jobs.length + 1, How.WHOLE)
    saved_pct = {}
    for noise in NOISES_PCT:
        emitted = [
            _emitted(intensity, _noisy(intensity, noise / 100.0, seed), jobs, latest_end, how)
            for seed in range(repetitions if noise else 1)
        ]
        saved_pct[str(noise)] = float(100.0 * (1.0 - np.mean(emitted) / baseline))
    return NoiseFigures(saved_pct, 100.0 * (saved_pct["0"] / saved_pct["5"] - 1.0), published_pct)


def _noisy(intensity: FloatArray, share: float, seed: int) -> FloatArray:
    return intensity + np.random.default_rng(seed).normal(0.0, share * intensity.mean(), size=intensity.size)


def _emitted(intensity: FloatArray, expected: FloatArray, jobs: Jobs, latest_end: IntArray, how: How) -> float:
    """Sum of the intensity over the half hours in which jobs run if they are planned by what is expected."""
    true_sums = np.concatenate(([0.0], np.cumsum(intensity)))
    expected_sums = np.concatenate(([0.0], np.cumsum(expected)))
    emitted = 0.0
    for first, length, end in zip(jobs.arrival, jobs.length, latest_end, strict=True):
        if how is How.SLOTS:
            chosen = np.argpartition(expected[first:end], length - 1)[:length]
            emitted += float(intensity[first:end][chosen].sum())
            continue
        start = first + int(
            np.argmin(expected_sums[first + length : end + 1] - expected_sums[first : end + 1 - length])
        )
        emitted += float(true_sums[start + length] - true_sums[start])
    return emitted
