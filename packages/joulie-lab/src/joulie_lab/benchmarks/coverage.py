"""How often intervals hold a truth that is known: what the benchmarks of trials and of holdouts share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from joulie_lab.benchmarks.results import Figures


class Coverage(Figures, frozen=True):
    """Trials of one setting.

    Attributes:
        trials: number of trials.
        holds_pct: share of them whose interval holds the truth, %.
        above_zero_pct: share whose lower bound is above zero, %; for an effect of zero these are false savings.
        half_width_pct: median of half the width of the interval, percentage points.
    """

    trials: int
    holds_pct: float
    above_zero_pct: float
    half_width_pct: float


class Interval(NamedTuple):
    """What a trial said, as shares, and the truth."""

    low: float
    high: float
    truth: float


class Work(NamedTuple):
    """Trials of one setting, for a worker."""

    name: str
    seeds: tuple[int, ...]


def coverage(intervals: Iterable[Interval], trials: int) -> Coverage:
    """Coverage of these intervals among all `trials`: one that gave no interval does not hold the truth."""
    low, high, truth = np.array(list(intervals), dtype=np.float64).reshape(-1, 3).T
    return Coverage(
        trials,
        100.0 * float(np.sum((low <= truth) & (truth <= high))) / trials,
        100.0 * float(np.sum(low > 0.0)) / trials,
        100.0 * float(np.median(high - low)) / 2.0,
    )


class _Judged(Protocol):
    @property
    def above_zero_pct(self) -> float: ...


def false_savings_pct(settings: Mapping[str, _Judged]) -> float:
    """Largest share of lower bounds above zero in a setting without an effect, whose name begins with 0%; %."""
    return max(one.above_zero_pct for name, one in settings.items() if name.startswith("0%"))
