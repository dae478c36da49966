"""Power of nodes that no sensor measures, from their hardware and how busy it is, with an error interval.

SPECpower_ssj2008 measures the power of whole servers at the plug, idle and at full load. What is known of a node
decides how well its server's power can be told (`Basis`), and for each basis `CALIBRATION` holds what the published
results say: the power that is expected, and the factors that bound it. How often they do, for vendors and years that
they were not calibrated on, is what ``joulie bench power-estimate`` measures.

Joulie's node power is that of the CPU packages and GPUs alone. Memory, fans and supplies are taken off as `CpuPower`
does. No public data has both powers of many servers, so the coverage of the packages' interval is not measured: its
lower end keeps the packages' share of the server, its upper end blames them for all that the server may draw more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import Catalogue, Provenance
from joulie.domain.hardware.estimates import (
    GPU_IDLE_SHARE,
    GPU_LIMITS_W,
    THREADS_PER_CORE,
    TYPICAL_FULL_SHARE,
    TYPICAL_IDLE_SHARE,
)
from joulie.domain.hardware.models import CURVE_POINTS, GpuModel
from joulie.domain.hardware.resolve import GpuDevices, ResolvedHardware
from joulie.domain.marginal import gpu_max_or_fallback_w
from joulie.domain.power.cpu import DEFAULT_FREQUENCY_FLOOR, PLATFORM_SHARE, CpuPower
from joulie.domain.power.curves import interpolate_even
from joulie.domain.power.gpu import natural_power_w
from joulie.domain.units import FloatArray, FloatLike, IntArray, finite, positive

COVERAGE = 0.90
"""Minimum share of servers whose power lies within the interval."""
LOADS = np.linspace(0.0, 1.0, CURVE_POINTS)
"""Utilisations that curves are given at."""


class Basis(StrEnum):
    """Basis of an estimate, best first."""

    CURVE = "curve"
    """A measured power curve of this CPU, in another server."""
    TDP = "tdp"
    """The CPUs' TDP."""
    CORES = "cores"
    """The number of physical cores."""


class End(NamedTuple):
    """Power of a server at one load, ``scale_w * size ** exponent``, and the factors that bound it.

    The size is W on the curve, W of TDP, or cores.
    """

    scale_w: float
    exponent: float
    low: float
    high: float

    def expected_w(self, size: FloatLike) -> FloatLike:
        """Power of servers of a size, W."""
        return self.scale_w * size**self.exponent


class Band(NamedTuple):
    """Lowest, expected and highest value at each of `LOADS`; shapes ``(n_loads,)``."""

    low: FloatArray
    expected: FloatArray
    high: FloatArray


SHAPES = Band(
    np.array([0.0, 0.07, 0.16, 0.23, 0.32, 0.37, 0.45, 0.54, 0.62, 0.77, 1.0]),
    np.array([0.0, 0.17, 0.24, 0.31, 0.38, 0.46, 0.54, 0.62, 0.72, 0.86, 1.0]),
    np.array([0.0, 0.22, 0.32, 0.42, 0.52, 0.63, 0.75, 0.82, 0.89, 0.98, 1.0]),
)
"""Share of the way from idle to full load, of ten published curves: three of the catalogue, seven of the benchmark."""


class Ends(NamedTuple):
    """Power of servers when idle and at full load."""

    idle: End
    full: End

    def of_size_w(self, size: float, shapes: Band = SHAPES) -> Band:
        """Power of servers of a size, W."""
        idle_w, full_w = self.idle.expected_w(size), self.full.expected_w(size)
        ends_w = (
            (idle_w * self.idle.low, full_w * self.full.low),
            (idle_w, full_w),
            (idle_w * self.idle.high, full_w * self.full.high),
        )
        return Band(*(low_w + (high_w - low_w) * shape for (low_w, high_w), shape in zip(ends_w, shapes, strict=True)))

    def around_w(self, curve_w: FloatArray) -> Band:
        """Power of servers of which a curve is expected, W."""
        low = self.idle.low + (self.full.low - self.idle.low) * LOADS
        high = self.idle.high + (self.full.high - self.idle.high) * LOADS
        return Band(curve_w * low, curve_w, curve_w * high)


CALIBRATION: Mapping[Basis, Ends] = MappingProxyType(
    {
        Basis.CURVE: Ends(End(1.0, 1.0, 0.427, 2.10), End(1.0, 1.0, 0.631, 1.66)),
        Basis.TDP: Ends(End(TYPICAL_IDLE_SHARE, 1.0, 0.398, 3.52), End(TYPICAL_FULL_SHARE, 1.0, 0.575, 1.79)),
        Basis.CORES: Ends(End(5.91, 0.603, 0.509, 3.58), End(23.5, 0.675, 0.469, 2.60)),
    }
)
"""Of 515 SPECpower_ssj2008 results published since 2015, as ``joulie bench power-estimate`` calibrates them anew: its
committed ranges hold these numbers to the data (cloud-carbon-footprint/ccf-coefficients, 9 March 2026, Apache-2.0)."""

GPU_BUSY_LOW = 0.14
"""Minimum share of its limit that a busy GPU draws: of 98 training jobs on A40 and P100, 5 % drew less on the latter
(Zeus, NSDI'23)."""
GPU_IDLE_FACTOR = 2.0
"""How far idle power may be from the catalogue's, which is assumed for most models."""


@dataclass(frozen=True, eq=False)
class PowerEstimate:
    """Power of nodes, and the interval that it lies in.

    Attributes:
        power_w: expected power, W, shape ``(n_nodes,)``; NaN where not even the number of cores is known.
        low_w: lower end of the interval, W, shape ``(n_nodes,)``.
        high_w: upper end, W, shape ``(n_nodes,)``.
    """

    power_w: FloatArray
    low_w: FloatArray
    high_w: FloatArray


def estimate_server_power(
    hardware: Sequence[ResolvedHardware], cpu_util: npt.ArrayLike, catalogue: Catalogue
) -> PowerEstimate:
    """Power of servers at the plug, without GPUs: what SPECpower measures, and `COVERAGE` is measured on.

    Arguments and errors as in `estimate_cpu_power`.
    """
    util = _utils("cpu_util", cpu_util, len(hardware))

    def of_kind(kind: ResolvedHardware, nodes: IntArray) -> PowerEstimate | None:
        server = _Server.of(kind, catalogue)
        return None if server is None else server.at_the_plug(util[nodes])

    return _by_kind(hardware, of_kind)


def estimate_cpu_power(
    hardware: Sequence[ResolvedHardware],
    cpu_util: npt.ArrayLike,
    catalogue: Catalogue,
    *,
    cap_percent: npt.ArrayLike = 100.0,
) -> PowerEstimate:
    """Power of the CPU packages of nodes.

    A node with fewer cores than its CPU has is a virtual machine, and gets its share of the server.

    Args:
        hardware: of each node.
        cpu_util: busy cores over cores of the node, 0..1, shape ``(n_nodes,)``.
        catalogue: known models.
        cap_percent: CPU cap in force, percent of the TDP.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    util = _utils("cpu_util", cpu_util, len(hardware))
    cap = _caps("cpu_cap_percent", cap_percent, len(hardware))

    def of_kind(kind: ResolvedHardware, nodes: IntArray) -> PowerEstimate | None:
        server = _Server.of(kind, catalogue)
        return None if server is None else server.packages(util[nodes], cap[nodes])

    return _by_kind(hardware, of_kind)


def estimate_gpu_power(
    hardware: Sequence[ResolvedHardware],
    gpu_util: npt.ArrayLike,
    catalogue: Catalogue,
    *,
    cap_percent: npt.ArrayLike = 100.0,
) -> PowerEstimate:
    """Power of the GPUs of nodes, 0 where a node has none.

    Utilisation says how long a device did anything, not how much: while busy it draws `GPU_BUSY_LOW` of its limit, or
    all of it. That interval is what a device can do; it is not calibrated.

    Args:
        hardware: of each node.
        gpu_util: mean over the node's GPUs, 0..1, shape ``(n_nodes,)``; ignored where a node has none.
        catalogue: known models.
        cap_percent: GPU cap in force, percent of the default limit.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    has_gpus = np.array([kind.gpu is not None for kind in hardware], dtype=np.bool_)
    util = _utils("gpu_util", np.where(has_gpus, gpu_util, 0.0), len(hardware))
    cap = _caps("gpu_cap_percent", cap_percent, len(hardware))

    def of_kind(kind: ResolvedHardware, nodes: IntArray) -> PowerEstimate:
        if kind.gpu is None:
            return PowerEstimate(*np.zeros((3, len(nodes))))
        return _gpus(kind.gpu, util[nodes], cap[nodes], catalogue)

    return _by_kind(hardware, of_kind)


@dataclass(frozen=True, eq=False)
class _Server:
    """Power of servers of one kind.

    Attributes:
        power: what is expected of it.
        band_w: the range that it lies in.
        max_w: what a cap of 100 % is, W; inf where there cannot be one, since nobody knows the TDP.
        share: of the server that the node has.
        share_high: the same if what passes for its threads are whole cores.
    """

    power: CpuPower
    band_w: Band
    max_w: float
    share: float = 1.0
    share_high: float = 1.0

    @classmethod
    def of(cls, kind: ResolvedHardware, catalogue: Catalogue) -> _Server | None:
        """The server that a node runs on; None if neither its CPUs, nor their TDP, nor its cores are known."""
        tdp_w, cores = kind.cpu.packages_max_w, kind.cpu.cores
        model = None if kind.cpu.model is None else catalogue.cpu(kind.cpu.model).model
        if model is not None and tdp_w is not None:
            power = CpuPower.of(model, kind.cpu.sockets)
            is_measured = model.evidence["curve_w"].provenance is Provenance.MEASURED
            band_w = (
                CALIBRATION[Basis.CURVE].around_w(power.wall_w(LOADS))
                if is_measured
                else CALIBRATION[Basis.TDP].of_size_w(tdp_w)
            )
            physical = kind.cpu.sockets * model.cores_per_socket
            if 0.0 < cores < physical:
                return cls(power, band_w, tdp_w, cores / physical, min(1.0, THREADS_PER_CORE * cores / physical))
            return cls(power, band_w, tdp_w)
        if tdp_w is not None:
            band_w = CALIBRATION[Basis.TDP].of_size_w(tdp_w)
            return cls(_power(band_w.expected, tdp_w), band_w, tdp_w)
        if cores <= 0.0:
            return None
        band_w = CALIBRATION[Basis.CORES].of_size_w(cores)
        likely_tdp_w = (1.0 - PLATFORM_SHARE) * band_w.expected[-1]
        return cls(_power(band_w.expected, likely_tdp_w), band_w, np.inf)

    def at_the_plug(self, util: FloatArray) -> PowerEstimate:
        """Power of the whole server."""
        wall_w = self.power.wall_w(util)
        low_w, high_w = interpolate_even(self.band_w.low, util), interpolate_even(self.band_w.high, util)
        return self._of_node(wall_w, low_w, high_w)

    def packages(self, util: FloatArray, cap_percent: FloatArray) -> PowerEstimate:
        """Power of its CPU packages."""
        cap_w = self.max_w * cap_percent / 100.0
        wall_w = self.power.wall_w(util)
        package_w = self.power.operate(util, cap_w).package_w
        low_w = package_w * interpolate_even(self.band_w.low, util) / wall_w
        high_w = package_w + interpolate_even(self.band_w.high, util) - wall_w
        # A cap binds the packages, however much the server might draw.
        return self._of_node(package_w, low_w, np.minimum(high_w, cap_w))

    def _of_node(self, power_w: FloatArray, low_w: FloatArray, high_w: FloatArray) -> PowerEstimate:
        """The node's part; a curve may leave the range of its basis, but no estimate its interval."""
        return PowerEstimate(
            power_w * self.share,
            np.minimum(low_w, power_w) * self.share,
            np.maximum(high_w, power_w) * self.share_high,
        )


def _power(curve_w: FloatArray, tdp_w: float) -> CpuPower:
    return CpuPower(curve_w, np.asarray(tdp_w), np.asarray(1.0), np.asarray(DEFAULT_FREQUENCY_FLOOR))


def _gpus(devices: GpuDevices, util: FloatArray, cap_percent: FloatArray, catalogue: Catalogue) -> PowerEstimate:
    model = None if devices.model is None else catalogue.gpu(devices.model).model
    if devices.cap_range is None:
        limit_w, (limit_low_w, limit_high_w) = gpu_max_or_fallback_w(None, devices.vendor), GPU_LIMITS_W
    else:
        limit_w = limit_low_w = limit_high_w = devices.cap_range.base_w
    idle_w = _idle_w(model, limit_w)
    capped = cap_percent / 100.0
    power_w = np.minimum(natural_power_w(idle_w, limit_w, util), np.maximum(limit_w * capped, idle_w))
    idle_low_w, idle_high_w = idle_w / GPU_IDLE_FACTOR, idle_w * GPU_IDLE_FACTOR
    busy_low_w = max(GPU_BUSY_LOW * limit_low_w, idle_low_w)
    busy_high_w = np.maximum(limit_high_w * capped, idle_high_w)
    return PowerEstimate(
        devices.count * power_w,
        devices.count * np.minimum(idle_low_w + (busy_low_w - idle_low_w) * util, power_w),
        devices.count * np.maximum(idle_high_w + (busy_high_w - idle_high_w) * util, power_w),
    )


def _idle_w(model: GpuModel | None, limit_w: float) -> float:
    """Idle power of one GPU of this limit, W."""
    return min(GPU_IDLE_SHARE * limit_w if model is None else model.idle_w, limit_w)


def gpu_idle_w(hardware: ResolvedHardware, catalogue: Catalogue) -> float:
    """Idle power of all GPUs of a node, W; 0 without GPUs."""
    devices = hardware.gpu
    if devices is None:
        return 0.0
    model = None if devices.model is None else catalogue.gpu(devices.model).model
    known_w = None if devices.cap_range is None else devices.cap_range.base_w
    return devices.count * _idle_w(model, gpu_max_or_fallback_w(known_w, devices.vendor))


def _by_kind(
    hardware: Sequence[ResolvedHardware], of_kind: Callable[[ResolvedHardware, IntArray], PowerEstimate | None]
) -> PowerEstimate:
    """Estimates of all nodes, those of equal hardware worked out together; NaN where `of_kind` knows nothing."""
    kinds: dict[ResolvedHardware, int] = {}
    kind_of_node = np.array([kinds.setdefault(one, len(kinds)) for one in hardware], dtype=np.int64)
    estimate = PowerEstimate(*np.full((3, len(hardware)), np.nan))
    for kind, number in kinds.items():
        nodes = np.flatnonzero(kind_of_node == number)
        found = of_kind(kind, nodes)
        if found is not None:
            estimate.power_w[nodes], estimate.low_w[nodes], estimate.high_w[nodes] = (
                found.power_w,
                found.low_w,
                found.high_w,
            )
    return estimate


def _utils(quantity: str, util: npt.ArrayLike, n_nodes: int) -> FloatArray:
    return np.broadcast_to(finite(quantity, util, minimum=0.0, maximum=1.0), (n_nodes,))


def _caps(quantity: str, percent: npt.ArrayLike, n_nodes: int) -> FloatArray:
    return np.broadcast_to(positive(quantity, finite(quantity, percent, maximum=100.0)), (n_nodes,))
