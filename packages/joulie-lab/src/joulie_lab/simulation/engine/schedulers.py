"""The tables that the engine needs of the published scorers."""

from __future__ import annotations

import numpy as np

from joulie.domain.scoring import formulas
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation import published
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.placement import Demand, Fleet, marginal_w
from joulie_lab.simulation.schedulers import BY_HEADROOM, BY_LEGACY, SCORERS, EngineRules


def class_score(name: str, pool: NodePool, free_cores: IntArray, free_gpus: IntArray, with_gpus: bool) -> FloatArray:
    """Scores of an allocation-only scheduler for nodes of a pool, by free cores and GPUs, shape of `free_cores`.

    This is the scorer's last criterion; a first one may depend on the job and is given by `preference`.
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


def key_offset(rules: EngineRules, cluster: Cluster, marginal: FloatArray) -> FloatArray:
    """Reduction of a node's key by marginal power, points, shape ``(n_pools, n_shapes)``."""
    if rules.family == BY_HEADROOM:
        peaks_w = np.array([[pool.peak_w] for pool in cluster.pools])
        # Minimum reduction of headroom at any load: at one of the ends, as the formula is convex or concave in power.
        drop_pct = np.minimum(
            formulas.headroom_pct(peaks_w, 0.0, 0.0) - formulas.headroom_pct(peaks_w, 0.0, marginal),
            formulas.headroom_pct(peaks_w, peaks_w, 0.0) - formulas.headroom_pct(peaks_w, peaks_w, marginal),
        )
        return np.asarray(formulas.joulie_points(drop_pct, 100.0, 0.0, 0.0))
    if rules.family == BY_LEGACY:
        return np.asarray(published.legacy_marginal_points(marginal))
    return np.zeros_like(marginal)


def _unloaded(pool: NodePool, free_cores: IntArray, free_gpus: IntArray) -> Fleet:
    """Nodes of a pool with the given free cores and GPUs, and zero power."""

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
