"""The physics of nodes by compiled loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from joulie.domain.units import FloatArray, IntArray
from joulie_lab.simulation.gpu_response import N_PARAMETERS, DrawnResponse
from joulie_lab.simulation.job_response import GpuResponse
from joulie_lab.simulation.live.dynamics import Limits, OperatingPoint
from joulie_lab.simulation.live.fleet import LiveFleet, decay
from joulie_lab.simulation.live.nodes import NodeSpec
from joulie_lab.simulation.native.fleet_kernels import add_up, advance_steady, find_unsteady, operate


class CompiledFleet(LiveFleet):
    """A `LiveFleet` whose frequent steps are compiled; results are equal to 1e-12.

    GPU models with another response than the drawn one, and nodes whose limits move or that are hot, take the plain
    way where these loops have none.
    """

    def __init__(self, specs: Sequence[NodeSpec], **options: Any) -> None:
        """See `LiveFleet`."""
        self._tables: tuple[Any, ...] | None = None
        self._busy_gpu_w = np.zeros(len(specs))
        super().__init__(specs, **options)
        self._loads: tuple[Any, ...] = tuple(getattr(self.load, name) for name in _LOADS)
        self._found: IntArray = np.zeros(len(specs), dtype=np.int64)
        lags = self._dynamics
        gpu_models = _gpu_models(self._gpu)
        if gpu_models is not None:
            self._tables = (
                np.array([lags.throttle_start_k, lags.throttle_full_k, lags.throttle_floor]),
                np.ascontiguousarray(self._deep_idle),
                self._cpu_kind,
                np.array(
                    [
                        [float(one) for one in (m.util_exponent, m.frequency_floor, m.platform_w, m.package_idle_w)]
                        for m in self._cpu
                    ]
                ),
                np.array([model.curve_w for model in self._cpu]),
                self._gpu_kind,
                gpu_models,
                np.stack([self._gpu_idle_w, self._gpu_default_w, self._gpu_unused_w]),
                self.gpus.astype(np.int64),
            )

    def follow_load(self, nodes: IntArray) -> None:
        """See `LiveFleet.follow_load`."""
        if self._tables is None:
            super().follow_load(nodes)
            return
        state = self.state
        self._fill(
            nodes,
            nodes,
            (state.cpu_cap_now_w, state.throttle_now, state.gpu_cap_now_w),
            (
                state.package_w,
                state.platform_w,
                self.frequency,
                self.gpu_device_w,
                self.gpu_throughput,
                self.saturated,
            ),
        )
        self._add_up(nodes)

    def advance(self, dt_s: float, ambient_k: float) -> None:
        """See `LiveFleet.advance`."""
        if not 0.0 < dt_s < math.inf or len(self.unsteady(ambient_k)):
            super().advance(dt_s, ambient_k)
            return
        np.copyto(self.mean_frequency, self.frequency)
        np.copyto(self.mean_gpu_throughput, self.gpu_throughput)
        self.advance_steady(dt_s, ambient_k)

    def advance_steady(self, dt_s: float, ambient_k: float) -> None:
        """See `LiveFleet.advance_steady`."""
        state, lags = self.state, self._dynamics
        held_w = advance_steady(
            dt_s,
            ambient_k,
            decay(dt_s, lags.thermal_tau_s),
            decay(dt_s, lags.cpu_window_s),
            decay(dt_s, lags.gpu_window_s),
            state.package_w,
            state.platform_w,
            state.gpu_w,
            self._conductance_w_per_k,
            self._busy_gpu_w,
            state.energy_j,
            state.temperature_k,
            state.package_mean_w,
            state.gpu_mean_w,
        )
        self.busy_gpu_j += held_w * dt_s
        self.busy_gpu_s += int(np.count_nonzero(self.load.gpu_busy)) * dt_s

    def unsteady(self, ambient_k: float) -> IntArray:
        """See `LiveFleet.unsteady`."""
        state, lags = self.state, self._dynamics
        count = find_unsteady(
            self.moving,
            state.temperature_k,
            state.package_w,
            self._conductance_w_per_k,
            ambient_k,
            lags.throttle_start_k,
            ambient_k + lags.rise_at_tdp_k >= lags.throttle_start_k,
            self._found,
        )
        return self._found[:count].copy()

    def _set_point(self, nodes: IntArray, point: OperatingPoint) -> None:
        super()._set_point(nodes, point)
        self._add_up(nodes)

    def _add_up(self, nodes: IntArray) -> None:
        add_up(nodes, self.gpu_device_w, self.load.gpu_busy, self.state.gpu_w, self._busy_gpu_w)

    def _operate(self, nodes: IntArray, limits: Limits) -> OperatingPoint:
        if self._tables is None:
            return super()._operate(nodes, limits)
        n_nodes, devices = len(nodes), (len(nodes), self.n_devices)
        package_w, platform_w, frequency = np.empty((3, n_nodes))
        saturated = np.empty(n_nodes, dtype=np.bool_)
        point = OperatingPoint(package_w, platform_w, frequency, np.empty(devices), np.empty(devices), saturated)
        self._fill(nodes, np.arange(n_nodes), limits, point)
        return point

    def _fill(self, nodes: IntArray, rows: IntArray, limits: tuple[Any, ...], point: tuple[Any, ...]) -> None:
        assert self._tables is not None
        temperature_k = self.state.temperature_k
        arguments: tuple[Any, ...] = (nodes, rows, *limits, *self._loads, temperature_k, *self._tables, *point)
        operate(*arguments)


_LOADS = (
    "cpu_util",
    "memory_intensity",
    "io_intensity",
    "gpu_busy",
    "gpu_util",
    "gpu_memory_share",
    "gpu_deviation",
)


def _gpu_models(models: Sequence[GpuResponse]) -> FloatArray | None:
    """Parameters of the GPU models as the loops take them; None where one of them is not the drawn response."""
    found = np.zeros((len(models), 1 + N_PARAMETERS, N_PARAMETERS))
    for place, model in enumerate(models):
        if not isinstance(model, DrawnResponse):
            return None
        found[place, 0], found[place, 1:] = model.log_parameters, model.job_factor
    return found
