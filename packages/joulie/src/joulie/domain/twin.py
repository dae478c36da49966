"""The digital twin: from what is known of nodes to their scores, O(1) a node.

The formulas take arrays over nodes and scalars alike. `twin_nodes` applies them to typed readings and says why a node
has no scores, for a node without data must never look like the best one: whoever needs a number for such a node uses
`NEUTRAL_SCORE`. Source of all formulas: spec, control loop, digital twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K, CoolingStressModel, linear_cooling_stress
from joulie.domain.units import (
    SECONDS_PER_MINUTE,
    BoolArray,
    FloatArray,
    FloatLike,
    IntArray,
    InvalidQuantityError,
    finite,
    non_negative,
    positive,
)

NEUTRAL_SCORE = 50.0
"""What stands for the score of a node without data."""
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
    """Share of the capped power that is left: ``clamp((capped - measured) / capped * 100, 0, 100)``.

    Raises:
        InvalidQuantityError: power is NaN or negative, or the capped power not above 0.
    """
    budget_w = positive("capped_w", capped_w)
    return np.clip((budget_w - non_negative("measured_w", measured_w)) / budget_w * 100.0, 0.0, 100.0)


def estimated_pue(cooling_stress: npt.ArrayLike) -> FloatArray:
    """PUE where the facility does not measure it: ``1.05 + 0.35 * coolingStress / 100``.

    Raises:
        InvalidQuantityError: the stress is NaN or outside 0..100.
    """
    return np.asarray(1.05 + 0.35 * finite("cooling_stress", cooling_stress, minimum=0.0, maximum=100.0) / 100.0)


def hardware_density(cores: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """How much computing a node holds, 0..100: cores of 192, on GPU nodes averaged with GPUs of 8.

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
    cluster_capacity_w: float = DEFAULT_RACK_CAPACITY_W,
    rack_power_w: npt.ArrayLike = np.nan,
) -> FloatArray:
    """Share in use of the power capacity of each node's rack, 0..100, shape ``(n_nodes,)``.

    Args:
        power_w: power of each node, W, shape ``(n_nodes,)``.
        rack: index of each node's rack, -1 where it has none and the whole cluster counts, shape ``(n_nodes,)``.
        rack_capacity_w: capacity of each rack, W, shape ``(n_racks,)``.
        cluster_capacity_w: capacity of the cluster, W.
        rack_power_w: power of each rack as it was measured, W, shape ``(n_racks,)``; NaN where its nodes are summed.

    Raises:
        InvalidQuantityError: power is NaN or negative, or a capacity not above 0.
    """
    watts = non_negative("power_w", power_w)
    capacity_w = np.append(
        positive("rack_capacity_w", rack_capacity_w), positive("cluster_capacity_w", cluster_capacity_w)
    )
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
    """What is known of many nodes, as arrays of shape ``(n_nodes,)``; entries that are not known are ignored.

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
        cluster_capacity_w: capacity for the nodes without a rack, W.
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
    cluster_capacity_w: float
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

    def headroom_or_neutral(self) -> FloatArray:
        """Headroom for those who need numbers: neutral without data."""
        return np.where(self.scored, self.headroom, NEUTRAL_SCORE)


def twin_fleet(
    readings: FleetReadings,
    *,
    cooling: CoolingStressModel = linear_cooling_stress,
    facility_pue: float | None = None,
) -> FleetTwin:
    """The twins of many nodes.

    A node without power data counts towards its rack with its capped power, the most that it may draw: the breaker does
    not care that telemetry is down. (A node of which nothing is known cannot be counted.)

    Args:
        readings: all nodes of the cluster, since racks are summed over them.
        cooling: cooling model.
        facility_pue: measured PUE of the facility, which goes before the estimate.

    Raises:
        InvalidQuantityError: a known entry is NaN or out of range.
    """
    known = readings.hardware_known
    scored = known & readings.power_known
    # Nodes without hardware get a harmless watt to be divided by; their results are thrown away below.
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


@dataclass(frozen=True)
class NodeLimits:
    """The power that a node's hardware can draw.

    Attributes:
        cpu_tdp_w: maximum of one CPU package x sockets, W.
        gpu_tdp_w: default limit of one GPU x GPUs, W; 0 without GPUs.
        cores: cores of the node.
        gpus: GPUs of the node.
    """

    cpu_tdp_w: float
    gpu_tdp_w: float
    cores: int
    gpus: int

    def __post_init__(self) -> None:
        positive("cpu_tdp_w", self.cpu_tdp_w)
        non_negative("gpu_tdp_w", self.gpu_tdp_w)
        positive("cores", self.cores)
        non_negative("gpus", self.gpus)


@dataclass(frozen=True)
class PowerSample:
    """Measured power of a node at a time, s since any common origin."""

    time_s: float
    power_w: float


@dataclass(frozen=True)
class NodeReading:
    """What is known of one node; None is what is not known.

    Attributes:
        node: its name.
        limits: None where the hardware is not recognised.
        measured_w: fresh power of the whole node, W; None where every source is stale or missing.
        cpu_cap_percent: CPU cap in force, percent; None uncapped.
        gpu_cap_percent: GPU cap in force, percent; None uncapped.
        samples: recent power, in any order.
        rack: value of its rack label.
        zone: value of its cooling-zone label.
        ambient_k: temperature of the air that it takes in, K.
    """

    node: str
    limits: NodeLimits | None
    measured_w: float | None
    cpu_cap_percent: float | None = None
    gpu_cap_percent: float | None = None
    samples: tuple[PowerSample, ...] = ()
    rack: str | None = None
    zone: str | None = None
    ambient_k: float | None = None


@dataclass(frozen=True)
class TwinScores:
    """The twin's view of one node, in the units of NodeTwin's status."""

    headroom: float
    cooling_stress: float
    psu_stress: float
    density: float
    estimated_pue: float
    power_trend_w_per_min: float
    cpu_capped_w: float
    gpu_capped_w: float
    cpu_tdp_w: float
    gpu_tdp_w: float
    measured_w: float

    @property
    def capped_w(self) -> float:
        """Power that the node may draw under its caps, W."""
        return self.cpu_capped_w + self.gpu_capped_w

    @property
    def tdp_w(self) -> float:
        """Power that the node may draw without caps, W."""
        return self.cpu_tdp_w + self.gpu_tdp_w


@dataclass(frozen=True)
class NodeTwin:
    """One node's scores, or the reason why it has none; never both."""

    node: str
    scores: TwinScores | None
    missing: str | None

    @property
    def headroom_or_neutral(self) -> float:
        """Headroom for those who need a number: neutral without data."""
        return NEUTRAL_SCORE if self.scores is None else self.scores.headroom


def twin_nodes(
    readings: Sequence[NodeReading],
    *,
    rack_capacity_w: Mapping[str, float] | None = None,
    default_capacity_w: float = DEFAULT_RACK_CAPACITY_W,
    cooling: CoolingStressModel = linear_cooling_stress,
    facility_pue: float | None = None,
) -> tuple[NodeTwin, ...]:
    """The twins of nodes, in the order of `readings`; `twin_fleet` for named nodes, with reasons.

    Args:
        readings: all nodes of the cluster, since racks are summed over them.
        rack_capacity_w: capacity by rack, W.
        default_capacity_w: capacity of every other rack, and for the nodes without one, W.
        cooling: cooling model.
        facility_pue: measured PUE of the facility, which goes before the estimate.

    Raises:
        InvalidQuantityError: a reading is NaN or out of range; the message names the node.
    """
    try:
        packed = pack_readings(readings, rack_capacity_w or {}, default_capacity_w)
        fleet = twin_fleet(packed, cooling=cooling, facility_pue=facility_pue)
    except InvalidQuantityError:
        _name_the_bad_node(readings)
        raise
    columns = [getattr(fleet, column.name) for column in fields(TwinScores)]
    rows = np.column_stack(columns).tolist()
    return tuple(_twin(reading, row) for reading, row in zip(readings, rows, strict=True))


def _twin(reading: NodeReading, row: list[float]) -> NodeTwin:
    if reading.limits is None:
        return NodeTwin(reading.node, None, "hardware unknown: neither NodeHardware nor labels name a known model")
    if reading.measured_w is None:
        return NodeTwin(reading.node, None, "power unknown: every source of measurements is stale or missing")
    return NodeTwin(reading.node, TwinScores(*row), None)


def _name_the_bad_node(readings: Sequence[NodeReading]) -> None:
    """Raise the error of the first bad reading with its node's name: among ten thousand an index helps nobody."""
    for reading in readings:
        try:
            twin_fleet(pack_readings([reading]))
        except InvalidQuantityError as error:
            raise InvalidQuantityError(error.quantity, f"node {reading.node}: {error}") from error


def pack_readings(
    readings: Sequence[NodeReading],
    rack_capacity_w: Mapping[str, float] | None = None,
    default_capacity_w: float = DEFAULT_RACK_CAPACITY_W,
) -> FleetReadings:
    """Readings as arrays, in their order; see `twin_nodes` for the arguments."""
    hardware = [
        (limits.cpu_tdp_w, limits.gpu_tdp_w, limits.cores, limits.gpus) if (limits := r.limits) else (0.0, 0.0, 0, 0)
        for r in readings
    ]
    cpu_tdp_w, gpu_tdp_w, cores, gpus = np.array(hardware, dtype=np.float64).reshape(-1, 4).T
    racks = sorted({r.rack for r in readings if r.rack is not None})
    index: dict[str | None, int] = {rack: position for position, rack in enumerate(racks)}
    capacities_w = rack_capacity_w or {}
    counts = np.array([len(r.samples) for r in readings], dtype=np.int64)
    valid = np.arange(counts.max(initial=0)) < counts[:, np.newaxis]
    time_s = np.zeros(valid.shape)
    power_w = np.zeros(valid.shape)
    time_s[valid] = [sample.time_s for r in readings for sample in r.samples]
    power_w[valid] = [sample.power_w for r in readings for sample in r.samples]
    return FleetReadings(
        cpu_tdp_w=cpu_tdp_w,
        gpu_tdp_w=gpu_tdp_w,
        cores=cores,
        gpus=gpus,
        hardware_known=np.array([r.limits is not None for r in readings], dtype=np.bool_),
        measured_w=np.array([0.0 if r.measured_w is None else r.measured_w for r in readings]),
        power_known=np.array([r.measured_w is not None for r in readings], dtype=np.bool_),
        cpu_cap_percent=np.array([100.0 if r.cpu_cap_percent is None else r.cpu_cap_percent for r in readings]),
        gpu_cap_percent=np.array([100.0 if r.gpu_cap_percent is None else r.gpu_cap_percent for r in readings]),
        ambient_k=np.array([REFERENCE_AMBIENT_K if r.ambient_k is None else r.ambient_k for r in readings]),
        ambient_known=np.array([r.ambient_k is not None for r in readings], dtype=np.bool_),
        zones=[r.zone for r in readings],
        rack=np.array([index.get(r.rack, -1) for r in readings], dtype=np.int64),
        rack_capacity_w=np.array([capacities_w.get(rack, default_capacity_w) for rack in racks]),
        cluster_capacity_w=default_capacity_w,
        sample_time_s=time_s,
        sample_power_w=power_w,
        sample_valid=valid,
    )
