"""How simulated jobs use devices and respond to caps: boundness, activity, throughput, idle states.

These are the laboratory's assumptions in addition to the power models of `joulie.domain.power`, which it shares with
the product. The response of GPU work to a power limit has two models by name. `measured` (the default) draws each
job's own from what sweeps of real training jobs have shown (`joulie_lab.simulation.gpu_response`). `published` is the
exponent of Joulie's published cluster simulation, kept for comparison: under it every limited job uses more energy for
its work, which the sweeps contradict (a limit at 70 % of the natural power costs 41 % of the throughput there, and
some 17 % measured).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import Evidence, GpuModel
from joulie.domain.power.curves import cap_or_uncapped
from joulie.domain.power.gpu import LimitEffect, LimitResponse, Throughput
from joulie.domain.units import BoolArray, FloatArray, finite, non_negative
from joulie_lab.simulation.gpu_response import SWEPT

MEMORY_KNEE = 0.7
"""Clock, as a share of the highest, below which memory-bound work slows markedly."""
MEMORY_LOSS = 0.15
"""e of the published memory-bound throughput ``1 - e (1 - ratio) ** g``."""
MEMORY_EXPONENT = 0.90
"""g of the published memory-bound throughput."""


class Boundness(IntEnum):
    """Bottleneck of a workload, as integers so that arrays can hold it."""

    MIXED = 0
    COMPUTE = 1
    MEMORY = 2
    IO = 3


class IdleStates(StrEnum):
    """Which nodes enter deep idle states: an assumption of a scenario, named in every report.

    In the published runs only managed nodes had them, as if Linux and the driver used none without Joulie.
    """

    ALL = "all"
    MANAGED = "managed"
    MEASURED = "measured"
    """No deep states; a GPU that no pod holds draws what users read (`joulie.domain.hardware.idle_readings`)."""
    NONE = "none"

    def allowed(self, managed: npt.ArrayLike) -> BoolArray:
        """Nodes that may enter deep idle states, of the shape of `managed`."""
        under_joulie = np.asarray(managed, dtype=np.bool_)
        if self is IdleStates.MANAGED:
            return under_joulie
        return np.full(under_joulie.shape, self is IdleStates.ALL)


def activity_factor(
    memory_intensity: npt.ArrayLike, io_intensity: npt.ArrayLike, bound: npt.ArrayLike = Boundness.MIXED
) -> FloatArray:
    """Share of the dynamic power that a workload actually draws: stalled cores draw less.

    ``1 - 0.30 memory - 0.45 io (+0.08 compute bound, -0.12 io bound)``, within 0.35..1 (spec: simulator physics;
    assumed).

    Args:
        memory_intensity: 0..1.
        io_intensity: 0..1.
        bound: values of `Boundness`.

    Raises:
        InvalidQuantityError: an intensity is NaN or outside 0..1.
    """
    memory = finite("memory_intensity", memory_intensity, minimum=0.0, maximum=1.0)
    io = finite("io_intensity", io_intensity, minimum=0.0, maximum=1.0)
    kind = np.asarray(bound)
    bias = np.where(kind == Boundness.COMPUTE, 0.08, 0.0) - np.where(kind == Boundness.IO, 0.12, 0.0)
    return np.asarray(np.clip(1.0 - 0.30 * memory - 0.45 * io + bias, 0.35, 1.0))


def cpu_throughput(
    frequency: npt.ArrayLike,
    memory_intensity: npt.ArrayLike = 0.0,
    io_intensity: npt.ArrayLike = 0.0,
    bound: npt.ArrayLike = Boundness.MIXED,
) -> FloatArray:
    """Rate of work at a clock, as a share of the rate at the highest clock.

    Compute-bound work is proportional to the clock; memory-bound work loses 12 % of the drop above `MEMORY_KNEE` and
    45 % below it; I/O-bound work loses 5 %. The three are blended by intensity; a named bound has half of the weight
    (assumed).

    Args:
        frequency: clock as a share of the highest, 0..1.
        memory_intensity: 0..1.
        io_intensity: 0..1; together with memory scaled down to 1 where they exceed it.
        bound: values of `Boundness`.

    Raises:
        InvalidQuantityError: an input is NaN or outside 0..1.
    """
    clock = finite("frequency", frequency, minimum=0.0, maximum=1.0)
    memory = finite("memory_intensity", memory_intensity, minimum=0.0, maximum=1.0)
    io = finite("io_intensity", io_intensity, minimum=0.0, maximum=1.0)
    kind = np.asarray(bound)
    total = np.maximum(memory + io, 1.0)
    shares = {Boundness.MEMORY: memory / total, Boundness.IO: io / total}
    shares[Boundness.COMPUTE] = 1.0 - shares[Boundness.MEMORY] - shares[Boundness.IO]
    rates = {
        Boundness.COMPUTE: clock,
        Boundness.MEMORY: 1.0
        - 0.12 * (1.0 - np.maximum(clock, MEMORY_KNEE))
        - 0.45 * np.maximum(MEMORY_KNEE - clock, 0.0),
        Boundness.IO: 1.0 - 0.05 * (1.0 - clock),
    }
    result = np.zeros(())
    for bound_by, rate in rates.items():
        weight = np.where(kind == Boundness.MIXED, shares[bound_by], 0.5 * shares[bound_by] + 0.5 * (kind == bound_by))
        result = result + weight * rate
    return result


@dataclass(frozen=True)
class PublishedThroughput:
    """``ratio ** gamma`` for compute, ``1 - e (1 - ratio) ** g`` for memory, blended; all of it assumed.

    Attributes:
        gamma: exponent of compute-bound work.
        evidence: where the exponent comes from.
    """

    gamma: float
    evidence: Evidence

    def under(
        self, natural_w: npt.ArrayLike, limit_w: npt.ArrayLike, full_w: npt.ArrayLike, memory_share: npt.ArrayLike = 0.0
    ) -> LimitEffect:
        """See `LimitResponse.under`; a limit acts only where the average power exceeds it."""
        memory = finite("memory_share", memory_share, minimum=0.0, maximum=1.0)
        natural = non_negative("natural_w", natural_w)
        power_w = np.minimum(natural, cap_or_uncapped("limit_w", limit_w))
        # A device without draw is not slowed down by a cap.
        ratio = np.divide(power_w, natural, out=np.ones_like(power_w), where=natural > 0.0)
        memory_bound = 1.0 - MEMORY_LOSS * (1.0 - ratio) ** MEMORY_EXPONENT
        blended = np.asarray((1.0 - memory) * ratio**self.gamma + memory * memory_bound)
        return LimitEffect(power_w, Throughput(blended, blended, blended))

    def for_jobs(self, deviations: FloatArray) -> PublishedThroughput:
        """Itself: jobs did not differ."""
        return self


class UnknownThroughputModelError(ValueError):
    """No throughput model is registered under that name."""


class NoPublishedExponentError(ValueError):
    """The published model has no exponent for this GPU."""


class GpuResponse(LimitResponse, Protocol):
    """Response of the typical job of a GPU model, and of jobs that depart from it."""

    def for_jobs(self, deviations: FloatArray) -> LimitResponse:
        """The response of jobs with these deviations, shape ``(..., 3)``; see `JobDeviation`."""
        ...


def drawn_response(gpu: GpuModel, seed: int | None = None) -> GpuResponse:
    """Build the model that draws each job's response from the measured ones."""
    return SWEPT.of_gpu(gpu.key, seed)


def published_throughput(gpu: GpuModel, seed: int | None = None) -> GpuResponse:
    """Build the model with the published exponent of this GPU, whatever the seed.

    Raises:
        NoPublishedExponentError: none was published for it.
    """
    if gpu.compute_gamma is None:
        raise NoPublishedExponentError(f"no published exponent for {gpu.key}: use the model 'measured'")
    return PublishedThroughput(gpu.compute_gamma, gpu.evidence["compute_gamma"])


THROUGHPUT_MODELS: Mapping[str, Callable[[GpuModel, int | None], GpuResponse]] = MappingProxyType(
    {"measured": drawn_response, "published": published_throughput}
)


def throughput_model(name: str, gpu: GpuModel, seed: int | None = None) -> GpuResponse:
    """Build the response model called `name` for one GPU.

    Args:
        name: a key of `THROUGHPUT_MODELS`.
        gpu: the GPU model.
        seed: draws how jobs on this GPU depart from those on others; None for a typical GPU.

    Raises:
        UnknownThroughputModelError: no model has that name.
        NoPublishedExponentError: `published` for a GPU that it does not describe.
    """
    if name not in THROUGHPUT_MODELS:
        raise UnknownThroughputModelError(
            f"unknown GPU throughput model {name!r}; known: {', '.join(sorted(THROUGHPUT_MODELS))}"
        )
    return THROUGHPUT_MODELS[name](gpu, seed)
