"""How the engine finds the node of each named scheduler, and the tables that it needs of the domain's scorers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulie.domain.scoring import formulas
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation import published
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import state
from joulie_lab.simulation.placement import SCORERS, Demand, Fleet, marginal_w


class UnknownSchedulerError(ValueError):
    """A scheduler name that does not exist; the message lists those that do."""

    def __init__(self, name: str) -> None:
        close = difflib.get_close_matches(name, SCHEDULERS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        super().__init__(f"unknown scheduler {name!r}{hint} (known: {', '.join(SCHEDULERS)})")


@dataclass(frozen=True)
class Scheduler:
    """How a scheduler finds its node (`state` names the families and trends).

    Attributes:
        family: one of ``BY_*`` or ``AT_RANDOM``.
        trend: how a power trend becomes points.
        trend_low: lower limit of the trend's points.
        trend_high: upper limit of the trend's points.
        gpu_penalty: whether jobs without GPUs lose points on nodes with GPUs.
        packs_by_power: family BY_KEY packs by power instead of by allocation.
        governed: family BY_ENERGY with the ramp governor, which needs a queue to hold jobs in.
        oracle: family BY_ENERGY knows durations instead of learning them: a yardstick, not a policy.
    """

    family: int
    trend: int = state.TREND_NONE
    trend_low: float = 0.0
    trend_high: float = 0.0
    gpu_penalty: bool = False
    packs_by_power: bool = False
    governed: bool = False
    oracle: bool = False


def _headroom(cap_points: float, trend: int, *, gpu_penalty: bool = False) -> Scheduler:
    return Scheduler(state.BY_HEADROOM, trend, -cap_points, cap_points, gpu_penalty)


_ADAPTIVE_25 = _headroom(formulas.TREND_CAP_POINTS, state.TREND_ADAPTIVE)
_BY_CLASS = Scheduler(state.BY_CLASS)
_PACK = Scheduler(state.BY_KEY, state.TREND_STEADY, *published.LEGACY_TREND_LIMITS)

_SCHEDULERS: Mapping[str, Scheduler] = {
    "most-allocated": _BY_CLASS,
    "least-allocated": _BY_CLASS,
    "random": Scheduler(state.AT_RANDOM),
    "pwr": _BY_CLASS,
    "joulie-legacy": Scheduler(state.BY_LEGACY, state.TREND_ADAPTIVE, *published.LEGACY_TREND_LIMITS, gpu_penalty=True),
    "joulie": _ADAPTIVE_25,
    "t10": _headroom(10.0, state.TREND_TDP),
    "t15": _headroom(15.0, state.TREND_TDP),
    "t20": _headroom(20.0, state.TREND_TDP),
    "t25": _headroom(25.0, state.TREND_TDP),
    "t30": _headroom(30.0, state.TREND_TDP),
    "t20-gpu": _headroom(20.0, state.TREND_TDP, gpu_penalty=True),
    "t20-adap": _headroom(20.0, state.TREND_ADAPTIVE),
    "t25-adap": _ADAPTIVE_25,
    "gpu-most-allocated": _BY_CLASS,
    "marginal-energy": Scheduler(state.BY_ENERGY),
    "marginal-energy-ramp": Scheduler(state.BY_ENERGY, governed=True),
    "marginal-energy-ramp-oracle": Scheduler(state.BY_ENERGY, governed=True, oracle=True),
    "gpu-avoid": _BY_CLASS,
    "power-pack": Scheduler(state.BY_KEY, state.TREND_STEADY, *published.LEGACY_TREND_LIMITS, packs_by_power=True),
    "most-allocated-trend": _PACK,
    "combined": Scheduler(
        state.BY_KEY, state.TREND_STEADY, *published.LEGACY_TREND_LIMITS, gpu_penalty=True, packs_by_power=True
    ),
}

SCHEDULERS = tuple(_SCHEDULERS)
"""Every name that `scheduler` knows."""


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name.

    Raises:
        UnknownSchedulerError: there is none.
    """
    if name not in _SCHEDULERS:
        raise UnknownSchedulerError(name)
    return _SCHEDULERS[name]


def class_score(name: str, pool: NodePool, free_cores: IntArray, free_gpus: IntArray, with_gpus: bool) -> FloatArray:
    """What an allocation-only scheduler thinks of nodes of a pool with so much free, shape of `free_cores`.

    This is the scorer's last criterion; one before it may depend on the job and goes into `preference`.
    """
    demand = Demand(1.0, 1.0 if with_gpus else 0.0)
    return SCORERS[name](_unloaded(pool, free_cores, free_gpus), demand)[-1]


def preference(name: str, pool: NodePool, demand: Demand) -> FloatArray:
    """First of two criteria of an allocation-only scheduler, shape ``(2,)``: on a node in use, on an empty one."""
    criteria = SCORERS[name](
        _unloaded(pool, np.array([pool.cores - 1, pool.cores]), np.array([pool.gpus, pool.gpus])), demand
    )
    return criteria[0] if len(criteria) > 1 else np.zeros(2)


def marginal_by_shape_w(pool: NodePool, cores: IntArray, gpus: IntArray, performance: BoolArray) -> FloatArray:
    """Published marginal power of requests on a node of the pool, W, shape ``(n_shapes,)``."""
    node = _unloaded(pool, np.array([pool.cores]), np.array([pool.gpus]))
    return np.array(
        [
            marginal_w(node, Demand(float(c), float(g), bool(p)))[0]
            for c, g, p in zip(cores, gpus, performance, strict=True)
        ]
    )


def key_offset(rules: Scheduler, cluster: Cluster, marginal: FloatArray) -> FloatArray:
    """Points by which marginal power, shape ``(n_pools, n_shapes)``, lowers a node's key."""
    if rules.family == state.BY_HEADROOM:
        peaks_w = np.array([[pool.peak_w] for pool in cluster.pools])
        # The least that any load's headroom falls by: at one of the ends, for a formula convex or concave in power.
        drop_pct = np.minimum(
            formulas.headroom_pct(peaks_w, 0.0, 0.0) - formulas.headroom_pct(peaks_w, 0.0, marginal),
            formulas.headroom_pct(peaks_w, peaks_w, 0.0) - formulas.headroom_pct(peaks_w, peaks_w, marginal),
        )
        return np.asarray(formulas.joulie_points(drop_pct, 100.0, 0.0, 0.0))
    if rules.family == state.BY_LEGACY:
        return np.asarray(published.legacy_marginal_points(marginal))
    return np.zeros_like(marginal)


def _unloaded(pool: NodePool, free_cores: IntArray, free_gpus: IntArray) -> Fleet:
    """Nodes of a pool with so much free and no power yet."""

    def same(value: float) -> FloatArray:
        return np.full(len(free_cores), float(value))

    return Fleet(
        cores=same(pool.cores),
        gpus=same(pool.gpus),
        free_cores=free_cores.astype(np.float64),
        free_gpus=free_gpus.astype(np.float64),
        cpu_max_w=same(pool.cpu_max_w),
        gpu_max_w=same(pool.gpu_max_w),
        measured_w=same(0.0),
        capped_w=same(pool.peak_w),
        tdp_w=same(pool.peak_w),
        trend_w_per_min=same(0.0),
    )
