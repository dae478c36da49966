"""How jobs respond to power limits, learned from the sweeps of other jobs.

A job is described by logarithms of two ratios to itself at the largest limit, slowdown (time for the same work) and
energy for the same work, over the logarithm of limit / natural power, where natural power is what it draws at the
largest limit. So jobs and GPUs of different size are comparable. What other jobs did gives a mean and a spread at each
ratio; what the job itself was measured to do at one limit corrects both near that limit (a Gaussian process; Rasmussen
and Williams, 2006, chapter 2). Measurements are not exact: runs at limits far above the natural power, which change
nothing, say by how much they scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.measurements import Sweep
from joulie.domain.units import FloatArray, InvalidQuantityError

RATIOS = np.geomspace(0.35, 2.0, 24)
"""Limit / natural power at which the response is kept."""
BANDWIDTH = 0.08
"""Width of the kernel that smooths over the logarithm of the ratio: about 8 % of a limit."""
CORRELATION = 0.25
"""How far, in the logarithm of the ratio, a job's deviation at one limit says something of it at another."""
UNBOUND_RATIO = 1.3
"""Ratio from which a limit has no effect, so that differences between runs are noise."""
LEAST_NOISE = 0.005
ASSUMED_NOISE = 0.02
"""Scatter of a run where no limit was large enough to tell; the median of the published sweeps."""


class Estimate(NamedTuple):
    """A quantity's logarithm at each of some limits: expected value and standard deviation."""

    mean: FloatArray
    deviation: FloatArray


@dataclass(frozen=True, eq=False)
class Curve:
    """One ratio (slowdown, or energy for the same work) over limit / natural power, as logarithms.

    Attributes:
        log_ratio: where it is known, ascending, shape ``(n,)``.
        mean: of other jobs there.
        spread: standard deviation between jobs there.
        noise: standard deviation between runs of one job.
        growth: how fast the mean grows below what is known, for each unit that the logarithm falls.
    """

    log_ratio: FloatArray
    mean: FloatArray
    spread: FloatArray
    noise: float
    growth: float

    def given(self, log_ratio: FloatArray, seen_log_ratio: FloatArray, seen: FloatArray) -> Estimate:
        """What to expect of a job at limits, of which some others were measured.

        Args:
            log_ratio: limits to tell, shape ``(m,)``.
            seen_log_ratio: limits that were measured, shape ``(k,)``; k may be 0.
            seen: what was measured there, shape ``(k,)``.
        """
        mean, spread = self._at(log_ratio)
        variance = spread**2
        if seen.size:
            seen_mean, seen_spread = self._at(seen_log_ratio)
            among = _covariance(seen_log_ratio, seen_spread, seen_log_ratio, seen_spread)
            among += self.noise**2 * np.eye(seen.size)
            across = _covariance(log_ratio, spread, seen_log_ratio, seen_spread)
            gain = np.linalg.solve(among, across.T).T
            mean = mean + gain @ (seen - seen_mean)
            variance = variance - np.sum(gain * across, axis=1)
        return Estimate(mean, np.sqrt(np.maximum(variance, 0.0) + self.noise**2))

    def _at(self, log_ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and spread of other jobs; less is known the farther a limit is below what was ever tried."""
        unknown = np.maximum(self.log_ratio[0] - log_ratio, 0.0)
        mean = np.interp(log_ratio, self.log_ratio, self.mean) + self.growth * unknown
        return mean, np.interp(log_ratio, self.log_ratio, self.spread) + unknown / 2.0


@dataclass(frozen=True)
class Response:
    """How jobs respond to limits.

    Attributes:
        slowdown: time for the same work.
        energy: energy for the same work.
    """

    slowdown: Curve
    energy: Curve


def learn(sweeps: Iterable[Sweep]) -> Response:
    """The response of jobs that were measured at several limits.

    Args:
        sweeps: of other jobs, on this or another GPU.

    Raises:
        InvalidQuantityError: not one of them has two limits.
    """
    rows = _with_two_limits(sweeps)
    log_ratio = _log_ratio(rows)
    # Below what was tried, throughput is taken to fall as power does: the energy for the work stays what it was.
    slowdown = _curve(log_ratio, [np.log(sweep.slowdown[1:]) for sweep in rows], growth=1.0)
    return Response(slowdown, _curve(log_ratio, [np.log(sweep.energy_ratio[1:]) for sweep in rows], growth=0.0))


def learn_power(sweeps: Iterable[Sweep]) -> Curve:
    """Average power over natural power, as logarithms; below what was tried it is taken to follow the limit.

    Raises:
        InvalidQuantityError: as `learn`.
    """
    rows = _with_two_limits(sweeps)
    return _curve(_log_ratio(rows), [np.log(sweep.power_w[1:] / sweep.natural_w) for sweep in rows], growth=-1.0)


def _with_two_limits(sweeps: Iterable[Sweep]) -> list[Sweep]:
    rows = [sweep for sweep in sweeps if len(sweep.limits_w) > 1]
    if not rows:
        raise InvalidQuantityError("sweeps", "need one with two limits or more")
    return rows


def _log_ratio(rows: Sequence[Sweep]) -> FloatArray:
    return np.concatenate([np.log(sweep.limits_w[1:] / sweep.natural_w) for sweep in rows])


def _curve(log_ratio: FloatArray, values: Sequence[FloatArray], growth: float) -> Curve:
    """Kernel regression of the mean, and of the squared distance from it."""
    value = np.concatenate(values)
    places = np.log(RATIOS)
    near = np.clip(log_ratio, places[0], places[-1])
    weight = np.exp(-0.5 * ((places[:, np.newaxis] - near) / BANDWIDTH) ** 2)
    # A place that no measurement lies near is not told: what lies beyond is interpolated, or unknown.
    told = weight.max(axis=1) > np.exp(-0.5)
    places, weight = places[told], weight[told] / weight[told].sum(axis=1, keepdims=True)
    mean = weight @ value
    residual = value - np.interp(near, places, mean)
    unbound = residual[near > np.log(UNBOUND_RATIO)]
    noise = max(float(np.std(unbound)), LEAST_NOISE) if unbound.size > 1 else ASSUMED_NOISE
    return Curve(places, mean, np.maximum(np.sqrt(weight @ residual**2), noise), noise, growth)


def _covariance(at: FloatArray, spread: FloatArray, other: FloatArray, other_spread: FloatArray) -> FloatArray:
    nearness = np.exp(-0.5 * ((at[:, np.newaxis] - other) / CORRELATION) ** 2)
    return np.asarray(spread[:, np.newaxis] * other_spread * nearness)
