"""Estimated power of nodes without power sensors: the hardware's power curves applied to utilisation or to requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.apps.operator.ledger import NO_LOAD, Load
from joulie.apps.operator.power.columns import Column
from joulie.apps.operator.sources.node_power import gpus_of
from joulie.domain.control import ControlledNode
from joulie.domain.hardware import Catalogue
from joulie.domain.marginal import CPU_LOAD, GPU_COEFFICIENT_STANDARD
from joulie.domain.power_estimate import estimate_cpu_power, estimate_gpu_power
from joulie.domain.signal import Reading
from joulie.domain.units import FloatArray

_MILLI = 1000.0


@dataclass(frozen=True, eq=False)
class Estimator:
    """Power estimates of nodes; arrays of shape ``(n_nodes,)``.

    Attributes:
        catalogue: hardware catalogue.
        nodes: nodes, in the order of the arrays.
        cpus: logical CPUs, the unit of use and requests; 0 if unknown.
        cpu_cap_percent: CPU cap in force, percent of the TDP.
        gpu_cap_percent: GPU cap in force, percent of the default limit.
    """

    catalogue: Catalogue
    nodes: Sequence[ControlledNode]
    cpus: FloatArray
    cpu_cap_percent: FloatArray
    gpu_cap_percent: FloatArray

    def cpu_by_use(self, busy_cores: Mapping[str, Reading]) -> Column:
        """CPU power of nodes from measured busy cores."""
        busy = Column.of([node.name for node in self.nodes], busy_cores)
        if not busy_cores:
            return busy
        return self._cpu(self._share(busy.power_w), busy.time_s)

    def cpu_by_requests(self, loads: Mapping[str, Load], now_s: float) -> Column:
        """CPU power of nodes from requested cores, at the typical utilisation of requested cores."""
        requested = np.array([loads.get(node.name, NO_LOAD).cpu_millicores for node in self.nodes]) / _MILLI
        return self._cpu(CPU_LOAD * self._share(requested), np.full(len(requested), now_s))

    def gpu_by_requests(self, loads: Mapping[str, Load], now_s: float) -> Column:
        """GPU power of nodes from requested GPUs, at the typical utilisation of requested GPUs."""
        requested = np.array([loads.get(node.name, NO_LOAD).milli_gpus for node in self.nodes]) / _MILLI
        devices = np.array([gpus_of(node) for node in self.nodes], dtype=np.float64)
        share = np.divide(requested, devices, out=np.zeros_like(devices), where=devices > 0.0)
        if not devices.any():
            return Column(*np.zeros((4, len(devices))))
        estimate = estimate_gpu_power(
            [node.hardware for node in self.nodes],
            GPU_COEFFICIENT_STANDARD * np.minimum(1.0, share),
            self.catalogue,
            cap_percent=self.gpu_cap_percent,
        )
        return Column.estimated(np.full(len(devices), now_s), estimate)

    def _cpu(self, util: FloatArray, time_s: FloatArray) -> Column:
        known = ~np.isnan(util)
        estimate = estimate_cpu_power(
            [node.hardware for node in self.nodes],
            np.where(known, util, 0.0),
            self.catalogue,
            cap_percent=self.cpu_cap_percent,
        )
        return Column.estimated(time_s, estimate).where(known)

    def _share(self, cores: FloatArray) -> FloatArray:
        """Cores as a share of the node's logical CPUs, 0..1; NaN if their number is unknown."""
        share = np.divide(cores, self.cpus, out=np.full(len(cores), np.nan), where=self.cpus > 0.0)
        return np.asarray(np.clip(share, 0.0, 1.0))

    def idle_w(self) -> tuple[FloatArray, FloatArray]:
        """Idle power of the CPU packages and of the GPUs of each node, W."""
        hardware, idle = [node.hardware for node in self.nodes], np.zeros(len(self.nodes))
        cpu = estimate_cpu_power(hardware, idle, self.catalogue)
        return cpu.power_w, estimate_gpu_power(hardware, idle, self.catalogue).power_w
