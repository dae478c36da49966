"""Time series of CPU and GPU use over the window: read for all pods by one range query per metric, and per workload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.readings import Steps
from joulie.domain.profiles.learned import MEAN_OF_SAMPLES, SAMPLES, Course
from joulie.domain.units import FloatArray
from joulie.domain.usage import PodKey

_SeriesByPod = Mapping[PodKey, Mapping[float, float]]
"""Values by pod and time, s since the epoch."""


@dataclass(frozen=True)
class ClusterSeries:
    """Time series of the use of all pods.

    Attributes:
        steps: sampling times.
        cpu_cores: busy cores by pod.
        gpu_pct: mean utilisation of a pod's GPUs by pod, 0..100.
    """

    steps: Steps
    cpu_cores: _SeriesByPod
    gpu_pct: _SeriesByPod


async def read_series(cadvisor: Cadvisor, dcgm: Dcgm, window_s: float, now_s: float) -> ClusterSeries:
    """Read the time series of all pods over the window that ends now.

    Raises:
        PrometheusError: a query failed.
    """
    step_s = window_s / SAMPLES
    steps = Steps(now_s - (SAMPLES - 1) * step_s, now_s, step_s, MEAN_OF_SAMPLES * step_s)
    cpu_cores, gpu_pct = await asyncio.gather(cadvisor.courses(steps), dcgm.courses(steps))
    return ClusterSeries(steps, cpu_cores, gpu_pct)


def workload_series(cores: Mapping[PodKey, float], gpus: Mapping[PodKey, float], series: ClusterSeries) -> Course:
    """Time series of a workload's utilisation, at each time over its pods with a sample.

    Args:
        cores: CPU capacity by pod of the workload, cores.
        gpus: number of GPUs by pod, for pods that hold GPUs.
        series: time series of all pods.
    """
    cpu = _weighted(series.steps, series.cpu_cores, cores, lambda used, _: used)
    gpu_pct = _weighted(series.steps, series.gpu_pct, gpus, lambda percent, held: percent * held) if gpus else None
    return Course(series.steps.step_s, np.minimum(100.0 * cpu, 100.0), gpu_pct)


def _weighted(
    steps: Steps, series: _SeriesByPod, weights: Mapping[PodKey, float], amount: Callable[[float, float], float]
) -> FloatArray:
    """Sum of amounts over sum of weights, per sample; NaN where no pod has a sample."""
    total, weight = np.zeros(SAMPLES), np.zeros(SAMPLES)
    for pod, its_weight in weights.items():
        for time_s, value in series.get(pod, {}).items():
            place = round((time_s - steps.start_s) / steps.step_s)
            if 0 <= place < SAMPLES:
                total[place] += amount(value, its_weight)
                weight[place] += its_weight
    return np.asarray(np.divide(total, weight, out=np.full(SAMPLES, np.nan), where=weight > 0.0), np.float64)
