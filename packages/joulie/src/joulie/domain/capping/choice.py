"""The power limit with the minimum energy for a job's work within a slowdown, found from few measurements.

`next_limit_w` says where to measure next, or that another measurement is not worth it; `choose_limit` chooses among
measured limits and limits whose outcome is almost certain. Both know the job by its measurements, and other jobs by a
`Response`. The limit to measure next has the largest expected improvement, weighted with the chance that the bound
holds there (constrained Bayesian optimisation; Gardner et al., ICML 2014). Zeus (NSDI'23) measures every limit instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from joulie.domain.capping.measurements import Sweep
from joulie.domain.capping.response import Estimate, Response
from joulie.domain.units import BoolArray, FloatArray, finite, non_negative, positive

_NORMAL = NormalDist()


class Reason(StrEnum):
    """Why a limit was chosen.

    Attributes:
        NO_BASELINE: not measured at the largest limit, so nothing is known of slowdowns: the largest one.
        NOTHING_BETTER: no smaller limit is known to save energy within the slowdown: the largest one.
        MEASURED: the minimum energy among limits that were measured to be within the slowdown.
        PREDICTED: expected to need less energy than those, and almost surely within the slowdown.
    """

    NO_BASELINE = "no baseline"
    NOTHING_BETTER = "nothing better"
    MEASURED = "measured"
    PREDICTED = "predicted"


@dataclass(frozen=True)
class Goal:
    """Constraints on a limit.

    Attributes:
        max_slowdown: largest time for the same work over that at the largest limit, at least 1.
        certainty: standard deviations by which an expected slowdown must stay within it.
        measurement_error: standard deviation of a measured time, as a share of it; 0 takes measurements as they are.
        min_gain: expected saving, as a share of the energy, below which one more measurement is not worth it.
    """

    max_slowdown: float = 1.05
    certainty: float = 2.0
    measurement_error: float = 0.0
    min_gain: float = 0.002

    def __post_init__(self) -> None:
        finite("max_slowdown", self.max_slowdown, minimum=1.0)
        non_negative("certainty", self.certainty)
        non_negative("measurement_error", self.measurement_error)
        non_negative("min_gain", self.min_gain)

    def kept_by(self, slowdown: FloatArray) -> BoolArray:
        """Which measured slowdowns are within the bound, as surely as their error allows."""
        # A slowdown is the quotient of two times, each with its error.
        margin = math.exp(self.certainty * self.measurement_error * math.sqrt(2.0))
        return np.asarray(slowdown * margin <= self.max_slowdown * (1.0 + 1e-12))


@dataclass(frozen=True)
class LimitChoice:
    """A power limit, and what is expected of it.

    Attributes:
        limit_w: W.
        slowdown: time for the same work, over that at the largest limit; None where unknown.
        energy_ratio: energy for the same work, likewise.
        reason: why this one.
    """

    limit_w: float
    slowdown: float | None
    energy_ratio: float | None
    reason: Reason


def choose_limit(
    measured: Sweep | None, limits_w: Sequence[float], response: Response | None, goal: Goal
) -> LimitChoice:
    """The limit with the minimum energy for the same work within the bound.

    Args:
        measured: the job so far; None without any usable measurement.
        limits_w: limits that the GPU may be given, W, in any order. The baseline is the largest limit that was
            measured, and none of these may be larger.
        response: of other jobs; None chooses among measured limits only.
        goal: what must be kept.

    Raises:
        InvalidQuantityError: no limits, or one that is not above zero.
    """
    offered_w = _offered(limits_w)
    if measured is None or measured.limits_w[0] < offered_w[0]:
        return LimitChoice(float(offered_w[0]), None, None, Reason.NO_BASELINE)
    kept = _kept(measured, goal)
    kept[1:] &= np.isin(measured.limits_w[1:], offered_w)
    best = int(np.argmin(np.where(kept, measured.energy_ratio, np.inf)))
    reason = Reason.NOTHING_BETTER if best == 0 else Reason.MEASURED
    choice = LimitChoice(
        float(measured.limits_w[best]), float(measured.slowdown[best]), float(measured.energy_ratio[best]), reason
    )
    open_w = _unmeasured(offered_w, measured)
    if response is None or not open_w.size:
        return choice
    slowdown, energy = _expected(response, measured, open_w)
    sure = slowdown.mean + goal.certainty * slowdown.deviation <= math.log(goal.max_slowdown)
    if not sure.any():
        return choice
    place = int(np.argmin(np.where(sure, energy.mean, np.inf)))
    expected = math.exp(energy.mean[place])
    if expected >= measured.energy_ratio[best]:
        return choice
    return LimitChoice(float(open_w[place]), math.exp(slowdown.mean[place]), expected, Reason.PREDICTED)


def next_limit_w(measured: Sweep | None, limits_w: Sequence[float], response: Response, goal: Goal) -> float | None:
    """The limit to measure next, W; None where no limit promises enough. The first is always the largest limit.

    Args:
        measured: the job so far; None without any usable measurement.
        limits_w: limits that the GPU may be given, W, in any order.
        response: of other jobs.
        goal: what must be kept.

    Raises:
        InvalidQuantityError: no limits, or one that is not above zero.
    """
    offered_w = _offered(limits_w)
    if measured is None or measured.limits_w[0] < offered_w[0]:
        return float(offered_w[0])
    open_w = _unmeasured(offered_w, measured)
    if not open_w.size:
        return None
    best = math.log(float(measured.energy_ratio[_kept(measured, goal)].min()))
    slowdown, energy = _expected(response, measured, open_w)
    gains = [
        _NORMAL.cdf((math.log(goal.max_slowdown) - t) / t_sd) * _improvement(best, e, e_sd)
        for t, t_sd, e, e_sd in zip(*slowdown, *energy, strict=True)
    ]
    place = int(np.argmax(gains))
    return float(open_w[place]) if gains[place] >= goal.min_gain else None


def _offered(limits_w: Sequence[float]) -> FloatArray:
    """From the largest down."""
    finite("number of limits", len(limits_w), minimum=1)
    return np.unique(positive("limits_w", limits_w))[::-1]


def _kept(measured: Sweep, goal: Goal) -> BoolArray:
    """Which measured limits keep the bound; the baseline does, however uncertain its measurement is."""
    kept = goal.kept_by(measured.slowdown)
    kept[0] = True
    return kept


def _unmeasured(offered_w: FloatArray, measured: Sweep) -> FloatArray:
    return offered_w[~np.isin(offered_w, measured.limits_w)]


def _expected(response: Response, measured: Sweep, open_w: FloatArray) -> tuple[Estimate, Estimate]:
    """Logarithms of slowdown and energy at limits that were not measured."""
    at, seen_at = np.log(open_w / measured.natural_w), np.log(measured.limits_w[1:] / measured.natural_w)
    return (
        response.slowdown.given(at, seen_at, np.log(measured.slowdown[1:])),
        response.energy.given(at, seen_at, np.log(measured.energy_ratio[1:])),
    )


def _improvement(best: float, mean: float, deviation: float) -> float:
    """Expected improvement on the best value so far, of a normally distributed one (Jones et al., 1998)."""
    z = (best - mean) / deviation
    return deviation * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z))
