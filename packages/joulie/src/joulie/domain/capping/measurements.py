"""A job measured at power limits: cleaned, ordered, and as ratios to itself at the largest limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulie.domain.units import FloatArray

_MIN, _MAX = 1e-12, 1e12
"""Plausible range of watts and seconds; values beyond it are measurement errors and could overflow."""


@dataclass(frozen=True)
class Measurement:
    """Time and power of a job under one power limit.

    Attributes:
        limit_w: power limit of a GPU, W.
        time_s: time for a unit of work (an epoch, a batch, a token), s.
        power_w: average power of a GPU meanwhile, W.
    """

    limit_w: float
    time_s: float
    power_w: float

    @property
    def usable(self) -> bool:
        """Whether every figure is positive and plausible."""
        return all(_MIN <= value <= _MAX for value in (self.limit_w, self.time_s, self.power_w))

    @property
    def energy_j(self) -> float:
        """Energy of a GPU for a unit of work, J."""
        return self.time_s * self.power_w


@dataclass(frozen=True, eq=False)
class Sweep:
    """A job's measurements, by limit from the largest down.

    Attributes:
        limits_w: W, shape ``(n,)``, no two alike, n at least 1.
        time_s: for a unit of work, s, shape ``(n,)``.
        power_w: average of a GPU, W, shape ``(n,)``.
    """

    limits_w: FloatArray
    time_s: FloatArray
    power_w: FloatArray

    @property
    def natural_w(self) -> float:
        """What the job draws at the largest limit, W."""
        return float(self.power_w[0])

    @cached_property
    def slowdown(self) -> FloatArray:
        """Time for the same work, over that at the largest limit."""
        return np.asarray(self.time_s / self.time_s[0])

    @cached_property
    def energy_ratio(self) -> FloatArray:
        """Energy for the same work, over that at the largest limit."""
        return np.asarray(self.time_s * self.power_w / (self.time_s[0] * self.power_w[0]))


@dataclass(frozen=True)
class SweptJob:
    """A kind of job that was measured at power limits.

    Attributes:
        name: of the job, among others of its GPU.
        family: what it shares with jobs of the same model, such as the network that is trained.
        measurements: in any order, usable or not.
    """

    name: str
    family: str
    measurements: tuple[Measurement, ...]


def sweep_of(measurements: Iterable[Measurement]) -> Sweep | None:
    """Measurements in any order, several at a limit averaged; None without a usable one.

    Readings that are not usable (NaN, zero or negative) are left out.
    """
    by_limit: dict[float, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        if measurement.usable:
            by_limit[measurement.limit_w].append(measurement)
    if not by_limit:
        return None
    limits = sorted(by_limit, reverse=True)
    # Each run did the same work: times and energies add, powers do not.
    time_s = np.array([np.mean([run.time_s for run in by_limit[limit]]) for limit in limits])
    energy_j = np.array([np.mean([run.energy_j for run in by_limit[limit]]) for limit in limits])
    return Sweep(np.array(limits), time_s, energy_j / time_s)
