"""The arithmetic of Joulie's placement score, one function a formula.

Every function takes scalars or arrays that broadcast, does no checks and keeps the operations in the published order:
the same source serves one node, ten thousand, and the laboratory's compiled loops (hence nothing but arithmetic,
`np.minimum` and `np.maximum`). Callers check inputs once, where they enter.

Source: "Scoring Formula Validation", Joulie documentation (formulas, weights, trend scales).
"""

from __future__ import annotations

import numpy as np

from joulie.domain.units import FloatLike

NEUTRAL_SCORE = 50.0
"""Score of a node without data."""
HEADROOM_WEIGHT = 0.7
COOLING_WEIGHT = 0.15
TREND_CAP_POINTS = 25.0
BURST_CLUSTER_TREND_W_PER_MIN = 500.0
BURST_TREND_SCALE = 2.0
STEADY_TREND_SCALE = 6.0


def clamp(value: FloatLike, low: FloatLike, high: FloatLike) -> FloatLike:
    """`value` limited to ``low..high``."""
    return np.minimum(np.maximum(value, low), high)


def headroom_pct(capped_w: FloatLike, measured_w: FloatLike, marginal_w: FloatLike) -> FloatLike:
    """Headroom: power left under a node's limit once `marginal_w` is added, percent of the limit; negative above it.

    The only place that knows this formula. More power must never mean more headroom, and the laboratory's search, which
    bounds it from its values on an idle and on a full node, takes it to be convex or concave in power.
    """
    return (capped_w - measured_w - marginal_w) / capped_w * 100.0


def projected_headroom_pct(capped_w: FloatLike, measured_w: FloatLike, marginal_w: FloatLike) -> FloatLike:
    """Headroom of a node once a pod of `marginal_w` has started, at least 0."""
    return np.maximum(0.0, headroom_pct(capped_w, measured_w, marginal_w))


def adaptive_trend_scale(cluster_trend_w_per_min: FloatLike) -> FloatLike:
    """W/min per point of trend bonus: small during cluster-wide bursts, larger in steady state."""
    return np.where(
        np.abs(cluster_trend_w_per_min) > BURST_CLUSTER_TREND_W_PER_MIN, BURST_TREND_SCALE, STEADY_TREND_SCALE
    )


def trend_points(trend_w_per_min: FloatLike, scale: FloatLike, low: float, high: float) -> FloatLike:
    """Points that a rising power trend costs, limited to ``low..high``; negative points are a bonus."""
    return clamp(trend_w_per_min / scale, low, high)


def joulie_points(
    headroom_pct: FloatLike, cooling_stress_pct: FloatLike, trend_penalty_points: FloatLike, penalty_points: FloatLike
) -> FloatLike:
    """Weighted sum of the Joulie formula: headroom, cooling and trend, less any further penalty."""
    return (
        headroom_pct * HEADROOM_WEIGHT
        + (100.0 - cooling_stress_pct) * COOLING_WEIGHT
        - trend_penalty_points
        - penalty_points
    )


def joulie_score(
    headroom_pct: FloatLike, cooling_stress_pct: FloatLike, trend_penalty_points: FloatLike, penalty_points: FloatLike
) -> FloatLike:
    """The Joulie formula: `joulie_points` within 0..100."""
    return clamp(joulie_points(headroom_pct, cooling_stress_pct, trend_penalty_points, penalty_points), 0.0, 100.0)
