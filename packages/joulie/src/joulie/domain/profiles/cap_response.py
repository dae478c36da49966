"""Measured cap sensitivity: how much slower a workload became when its cap changed.

Throughput (work over time, in any unit: a proxy will do) before and after a change of the cap tells the slowdown for
each unit of cap depth, ``rate = rate uncapped * (1 - slowdown * depth)``, with an interval that it lies in. Nothing is
concluded where the throughput was changing anyway, or where the interval reaches into two levels.

Source: Welch's t-test on means, with the number of samples lessened by their lag-1 correlation; Mann-Kendall test for a
trend; Cornish-Fisher expansion of Student's t (Abramowitz and Stegun 26.7.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from joulie.domain.profiles.profile import Classification, Hints
from joulie.domain.signal import Reading
from joulie.domain.units import FloatArray, finite, non_negative
from joulie.domain.workload import GpuLevel, Level

HIGH_SLOWDOWN = 0.3
"""Slowdown for each unit of depth from which a workload is very sensitive: 12 % under the default eco caps of 60 %."""
MEDIUM_SLOWDOWN = 0.1
"""The same for some sensitivity: 4 % under these caps."""

MIN_SAMPLES = 16
"""Minimum number of samples on each side."""
MIN_DEPTH_CHANGE = 0.05
"""Minimum change of the cap; smaller ones drown in noise."""
COVERAGE = 0.95
_MIN_INDEPENDENT = 4.0
_MAX_CORRELATION = 0.95
_EXACT = 1e-9
"""Half an interval below which a response counts as exact."""
_Z = NormalDist().inv_cdf(0.5 + COVERAGE / 2.0)


@dataclass(frozen=True)
class CapChange:
    """A change of the cap that is in force.

    Attributes:
        time_s: when, s since the epoch.
        depth_before: 1 - cap / base before it, 0 uncapped, below 1.
        depth_after: the same after it.
    """

    time_s: float
    depth_before: float
    depth_after: float

    def __post_init__(self) -> None:
        finite("time_s", self.time_s)
        for name in ("depth_before", "depth_after"):
            finite(name, getattr(self, name), minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class CapResponse:
    """How much slower a workload gets under caps.

    Attributes:
        slowdown: share of the throughput lost for each unit of cap depth; noise may make it negative.
        low: lower end of the 95 % confidence interval.
        high: upper end of it.
    """

    slowdown: float
    low: float
    high: float

    @property
    def level(self) -> Level | None:
        """The sensitivity, None where the interval reaches into two levels."""
        levels = {_level(self.low), _level(self.high)}
        return levels.pop() if len(levels) == 1 else None


def _level(slowdown: float) -> Level:
    if slowdown >= HIGH_SLOWDOWN:
        return Level.HIGH
    return Level.MEDIUM if slowdown >= MEDIUM_SLOWDOWN else Level.LOW


def cap_response(
    rates: Sequence[Reading], change: CapChange, *, window_s: float = 600.0, settling_s: float = 60.0
) -> CapResponse | None:
    """How a workload responded to one change of the cap, or None where that cannot be told.

    That is where either side has too few samples or no throughput, where the throughput had a trend on either side (so
    that something else was changing it), or where the cap hardly changed.

    Args:
        rates: throughput at times about evenly apart, in any order and unit.
        change: of the cap; nothing else about the workload, such as its number of pods, may change within the window.
        window_s: how long before and after the change samples count, s.
        settling_s: time after the change that does not count, s.

    Raises:
        InvalidQuantityError: a rate is NaN, infinite or negative, or a time not finite.
    """
    if abs(change.depth_after - change.depth_before) < MIN_DEPTH_CHANGE:
        return None
    time_s = finite("time_s", [reading.time_s for reading in rates])
    order = np.argsort(time_s, kind="stable")
    since_s = time_s[order] - change.time_s
    value = non_negative("rate", [reading.value for reading in rates])[order]
    before = _side(value[(since_s >= -window_s) & (since_s < 0.0)])
    after = _side(value[(since_s >= settling_s) & (since_s <= window_s)])
    if before is None or after is None:
        return None
    errors = (before.relative_error**2, after.relative_error**2)
    spread = 0.0
    if sum(errors) > 0.0:
        # Welch-Satterthwaite: as many degrees of freedom as the noisier side has.
        freedom = sum(errors) ** 2 / sum(
            e**2 / (side.independent - 1.0) for e, side in zip(errors, (before, after), strict=True)
        )
        spread = student_t(freedom) * math.sqrt(sum(errors))
    ratio = after.mean / before.mean
    low, slowdown, high = sorted(_slowdown(ratio * math.exp(shift), change) for shift in (-spread, 0.0, spread))
    return CapResponse(slowdown, low, high) if math.isfinite(high) else None


def pooled(responses: Sequence[CapResponse]) -> CapResponse | None:
    """What several changes of the cap say together; None without any, or where two contradict each other.

    Contradiction means intervals that do not overlap: then it was not the cap alone that changed the throughput.
    """
    if not responses or max(r.low for r in responses) > min(r.high for r in responses):
        return None
    weights = [max((r.high - r.low) / 2.0, _EXACT) ** -2 for r in responses]
    slowdown = sum(w * r.slowdown for w, r in zip(weights, responses, strict=True)) / sum(weights)
    half = sum(weights) ** -0.5
    return CapResponse(slowdown, slowdown - half, slowdown + half)


def with_response(
    classification: Classification, hints: Hints, *, cpu: CapResponse | None = None, gpu: CapResponse | None = None
) -> Classification:
    """A classification with the sensitivities that were measured, where they say a level and no annotation does.

    Args:
        classification: by the rules.
        hints: annotations, which win.
        cpu: response to CPU caps.
        gpu: response to GPU caps.
    """
    result = classification
    if cpu is not None and cpu.level is not None and hints.cpu_sensitivity is None:
        profile = replace(result.cpu, cap_sensitivity=cpu.level)
        result = replace(result, cpu=profile, reason=f"{result.reason}; cpu-{_reason(cpu, cpu.level)}")
    if gpu is not None and gpu.level is not None and hints.gpu_sensitivity is None:
        gpu_profile = replace(result.gpu, cap_sensitivity=GpuLevel(gpu.level.value))
        result = replace(result, gpu=gpu_profile, reason=f"{result.reason}; gpu-{_reason(gpu, gpu.level)}")
    return result


def student_t(freedom: float) -> float:
    """Student's t that covers `COVERAGE` on both sides together, within 0.2 % from 3 degrees of freedom on."""
    z = _Z
    terms = (
        z,
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
        (79.0 * z**9 + 776.0 * z**7 + 1482.0 * z**5 - 1920.0 * z**3 - 945.0 * z) / 92160.0,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


class _Side(NamedTuple):
    """Throughput on one side of the change.

    Attributes:
        mean: of the rates.
        relative_error: standard error of the mean, as a share of it.
        independent: samples that the correlated ones are worth.
    """

    mean: float
    relative_error: float
    independent: float


def _side(rates: FloatArray) -> _Side | None:
    """None where the rates are too few, nothing, or not steady."""
    if len(rates) < MIN_SAMPLES or rates.mean() <= 0.0:
        return None
    deviation = rates - rates.mean()
    variance = float((deviation**2).sum() / (len(rates) - 1))
    if math.sqrt(variance) <= 1e-12 * rates.mean():
        return _Side(float(rates.mean()), 0.0, float(len(rates)))
    # Of few samples the correlation comes out too small: (1 + 4 correlation) / n, Kendall's approximation of the bias.
    correlation = float((deviation[1:] * deviation[:-1]).sum() / (deviation**2).sum())
    correlation = (correlation * len(rates) + 1.0) / (len(rates) - 4.0)
    correlation = min(max(correlation, 0.0), _MAX_CORRELATION)
    independent = len(rates) * (1.0 - correlation) / (1.0 + correlation)
    if independent < _MIN_INDEPENDENT or _has_trend(rates):
        return None
    return _Side(float(rates.mean()), math.sqrt(variance / independent) / float(rates.mean()), independent)


def _has_trend(rates: FloatArray) -> bool:
    """Mann-Kendall: whether later rates are larger, or smaller, more often than chance explains."""
    count = len(rates)
    later, earlier = np.tril_indices(count, -1)
    agreement = float(np.sign(rates[later] - rates[earlier]).sum())
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
    return abs(agreement) - 1.0 > _Z * spread


def _slowdown(ratio: float, change: CapChange) -> float:
    """Slowdown for each unit of depth that explains a ratio of rates; infinite where none does."""
    base = change.depth_after - ratio * change.depth_before
    if base * (change.depth_after - change.depth_before) <= 0.0:
        return math.inf
    return (1.0 - ratio) / base


def _reason(response: CapResponse, level: Level) -> str:
    shown = f"{response.slowdown:.2f} [{response.low:.2f}, {response.high:.2f}]"
    return f"cap-sensitivity={level} (measured slowdown {shown} per cap depth)"
