"""Levels as positions in an order, and the cost of wrong levels."""

from __future__ import annotations

import numpy as np

from joulie.domain.profiles.profile import Classification
from joulie.domain.profiles.tree import Target
from joulie.domain.units import FloatArray, IntArray
from joulie.domain.workload import GpuLevel, Level
from joulie_lab.benchmarks.profile_traces import Observed

LEVELS = (Level.LOW, Level.MEDIUM, Level.HIGH)
MISSED_COST = 2.0
"""Cost per level that is too low; too high costs 1 per level. Slowed jobs are worse than unused caps."""


def cost(truth: IntArray, said: IntArray) -> FloatArray:
    """Cost of predicted levels, as positions in `LEVELS`."""
    off = said - truth
    return np.where(off < 0, -MISSED_COST * off, off)


def said_of(target: Target, classification: Classification) -> Level:
    """Level of a target in a classification. GPUs that were idle during the window count as low."""
    cpu, gpu = classification.cpu, classification.gpu
    level: Level | GpuLevel | None = {
        Target.CPU_INTENSITY: cpu.intensity,
        Target.CPU_SENSITIVITY: cpu.cap_sensitivity,
        Target.FED_CPU_SENSITIVITY: cpu.cap_sensitivity,
        Target.GPU_INTENSITY: gpu.intensity,
        Target.GPU_SENSITIVITY: gpu.cap_sensitivity,
    }[target]
    assert level is not None
    return Level.LOW if level is GpuLevel.NONE else Level(level.value)


def is_idle(target: Target, one: Observed) -> bool:
    """Whether the rules say that the GPUs are not used, which nothing refines."""
    return target in {Target.GPU_INTENSITY, Target.GPU_SENSITIVITY} and one.use.gpu_util_pct == 0.0
