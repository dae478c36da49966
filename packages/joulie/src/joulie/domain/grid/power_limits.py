"""Limits of the Compute Gardener Scheduler on the nodes of a pod: by their full power, and by their CPUs per watt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid import names
from joulie.domain.grid.request import Cascade, boolean, first_readable, gpu_workload_type_in
from joulie.domain.units import BoolArray, FloatArray

POWER_LIMIT_KEYS = (names.SKIP, names.MAX_POWER_WATTS, names.MIN_EFFICIENCY)
"""The pod annotations that `power_limits` reads."""


@dataclass(frozen=True)
class PowerLimits:
    """What a pod asks of its node. Both count power at full utilisation with PUE.

    Attributes:
        max_power_w: maximum power, W; infinite without a limit.
        min_cores_per_w: minimum number of logical CPUs per watt; 0 without a limit.
        gpu_workload_type: what the pod's GPUs do, by which their part of the maximum power is less; empty if not said.
        mistakes: what could not be read, one sentence each.
    """

    max_power_w: float = math.inf
    min_cores_per_w: float = 0.0
    gpu_workload_type: str = ""
    mistakes: tuple[str, ...] = ()

    def too_powerful(self, full_w: FloatArray) -> BoolArray:
        """Which nodes exceed the power; a node of unknown power (NaN) does not. Shapes ``(n,)``."""
        return np.asarray(full_w > self.max_power_w)

    def inefficient(self, full_w: FloatArray, cores: FloatArray) -> BoolArray:
        """Which nodes have too few CPUs per watt; a node of unknown power (NaN) does not. Shapes ``(n,)``."""
        return np.asarray(cores < self.min_cores_per_w * full_w)


NO_LIMITS = PowerLimits()


def power_limits(cascade: Cascade) -> PowerLimits:
    """Limits of a pod by its annotations, else by the policies of its namespace; none for a pod that says skip."""
    if not cascade.namespace_annotations and cascade.annotations.keys().isdisjoint(POWER_LIMIT_KEYS):
        return NO_LIMITS
    _, skip, mistakes = first_readable(cascade, {names.SKIP: boolean})
    if skip:
        return NO_LIMITS
    _, max_power_w, of_power = first_readable(cascade, {names.MAX_POWER_WATTS: _positive})
    _, min_cores_per_w, of_efficiency = first_readable(cascade, {names.MIN_EFFICIENCY: _positive})
    _, gpu_workload_type, of_type = first_readable(cascade, {names.GPU_WORKLOAD_TYPE: gpu_workload_type_in})
    return PowerLimits(
        math.inf if max_power_w is None else max_power_w,
        min_cores_per_w or 0.0,
        gpu_workload_type or "",
        mistakes + of_power + of_efficiency + of_type,
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError("a number above 0")
    return value
