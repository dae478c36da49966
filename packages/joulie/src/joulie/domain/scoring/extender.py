"""The scheduler extender's decision: which nodes a pod may use, and how good each is.

Source: spec of the control loop, scheduler extender; the score is the published formula (t25-adap) on the twins'
values, with the steering of standard pods and the penalty for capped subsystems that a pod is sensitive to.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from joulie.domain.scoring import formulas
from joulie.domain.scoring.formulas import NEUTRAL_SCORE
from joulie.domain.units import BoolArray, FloatArray, FloatLike, IntArray, finite, non_negative, positive

PRESSURE_BONUS_ON_ECO = 0.1
PRESSURE_PENALTY_ON_PERFORMANCE = 0.3
WIRE_MAXIMUM = 10


class NodeClass(IntEnum):
    """Schedulable class of a node, as its twin says."""

    PERFORMANCE = 0
    ECO = 1
    DRAINING = 2
    UNKNOWN = 3


class Sensitivity(IntEnum):
    """Points that a pod loses on a fully capped subsystem."""

    LOW = 0
    MEDIUM = 10
    HIGH = 20


@dataclass(frozen=True)
class TwinView:
    """Twins of the candidate nodes; every array has shape ``(n_nodes,)``.

    Attributes:
        node_class: values of `NodeClass`.
        fresh: whether the twin is there and young enough; the other nodes score neutral.
        capped_w: power limit in force, W.
        measured_w: power now, W.
        cooling_stress_pct: 0..100.
        headroom_score: the twin's own headroom, 0..100.
        trend_w_per_min: slope of measured power, W/min.
        cpu_cap_fraction: CPU cap over its base, 0..1.
        gpu_cap_fraction: GPU cap over its base, 0..1.
        cluster_trend_w_per_min: sum of the trends of the whole cluster, W/min.
        perf_pressure: `performance_pressure` of the whole cluster, 0..100.

    Raises:
        InvalidQuantityError: a value of a fresh node is NaN or out of range.
    """

    node_class: IntArray
    fresh: BoolArray
    capped_w: FloatArray
    measured_w: FloatArray
    cooling_stress_pct: FloatArray
    headroom_score: FloatArray
    trend_w_per_min: FloatArray
    cpu_cap_fraction: FloatArray
    gpu_cap_fraction: FloatArray
    cluster_trend_w_per_min: float = 0.0
    perf_pressure: float = 0.0

    def __post_init__(self) -> None:
        fresh = self.fresh
        positive("capped_w", self.capped_w[fresh])
        non_negative("measured_w", self.measured_w[fresh])
        finite("trend_w_per_min", self.trend_w_per_min[fresh])
        for name in ("cooling_stress_pct", "headroom_score"):
            finite(name, getattr(self, name)[fresh], minimum=0.0, maximum=100.0)
        for name in ("cpu_cap_fraction", "gpu_cap_fraction"):
            finite(name, getattr(self, name)[fresh], minimum=0.0, maximum=1.0)
        finite("cluster_trend_w_per_min", self.cluster_trend_w_per_min)
        finite("perf_pressure", self.perf_pressure, minimum=0.0, maximum=100.0)

    @cached_property
    def counted(self) -> _Counted:
        """Terms of the twins that every pod's score uses: computed once, since many pods share a view."""
        return _counted(self)


@dataclass(frozen=True)
class PodView:
    """A pod as the extender sees it.

    Attributes:
        performance: whether its class is performance.
        reschedulable: whether it may be moved; None where it does not say.
        daemon: whether a DaemonSet owns it.
        cpu_sensitivity: to CPU caps.
        gpu_sensitivity: to GPU caps.
    """

    performance: bool = False
    reschedulable: bool | None = None
    daemon: bool = False
    cpu_sensitivity: Sensitivity = Sensitivity.LOW
    gpu_sensitivity: Sensitivity = Sensitivity.LOW


def performance_pressure(headroom_score: FloatArray, node_class: IntArray, fresh: BoolArray) -> float:
    """Power load of the performance nodes: the mean of ``100 - headroom`` over the fresh ones, 0 without any."""
    counted = fresh & (node_class == NodeClass.PERFORMANCE)
    if not counted.any():
        return 0.0
    return float(np.mean(100.0 - headroom_score[counted]))


def may_run(pod: PodView, node_class: IntArray) -> BoolArray:
    """Nodes that the class rule allows, shape of `node_class`.

    Performance pods never run on eco or draining nodes; all other pods, and DaemonSet pods, may run anywhere.
    """
    if pod.daemon or not pod.performance:
        return np.ones(node_class.shape, dtype=np.bool_)
    closed: BoolArray = (node_class == NodeClass.ECO) | (node_class == NodeClass.DRAINING)
    return ~closed


@dataclass(frozen=True, eq=False)
class ScoreTerms:
    """Terms of the score of each node; every array has shape ``(n_nodes,)``.

    ``base`` is ``headroom_points + cooling_points - trend_points`` and ``score`` is ``base + congestion_points -
    capped_points``, each kept within 0..100. A node without a fresh twin has the neutral score and no terms (NaN); a
    draining node scores 0 for a pod that must not be moved.

    Attributes:
        headroom_pct: power budget left once the pod has started, percent of the budget.
        headroom_points: what it earns.
        cooling_points: what cool air earns.
        trend_points: what a rising trend costs; negative where power falls.
        base: the published score.
        congestion_points: what steers standard pods from full performance nodes to eco nodes.
        capped_points: what caps cost a pod that is sensitive to them.
        score: 0..100.
    """

    headroom_pct: FloatArray
    headroom_points: FloatArray
    cooling_points: FloatArray
    trend_points: FloatArray
    base: FloatArray
    congestion_points: FloatArray
    capped_points: FloatArray
    score: FloatArray


def extender_score(pod: PodView, twins: TwinView, marginal_w: FloatArray) -> FloatArray:
    """Score of each node for the pod, 0..100, shape ``(n_nodes,)``.

    Args:
        pod: the pod.
        twins: the candidate nodes.
        marginal_w: power that the pod would add to each node, W, shape ``(n_nodes,)``.

    Raises:
        InvalidQuantityError: a marginal power is NaN or negative.
    """
    return _score_parts(pod, twins, non_negative("marginal_w", marginal_w)).score


def explain(pod: PodView, twins: TwinView, marginal_w: FloatArray) -> ScoreTerms:
    """`extender_score` with all of its terms; the score is the very same number.

    Raises:
        InvalidQuantityError: a marginal power is NaN or negative.
    """
    parts = _score_parts(pod, twins, non_negative("marginal_w", marginal_w))
    terms = ScoreTerms(
        headroom_pct=parts.headroom_pct,
        headroom_points=parts.headroom_pct * formulas.HEADROOM_WEIGHT,
        cooling_points=(100.0 - twins.counted.cooling_stress_pct) * formulas.COOLING_WEIGHT,
        trend_points=twins.counted.trend_points,
        base=parts.base,
        congestion_points=np.broadcast_to(parts.congestion_points, parts.base.shape),
        capped_points=np.broadcast_to(parts.capped_points, parts.base.shape),
        score=parts.score,
    )
    known = {
        field.name: np.where(twins.fresh, getattr(terms, field.name), np.nan)
        for field in fields(terms)
        if field.name != "score"
    }
    return replace(terms, **known)


class _Parts(NamedTuple):
    """Parts of the score; entries of nodes without data are finite but meaningless."""

    headroom_pct: FloatArray
    base: FloatArray
    congestion_points: FloatLike
    capped_points: FloatLike
    score: FloatArray


def _score_parts(pod: PodView, twins: TwinView, marginal_w: FloatArray) -> _Parts:
    known = twins.counted
    headroom_pct = np.asarray(formulas.projected_headroom_pct(known.capped_w, known.measured_w, marginal_w))
    base = np.asarray(formulas.joulie_score(headroom_pct, known.cooling_stress_pct, known.trend_points, 0.0))
    congestion = 0.0 if pod.performance else known.congestion_points
    capped = float(pod.cpu_sensitivity) * known.cpu_cap_depth + float(pod.gpu_sensitivity) * known.gpu_cap_depth
    score = np.where(twins.fresh, formulas.clamp(base + congestion - capped, 0.0, 100.0), NEUTRAL_SCORE)
    if pod.reschedulable is False:
        score = np.where(twins.node_class == NodeClass.DRAINING, 0.0, score)
    return _Parts(headroom_pct, base, congestion, capped, score)


def wire_score(score: FloatArray) -> IntArray:
    """Scores 0..100 as the scheduler extender protocol carries them: whole numbers 0..10, halves rounded up."""
    return np.floor(score / (100.0 / WIRE_MAXIMUM) + 0.5).astype(np.int64)


class _Counted(NamedTuple):
    """The part of a score that does not depend on the pod, with harmless numbers for the nodes without data."""

    capped_w: FloatArray
    measured_w: FloatArray
    cooling_stress_pct: FloatArray
    trend_points: FloatArray
    congestion_points: FloatArray
    cpu_cap_depth: FloatArray
    gpu_cap_depth: FloatArray


def _counted(twins: TwinView) -> _Counted:
    fresh = twins.fresh
    scale = formulas.adaptive_trend_scale(twins.cluster_trend_w_per_min)
    trend_w_per_min = np.where(fresh, twins.trend_w_per_min, 0.0)
    limit = formulas.TREND_CAP_POINTS
    return _Counted(
        capped_w=np.where(fresh, twins.capped_w, 1.0),
        measured_w=np.where(fresh, twins.measured_w, 0.0),
        cooling_stress_pct=np.where(fresh, twins.cooling_stress_pct, 0.0),
        trend_points=np.asarray(formulas.trend_points(trend_w_per_min, scale, -limit, limit)),
        congestion_points=_congestion_points(twins),
        cpu_cap_depth=np.where(fresh, 1.0 - twins.cpu_cap_fraction, 0.0),
        gpu_cap_depth=np.where(fresh, 1.0 - twins.gpu_cap_fraction, 0.0),
    )


def _congestion_points(twins: TwinView) -> FloatArray:
    """Points that steer standard pods from full performance nodes to eco nodes."""
    on_eco = np.where(twins.node_class == NodeClass.ECO, PRESSURE_BONUS_ON_ECO * twins.perf_pressure, 0.0)
    on_performance = twins.node_class == NodeClass.PERFORMANCE
    return on_eco - np.where(on_performance, PRESSURE_PENALTY_ON_PERFORMANCE * twins.perf_pressure, 0.0)
