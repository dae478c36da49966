"""The digital twin: scores of nodes from their hardware, caps and measured power, O(1) a node.

The formulas take scalars and arrays over nodes; `twin_fleet` applies them to a whole cluster. A node without data has
no scores (NaN), so that it never looks like the best one: where a number is needed, it is `NEUTRAL_SCORE`. Source of
all formulas: spec, control loop, digital twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.cooling_stress import CoolingStressModel, linear_cooling_stress
from joulie.domain.scoring.formulas import headroom_pct
from joulie.domain.units import (
    SECONDS_PER_MINUTE,
    BoolArray,
    FloatArray,
    FloatLike,
    IntArray,
    finite,
    non_negative,
    positive,
)

DEFAULT_RACK_CAPACITY_W = 50_000.0
FULL_DENSITY_CORES = 192.0
FULL_DENSITY_GPUS = 8.0


def capped_power_w(tdp_w: npt.ArrayLike, cap_percent: npt.ArrayLike = 100.0) -> FloatArray:
    """TDP under a cap: ``TDP * percent / 100``, W.

    Raises:
        InvalidQuantityError: the TDP is NaN or negative, the percentage NaN or outside 0 (exclusive) to 100.
    """
    percent = finite("cap_percent", positive("cap_percent", cap_percent), maximum=100.0)
    return np.asarray(non_negative("tdp_w", tdp_w) * percent / 100.0)


def headroom_score(capped_w: npt.ArrayLike, measured_w: npt.ArrayLike) -> FloatArray:
    """Headroom of nodes as they are now, 0..100; see `joulie.domain.scoring.formulas.headroom_pct`.

    Raises:
        InvalidQuantityError: power is NaN or negative, or the capped power not above 0.
    """
    headroom = headroom_pct(positive("capped_w", capped_w), non_negative("measured_w", measured_w), 0.0)
    return np.clip(headroom, 0.0, 100.0)


def estimated_pue(cooling_stress: npt.ArrayLike) -> FloatArray:
    """PUE where the facility does not measure it: ``1.05 + 0.35 * coolingStress / 100``.

    Raises:
        InvalidQuantityError: the stress is NaN or outside 0..100.
    """
    return np.asarray(1.05 + 0.35 * finite("cooling_stress", cooling_stress, minimum=0.0, maximum=100.0) / 100.0)


def hardware_density(cores: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """Compute density of a node, 0..100: share of 192 cores, on GPU nodes averaged with the share of 8 GPUs.

    Raises:
        InvalidQuantityError: a count is NaN or negative.
    """
    devices = non_negative("gpus", gpus)
    by_cores = np.minimum(100.0, non_negative("cores", cores) / FULL_DENSITY_CORES * 100.0)
    by_gpus = np.minimum(100.0, devices / FULL_DENSITY_GPUS * 100.0)
    return np.where(devices > 0.0, (by_cores + by_gpus) / 2.0, by_cores)


def power_trend_w_per_min(time_s: npt.ArrayLike, power_w: npt.ArrayLike, valid: npt.ArrayLike = True) -> FloatArray:
    """Least-squares slope of power over time, W/min: by time, so irregular samples weigh what they should.

    Args:
        time_s: sample times, s, any origin, shape ``(..., n_samples)``.
        power_w: measured power, W, same shape.
        valid: which entries are samples; the others may hold any finite number.

    Returns:
        Slopes of shape ``(...)``; 0 with fewer than two samples, or all at one moment.

    Raises:
        InvalidQuantityError: a time is NaN, or power NaN or negative.
    """
    times_s, watts = np.broadcast_arrays(finite("time_s", time_s), non_negative("power_w", power_w))
    counted = np.broadcast_to(np.asarray(valid, dtype=np.bool_), times_s.shape)
    count = np.maximum(counted.sum(axis=-1, keepdims=True), 1)
    # Centred before squaring: times since the epoch would cost ten digits.
    since_mean_s = np.where(counted, times_s - times_s.sum(axis=-1, keepdims=True, where=counted) / count, 0.0)
    spread = (since_mean_s**2).sum(axis=-1)
    mean_w = watts.sum(axis=-1, keepdims=True, where=counted) / count
    covariance = (since_mean_s * np.where(counted, watts - mean_w, 0.0)).sum(axis=-1)
    # Samples of one moment leave a spread of rounding errors only.
    enough = (counted.sum(axis=-1) >= 2) & (spread > 1e-9)
    slope = np.divide(covariance, spread, out=np.zeros_like(spread), where=enough)
    return np.asarray(slope * SECONDS_PER_MINUTE)


def psu_stress(
    power_w: npt.ArrayLike,
    rack: IntArray,
    rack_capacity_w: npt.ArrayLike,
    cluster_capacity_w: float | None = None,
    rack_power_w: npt.ArrayLike = np.nan,
) -> FloatArray:
    """Share in use of the power capacity of each node's rack, 0..100, shape ``(n_nodes,)``.

    Args:
        power_w: power of each node, W, shape ``(n_nodes,)``.
        rack: index of each node's rack, -1 where it has none and the whole cluster counts, shape ``(n_nodes,)``.
        rack_capacity_w: capacity of each rack, W, shape ``(n_racks,)``.
        cluster_capacity_w: capacity of the cluster, W; None where nodes without a rack have no common limit.
        rack_power_w: power of each rack as it was measured, W, shape ``(n_racks,)``; NaN where its nodes are summed.

    Raises:
        InvalidQuantityError: power is NaN or negative, or a capacity not above 0.
    """
    watts = non_negative("power_w", power_w)
    cluster_w = np.inf if cluster_capacity_w is None else positive("cluster_capacity_w", cluster_capacity_w)
    capacity_w = np.append(positive("rack_capacity_w", rack_capacity_w), cluster_w)
    labelled = rack >= 0
    total_w = np.bincount(rack[labelled], weights=watts[labelled], minlength=len(capacity_w))
    summed_w, measured_w = np.broadcast_arrays(total_w[:-1], np.asarray(rack_power_w, dtype=np.float64))
    total_w[:-1] = np.where(np.isnan(measured_w), summed_w, measured_w)
    total_w[-1] = watts.sum()
    # Index -1, of a node without a rack, is the cluster's place.
    result: FloatArray = np.clip(total_w / capacity_w * 100.0, 0.0, 100.0)[rack]
    return result


@dataclass(frozen=True, eq=False)
class FleetReadings:
    """Facts and measurements of many nodes, as arrays of shape ``(n_nodes,)``; unknown entries are ignored.

    Attributes:
        cpu_tdp_w: maximum of one CPU package x sockets, W.
        gpu_tdp_w: default limit of one GPU x GPUs, W; 0 without GPUs.
        cores: cores.
        gpus: GPUs.
        hardware_known: whether the four above are known.
        measured_w: fresh power of the whole node, W.
        power_known: whether it is.
        cpu_cap_percent: CPU cap in force, 100 where uncapped.
        gpu_cap_percent: GPU cap in force, 100 where uncapped.
        ambient_k: temperature of the air that the node takes in, K; any positive value where unknown.
        ambient_known: whether it is known.
        zones: cooling zones, None where a node has none.
        rack: index of the rack, -1 where a node has none.
        rack_capacity_w: capacity of each rack, W, shape ``(n_racks,)``.
        cluster_capacity_w: capacity of the cluster, which counts for the nodes without a rack, W; None for no limit.
        sample_time_s: times of recent power samples, s, shape ``(n_nodes, n_samples)``.
        sample_power_w: power at those times, W, same shape.
        sample_valid: which of them are samples, same shape.
        rack_power_w: measured power of each rack, W, shape ``(n_racks,)``; NaN where its nodes are summed.
    """

    cpu_tdp_w: FloatArray
    gpu_tdp_w: FloatArray
    cores: FloatArray
    gpus: FloatArray
    hardware_known: BoolArray
    measured_w: FloatArray
    power_known: BoolArray
    cpu_cap_percent: FloatArray
    gpu_cap_percent: FloatArray
    ambient_k: FloatArray
    ambient_known: BoolArray
    zones: Sequence[str | None]
    rack: IntArray
    rack_capacity_w: FloatArray
    cluster_capacity_w: float | None
    sample_time_s: FloatArray
    sample_power_w: FloatArray
    sample_valid: BoolArray
    rack_power_w: FloatLike = np.nan


@dataclass(frozen=True, eq=False)
class FleetTwin:
    """The twins of many nodes, as arrays of shape ``(n_nodes,)``; NaN where a node is not `scored`."""

    scored: BoolArray
    headroom: FloatArray
    cooling_stress: FloatArray
    psu_stress: FloatArray
    density: FloatArray
    estimated_pue: FloatArray
    power_trend_w_per_min: FloatArray
    cpu_capped_w: FloatArray
    gpu_capped_w: FloatArray
    cpu_tdp_w: FloatArray
    gpu_tdp_w: FloatArray
    measured_w: FloatArray


def twin_fleet(
    readings: FleetReadings,
    *,
    cooling: CoolingStressModel = linear_cooling_stress,
    facility_pue: float | None = None,
) -> FleetTwin:
    """The twins of many nodes.

    A node without power data counts towards its rack with its capped power, the maximum that it may draw, so that lost
    telemetry does not hide load from the rack's breaker. (A node without hardware data cannot be counted.)

    Args:
        readings: all nodes of the cluster, since racks are summed over them.
        cooling: cooling model.
        facility_pue: measured PUE of the facility, which takes precedence over the estimate.

    Raises:
        InvalidQuantityError: a known entry is NaN or out of range.
    """
    known = readings.hardware_known
    scored = known & readings.power_known
    # Nodes without hardware data get a TDP of 1 W, to avoid a division by zero; their results are dropped below.
    cpu_tdp_w = np.where(known, readings.cpu_tdp_w, 1.0)
    gpu_tdp_w = np.where(known, readings.gpu_tdp_w, 0.0)
    cpu_capped_w = capped_power_w(cpu_tdp_w, readings.cpu_cap_percent)
    gpu_capped_w = capped_power_w(gpu_tdp_w, readings.gpu_cap_percent)
    capped_w = cpu_capped_w + gpu_capped_w
    unmeasured_w = np.where(known, capped_w, 0.0)
    draw_w = np.where(readings.power_known, readings.measured_w, unmeasured_w)
    headroom = headroom_score(capped_w, draw_w)
    stress = cooling(draw_w, cpu_tdp_w + gpu_tdp_w, readings.ambient_k, readings.ambient_known, readings.zones)
    if facility_pue is None:
        pue = estimated_pue(stress)
    else:
        pue = np.broadcast_to(finite("facility_pue", facility_pue, minimum=1.0), known.shape)
    results = (
        headroom,
        stress,
        psu_stress(draw_w, readings.rack, readings.rack_capacity_w, readings.cluster_capacity_w, readings.rack_power_w),
        hardware_density(np.where(known, readings.cores, 0.0), np.where(known, readings.gpus, 0.0)),
        pue,
        power_trend_w_per_min(readings.sample_time_s, readings.sample_power_w, readings.sample_valid),
        cpu_capped_w,
        gpu_capped_w,
        cpu_tdp_w,
        gpu_tdp_w,
        draw_w,
    )
    return FleetTwin(scored, *(np.where(scored, result, np.nan) for result in results))
