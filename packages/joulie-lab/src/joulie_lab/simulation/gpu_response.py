"""The response of simulated GPU jobs to power limits: each job has its own, which no controller knows.

A process with three parameters for each job was fitted to the jobs of the four sweeps of the Zeus project (A40, P100,
V100, RTX 6000). With x = limit / natural power:

- average power over natural power: ``(1 + x ** -peaks) ** (-1 / peaks)``. The steadier a job's power, the larger
  `peaks`, and the nearer to 1 a limit begins to act;
- time for the same work: ``exp(linear u + cubic u ** 3)``, where u is the logarithm by which the power falls.

Logarithms of the parameters are normally distributed between jobs, around a mean that differs between GPUs. All values
are relative to those at the device's largest limit, by which a job of high natural power is limited already.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import Evidence, Provenance
from joulie.domain.power.curves import cap_or_uncapped
from joulie.domain.power.gpu import LimitEffect, Throughput, log_limit_ratio
from joulie.domain.units import FloatArray, finite, non_negative

N_PARAMETERS = 3
MAX_DEVIATION = 2.0
"""Standard deviations beyond which no job is drawn: the sweeps have none."""
_MEASURED_TO = 1.0
"""Largest u that the sweeps reach; below it, throughput falls as power does."""
_EVIDENCE = Evidence(
    Provenance.MEASURED, "process fitted to power-limit sweeps of training jobs by the Zeus project (NSDI'23)"
)


class JobDeviation(NamedTuple):
    """How a job's response departs from that of the typical job of its GPU, in standard deviations."""

    peaks: float = 0.0
    linear: float = 0.0
    cubic: float = 0.0


TYPICAL = JobDeviation()


@lru_cache(maxsize=65_536)
def drawn(key: str) -> JobDeviation:
    """The deviation of a job. The same key gives the same one in every run and program.

    Args:
        key: what is the same for all pods of a workload.
    """
    return JobDeviation(*_clipped_normal(np.random.default_rng(zlib.crc32(key.encode()))).tolist())


def _clipped_normal(rng: np.random.Generator) -> FloatArray:
    return np.clip(rng.standard_normal(N_PARAMETERS), -MAX_DEVIATION, MAX_DEVIATION)


@dataclass(frozen=True, eq=False)
class ResponseProcess:
    """Distribution of the logarithms of a job's parameters (peaks, linear, cubic).

    Attributes:
        mean: over GPUs, shape ``(3,)``.
        gpu_deviation: standard deviation between GPUs, shape ``(3,)``.
        job_factor: Cholesky factor of the covariance between jobs of one GPU, shape ``(3, 3)``.
    """

    mean: FloatArray
    gpu_deviation: FloatArray
    job_factor: FloatArray

    def of_gpu(self, key: str, seed: int | None) -> DrawnResponse:
        """The response of jobs on one GPU model.

        Args:
            key: of the GPU model.
            seed: draws how this model departs from others; None for a typical one.
        """
        mean = self.mean
        if seed is not None:
            rng = np.random.default_rng([zlib.crc32(key.encode()), seed])
            mean = mean + self.gpu_deviation * _clipped_normal(rng)
        return DrawnResponse(mean, self.job_factor)


@dataclass(frozen=True, eq=False)
class DrawnResponse:
    """`LimitResponse` of jobs with parameters of their own; of the typical job of a GPU without `for_jobs`.

    Attributes:
        log_parameters: shape ``(..., 3)``; leading dimensions broadcast against the arguments of `under`.
        job_factor: see `ResponseProcess`.
    """

    log_parameters: FloatArray
    job_factor: FloatArray

    @property
    def evidence(self) -> Evidence:
        """See `LimitResponse.evidence`."""
        return _EVIDENCE

    def for_jobs(self, deviations: FloatArray) -> DrawnResponse:
        """The response of jobs with these deviations, shape ``(..., 3)``; see `JobDeviation`."""
        return DrawnResponse(self.log_parameters + deviations @ self.job_factor.T, self.job_factor)

    def under(
        self, natural_w: npt.ArrayLike, limit_w: npt.ArrayLike, full_w: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0
    ) -> LimitEffect:
        """See `LimitResponse.under`; memory-bound jobs are part of the spread."""
        finite("memory_share", memory_share, minimum=0.0, maximum=1.0)
        natural = non_negative("natural_w", natural_w)
        full = non_negative("full_w", full_w)
        limit = np.minimum(cap_or_uncapped("limit_w", limit_w), full)
        peaks, linear, cubic = np.exp(np.moveaxis(self.log_parameters, -1, 0))
        cut, cut_before = (reduction(log_limit_ratio(at_w, natural), peaks) for at_w in (limit, full))
        power_w = np.minimum(natural * np.exp(cut_before - cut), limit)
        rate = np.exp(log_slowdown(cut_before, linear, cubic) - log_slowdown(cut, linear, cubic))
        return LimitEffect(power_w, Throughput(rate, rate, rate))


def reduction(log_ratio: FloatArray, peaks: FloatArray | float) -> FloatArray:
    """u, the logarithm by which average power falls at the logarithm of limit / natural power."""
    return np.asarray(np.logaddexp(0.0, -peaks * log_ratio) / peaks)


def log_slowdown(cut: FloatArray, linear: FloatArray | float, cubic: FloatArray | float) -> FloatArray:
    """Logarithm of the time for the same work where power falls by `cut` (see `reduction`)."""
    measured = np.minimum(cut, _MEASURED_TO)
    return np.asarray(linear * measured + cubic * measured**3 + (cut - measured))


SWEPT = ResponseProcess(
    mean=np.array([2.0181, -1.8897, -0.0729]),
    gpu_deviation=np.array([0.5470, 0.4667, 0.4824]),
    job_factor=np.array([[1.0688, 0.0, 0.0], [0.6421, 0.8706, 0.0], [-0.1191, -0.2596, 0.6076]]),
)
"""What the four sweeps give."""
