"""Jobs as columns, the published job generator, and the thinning of the equal-work benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.units import (
    SECONDS_PER_HOUR,
    BoolArray,
    FloatArray,
    InvalidQuantityError,
    finite,
    non_negative,
    positive,
)
from joulie_lab.simulation.compiled import compiled, compiled_allocating, compiled_inner

JOB_CLASSES = ("small-cpu", "medium-cpu", "gpu-training", "gpu-inference", "large-cpu")
"""Names of the published classes, in the order of the generator's table; other sources have their own."""
SMALL_CPU, MEDIUM_CPU, GPU_TRAINING, GPU_INFERENCE, LARGE_CPU = range(5)

MEAN_BURST_FACTOR = 0.9 + 0.1 * 125.0
"""Mean number of jobs per arrival event of the published generator: one, or a burst of 50..200 with probability 0.1."""


@dataclass(frozen=True)
class JobTable:
    """Jobs sorted by arrival, one row per job; every array has shape ``(n_jobs,)``.

    Attributes:
        arrival_s: seconds since the start of the run.
        duration_s: run time, s.
        cores: CPU cores requested.
        gpus: GPUs requested.
        performance: whether the job is of class performance.
        cpu_util: mean utilisation of the requested cores, 0..1.
        gpu_util: mean utilisation of the requested GPUs, 0..1.
        job_class: index into `class_names`.
        class_names: names of the classes.

    Raises:
        InvalidQuantityError: a column holds NaN, a value out of range, or arrivals out of order.
    """

    arrival_s: FloatArray
    duration_s: FloatArray
    cores: npt.NDArray[np.int16]
    gpus: npt.NDArray[np.int16]
    performance: BoolArray
    cpu_util: FloatArray
    gpu_util: FloatArray
    job_class: npt.NDArray[np.int8]
    class_names: tuple[str, ...] = JOB_CLASSES

    def __post_init__(self) -> None:
        non_negative("arrival_s", self.arrival_s)
        if np.any(np.diff(self.arrival_s) < 0.0):
            raise InvalidQuantityError("arrival_s", "jobs must be sorted by arrival")
        positive("duration_s", self.duration_s)
        positive("cores", self.cores)
        non_negative("gpus", self.gpus)
        finite("cpu_util", self.cpu_util, minimum=0.0, maximum=1.0)
        finite("gpu_util", self.gpu_util, minimum=0.0, maximum=1.0)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def select(self, rows: BoolArray) -> JobTable:
        """The jobs where `rows` is true, in the same order."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self) if field.name != "class_names"}
        return replace(self, **columns)


def published_jobs(seed: int, hours: float, rate_scale: float = 1.0) -> JobTable:
    """The workload of the published scoring experiment, reproduced exactly.

    Source: spec of the 2,500-node experiment. The draws are those of NumPy's scalar `Generator` calls in the published
    order, made by a compiled loop over the same bit generator, so that every value is identical.

    Args:
        seed: seed of `numpy.random.default_rng`.
        hours: length of the arrival period, h.
        rate_scale: factor on the arrival rate; 1 is the published rate.
    """
    positive("hours", hours)
    positive("rate_scale", rate_scale)
    mean_rate_per_s = 0.6 * 80.0 / 60.0 * rate_scale
    expected = mean_rate_per_s * MEAN_BURST_FACTOR * hours * SECONDS_PER_HOUR
    capacity = int(expected * 1.2 + 100.0 * np.sqrt(expected)) + 1000
    while True:
        columns = _Columns.empty(capacity)
        n = _draw_jobs(np.random.default_rng(seed), hours * SECONDS_PER_HOUR, rate_scale, columns)
        if n <= capacity:
            break
        capacity *= 2
    return JobTable(
        arrival_s=columns.arrival_s[:n],
        duration_s=columns.duration_s[:n],
        cores=columns.cores[:n],
        gpus=columns.gpus[:n],
        performance=columns.performance[:n],
        cpu_util=columns.cpu_util[:n],
        gpu_util=columns.gpu_util[:n],
        job_class=columns.job_class[:n],
    )


class _Columns(NamedTuple):
    """The columns of a `JobTable` while they are drawn."""

    arrival_s: FloatArray
    duration_s: FloatArray
    cores: npt.NDArray[np.int16]
    gpus: npt.NDArray[np.int16]
    performance: BoolArray
    cpu_util: FloatArray
    gpu_util: FloatArray
    job_class: npt.NDArray[np.int8]

    @classmethod
    def empty(cls, capacity: int) -> _Columns:
        """Arrays for `capacity` jobs; columns that only some classes draw are initialised to zero."""
        return cls(
            np.empty(capacity),
            np.empty(capacity),
            np.empty(capacity, np.int16),
            np.zeros(capacity, np.int16),
            np.zeros(capacity, np.bool_),
            np.empty(capacity),
            np.zeros(capacity),
            np.empty(capacity, np.int8),
        )


@compiled
def _draw_jobs(rng: np.random.Generator, end_s: float, rate_scale: float, columns: _Columns) -> int:
    """Draw jobs until `end_s`; returns their number, or more than the capacity if the arrays are too small."""
    capacity = len(columns.arrival_s)
    n = 0
    t = 0.0
    while t < end_s:
        phase = 2.0 * np.pi * ((t / SECONDS_PER_HOUR) % 24.0 - 4.0) / 24.0
        rate_per_s = (0.25 + 0.70 * (1.0 - np.cos(phase)) / 2.0) * 80.0 / 60.0 * rate_scale
        t += rng.exponential(1.0 / max(rate_per_s, 0.001))
        if t >= end_s:
            break
        burst = _integer(rng, 50, 201) if rng.random() < 0.10 else 1
        for _ in range(burst):
            if n == capacity:
                return capacity + 1
            columns.arrival_s[n] = t
            _draw_job(rng, columns, n)
            n += 1
    return n


@compiled_allocating
def _integer(rng: np.random.Generator, low: int, above: int) -> int:
    """An integer in ``low..above - 1``; compiled separately because NumPy's draw allocates an array."""
    return int(rng.integers(low, above))


@compiled_inner
def _draw_job(rng: np.random.Generator, columns: _Columns, row: int) -> None:
    """Draw class, requests and work of one job, in the published order."""
    r = rng.random()
    if r < 0.35:
        columns.job_class[row] = SMALL_CPU
        columns.cores[row] = 1 << _integer(rng, 0, 4)
        columns.cpu_util[row] = rng.uniform(0.3, 0.8)
        columns.duration_s[row] = rng.uniform(60.0, 600.0)
    elif r < 0.55:
        columns.job_class[row] = MEDIUM_CPU
        columns.performance[row] = rng.random() < 0.3
        columns.cores[row] = 16 * (1 + _integer(rng, 0, 4))
        columns.cpu_util[row] = rng.uniform(0.4, 0.9)
        columns.duration_s[row] = rng.uniform(300.0, 3600.0)
    elif r < 0.80:
        columns.job_class[row] = GPU_TRAINING
        columns.performance[row] = True
        columns.cores[row] = 16 << _integer(rng, 0, 3)
        columns.gpus[row] = 1 << _integer(rng, 0, 4)
        columns.cpu_util[row] = rng.uniform(0.3, 0.6)
        columns.gpu_util[row] = rng.uniform(0.6, 0.95)
        columns.duration_s[row] = rng.uniform(3600.0, 28800.0)
    elif r < 0.92:
        columns.job_class[row] = GPU_INFERENCE
        columns.cores[row] = 4 << _integer(rng, 0, 3)
        columns.gpus[row] = 1 << _integer(rng, 0, 2)
        columns.cpu_util[row] = rng.uniform(0.3, 0.6)
        columns.gpu_util[row] = rng.uniform(0.3, 0.7)
        columns.duration_s[row] = rng.uniform(60.0, 900.0)
    else:
        columns.job_class[row] = LARGE_CPU
        columns.performance[row] = True
        columns.cores[row] = 64 if _integer(rng, 0, 2) == 0 else 96
        columns.cpu_util[row] = rng.uniform(0.5, 0.95)
        columns.duration_s[row] = rng.uniform(1800.0, 7200.0)


THINNING_SEED = 7
CPU_ABOVE_8_CORES = "cpu-above-8-cores"


def thinned(jobs: JobTable, keep: Mapping[str, float], seed: int = THINNING_SEED) -> JobTable:
    """Thin a workload: keep each job with the probability of its class, one uniform draw per job in job order.

    Args:
        jobs: the whole workload.
        keep: probability by class name; "cpu-above-8-cores" for jobs without GPUs and with more than 8 cores.
        seed: seed of the draws.

    Raises:
        InvalidQuantityError: an unknown name, or a probability outside 0..1.
    """
    probability = np.ones(len(jobs))
    for name, value in keep.items():
        finite(f"keep.{name}", value, minimum=0.0, maximum=1.0)
        if name == CPU_ABOVE_8_CORES:
            probability[(jobs.gpus == 0) & (jobs.cores > 8)] = value
        elif name in jobs.class_names:
            probability[jobs.job_class == jobs.class_names.index(name)] = value
        else:
            allowed = ", ".join((*jobs.class_names, CPU_ABOVE_8_CORES))
            raise InvalidQuantityError(f"keep.{name}", f"unknown class; use one of {allowed}")
    return jobs.select(np.random.default_rng(seed).random(len(jobs)) < probability)
