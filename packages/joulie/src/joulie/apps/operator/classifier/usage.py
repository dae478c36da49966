"""Measured use of all pods of the cluster, in a handful of queries, and what it says of one workload."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np

from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.readings import GpuUse
from joulie.apps.operator.classifier.courses import ClusterCourses, course_of, read_courses
from joulie.apps.operator.classifier.workloads import Workload
from joulie.domain.profiles.learned import Course
from joulie.domain.profiles.profile import EnergyUse, Use
from joulie.domain.usage import PodKey, PodUsage

_BYTES_PER_GIB = 1024.0**3
_UNREQUESTED_CORES = 1.0
"""What a pod counts for that requests no CPU and has no limit: a share of nothing says nothing."""
_NOISE_SEED = 5

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Basis(StrEnum):
    """What a profile rests on, as its condition says."""

    MEASURED = "Measured"
    SIMULATED = "Simulated"
    HINTS = "HintsOnly"
    NO_METRICS = "NoMetrics"
    UNAVAILABLE = "PrometheusUnavailable"


@dataclass(frozen=True)
class ClusterUsage:
    """What all pods of the cluster use. A pod that was not measured has no entry.

    Attributes:
        pods: CPU and memory.
        gpus: of the pods that hold some.
        energy: by Kepler.
        courses: of CPU and GPU use over the window; None where nobody asked for them.
        found: what a pod rests on that was measured.
        absent: what one rests on that was not.
    """

    pods: PodUsage = field(default_factory=lambda: PodUsage({}, {}))
    gpus: Mapping[PodKey, GpuUse] = field(default_factory=dict)
    energy: Mapping[PodKey, EnergyUse] = field(default_factory=dict)
    courses: ClusterCourses | None = None
    found: Basis = Basis.MEASURED
    absent: Basis = Basis.HINTS


class UsageSource(Protocol):
    """Where use comes from."""

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """What all pods of the cluster use; never raises.

        Args:
            workloads: those that somebody asks for.
        """
        ...


class NoUsage:
    """No source: profiles rest on hints alone."""

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """Nothing."""
        return ClusterUsage()


class PrometheusUsage:
    """Use from cAdvisor, the DCGM exporter and Kepler by way of Prometheus: each metric by one query for all pods.

    Args:
        prometheus: to ask.
        window_s: over which use is averaged, s.
        step_s: at least two scrapes long; CPU use is averaged over those steps that were scraped, s.
        kepler: whether to ask for Kepler's metrics.
        now_s: s since the epoch, to ask for the course of use as well; None for means alone.
        failed: told the exporter whose query failed.
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
        """What all pods of the cluster use; without an answer for CPU time, nothing counts as measured."""
        pods, gpus, energy, courses = await asyncio.gather(
            self._ask("cadvisor", self._cadvisor.pods(self._window_s, step_s=self._step_s)),
            self._ask("dcgm", self._dcgm.pods(self._window_s)),
            self._energy(),
            self._courses(),
        )
        if pods is None:
            return ClusterUsage(absent=Basis.UNAVAILABLE)
        return ClusterUsage(pods, gpus or {}, energy or {}, courses, absent=Basis.NO_METRICS)

    async def _courses(self) -> ClusterCourses | None:
        if self._now_s is None:
            return None
        return await self._ask("courses", read_courses(self._cadvisor, self._dcgm, self._window_s, self._now_s()))

    async def _energy(self) -> Mapping[PodKey, EnergyUse] | None:
        return None if self._kepler is None else await self._ask("kepler", self._kepler.energy(self._window_s))

    async def _ask(self, exporter: str, query: Awaitable[_T]) -> _T | None:
        try:
            return await query
        except PrometheusError as error:
            self._failed(exporter)
            _log.info("no use of workloads from %s", exporter, extra={"problem": str(error)})
            return None


class SimulatedUsage:
    """Use as pods' annotations ask a simulator to play it, taken as if it had been measured.

    Args:
        noise_pct: standard deviation of Gaussian noise, points.
    """

    def __init__(self, noise_pct: float = 0.0) -> None:
        self._noise_pct = noise_pct
        self._rng = np.random.default_rng(_NOISE_SEED)

    async def read(self, workloads: Iterable[Workload]) -> ClusterUsage:
        """What the pods of these workloads use."""
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
    """CPU that a pod's use is a share of: its request, else its limit, else one core; cores."""
    return pod.requests.cpu_cores or _UNREQUESTED_CORES


def memory_capacity_bytes(pod: PodFacts) -> float:
    """Memory that a pod's working set is a share of: its limit, else its request; B, 0 without either."""
    return (pod.memory_limit_gib or pod.requests.memory_gib) * _BYTES_PER_GIB


def use_of(workload: Workload, usage: ClusterUsage, window_s: float, now_s: float) -> Use | None:
    """What a workload uses as a whole; None where nothing of it was measured.

    Pods that have run for less than the window say little about it, and count only where there are no others.

    Args:
        workload: whose use.
        usage: of all pods.
        window_s: over which use was averaged, s.
        now_s: time of the measurement, s since the epoch.
    """
    pods = _counted(workload, window_s, now_s)
    keys = [(pod.namespace, pod.name) for pod in pods]
    use = Use(
        cpu_util_pct=_share_pct(pods, usage.pods.cpu_cores, requested_cores),
        memory_pressure_pct=_share_pct(pods, usage.pods.memory_bytes, memory_capacity_bytes),
        gpu_util_pct=_gpu_mean_pct([(gpu.util_pct, gpu.devices) for gpu in _those(keys, usage.gpus)]),
        holds_gpus=any(pod.requests.gpus > 0.0 for pod in workload.pods),
        gpu_memory_activity_pct=_gpu_mean_pct(
            [(gpu.memory_activity_pct, gpu.devices) for gpu in _those(keys, usage.gpus)]
        ),
        energy=_energy(_those(keys, usage.energy)),
    )
    return use if use.measured else None


def measured_course(workload: Workload, courses: ClusterCourses, window_s: float, now_s: float) -> Course:
    """How the use of a workload went over the window; of the pods that count in `use_of`.

    Args:
        workload: whose use.
        courses: of all pods.
        window_s: that they cover, s.
        now_s: its end, s since the epoch.
    """
    pods = {(pod.namespace, pod.name): pod for pod in _counted(workload, window_s, now_s)}
    gpus = {key: pod.requests.gpus for key, pod in pods.items() if pod.requests.gpus > 0.0}
    return course_of({key: requested_cores(pod) for key, pod in pods.items()}, gpus, courses)


def _counted(workload: Workload, window_s: float, now_s: float) -> list[PodFacts]:
    """The pods that ran for all of the window; without any, all that run."""
    running = [pod for pod in workload.pods if pod.running_since_s is not None]
    return [pod for pod in running if now_s - (pod.running_since_s or 0.0) >= window_s] or running


def _those(keys: Iterable[PodKey], values: Mapping[PodKey, _T]) -> list[_T]:
    return [values[key] for key in keys if key in values]


def _share_pct(
    pods: Iterable[PodFacts], used: Mapping[PodKey, float], capacity: Callable[[PodFacts], float]
) -> float | None:
    """Use over capacity of the pods that both are known of, 0..100."""
    total_used = total_capacity = 0.0
    for pod in pods:
        amount, most = used.get((pod.namespace, pod.name)), capacity(pod)
        if amount is not None and most > 0.0:
            total_used += amount
            total_capacity += most
    return min(100.0, total_used / total_capacity * 100.0) if total_capacity else None


def _gpu_mean_pct(parts: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, devices) for value, devices in parts if value is not None]
    total = sum(devices for _, devices in known)
    return min(100.0, sum(value * devices for value, devices in known) / total) if total else None


def _energy(parts: Sequence[EnergyUse]) -> EnergyUse | None:
    """Energy of pods together. Where memory was measured for some, the others are left out: the ratio would be off."""
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
