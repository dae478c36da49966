"""GPU power, and throughput under a power limit as measured in sweeps of real training jobs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from joulie.domain.capping.prior import POOLED
from joulie.domain.capping.response import Response
from joulie.domain.hardware import Evidence, Provenance
from joulie.domain.power.curves import cap_or_uncapped
from joulie.domain.units import BoolArray, FloatArray, finite, non_negative

DEEP_IDLE_SHARE = 0.10
"""What an idle GPU in a deep state draws, as a share of its idle power (spec: simulator physics)."""


class Throughput(NamedTuple):
    """Rate of work as a share of the uncapped rate: the median job, and the spread between jobs.

    A model without a spread repeats the median.
    """

    median: FloatArray
    p10: FloatArray
    p90: FloatArray


class GpuState(NamedTuple):
    """Operating point of GPUs; arrays of the broadcast shape of the inputs, one device each."""

    natural_w: FloatArray
    """What the job would draw without a cap, W."""
    power_w: FloatArray
    """What it draws, W."""
    throughput: Throughput
    saturated: BoolArray
    """The cap is below what an idle device draws."""


class LimitEffect(NamedTuple):
    """What a power limit does to jobs; arrays of the broadcast shape of the inputs."""

    power_w: FloatArray
    """Average power under the limit, W."""
    throughput: Throughput


class LimitResponse(Protocol):
    """Average power and rate of work of jobs under a power limit.

    Implementations never return more power or throughput for a smaller limit, nor more power than the limit, and
    natural power and a rate of 1 at the largest limit.
    """

    @property
    def evidence(self) -> Evidence:
        """Where the model comes from."""
        ...

    def under(
        self, natural_w: npt.ArrayLike, limit_w: npt.ArrayLike, full_w: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0
    ) -> LimitEffect:
        """Power and throughput under a limit.

        Args:
            natural_w: average power at the largest limit, W.
            limit_w: power limit, W; inf where uncapped.
            full_w: largest limit, W. A job whose natural power is near it is limited by it already.
            memory_share: how far the job is bound by memory, 0..1; models may ignore it.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        ...


@dataclass(frozen=True, eq=False)
class PooledResponse:
    """The response over limit / natural power that jobs of several GPUs have shown, with the spread between them.

    Curves are logarithms over the logarithm of limit / natural power, ascending, shape ``(n,)``. Below the smallest
    measured ratio, power and throughput are taken to fall as the limit does: an assumption.

    Attributes:
        log_ratio: where they are known.
        log_power: average power over natural power, of the median job.
        log_throughput: rate of work over that at the largest limit: median, 10th and 90th percentile, ``(3, n)``.
        evidence: where the curves come from.
    """

    log_ratio: FloatArray
    log_power: FloatArray
    log_throughput: FloatArray
    evidence: Evidence

    @classmethod
    def of(cls, response: Response, evidence: Evidence) -> PooledResponse:
        """The response of jobs that were not measured. What differs between runs of one job is not its spread."""
        slowdown, energy = response.slowdown, response.energy
        spread = np.sqrt(np.maximum(slowdown.spread**2 - slowdown.noise**2, 0.0))
        throughput = -slowdown.mean + np.outer((0.0, -_P90_SIGMAS, _P90_SIGMAS), spread)
        # Smaller limits never gave more: where a curve says so, runs differed.
        return cls(
            slowdown.log_ratio,
            np.minimum(np.maximum.accumulate(energy.mean - slowdown.mean), 0.0),
            np.minimum(np.maximum.accumulate(throughput, axis=1), 0.0),
            evidence,
        )

    def under(
        self, natural_w: npt.ArrayLike, limit_w: npt.ArrayLike, full_w: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0
    ) -> LimitEffect:
        """See `LimitResponse.under`; the sweeps do not tell memory-bound jobs apart, the spread contains them."""
        finite("memory_share", memory_share, minimum=0.0, maximum=1.0)
        natural = non_negative("natural_w", natural_w)
        limit = cap_or_uncapped("limit_w", limit_w)
        here, full = log_limit_ratio(limit, natural), log_limit_ratio(non_negative("full_w", full_w), natural)
        power_w = np.minimum(natural * self._relative(self.log_power, here, full), limit)
        return LimitEffect(power_w, Throughput(*(self._relative(curve, here, full) for curve in self.log_throughput)))

    def _relative(self, curve: FloatArray, here: FloatArray, full: FloatArray) -> FloatArray:
        return np.asarray(np.exp(np.minimum(self._at(curve, here) - self._at(curve, full), 0.0)))

    def _at(self, curve: FloatArray, log_ratio: FloatArray) -> FloatArray:
        return np.asarray(np.interp(log_ratio, self.log_ratio, curve) + np.minimum(log_ratio - self.log_ratio[0], 0.0))


def log_limit_ratio(limit_w: FloatArray, natural_w: FloatArray) -> FloatArray:
    """Logarithm of limit / natural power; inf for a job that draws nothing, -inf at a limit of 0."""
    shape = np.broadcast_shapes(limit_w.shape, natural_w.shape)
    ratio = np.divide(limit_w, natural_w, out=np.full(shape, np.inf), where=natural_w > 0.0)
    return np.asarray(np.log(ratio, out=np.full(shape, -np.inf), where=ratio > 0.0))


_P90_SIGMAS = NormalDist().inv_cdf(0.90)
MEASURED_RESPONSE = PooledResponse.of(
    POOLED,
    Evidence(
        Provenance.MEASURED,
        "power-limit sweeps of 218 training jobs on A40, P100, V100 and RTX 6000 by the Zeus project (NSDI'23)",
    ),
)
"""Response of all GPUs: the spread contains that between the measured ones, so that it serves those without a sweep."""


def natural_power_w(
    idle_w: npt.ArrayLike, max_w: npt.ArrayLike, util: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0
) -> FloatArray:
    """What a job draws without a cap (spec: simulator physics; assumed).

    ``idle + dyn * util ** 1.02`` for compute, ``idle + dyn * (0.35 sqrt(util) + 0.30 util)`` for memory, blended.

    Args:
        idle_w: draw of an idle device, W.
        max_w: draw at full compute load, W.
        util: 0..1.
        memory_share: how far the job is bound by memory, 0..1.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    idle = non_negative("idle_w", idle_w)
    dynamic_w = non_negative("max_w - idle_w", non_negative("max_w", max_w) - idle)
    used = finite("util", util, minimum=0.0, maximum=1.0)
    memory = finite("memory_share", memory_share, minimum=0.0, maximum=1.0)
    share = (1.0 - memory) * used**1.02 + memory * (0.35 * np.sqrt(used) + 0.30 * used)
    return np.asarray(idle + dynamic_w * share)


def operate_gpu(
    idle_w: npt.ArrayLike,
    max_w: npt.ArrayLike,
    util: npt.ArrayLike,
    cap_w: npt.ArrayLike = np.inf,
    *,
    memory_share: npt.ArrayLike = 0.0,
    deep_idle: npt.ArrayLike = False,
    response: LimitResponse = MEASURED_RESPONSE,
) -> GpuState:
    """The operating point of devices under a power limit each.

    Args:
        idle_w: draw of an idle device, W.
        max_w: draw at full compute load, W; the default limit.
        util: 0..1; an unused device has 0.
        cap_w: power limit, W; inf where uncapped.
        memory_share: how far the job is bound by memory, 0..1.
        deep_idle: whether an unused device may enter a deep state.
        response: what a limit does to power and rate of work.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    limit_w = cap_or_uncapped("cap_w", cap_w)
    idle = non_negative("idle_w", idle_w)
    used = np.asarray(util, dtype=np.float64)
    asleep = np.asarray(deep_idle) & (used == 0.0)
    floor_w = np.where(asleep, DEEP_IDLE_SHARE * idle, idle)
    natural_w = np.where(asleep, floor_w, natural_power_w(idle, max_w, used, memory_share))
    # A limit cannot reduce the power below idle.
    effect = response.under(natural_w, np.maximum(limit_w, floor_w), max_w, memory_share)
    power_w = np.maximum(effect.power_w, floor_w)
    return GpuState(natural_w, power_w, effect.throughput, np.asarray(power_w > limit_w))
