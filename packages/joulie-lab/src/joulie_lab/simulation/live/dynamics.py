"""State of simulated nodes, and how power limits and clocks follow their targets with a lag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.units import ZERO_CELSIUS_K, BoolArray, FloatArray, finite, non_negative, positive

SETTLED_SHARE = 1e-3
"""Relative distance from its target below which a limit counts as settled."""


@dataclass(frozen=True)
class Dynamics:
    """Time constants and thermal limits of simulated nodes; all of them assumed.

    Attributes:
        cpu_cap_tau_s: lag of a CPU cap, s.
        gpu_cap_tau_s: lag of a GPU power limit, s.
        dvfs_tau_s: lag of a frequency limit, s.
        cpu_window_s: averaging window of CPU telemetry, s.
        gpu_window_s: averaging window of GPU telemetry, s; NVML averages over a second on many cards.
        thermal_tau_s: time constant of the packages' temperature, s.
        rise_at_tdp_k: rise above ambient of a package at its TDP, K.
        throttle_start_k: temperature at which the clock begins to fall, K.
        throttle_full_k: temperature at which it has fallen to `throttle_floor`, K.
        throttle_floor: minimum clock of the thermal throttle, as a share of the highest.
    """

    cpu_cap_tau_s: float = 1.0
    gpu_cap_tau_s: float = 0.5
    dvfs_tau_s: float = 0.5
    cpu_window_s: float = 2.0
    gpu_window_s: float = 1.0
    thermal_tau_s: float = 30.0
    rise_at_tdp_k: float = 50.0
    throttle_start_k: float = ZERO_CELSIUS_K + 90.0
    throttle_full_k: float = ZERO_CELSIUS_K + 100.0
    throttle_floor: float = 0.5

    def __post_init__(self) -> None:
        for item in fields(self):
            non_negative(item.name, getattr(self, item.name))
        positive("rise_at_tdp_k", self.rise_at_tdp_k)
        positive("throttle_full_k - throttle_start_k", self.throttle_full_k - self.throttle_start_k)


@dataclass(eq=False)
class NodeState:
    """State of the nodes between steps; arrays of shape ``(n_nodes,)``, of limits of GPUs ``(n_nodes, n_devices)``.

    Attributes:
        cpu_cap_w: target cap on all packages together, W; inf if uncapped.
        cpu_cap_now_w: cap in effect, W.
        throttle: target clock limit as a share of the highest clock.
        throttle_now: clock limit in effect.
        gpu_cap_w: target limit of each GPU, W.
        gpu_cap_now_w: limit in effect, W.
        package_w: power of all packages, W.
        gpu_w: power of all GPUs, W.
        platform_w: power of the rest of the node, W.
        package_mean_w: averaged power of all packages, as telemetry reports it, W.
        gpu_mean_w: averaged power of all GPUs, as telemetry reports it, W.
        temperature_k: temperature of the packages, K.
        energy_j: energy of the whole node since the start, J.
    """

    cpu_cap_w: FloatArray
    cpu_cap_now_w: FloatArray
    throttle: FloatArray
    throttle_now: FloatArray
    gpu_cap_w: FloatArray
    gpu_cap_now_w: FloatArray
    package_w: FloatArray
    gpu_w: FloatArray
    platform_w: FloatArray
    package_mean_w: FloatArray
    gpu_mean_w: FloatArray
    temperature_k: FloatArray
    energy_j: FloatArray


class Limits(NamedTuple):
    """Limits of some nodes.

    Attributes:
        cpu_w: of all packages, W, shape ``(n_nodes,)``.
        clock: share of the highest, shape ``(n_nodes,)``.
        gpu_w: of each GPU, W, shape ``(n_nodes, n_devices)``.
    """

    cpu_w: FloatArray
    clock: FloatArray
    gpu_w: FloatArray

    def after(self, target: Limits, dt_s: float, lags: Dynamics, follow: Callable[..., FloatArray]) -> Limits:
        """Limits after a step towards `target` (`follow` is `lagged`), or their mean over it (`lagged_mean`)."""
        taus_s = (lags.cpu_cap_tau_s, lags.dvfs_tau_s, lags.gpu_cap_tau_s)
        return Limits(*(follow(now, end, dt_s, tau_s) for now, end, tau_s in zip(self, target, taus_s, strict=True)))

    def settled_at(self, target: Limits) -> BoolArray:
        """Nodes whose limits have all settled at `target`."""
        cpu, clock, gpus = (np.abs(now - end) <= SETTLED_SHARE * end for now, end in zip(self, target, strict=True))
        return np.asarray(cpu & clock & gpus.all(axis=1))


class OperatingPoint(NamedTuple):
    """Operating points of some nodes, shape ``(n_nodes,)``, of GPUs ``(n_nodes, n_devices)``; see `LiveFleet`."""

    package_w: FloatArray
    platform_w: FloatArray
    frequency: FloatArray
    gpu_device_w: FloatArray
    gpu_throughput: FloatArray
    saturated: BoolArray

    @property
    def gpu_w(self) -> FloatArray:
        """Power of all GPUs of each node, W."""
        return np.asarray(self.gpu_device_w.sum(axis=1))


def steady_temperature_k(
    ambient_k: npt.ArrayLike, power_w: npt.ArrayLike, conductance_w_per_k: npt.ArrayLike
) -> FloatArray:
    """Steady-state temperature of a device: ambient + P / K.

    Args:
        ambient_k: temperature of the air around the device, K.
        power_w: P, the heat that the device dissipates, W.
        conductance_w_per_k: K, the heat that leaves per kelvin above ambient, W/K.

    Raises:
        InvalidQuantityError: an input is NaN or out of range.
    """
    air_k = positive("ambient_k", ambient_k)
    return np.asarray(air_k + non_negative("power_w", power_w) / positive("conductance_w_per_k", conductance_w_per_k))


def thermal_throttle(
    temperature_k: npt.ArrayLike, start_k: npt.ArrayLike, full_k: npt.ArrayLike, floor: npt.ArrayLike
) -> FloatArray:
    """Factor on the clock by thermal throttling: 1 up to `start_k`, falling linearly to `floor` at `full_k` and above.

    Raises:
        InvalidQuantityError: a temperature is not above 0, `full_k` is not above `start_k`, or `floor` is outside 0..1.
    """
    hot_k = positive("temperature_k", temperature_k)
    begin_k = positive("start_k", start_k)
    span_k = positive("full_k - start_k", positive("full_k", full_k) - begin_k)
    lowest = finite("floor", floor, minimum=0.0, maximum=1.0)
    return np.asarray(1.0 - (1.0 - lowest) * np.clip((hot_k - begin_k) / span_k, 0.0, 1.0))
