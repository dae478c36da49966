"""Formulas of the published schedulers that Joulie's own scheduler does not share.

Like `joulie.domain.scoring.formulas`, they take scalars or arrays that broadcast, check nothing and keep the published
order of operations: the NumPy reference and the compiled loops share one source.

Sources: "Scoring Formula Validation", Joulie documentation (formulas, weights, trend scales); kube-scheduler's
NodeResourcesFit plugin (MostAllocated, LeastAllocated); PWR: "Power- and fragmentation-aware online scheduling for GPU
datacenters", CCGrid 2025 (minimum increase of power).
"""

from __future__ import annotations

import numpy as np

from joulie.domain.scoring.formulas import clamp
from joulie.domain.units import FloatLike

GPU_AVOIDANCE_POINTS = 10.0
LEGACY_COOLING_REFERENCE_W = 4000.0
LEGACY_RACK_CAPACITY_W = 50_000.0
LEGACY_TREND_LIMITS = (-20.0, 25.0)


def power_load_pct(measured_w: FloatLike, reference_w: FloatLike, points_at_reference: float = 100.0) -> FloatLike:
    """Power relative to a reference, in points, at most 100: the published cooling and PSU stress."""
    return np.minimum(100.0, measured_w / reference_w * points_at_reference)


def tdp_trend_points(trend_w_per_min: FloatLike, tdp_w: FloatLike, cap_points: float) -> FloatLike:
    """Penalty for a rising power trend, normalised by a tenth of the node's TDP, points."""
    return clamp(trend_w_per_min / (0.1 * tdp_w), -1.0, 1.0) * cap_points


def idle_gpu_penalty_points(gpus: FloatLike, used_gpus: FloatLike) -> FloatLike:
    """Penalty for a job without GPUs on a node with idle GPUs: 100 W each, at most 500 W, at most 20 points."""
    return clamp(np.minimum((gpus - used_gpus) * 100.0, 500.0) / 10.0, 0.0, 20.0)


def legacy_score(
    headroom_pct: FloatLike,
    cooling_stress_pct: FloatLike,
    psu_stress_pct: FloatLike,
    marginal_w: FloatLike,
    idle_gpu_points: FloatLike,
    trend_penalty_points: FloatLike,
) -> FloatLike:
    """The multi-component formula that Joulie replaced ("JOULIE-legacy"); not limited to 0..100."""
    return (
        0.4 * headroom_pct
        + 0.3 * (100.0 - cooling_stress_pct)
        + 0.3 * (100.0 - psu_stress_pct)
        - legacy_marginal_points(marginal_w)
        - idle_gpu_points
        - trend_penalty_points
    )


def legacy_marginal_points(marginal_w: FloatLike) -> FloatLike:
    """Penalty for the pod's own power in the legacy formula: one point per 20 W, at most 20."""
    return clamp(marginal_w / 20.0, 0.0, 20.0)


def allocated_fraction(used: FloatLike, total: FloatLike) -> FloatLike:
    """Allocated share of a resource; 0 on nodes without it."""
    return used / np.maximum(total, 1.0)


def most_allocated_score(core_fraction: FloatLike, gpu_fraction: FloatLike) -> FloatLike:
    """Bin packing as published: the sum of the allocated fractions, 0..2."""
    return core_fraction + gpu_fraction


def least_allocated_score(core_fraction: FloatLike, gpu_fraction: FloatLike, has_gpus: FloatLike) -> FloatLike:
    """Spreading: the mean free fraction over the resources of the node, 0..1."""
    return ((1.0 - core_fraction) + has_gpus * (1.0 - gpu_fraction)) / (1.0 + has_gpus)


def gpu_most_allocated_score(core_fraction: FloatLike, gpu_fraction: FloatLike) -> FloatLike:
    """Bin packing for jobs with GPUs: GPUs have weight 1, cores 0.5."""
    return 0.5 * core_fraction + gpu_fraction


PWR_EMPTY_CPU_FRACTION = 0.22
PWR_EMPTY_GPU_W = 70.0
PWR_IDLE_GPU_W = 100.0


def pwr_cost_w(
    marginal_w: FloatLike, cpu_max_w: FloatLike, gpus: FloatLike, empty: FloatLike, node_gpus: FloatLike
) -> FloatLike:
    """Increase of the cluster's power by a placement (PWR), W; lower is better, ties go to the node with fuller cores.

    `empty` is 1 on nodes without jobs, whose base power is added; the idle power of the job's `gpus` is subtracted.
    """
    return (
        marginal_w + empty * (PWR_EMPTY_CPU_FRACTION * cpu_max_w + PWR_EMPTY_GPU_W * node_gpus) - gpus * PWR_IDLE_GPU_W
    )
