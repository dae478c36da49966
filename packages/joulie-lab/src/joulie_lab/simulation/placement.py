"""The published schedulers as pure functions: choose a node for a request from a snapshot of the cluster.

A scorer scores all nodes at once and returns one or more criteria, most important first, higher is better. `place`
takes the best feasible node; ties go to the lowest index. The simulator's compiled engine finds the same node without
scoring all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from joulie.domain import marginal
from joulie.domain.scoring import formulas
from joulie.domain.units import BoolArray, FloatArray, InvalidQuantityError, finite, non_negative, positive
from joulie_lab.simulation import published


@dataclass(frozen=True)
class Fleet:
    """Snapshot of the nodes as seen by a scheduler; every array has shape ``(n_nodes,)``.

    Attributes:
        cores: allocatable CPU cores.
        gpus: GPUs.
        free_cores: unrequested cores.
        free_gpus: unrequested GPUs.
        cpu_max_w: CPU power at full load, W.
        gpu_max_w: power limit of one GPU, W; 0 on nodes without GPUs.
        measured_w: current power, W.
        capped_w: power limit in force, W.
        tdp_w: power limit without caps, W.
        trend_w_per_min: slope of measured power, W/min.
        cluster_trend_w_per_min: slope of the cluster's power, W/min.

    Raises:
        InvalidQuantityError: a value is NaN or out of range, or the arrays differ in length.
    """

    cores: FloatArray
    gpus: FloatArray
    free_cores: FloatArray
    free_gpus: FloatArray
    cpu_max_w: FloatArray
    gpu_max_w: FloatArray
    measured_w: FloatArray
    capped_w: FloatArray
    tdp_w: FloatArray
    trend_w_per_min: FloatArray
    cluster_trend_w_per_min: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cores", "cpu_max_w", "capped_w", "tdp_w"):
            positive(name, getattr(self, name))
        for name in ("gpus", "free_cores", "free_gpus", "gpu_max_w", "measured_w"):
            non_negative(name, getattr(self, name))
        finite("trend_w_per_min", self.trend_w_per_min)
        finite("cluster_trend_w_per_min", self.cluster_trend_w_per_min)
        for field in fields(self):
            if field.name != "cluster_trend_w_per_min" and np.shape(getattr(self, field.name)) != np.shape(self.cores):
                raise InvalidQuantityError(field.name, f"must have one value per node, {len(self.cores)} in total")


@dataclass(frozen=True)
class Demand:
    """Requests of a pod: cores, whole GPUs, and whether it is of class performance."""

    cores: float
    gpus: float = 0.0
    performance: bool = False

    def __post_init__(self) -> None:
        non_negative("cores", self.cores)
        non_negative("gpus", self.gpus)


@dataclass(frozen=True)
class Placement:
    """Result of placing a pod.

    Attributes:
        node: index of the chosen node; None if no node is feasible.
        criteria: scores of the chosen node; empty if no node is feasible.
        fitting: number of feasible nodes.
    """

    node: int | None
    criteria: tuple[float, ...]
    fitting: int


Criteria = tuple[FloatArray, ...]
Scorer = Callable[[Fleet, Demand], Criteria]


def fits(fleet: Fleet, demand: Demand) -> BoolArray:
    """Whether each node has enough free cores and GPUs, shape ``(n_nodes,)``."""
    return (fleet.free_cores >= demand.cores) & (fleet.free_gpus >= demand.gpus)


def place(fleet: Fleet, demand: Demand, scorer: Scorer) -> Placement:
    """Choose the best feasible node by the scorer's criteria, in lexicographic order; ties go to the lowest index."""
    candidates = np.flatnonzero(fits(fleet, demand))
    fitting = len(candidates)
    if fitting == 0:
        return Placement(None, (), 0)
    criteria = scorer(fleet, demand)
    for criterion in criteria:
        values = criterion[candidates]
        candidates = candidates[values == values.max()]
    node = int(candidates[0])
    return Placement(node, tuple(float(criterion[node]) for criterion in criteria), fitting)


def place_at_random(fleet: Fleet, demand: Demand, rng: np.random.Generator) -> Placement:
    """Choose a feasible node uniformly at random."""
    candidates = np.flatnonzero(fits(fleet, demand))
    if len(candidates) == 0:
        return Placement(None, (), 0)
    return Placement(int(candidates[int(rng.random() * len(candidates))]), (), len(candidates))


def marginal_w(fleet: Fleet, demand: Demand) -> FloatArray:
    """Power that the pod would add to each node as published, W, shape ``(n_nodes,)``."""
    gpus = np.where(fleet.gpus > 0.0, demand.gpus, 0.0)
    coefficient = float(marginal.gpu_coefficient(demand.performance))
    return np.asarray(
        marginal.marginal_w(fleet.cpu_max_w, demand.cores / fleet.cores, 0.0, gpus, fleet.gpu_max_w, coefficient)
    )


def headroom_scorer(cap_points: float, *, adaptive: bool, gpu_penalty: bool = False) -> Scorer:
    """Scorer with the Joulie formula and a trend bonus of at most `cap_points`.

    Args:
        cap_points: maximum trend bonus, points.
        adaptive: normalise the trend by the cluster's trend (t25-adap) instead of a tenth of the node's TDP (t10..t30).
        gpu_penalty: subtract the idle-GPU penalty for pods without GPUs.
    """

    def score(fleet: Fleet, demand: Demand) -> Criteria:
        if adaptive:
            scale = formulas.adaptive_trend_scale(fleet.cluster_trend_w_per_min)
            trend = formulas.trend_points(fleet.trend_w_per_min, scale, -cap_points, cap_points)
        else:
            trend = published.tdp_trend_points(fleet.trend_w_per_min, fleet.tdp_w, cap_points)
        joulie = formulas.joulie_score(
            formulas.projected_headroom_pct(fleet.capped_w, fleet.measured_w, marginal_w(fleet, demand)),
            published.power_load_pct(fleet.measured_w, fleet.tdp_w),
            trend,
            _idle_gpu_points(fleet, demand) if gpu_penalty else 0.0,
        )
        return (np.asarray(joulie),)

    return score


def _idle_gpu_points(fleet: Fleet, demand: Demand) -> FloatArray:
    points = published.idle_gpu_penalty_points(fleet.gpus, fleet.gpus - fleet.free_gpus)
    return np.where((fleet.gpus > 0.0) & (demand.gpus == 0.0), points, 0.0)


def legacy(fleet: Fleet, demand: Demand) -> Criteria:
    """The first Joulie formula."""
    scale = formulas.adaptive_trend_scale(fleet.cluster_trend_w_per_min)
    score = published.legacy_score(
        formulas.projected_headroom_pct(fleet.tdp_w, fleet.measured_w, 0.0),
        published.power_load_pct(fleet.measured_w, published.LEGACY_COOLING_REFERENCE_W, 80.0),
        published.power_load_pct(fleet.measured_w, published.LEGACY_RACK_CAPACITY_W),
        marginal_w(fleet, demand),
        _idle_gpu_points(fleet, demand),
        formulas.trend_points(fleet.trend_w_per_min, scale, *published.LEGACY_TREND_LIMITS),
    )
    return (np.asarray(score),)


def _core_fraction(fleet: Fleet) -> FloatArray:
    return np.asarray(published.allocated_fraction(fleet.cores - fleet.free_cores, fleet.cores))


def _gpu_fraction(fleet: Fleet) -> FloatArray:
    return np.asarray(published.allocated_fraction(fleet.gpus - fleet.free_gpus, fleet.gpus))


def _gpu_avoidance(fleet: Fleet, demand: Demand) -> FloatArray:
    return np.where((fleet.gpus > 0.0) & (demand.gpus == 0.0), published.GPU_AVOIDANCE_POINTS, 0.0)


def most_allocated(fleet: Fleet, demand: Demand) -> Criteria:
    """The fullest node."""
    del demand
    return (np.asarray(published.most_allocated_score(_core_fraction(fleet), _gpu_fraction(fleet))),)


def least_allocated(fleet: Fleet, demand: Demand) -> Criteria:
    """The emptiest node."""
    del demand
    has_gpus = (fleet.gpus > 0.0).astype(np.float64)
    return (np.asarray(published.least_allocated_score(_core_fraction(fleet), _gpu_fraction(fleet), has_gpus)),)


def gpu_most_allocated(fleet: Fleet, demand: Demand) -> Criteria:
    """The fullest node; GPUs count only for pods that need them, and others keep off such nodes."""
    if demand.gpus > 0.0:
        return (np.asarray(published.gpu_most_allocated_score(_core_fraction(fleet), _gpu_fraction(fleet))),)
    return (_core_fraction(fleet) - _gpu_avoidance(fleet, demand),)


def gpu_avoid(fleet: Fleet, demand: Demand) -> Criteria:
    """The fullest node; pods without GPUs keep off nodes with them."""
    (packed,) = most_allocated(fleet, demand)
    return (packed - _gpu_avoidance(fleet, demand),)


def pwr(fleet: Fleet, demand: Demand) -> Criteria:
    """PWR: the node that adds least power, then the fullest."""
    empty = ((fleet.free_cores == fleet.cores) & (fleet.free_gpus == fleet.gpus)).astype(np.float64)
    cost_w = published.pwr_cost_w(marginal_w(fleet, demand), fleet.cpu_max_w, demand.gpus, empty, fleet.gpus)
    return (-np.asarray(cost_w), _core_fraction(fleet))


def _steady_trend_points(fleet: Fleet) -> FloatArray:
    return np.asarray(
        formulas.trend_points(fleet.trend_w_per_min, formulas.STEADY_TREND_SCALE, *published.LEGACY_TREND_LIMITS)
    )


def most_allocated_trend(fleet: Fleet, demand: Demand) -> Criteria:
    """The fullest node, less a penalty for rising power."""
    (packed,) = most_allocated(fleet, demand)
    return (packed - _steady_trend_points(fleet),)


def power_pack(fleet: Fleet, demand: Demand) -> Criteria:
    """The node that draws most of its TDP, less a penalty for rising power."""
    del demand
    return (fleet.measured_w / fleet.tdp_w - _steady_trend_points(fleet),)


def combined(fleet: Fleet, demand: Demand) -> Criteria:
    """`power_pack`, and pods without GPUs keep off nodes with them."""
    (packed,) = power_pack(fleet, demand)
    return (packed - _gpu_avoidance(fleet, demand),)
