"""Learned refinement of the rules: what usage over time tells beyond its mean.

Small decision trees, read off a table of thresholds (`trees.TREES`), may refine the intensities and the GPUs' cap
sensitivity that the rules concluded. They never touch the class, whether a workload may be moved, or what an annotation
says; where a tree is not sure, or a value on its path is not known, the rules stand. CPUs' cap sensitivity is left to
rules, energies and measurement: trees did not improve it on held-out kinds of workloads.

Source: trained on simulated workloads whose truth is known, by ``joulie bench profiles --train``; what it is worth is
measured on others, see docs/experiments/learned-profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from joulie.domain.profiles.profile import Classification, Hints, Use
from joulie.domain.profiles.tree import Split, Target, Tree
from joulie.domain.profiles.trees import TREES
from joulie.domain.units import FloatArray, positive
from joulie.domain.workload import GpuLevel, Level

SAMPLES = 20
"""Samples that a window is divided into."""
MEAN_OF_SAMPLES = 3
"""A sample is the mean over this many steps: a rate needs two scrapes, and those may be a step apart."""
MIN_SAMPLES = 12
"""Minimum number of samples of a course."""
PREFIX = "learned: "

_SIDE = 4
"""Minimum number of samples on either side of a change."""
_CHANGE_GAIN = 0.6
"""Share of the variance that a change must explain."""
_CHANGE_PCT = 10.0
"""Points that it must be high."""
_RHYTHM = 0.5
"""Autocorrelation from which a period counts as one; that of noise stays below, with so few samples."""
_PEAK = 0.9
"""Quantile that counts as the peak."""
_EVEN_PCT = 1.0
"""Spread below which a course is even: what varies then is noise."""


@dataclass(frozen=True, eq=False)
class Course:
    """Use of a workload over the window, sample by sample at even times, oldest first; NaN where one is missing.

    Attributes:
        step_s: between two samples, s.
        cpu_pct: CPU time over what it requests, 0..100.
        gpu_pct: of the GPUs that it holds, 0..100; None without GPUs.
    """

    step_s: float
    cpu_pct: FloatArray
    gpu_pct: FloatArray | None = None

    def __post_init__(self) -> None:
        positive("step_s", self.step_s)


class _Feature(NamedTuple):
    """How a feature is shown."""

    label: str
    unit: str = "%"


_OF_COURSE = {
    "mean": _Feature("util"),
    "spread": _Feature("spread"),
    "peak": _Feature("peak"),
    "busy": _Feature("busy"),
    "late": _Feature("lately"),
    "change": _Feature("change", " points"),
    "rhythm": _Feature("rhythm"),
    "period": _Feature("period", " s"),
}
FEATURES: Mapping[str, _Feature] = {
    **{f"cpu_{name}": feature for name, feature in _OF_COURSE.items()},
    **{f"gpu_{name}": _Feature(f"gpu-{text}", unit) for name, (text, unit) in _OF_COURSE.items()},
    "memory": _Feature("mem-pressure"),
    "gpu_memory": _Feature("mem-activity"),
    "together": _Feature("cpu-gpu correlation"),
}
"""Every feature by name. All are percentages or seconds, so that whole numbers are thresholds fine enough."""


def features(use: Use, course: Course) -> dict[str, float]:
    """What is known of a workload's use; a feature that is not known has no entry.

    Of CPU and GPU each: the mean, the standard deviation, the 90th percentile, the mean of the samples above the middle
    of the range (busy), the height of the largest lasting change and the mean since then (the mean of all without a
    change), and the autocorrelation at the best period with that period (0 where there is none).

    Args:
        use: means over the window.
        course: the samples that these are means of.
    """
    found = _features_of("cpu", course.cpu_pct, course.step_s)
    if course.gpu_pct is not None:
        found |= _features_of("gpu", course.gpu_pct, course.step_s)
        found |= _correlation(course.cpu_pct, course.gpu_pct)
    for name, value in (("memory", use.memory_pressure_pct), ("gpu_memory", use.gpu_memory_activity_pct)):
        if value is not None:
            found[name] = value
    return found


def refined(classification: Classification, hints: Hints, use: Use, course: Course) -> Classification:
    """A measured classification with what the trees know better; the same one where they know nothing better.

    Args:
        classification: by the rules.
        hints: annotations, which win.
        use: that it was concluded from.
        course: of that use.
    """
    known = features(use, course)
    reasons = [classification.reason]

    def better(target: Target, subject: str, current: Level | GpuLevel | None) -> Level | None:
        # What idles, or was not measured, has no course.
        verdict = None if current in {None, GpuLevel.NONE} else verdict_of(TREES[target], known)
        if verdict is None or verdict.level == current:
            return None
        reasons.append(f"{PREFIX}{subject}={verdict.level} ({', '.join(verdict.path)})")
        return verdict.level

    cpu, gpu = classification.cpu, classification.gpu
    if level := better(Target.CPU_INTENSITY, "cpu-intensity", cpu.intensity):
        cpu = replace(cpu, intensity=level)
    if level := better(Target.GPU_INTENSITY, "gpu-intensity", gpu.intensity):
        gpu = replace(gpu, intensity=GpuLevel(level.value))
    annotated = hints.gpu_sensitivity is not None
    if not annotated and (level := better(Target.GPU_SENSITIVITY, "gpu-cap-sensitivity", gpu.cap_sensitivity)):
        gpu = replace(gpu, cap_sensitivity=GpuLevel(level.value))
    return replace(classification, cpu=cpu, gpu=gpu, reason="; ".join(reasons))


class Verdict(NamedTuple):
    """Conclusion of a tree, and the path that led to it."""

    level: Level
    path: tuple[str, ...]


def verdict_of(tree: Tree, known: Mapping[str, float]) -> Verdict | None:
    """Conclusion of a tree from features; None where it is not sure, or needs one that is unknown."""
    path: dict[tuple[str, bool], str] = {}
    node = tree[0]
    while isinstance(node, Split):
        value = known.get(node.feature)
        if value is None:
            return None
        above = value > node.above
        # A later condition of the same kind on the same feature is the tighter one.
        path[node.feature, above] = _shown(node, value, above=above)
        node = tree[node.then if above else node.otherwise]
    return None if node.level is None else Verdict(node.level, tuple(path.values()))


def _shown(split: Split, value: float, *, above: bool) -> str:
    """A condition with its value, rounded but never across the threshold."""
    label, unit = FEATURES[split.feature]
    rounded = max(round(value), split.above + 1) if above else min(round(value), split.above)
    return f"{label} {rounded}{unit}{'>' if above else '≤'}{split.above}{unit}"


def _features_of(prefix: str, values: FloatArray, step_s: float) -> dict[str, float]:
    """Features of one course; none where too many samples are missing."""
    present = values[np.isfinite(values)]
    if len(present) < MIN_SAMPLES:
        return {}
    ordered = np.sort(present)
    mean = float(ordered.mean())
    variance = float(((ordered - mean) ** 2).mean())
    change, late = _last_change(present, mean, variance)
    rhythm, period_s = _best_period(values - mean, variance, step_s)
    found = {
        "mean": mean,
        "spread": math.sqrt(variance),
        "peak": ordered[math.ceil(_PEAK * (len(ordered) - 1))],
        "busy": ordered[np.searchsorted(ordered, (ordered[0] + ordered[-1]) / 2.0) :].mean(),
        "change": change,
        "late": late,
        "rhythm": 100.0 * rhythm,
        "period": period_s,
    }
    return {f"{prefix}_{name}": float(value) for name, value in found.items()}


def _last_change(values: FloatArray, mean: float, variance: float) -> tuple[float, float]:
    """Height of the change that splits a course best, 0 without one, and the mean after it, of all without one."""
    count = np.arange(_SIDE, len(values) - _SIDE + 1)
    first = np.cumsum(values)[count - 1]
    before, after = first / count, (mean * len(values) - first) / (len(values) - count)
    explained = count * (len(values) - count) * (after - before) ** 2
    place = int(explained.argmax())
    height = float(after[place] - before[place])
    if explained[place] < _CHANGE_GAIN * variance * len(values) ** 2 or abs(height) < _CHANGE_PCT:
        return 0.0, mean
    return height, float(after[place])


def _best_period(deviation: FloatArray, variance: float, step_s: float) -> tuple[float, float]:
    """Autocorrelation at the first lag where it peaks, and that lag, s; zeros where there is no such rhythm.

    Two whole periods must fit into the course. Missing samples leave out the pairs that they are part of.
    """
    if variance < _EVEN_PCT**2:
        return 0.0, 0.0
    present = np.isfinite(deviation)
    known, there = np.where(present, deviation, 0.0), present.astype(np.float64)
    lags = slice(len(known), len(known) + len(known) // 2)
    pairs = np.correlate(there, there, "full")[lags]
    products = np.correlate(known, known, "full")[lags]
    correlation = (products / np.maximum(pairs, 1.0) / variance).tolist()
    for index in range(1, len(correlation) - 1):
        left, here, right = correlation[index - 1 : index + 2]
        if here > _RHYTHM and here >= right and here > left:
            return min(here, 1.0), (index + 1) * step_s
    return 0.0, 0.0


def _correlation(cpu_pct: FloatArray, gpu_pct: FloatArray) -> dict[str, float]:
    """Correlation of CPU and GPU use, -100..100; 0 where one of them is even."""
    both = np.isfinite(cpu_pct) & np.isfinite(gpu_pct)
    if np.count_nonzero(both) < MIN_SAMPLES:
        return {}
    cpu, gpu = cpu_pct[both] - cpu_pct[both].mean(), gpu_pct[both] - gpu_pct[both].mean()
    spreads = math.sqrt(float(cpu @ cpu) * float(gpu @ gpu))
    if min(float(cpu @ cpu), float(gpu @ gpu)) < _EVEN_PCT**2 * len(cpu):
        return {"together": 0.0}
    return {"together": 100.0 * float(cpu @ gpu) / spreads}
