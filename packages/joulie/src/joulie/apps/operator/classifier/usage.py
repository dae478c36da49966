"""Measured resource use: read for all pods of the cluster by a few queries, and aggregated per workload."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.readings import GpuUse
from joulie.apps.operator.classifier.series import ClusterSeries, read_series, workload_series
from joulie.apps.operator.classifier.workloads import Workload
from joulie.domain.profiles.learned import Course
from joulie.domain.profiles.profile import EnergyUse, Use
from joulie.domain.usage import PodKey, PodUsage

_BYTES_PER_GIB = 1024.0**3
_DEFAULT_CORES = 1.0
"""CPU capacity assumed for a pod with neither request nor limit, cores: utilisation needs a denominator."""
_NOISE_SEED = 5

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Basis(StrEnum):
    """Evidence for a profile: reason of its `Measured` condition."""

    MEASURED = "Measured"
    SIMULATED = "Simulated"
    HINTS = "HintsOnly"
    NO_METRICS = "NoMetrics"
    UNAVAILABLE = "PrometheusUnavailable"


@dataclass(frozen=True)
class ClusterUsage:
    """Resource use of all pods of the cluster. A pod that was not measured has no entry.

    Attributes:
        pods: CPU and memory use.
        gpus: GPU use of pods that hold GPUs.
        energy: energy by Kepler.
        series: time series of CPU and GPU use over the window; None if not requested.
        found: basis of a profile whose workload was measured.
        absent: basis of a profile whose workload was not measured.
    """

    pods: PodUsage = field(default_factory=lambda: PodUsage({}, {}))
    gpus: Mapping[PodKey, GpuUse] = field(default_factory=dict)
    energy: Mapping[PodKey, EnergyUse] = field(default_factory=dict)
    series: ClusterSeries | None = None
    found: Basis = Basis.MEASURED
    absent: Basis = Basis.HINTS


class UsageSource(Protocol):
    """Source of resource use."""

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """Read the use of all pods of the cluster; never raises.

        Args:
            workloads: the workloads to be classified; a source may restrict itself to them.
        """
        ...


class NoUsage:
    """Usage source without measurements: profiles are based on hints alone."""

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """Return empty use."""
        return ClusterUsage()


class PrometheusUsage:
    """Use measured by cAdvisor, the DCGM exporter and Kepler, from Prometheus: one query per metric for all pods.

    Args:
        prometheus: Prometheus client.
        window_s: averaging window, s.
        step_s: subquery step, s, at least two scrape intervals; CPU use is averaged over the steps that were scraped.
        kepler: whether to query Kepler's metrics.
        now_s: current time, s since the epoch, to query time series as well; None for means alone.
        failed: called with the exporter's name after a failed query.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        window_s: float,
        step_s: float,
        *,
        kepler: bool,
        now_s: Callable[[], float] | None = None,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cadvisor = Cadvisor(prometheus)
        self._dcgm = Dcgm(prometheus, window_s)
        self._kepler = Kepler(prometheus, window_s) if kepler else None
        self._window_s = window_s
        self._step_s = step_s
        self._now_s = now_s
        self._failed = failed

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """Read the use of all pods; if the query for CPU time fails, nothing counts as measured."""
        pods, gpus, energy, series = await asyncio.gather(
            self._query_or_none("cadvisor", partial(self._cadvisor.pods, self._window_s, step_s=self._step_s)),
            self._query_or_none("dcgm", partial(self._dcgm.pods, self._window_s)),
            self._energy(),
            self._series(),
        )
        if pods is None:
            return ClusterUsage(absent=Basis.UNAVAILABLE)
        return ClusterUsage(pods, gpus or {}, energy or {}, series, absent=Basis.NO_METRICS)

    async def _series(self) -> ClusterSeries | None:
        if self._now_s is None:
            return None
        query = partial(read_series, self._cadvisor, self._dcgm, self._window_s, self._now_s())
        return await self._query_or_none("courses", query)

    async def _energy(self) -> Mapping[PodKey, EnergyUse] | None:
        if self._kepler is None:
            return None
        return await self._query_or_none("kepler", partial(self._kepler.energy, self._window_s))

    async def _query_or_none(self, exporter: str, query: Callable[[], Awaitable[_T]]) -> _T | None:
        try:
            # Called by the task that awaits it: one that is cancelled before its first step would leave it unawaited.
            return await query()
        except PrometheusError as error:
            self._failed(exporter)
            _log.info("cannot read use of workloads from %s", exporter, extra={"problem": str(error)})
            return None


class SimulatedUsage:
    """Use as specified for the simulator by pod annotations, treated as if it had been measured.

    Args:
        noise_pct: standard deviation of added Gaussian noise, percentage points.
    """

    def __init__(self, noise_pct: float = 0.0) -> None:
        self._noise_pct = noise_pct
        self._rng = np.random.default_rng(_NOISE_SEED)

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """Return the annotated use of the pods of these workloads."""
        cpu_cores: dict[PodKey, float] = {}
        memory_bytes: dict[PodKey, float] = {}
        gpus: dict[PodKey, GpuUse] = {}
        for pod in (pod for workload in workloads for pod in workload.pods):
            played, key = pod.simulated, (pod.namespace, pod.name)
            if played is None:
                continue
            if played.cpu_util_pct is not None:
                cpu_cores[key] = self._noisy_pct(played.cpu_util_pct) / 100.0 * requested_cores(pod)
            if played.memory_pressure_pct is not None:
                memory_bytes[key] = self._noisy_pct(played.memory_pressure_pct) / 100.0 * memory_capacity_bytes(pod)
            if played.gpu_util_pct is not None and pod.requests.gpus > 0.0:
                gpus[key] = GpuUse(self._noisy_pct(played.gpu_util_pct), None, math.ceil(pod.requests.gpus))
        return ClusterUsage(PodUsage(cpu_cores, memory_bytes), gpus, found=Basis.SIMULATED)

    def _noisy_pct(self, value_pct: float) -> float:
        noise_pct = self._rng.normal(0.0, self._noise_pct) if self._noise_pct else 0.0
        return min(max(value_pct + noise_pct, 0.0), 100.0)


def requested_cores(pod: PodFacts) -> float:
    """CPU capacity for a pod's utilisation, cores: its request, else its limit, else one core."""
    return pod.requests.cpu_cores or _DEFAULT_CORES


def memory_capacity_bytes(pod: PodFacts) -> float:
    """Memory capacity for a pod's memory pressure, B: its limit, else its request; 0 without either."""
    return (pod.memory_limit_gib or pod.requests.memory_gib) * _BYTES_PER_GIB


def use_of(workload: Workload, usage: ClusterUsage, window_s: float, now_s: float) -> Use | None:
    """Use of a workload over all its pods; None if nothing was measured.

    Pods that have run for less than the window are included only if there are no others.

    Args:
        workload: the workload.
        usage: use of all pods.
        window_s: averaging window, s.
        now_s: time of the measurement, s since the epoch.
    """
    pods = _counted(workload, window_s, now_s)
    keys = [(pod.namespace, pod.name) for pod in pods]
    use = Use(
        cpu_util_pct=_share_pct(pods, usage.pods.cpu_cores, requested_cores),
        memory_pressure_pct=_share_pct(pods, usage.pods.memory_bytes, memory_capacity_bytes),
        gpu_util_pct=_gpu_mean_pct([(gpu.util_pct, gpu.devices) for gpu in _present(keys, usage.gpus)]),
        holds_gpus=any(pod.requests.gpus > 0.0 for pod in workload.pods),
        gpu_memory_activity_pct=_gpu_mean_pct(
            [(gpu.memory_activity_pct, gpu.devices) for gpu in _present(keys, usage.gpus)]
        ),
        energy=_energy(_present(keys, usage.energy)),
    )
    return use if use.measured else None


def measured_series(workload: Workload, series: ClusterSeries, window_s: float, now_s: float) -> Course:
    """Time series of a workload's use over the window, for the same pods as in `use_of`.

    Args:
        workload: the workload.
        series: time series of all pods.
        window_s: length of the window, s.
        now_s: end of the window, s since the epoch.
    """
    pods = {(pod.namespace, pod.name): pod for pod in _counted(workload, window_s, now_s)}
    gpus = {key: pod.requests.gpus for key, pod in pods.items() if pod.requests.gpus > 0.0}
    return workload_series({key: requested_cores(pod) for key, pod in pods.items()}, gpus, series)


def _counted(workload: Workload, window_s: float, now_s: float) -> list[PodFacts]:
    """The pods that ran throughout the window; if there are none, all running pods."""
    running = [pod for pod in workload.pods if pod.running_since_s is not None]
    return [pod for pod in running if now_s - (pod.running_since_s or 0.0) >= window_s] or running


def _present(keys: Iterable[PodKey], values: Mapping[PodKey, _T]) -> list[_T]:
    return [values[key] for key in keys if key in values]


def _share_pct(
    pods: Iterable[PodFacts], used: Mapping[PodKey, float], capacity: Callable[[PodFacts], float]
) -> float | None:
    """Utilisation over the pods whose use and capacity are both known, 0..100; None without such pods."""
    total_used = total_capacity = 0.0
    for pod in pods:
        amount, limit = used.get((pod.namespace, pod.name)), capacity(pod)
        if amount is not None and limit > 0.0:
            total_used += amount
            total_capacity += limit
    return min(100.0, total_used / total_capacity * 100.0) if total_capacity else None


def _gpu_mean_pct(parts: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, devices) for value, devices in parts if value is not None]
    total = sum(devices for _, devices in known)
    return min(100.0, sum(value * devices for value, devices in known) / total) if total else None


def _energy(parts: Sequence[EnergyUse]) -> EnergyUse | None:
    """Sum of the pods' energy. If memory was measured for some pods only, the others are excluded, for a true ratio."""
    parts = [part for part in parts if part.dram_j is not None] or list(parts)
    if not parts:
        return None
    return EnergyUse(
        sum(part.package_j for part in parts),
        _sum_known([part.dram_j for part in parts]),
        _sum_known([part.gpu_j for part in parts]),
    )


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
