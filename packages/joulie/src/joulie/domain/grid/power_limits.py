"""Limits of the Compute Gardener Scheduler on the nodes of a pod: by their full power, and by their CPUs per watt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid import names
from joulie.domain.units import BoolArray, FloatArray


@dataclass(frozen=True)
class PowerLimits:
    """What a pod asks of its node. Both count power at full utilisation with PUE.

    Attributes:
        max_power_w: maximum power, W; infinite without a limit.
        min_cores_per_w: minimum number of logical CPUs per watt.
    """

    max_power_w: float = math.inf
    min_cores_per_w: float = 0.0

    def too_powerful(self, full_w: FloatArray) -> BoolArray:
        """Which nodes exceed the power; a node of unknown power (NaN) does not. Shapes ``(n,)``."""
        return np.asarray(full_w > self.max_power_w)

    def inefficient(self, full_w: FloatArray, cores: FloatArray) -> BoolArray:
        """Which nodes have too few CPUs per watt; a node of unknown power (NaN) does not. Shapes ``(n,)``."""
        return np.asarray(cores < self.min_cores_per_w * full_w)


def power_limits(annotations: Mapping[str, str]) -> PowerLimits | None:
    """Limits of a pod; None without any. As in the Gardener, a malformed one counts as absent."""
    max_power_w = _positive(annotations.get(names.MAX_POWER_WATTS))
    min_cores_per_w = _positive(annotations.get(names.MIN_EFFICIENCY))
    if max_power_w is None and min_cores_per_w is None:
        return None
    return PowerLimits(math.inf if max_power_w is None else max_power_w, min_cores_per_w or 0.0)


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 < value < math.inf else None
