"""GPU power, and throughput under a power limit as measured in sweeps of real training jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import Evidence, GpuModel, Provenance
from joulie.domain.power.curves import cap_or_uncapped, interpolate_even
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


class ThroughputModel(Protocol):
    """Rate of work as a function of how far the power is cut.

    Implementations never return more throughput for less power, and 1 at a ratio of 1.
    """

    @property
    def evidence(self) -> Evidence:
        """Where the model comes from."""
        ...

    def under(self, power_ratio: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0) -> Throughput:
        """Throughput at ``power / natural power``.

        Args:
            power_ratio: 0..1, any shape.
            memory_share: how far the job is bound by memory, 0..1; models may ignore it.

        Raises:
            InvalidQuantityError: an input is NaN or outside 0..1.
        """
        ...


@dataclass(frozen=True, eq=False)
class MeasuredThroughput:
    """Interpolation of measured points at power ratios 0, 0.1, ... 1.

    Below the lowest measured ratio, `measured_from`, the curves run straight to the origin: an assumption.

    Attributes:
        median: throughput of the median job, shape ``(11,)``.
        p10: of the job at the 10th percentile.
        p90: of the job at the 90th percentile.
        measured_from: lowest ratio with measurements.
        evidence: where the points come from.
    """

    median: FloatArray
    p10: FloatArray
    p90: FloatArray
    measured_from: float
    evidence: Evidence

    def under(self, power_ratio: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0) -> Throughput:
        """See `ThroughputModel.under`; the sweeps do not tell memory-bound jobs apart, the spread holds them."""
        finite("memory_share", memory_share, minimum=0.0, maximum=1.0)
        ratio = finite("power_ratio", power_ratio, minimum=0.0, maximum=1.0)
        return Throughput(
            interpolate_even(self.median, ratio), interpolate_even(self.p10, ratio), interpolate_even(self.p90, ratio)
        )


def _points(measured: tuple[float, ...]) -> FloatArray:
    """Points at 0, 0.1, ... 1 from the measured ones, which end at 1; the rest lie on the line to the origin."""
    missing = 11 - len(measured)
    return np.concatenate([np.arange(missing) / missing * measured[0], measured])


def _sweep(gpus: str, median: tuple[float, ...], p10: tuple[float, ...], p90: tuple[float, ...]) -> MeasuredThroughput:
    return MeasuredThroughput(
        _points(median),
        _points(p10),
        _points(p90),
        measured_from=1.0 - 0.1 * (len(median) - 1),
        evidence=Evidence(
            Provenance.MEASURED,
            f"power-limit sweeps of training jobs on {gpus} by the Zeus project (NSDI'23), within 5 % of each ratio",
        ),
    )


# Median, 10th and 90th percentile of throughput at average power / natural power from 0.4 (P100: 0.7) to 1.
POOLED_THROUGHPUT = _sweep(
    "A40 and P100 (98 job types)",
    (0.25, 0.41, 0.61, 0.88, 0.95, 0.98, 1.0),
    (0.24, 0.34, 0.37, 0.72, 0.90, 0.96, 1.0),
    (0.34, 0.60, 0.79, 0.94, 0.98, 1.00, 1.0),
)
A40_THROUGHPUT = _sweep(
    "A40 (53 job types)",
    (0.25, 0.41, 0.61, 0.88, 0.96, 0.98, 1.0),
    (0.24, 0.34, 0.38, 0.72, 0.92, 0.96, 1.0),
    (0.34, 0.60, 0.78, 0.94, 0.98, 1.00, 1.0),
)
P100_THROUGHPUT = _sweep(
    "P100 (45 job types)",
    (0.89, 0.94, 0.98, 1.0),
    (0.86, 0.89, 0.96, 1.0),
    (0.92, 0.95, 1.00, 1.0),
)

_MEASURED_BY_KEY: Mapping[str, MeasuredThroughput] = MappingProxyType(
    {"NVIDIA A40": A40_THROUGHPUT, "Tesla P100-PCIE-16GB": P100_THROUGHPUT}
)


def measured_throughput(gpu: GpuModel) -> ThroughputModel:
    """The sweep of this GPU model where there is one, else the pooled sweep as a proxy."""
    return _MEASURED_BY_KEY.get(gpu.key, POOLED_THROUGHPUT)


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
    throughput: ThroughputModel = POOLED_THROUGHPUT,
) -> GpuState:
    """The operating point of devices under a power limit each.

    Args:
        idle_w: draw of an idle device, W.
        max_w: draw at full compute load, W; the default limit.
        util: 0..1; an unused device has 0.
        cap_w: power limit, W; inf where uncapped.
        memory_share: how far the job is bound by memory, 0..1.
        deep_idle: whether an unused device may enter a deep state.
        throughput: how the rate of work follows the power.

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
    power_w = np.maximum(np.minimum(natural_w, limit_w), floor_w)
    # A device without draw is not slowed down by a cap.
    ratio = np.divide(power_w, natural_w, out=np.ones_like(power_w), where=natural_w > 0.0)
    return GpuState(natural_w, power_w, throughput.under(ratio, memory_share), np.asarray(power_w > limit_w))
