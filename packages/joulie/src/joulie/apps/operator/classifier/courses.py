"""The course of all pods' use over the window, by one range query for each metric, and what it is of one workload."""

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

_Courses = Mapping[PodKey, Mapping[float, float]]
"""Values by pod and time, s since the epoch."""


@dataclass(frozen=True)
class ClusterCourses:
    """How the use of pods went.

    Attributes:
        steps: times of the samples.
        cpu_cores: busy cores.
        gpu_pct: how busy the GPUs of a pod were.
    """

    steps: Steps
    cpu_cores: _Courses
    gpu_pct: _Courses


async def read_courses(cadvisor: Cadvisor, dcgm: Dcgm, window_s: float, now_s: float) -> ClusterCourses:
    """How the use of all pods went over the window that ends now.

    Raises:
        PrometheusError: a query failed.
    """
    step_s = window_s / SAMPLES
    steps = Steps(now_s - (SAMPLES - 1) * step_s, now_s, step_s, MEAN_OF_SAMPLES * step_s)
    cpu_cores, gpu_pct = await asyncio.gather(cadvisor.courses(steps), dcgm.courses(steps))
    return ClusterCourses(steps, cpu_cores, gpu_pct)


def course_of(cores: Mapping[PodKey, float], gpus: Mapping[PodKey, float], courses: ClusterCourses) -> Course:
    """How the use of a workload went; at each time, of its pods that are known then.

    Args:
        cores: CPU that each of its pods' use is a share of, cores.
        gpus: GPUs of those that hold some.
        courses: of all pods.
    """
    cpu = _weighted(courses.steps, courses.cpu_cores, cores, lambda used, _: used)
    gpu_pct = _weighted(courses.steps, courses.gpu_pct, gpus, lambda percent, held: percent * held) if gpus else None
    return Course(courses.steps.step_s, np.minimum(100.0 * cpu, 100.0), gpu_pct)


def _weighted(
    steps: Steps, courses: _Courses, weights: Mapping[PodKey, float], amount: Callable[[float, float], float]
) -> FloatArray:
    """Sum of amounts over the sum of weights, sample by sample; NaN where no pod is known."""
    total, weight = np.zeros(SAMPLES), np.zeros(SAMPLES)
    for pod, its_weight in weights.items():
        for time_s, value in courses.get(pod, {}).items():
            place = round((time_s - steps.start_s) / steps.step_s)
            if 0 <= place < SAMPLES:
                total[place] += amount(value, its_weight)
                weight[place] += its_weight
    return np.asarray(np.divide(total, weight, out=np.full(SAMPLES, np.nan), where=weight > 0.0), np.float64)
