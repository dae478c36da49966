"""Caps by energy per work: the limit of each device with the minimum energy for its work, within a slowdown bound.

What a limit saves and what it costs come from the models of `joulie.domain.power`: the measured response to power
limits for GPUs, power curves and clock for CPUs. The
spread between jobs counts as a risk: the bound holds for the 95th percentile of jobs, not for the median one.

A device outside the catalogue is planned by its own range: a GPU as one of its limit, a CPU
as a typical server of its TDP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from joulie.domain.hardware import CapRange
from joulie.domain.hardware.catalogue import Catalogue
from joulie.domain.hardware.estimates import GPU_IDLE_SHARE
from joulie.domain.hardware.resolve import CpuDevices, GpuDevices, ResolvedHardware
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.gpu import MEASURED_RESPONSE, LimitResponse, Throughput, operate_gpu
from joulie.domain.units import FloatArray, finite

RISK_QUANTILE = 0.95
"""Quantile of jobs for which the bound holds."""
_STEPS = 20
"""Kinds of jobs by utilisation, and by how they take a cap: each stands for as many jobs as any other."""
_MIDPOINTS = (np.arange(_STEPS) + 0.5) / _STEPS
_SIGMAS = np.array([NormalDist().inv_cdf(share) for share in _MIDPOINTS.tolist()])
_P10_SIGMAS = -NormalDist().inv_cdf(0.10)
_MIN_THROUGHPUT = 0.01
_ROUNDING = 1e-9
_NO_SLOWDOWN = 1.0


@dataclass(frozen=True)
class EnergyBounds:
    """Constraints on caps by energy per work.

    Attributes:
        performance_slowdown: maximum run time of performance work under caps, over that without.
        standard_slowdown: the same for standard work.
        gpu_util_low: minimum utilisation of a busy GPU, 0..1; of each GPU, not the mean of a node.
        gpu_util_high: maximum; utilisation is taken as uniform between the two. A job above it may be slowed further.
        count_spread: whether jobs differ in their response to a cap as measured ones do; otherwise all are the median
            job.
    """

    performance_slowdown: float = 1.02
    standard_slowdown: float = 1.15
    gpu_util_low: float = 0.2
    gpu_util_high: float = 1.0
    count_spread: bool = True

    def __post_init__(self) -> None:
        finite("performance_slowdown", self.performance_slowdown, minimum=1.0)
        finite("standard_slowdown", self.standard_slowdown, minimum=1.0)
        finite("gpu_util_high", self.gpu_util_high, minimum=0.01, maximum=1.0)
        finite("gpu_util_low", self.gpu_util_low, minimum=0.01, maximum=self.gpu_util_high)


@dataclass(frozen=True)
class CapChoice:
    """A cap and its effect; 100 % where no cap saves energy within the bound.

    Attributes:
        percent: of the device's base.
        energy_per_work: of a GPU all that it draws while it works, of a CPU what the work adds to its idle power: as
            a share of that without a cap.
        slowdown: of the job at the risk quantile.
    """

    percent: float = 100.0
    energy_per_work: float = 1.0
    slowdown: float = 1.0


@dataclass(frozen=True)
class DeviceCaps:
    """The caps of one kind of node; None where the range of the device is unknown, or there is none."""

    cpu: CapChoice | None
    gpu: CapChoice | None

    @property
    def energy_per_work(self) -> float:
        """Of the devices that decide it: the GPUs where there are any."""
        choice = self.gpu or self.cpu
        return 1.0 if choice is None else choice.energy_per_work


@dataclass(frozen=True)
class SplitCaps:
    """The caps of one kind of node by power profile."""

    performance: DeviceCaps
    eco: DeviceCaps

    @property
    def eco_gain(self) -> float:
        """Energy per work on an eco node as a share of that on a performance node: the lower, the more eco saves."""
        return self.eco.energy_per_work / self.performance.energy_per_work


def split_caps(hardware: ResolvedHardware, catalogue: Catalogue, bounds: EnergyBounds) -> SplitCaps:
    """The caps of nodes with this hardware."""
    strict = _device_caps(hardware, catalogue, bounds, bounds.performance_slowdown)
    return SplitCaps(strict, _device_caps(hardware, catalogue, bounds, bounds.standard_slowdown))


def _device_caps(hardware: ResolvedHardware, catalogue: Catalogue, bounds: EnergyBounds, slowdown: float) -> DeviceCaps:
    gpu = None
    if hardware.gpu is not None and hardware.gpu.cap_range is not None:
        power = GpuPower.of(hardware.gpu, hardware.gpu.cap_range, catalogue)
        gpu = gpu_choice(power, hardware.gpu.cap_range, slowdown, bounds)
    cpu = None
    if hardware.cpu.cap_range is not None:
        # GPU work waits for CPU work, so the slowdowns of both multiply: beside GPUs, which draw most, CPUs have none.
        bound = slowdown if hardware.gpu is None else _NO_SLOWDOWN
        processor = _cpu_power(hardware.cpu, hardware.cpu.cap_range, catalogue)
        cpu = cpu_choice(processor, hardware.cpu.sockets, hardware.cpu.cap_range, bound)
    return DeviceCaps(cpu, gpu)


def _cpu_power(cpu: CpuDevices, limits: CapRange, catalogue: Catalogue) -> CpuPower:
    model = None if cpu.model is None else catalogue.cpu(cpu.model).model
    return CpuPower.typical(limits.base_w * cpu.sockets) if model is None else CpuPower.of(model, cpu.sockets)


class GpuPower(NamedTuple):
    """How one GPU draws and works.

    Attributes:
        idle_w: draw of an idle device, W.
        full_w: draw at full compute load without a cap, W.
        response: power and rate of its work under a cap.
    """

    idle_w: float
    full_w: float
    response: LimitResponse = MEASURED_RESPONSE

    @classmethod
    def of(cls, gpu: GpuDevices, limits: CapRange, catalogue: Catalogue) -> GpuPower:
        """By the catalogue's model, else by the device's own default limit."""
        model = None if gpu.model is None else catalogue.gpu(gpu.model).model
        if model is None:
            return cls(GPU_IDLE_SHARE * limits.base_w, limits.base_w)
        return cls(model.idle_w, model.default_w)


def gpu_choice(gpu: GpuPower, limits: CapRange, slowdown: float, bounds: EnergyBounds) -> CapChoice:
    """The limit of one GPU with the minimum energy per work among those within the bound.

    Args:
        gpu: its power and its throughput.
        limits: what the device accepts.
        slowdown: run time over that without a cap, at most, for the job at the risk quantile.
        bounds: how jobs use GPUs, and whether they differ.
    """
    percents = _percents(limits)
    utils = bounds.gpu_util_low + (bounds.gpu_util_high - bounds.gpu_util_low) * _MIDPOINTS
    caps_w = percents[:, np.newaxis] / 100.0 * limits.base_w
    state = operate_gpu(gpu.idle_w, gpu.full_w, utils[np.newaxis, :], caps_w, response=gpu.response)
    rates = _rates(state.throughput, spread=bounds.count_spread)
    power_w = state.power_w[..., np.newaxis]
    energy = (power_w / rates).mean(axis=(1, 2)) / state.natural_w.mean()
    slowdowns = np.quantile(1.0 / rates.reshape(len(percents), -1), RISK_QUANTILE, axis=1)
    return _min_energy(percents, energy, slowdowns, slowdown)


def cpu_choice(model: CpuPower, sockets: int, limits: CapRange, slowdown: float) -> CapChoice:
    """The limit of one CPU package with the minimum energy per work among those within the bound.

    The bound is checked for the worst case: a node at full load with compute-bound work.
    """
    percents = _percents(limits)
    state = model.operate(1.0, percents / 100.0 * limits.base_w * sockets)
    free_w = float(model.operate(1.0).package_w - model.package_idle_w)
    energy = (state.package_w - model.package_idle_w) / free_w / state.frequency
    return _min_energy(percents, np.asarray(energy), 1.0 / state.frequency, slowdown)


def _percents(limits: CapRange) -> FloatArray:
    """Whole percents of the base that the device accepts."""
    return np.arange(max(1, math.ceil(limits.min_w / limits.base_w * 100.0 - _ROUNDING)), 101, dtype=np.float64)


def _rates(throughput: Throughput, *, spread: bool) -> FloatArray:
    """Throughput from the most to the least affected job, on one more axis: half-normal to both sides of the median."""
    median = throughput.median[..., np.newaxis]
    if not spread:
        return median
    below = (throughput.median - throughput.p10)[..., np.newaxis]
    above = (throughput.p90 - throughput.median)[..., np.newaxis]
    rates = median + _SIGMAS / _P10_SIGMAS * np.where(_SIGMAS < 0.0, below, above)
    return np.clip(rates, _MIN_THROUGHPUT, 1.0)


def _min_energy(percents: FloatArray, energy: FloatArray, slowdowns: FloatArray, bound: float) -> CapChoice:
    """The choice of minimum energy within the bound; among equal ones the highest limit."""
    allowed = slowdowns <= bound + _ROUNDING
    if not allowed.any():
        return CapChoice()
    best = float(energy[allowed].min())
    index = int(np.flatnonzero(allowed & (energy <= best + _ROUNDING))[-1])
    return CapChoice(float(percents[index]), float(energy[index]), float(slowdowns[index]))
