"""When workloads are submitted: a Poisson process whose rate follows the day, bursts, dips and surges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR, finite_number
from joulie_lab.simulation.workloads.settings import Arrivals, Episodes

_HOURS_OF_DAY = 24
_DAY_S = _HOURS_OF_DAY * SECONDS_PER_HOUR
_MOST_EPISODES = 1e6
_MOST_PER_S = 1e4
"""More is a mistake, and would never come to an end."""


@dataclass(frozen=True)
class Episode:
    """A time at which the rate is multiplied."""

    begin_s: float
    end_s: float
    factor: float


def arrivals_s(arrivals: Arrivals, rng: np.random.Generator, end_s: float) -> Iterator[float]:
    """Times of submission up to `end_s`, ascending, s after the start of the trace.

    Method: thinning (Lewis and Shedler 1979), an hour at a time, so that a rare burst costs nothing elsewhere.

    Raises:
        InvalidQuantityError: arrivals, or bursts, dips and surges, are more than can be drawn.
    """
    episodes = drawn_episodes(arrivals, rng, end_s)
    hour_s = SECONDS_PER_HOUR
    for begin_s in np.arange(0.0, end_s, hour_s).tolist():
        now_s, until_s = begin_s, min(begin_s + hour_s, end_s)
        near = [episode for episode in episodes if episode.begin_s < until_s and episode.end_s > begin_s]
        most_per_s = _most_per_s(arrivals, near)
        while most_per_s > 0.0:
            now_s += rng.exponential(1.0 / most_per_s)
            if now_s >= until_s:
                break
            if rng.random() * most_per_s < rate_per_s(arrivals, near, now_s):
                yield float(now_s)


def drawn_episodes(arrivals: Arrivals, rng: np.random.Generator, end_s: float) -> list[Episode]:
    """The bursts, dips and surges of a trace; those that began before it count too."""
    return [
        episode
        for kind in (arrivals.bursts, arrivals.dips, arrivals.surges)
        for episode in _episodes_of(kind, rng, end_s)
    ]


def _episodes_of(kind: Episodes, rng: np.random.Generator, end_s: float) -> Iterator[Episode]:
    length_s = kind.hours * SECONDS_PER_HOUR
    mean = kind.per_day * (end_s + length_s) / _DAY_S
    number = rng.poisson(finite_number("bursts, dips or surges", mean, minimum=0.0, maximum=_MOST_EPISODES))
    for begin_s in np.sort(rng.uniform(-length_s, end_s, number)).tolist():
        yield Episode(begin_s, begin_s + length_s, kind.factor)


def day_factor(arrivals: Arrivals, time_s: float) -> float:
    """What the time of the day makes of the rate."""
    hour = (arrivals.start_h + time_s / SECONDS_PER_HOUR) % _HOURS_OF_DAY
    if arrivals.pattern == "hourly":
        return arrivals.hourly_factors[int(hour)]
    return 1.0 - arrivals.diurnal_amplitude * math.cos(2.0 * math.pi * (hour - arrivals.trough_h) / _HOURS_OF_DAY)


def rate_per_s(arrivals: Arrivals, episodes: list[Episode], time_s: float) -> float:
    """Rate of arrivals at a time, 1/s."""
    rate = arrivals.workloads_per_hour / SECONDS_PER_HOUR * day_factor(arrivals, time_s)
    for episode in episodes:
        if episode.begin_s <= time_s < episode.end_s:
            rate *= episode.factor
    return rate


def _most_per_s(arrivals: Arrivals, episodes: list[Episode]) -> float:
    """No less than the rate ever is while `episodes` may last, 1/s."""
    of_day = max(arrivals.hourly_factors) if arrivals.pattern == "hourly" else 1.0 + arrivals.diurnal_amplitude
    of_episodes = math.prod(max(1.0, episode.factor) for episode in episodes)
    most_per_s = arrivals.workloads_per_hour / SECONDS_PER_HOUR * of_day * of_episodes
    return finite_number("arrivals a second", most_per_s, minimum=0.0, maximum=_MOST_PER_S)
