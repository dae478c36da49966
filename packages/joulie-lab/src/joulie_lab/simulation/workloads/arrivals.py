"""Submission times of workloads: a Poisson process whose rate follows the time of day, bursts, dips and surges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR, finite_number
from joulie_lab.simulation.workloads.settings import Arrivals, Episodes

_HOURS_OF_DAY = 24
_DAY_S = _HOURS_OF_DAY * SECONDS_PER_HOUR
_MAX_EPISODES = 1e6
_MAX_RATE_PER_S = 1e4
"""A higher rate is a mistake, and drawing its arrivals would take for ever."""


@dataclass(frozen=True)
class Episode:
    """A period in which the arrival rate is multiplied by a factor."""

    begin_s: float
    end_s: float
    factor: float


def arrivals_s(arrivals: Arrivals, rng: np.random.Generator, end_s: float) -> Iterator[float]:
    """Draw submission times up to `end_s`, ascending, s after the start of the trace.

    Method: thinning (Lewis and Shedler 1979), an hour at a time, so that a rare burst does not slow down other hours.

    Raises:
        InvalidQuantityError: there are too many arrivals, or bursts, dips and surges, to draw.
    """
    episodes = draw_episodes(arrivals, rng, end_s)
    hour_s = SECONDS_PER_HOUR
    for begin_s in np.arange(0.0, end_s, hour_s).tolist():
        now_s, until_s = begin_s, min(begin_s + hour_s, end_s)
        near = [episode for episode in episodes if episode.begin_s < until_s and episode.end_s > begin_s]
        max_per_s = _max_rate_per_s(arrivals, near)
        while max_per_s > 0.0:
            now_s += rng.exponential(1.0 / max_per_s)
            if now_s >= until_s:
                break
            if rng.random() * max_per_s < rate_per_s(arrivals, near, now_s):
                yield float(now_s)


def draw_episodes(arrivals: Arrivals, rng: np.random.Generator, end_s: float) -> list[Episode]:
    """Draw the bursts, dips and surges of a trace, including those that began before its start."""
    return [
        episode
        for kind in (arrivals.bursts, arrivals.dips, arrivals.surges)
        for episode in _episodes_of(kind, rng, end_s)
    ]


def _episodes_of(kind: Episodes, rng: np.random.Generator, end_s: float) -> Iterator[Episode]:
    length_s = kind.hours * SECONDS_PER_HOUR
    mean = kind.per_day * (end_s + length_s) / _DAY_S
    number = rng.poisson(finite_number("bursts, dips or surges", mean, minimum=0.0, maximum=_MAX_EPISODES))
    for begin_s in np.sort(rng.uniform(-length_s, end_s, number)).tolist():
        yield Episode(begin_s, begin_s + length_s, kind.factor)


def day_factor(arrivals: Arrivals, time_s: float) -> float:
    """Factor of the arrival rate by the time of day."""
    hour = (arrivals.start_h + time_s / SECONDS_PER_HOUR) % _HOURS_OF_DAY
    if arrivals.pattern == "hourly":
        return arrivals.hourly_factors[int(hour)]
    return 1.0 - arrivals.diurnal_amplitude * math.cos(2.0 * math.pi * (hour - arrivals.trough_h) / _HOURS_OF_DAY)


def rate_per_s(arrivals: Arrivals, episodes: list[Episode], time_s: float) -> float:
    """Arrival rate at a time, 1/s."""
    rate = arrivals.workloads_per_hour / SECONDS_PER_HOUR * day_factor(arrivals, time_s)
    for episode in episodes:
        if episode.begin_s <= time_s < episode.end_s:
            rate *= episode.factor
    return rate


def _max_rate_per_s(arrivals: Arrivals, episodes: list[Episode]) -> float:
    """Upper bound of the arrival rate while any of `episodes` may be active, 1/s."""
    of_day = max(arrivals.hourly_factors) if arrivals.pattern == "hourly" else 1.0 + arrivals.diurnal_amplitude
    of_episodes = math.prod(max(1.0, episode.factor) for episode in episodes)
    max_per_s = arrivals.workloads_per_hour / SECONDS_PER_HOUR * of_day * of_episodes
    return finite_number("arrivals a second", max_per_s, minimum=0.0, maximum=_MAX_RATE_PER_S)
