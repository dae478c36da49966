"""Settings of the generator of job traces.

Shares, sizes, clamps and utilisations are the spec's (simulator, workloads). Where it gives only the clamp of a
duration, median and spread come from published traces. Short runs have the median of Helios' GPU jobs, 206 s (SC'21).
Those of training were fitted to the 100,000 jobs of PAI that GAIA publishes, which last five minutes or more: the
families with GPUs together, cut at five minutes, come to quantiles of 15, 41, 128, 319 and 1,435 min (P25, P50, P75,
P90, P99) and a mean of 136 min; PAI's are 13, 40, 126, 332, 1,444 and 136 min. Those of work without GPUs, requests of
cores and memory, intensities and sensitivities are assumptions. A trace of your own cluster is always better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import with_config

from joulie.domain.quantities import SECONDS_PER_HOUR, InvalidQuantityError, finite_number, positive_number
from joulie.domain.workload import Level
from joulie_lab.simulation.model_files import STRICT
from joulie_lab.simulation.trace import CPU_CLASSES, GPU_CLASSES, GPU_RESOURCE_VENDORS

Members = Literal["one", "distributed", "parameter-server", "trials"]

_DAY_S = 24 * SECONDS_PER_HOUR
_MINUTE_S = 60.0
_HOURS_OF_DAY = 24
_MAX_PODS = 100_000
"""Maximum number of pods of a workload; more is a mistake and would exhaust memory."""
_HOURLY = (0.70,) * 8 + (0.95,) + (1.20,) * 3 + (0.85,) + (1.15,) * 5 + (0.85, 0.95) + (1.00,) * 3 + (0.95,)


@dataclass(frozen=True)
class Range:
    """Uniform distribution between two bounds.

    Attributes:
        low: minimum.
        high: maximum.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        finite_number("low", self.low)
        finite_number("high", self.high, minimum=self.low)


def _check_weights(name: str, weights: Mapping[int, float] | Mapping[str, float]) -> None:
    for choice, weight in weights.items():
        if isinstance(choice, int) and not 1 <= choice <= _MAX_PODS:
            raise InvalidQuantityError(name, f"must be whole numbers from 1 to {_MAX_PODS}, got {choice}")
        finite_number(name, weight, minimum=0.0)
    if not any(weights.values()):
        raise InvalidQuantityError(name, "has no weight above zero")


def _check_share(name: str, values: Range) -> None:
    finite_number(name, values.low, minimum=0.0, maximum=1.0)
    finite_number(name, values.high, minimum=0.0, maximum=1.0)


def _check_word(name: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise InvalidQuantityError(name, f"{word!r} is not one of {', '.join(filter(None, known))}")


@dataclass(frozen=True)
class Durations:
    """Log-normal distribution of durations, clamped to a minimum and a maximum.

    Attributes:
        median_s: median, s.
        sigma: standard deviation of the logarithm.
        min_s: minimum, s.
        max_s: maximum, s.
    """

    median_s: float
    sigma: float
    min_s: float
    max_s: float

    def __post_init__(self) -> None:
        positive_number("median_s", self.median_s)
        finite_number("sigma", self.sigma, minimum=0.0)
        positive_number("min_s", self.min_s)
        finite_number("max_s", self.max_s, minimum=self.min_s)


@dataclass(frozen=True)
class Episodes:
    """Periods with a higher or lower arrival rate; they start at random times and may overlap.

    Attributes:
        per_day: mean number of periods a day.
        hours: length of a period, h.
        factor: factor of the arrival rate during a period.
    """

    per_day: float
    hours: float
    factor: float

    def __post_init__(self) -> None:
        finite_number("per_day", self.per_day, minimum=0.0)
        positive_number("hours", self.hours)
        finite_number("factor", self.factor, minimum=0.0)


@dataclass(frozen=True)
class Bursts(Episodes):
    """Short periods of a high arrival rate."""

    per_day: float = 0.25
    hours: float = 1.0
    factor: float = 2.5


@dataclass(frozen=True)
class Dips(Episodes):
    """Periods of a low arrival rate."""

    per_day: float = 0.0
    hours: float = 1.0
    factor: float = 0.4


@dataclass(frozen=True)
class Surges(Episodes):
    """Long periods of a moderately higher arrival rate."""

    per_day: float = 0.0
    hours: float = 3.0
    factor: float = 1.5


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of workloads: a Poisson process whose rate changes over the day.

    Attributes:
        workloads_per_hour: arrival rate where every factor is 1, 1/h.
        pattern: `hourly` has a factor for each hour of the day, `diurnal` a cosine.
        hourly_factors: 24 factors of the rate, one for each hour from midnight on.
        diurnal_amplitude: amplitude of the cosine, 0..1: the rate has its minimum, 1 - amplitude, at the trough.
        trough_h: hour of the day of the trough; the peak is 12 h later.
        start_h: hour of the day at which the trace begins.
        bursts: short periods of a high rate.
        dips: periods of a low rate.
        surges: long periods of a moderately higher rate.
    """

    workloads_per_hour: float = 60.0
    pattern: Literal["hourly", "diurnal"] = "hourly"
    hourly_factors: tuple[float, ...] = _HOURLY
    diurnal_amplitude: float = 0.6
    trough_h: float = 4.0
    start_h: float = 0.0
    bursts: Bursts = Bursts()
    dips: Dips = Dips()
    surges: Surges = Surges()

    def __post_init__(self) -> None:
        finite_number("workloads_per_hour", self.workloads_per_hour, minimum=0.0)
        if len(self.hourly_factors) != _HOURS_OF_DAY:
            raise InvalidQuantityError("hourly_factors", f"must be {_HOURS_OF_DAY}, got {len(self.hourly_factors)}")
        for factor in self.hourly_factors:
            finite_number("hourly_factors", factor, minimum=0.0)
        finite_number("diurnal_amplitude", self.diurnal_amplitude, minimum=0.0, maximum=1.0)
        finite_number("trough_h", self.trough_h, minimum=0.0, maximum=_HOURS_OF_DAY)
        finite_number("start_h", self.start_h, minimum=0.0, maximum=_HOURS_OF_DAY)


@dataclass(frozen=True)
class Family:
    """Distribution of the workloads of one family.

    Attributes:
        share: weight among the families with GPUs, or among those without.
        members: pods of a workload: `one` pod; a launcher and workers (`distributed`) or servers and workers
            (`parameter-server`) as a gang; independent `trials`.
        duration: duration of a pod that runs alone and uncapped; the members of a gang share one.
        gpus: weights of the number of GPUs of a workload (of each trial); empty without GPUs.
        worker_gpus: possible numbers of GPUs of a gang's worker; one that leaves at least two workers is drawn.
        workers_per_server: number of workers per parameter server.
        server_cores: cores of a launcher or parameter server.
        trials: number of trials of a workload made of trials.
        cpu_util: utilisation of the requested cores, 0..1.
        cores: weights of the number of cores of a pod; with GPUs, of cores per GPU.
        memory_gib_per_core: memory of a pod per core, GiB.
        memory_intensity: memory intensity of the work, 0..1.
        io_intensity: I/O intensity of the work, 0..1.
        cpu_feed: how much the GPU work depends on the CPU work, 0..1.
        cpu_class: what bounds the CPU work.
        gpu_class: what bounds the GPU work.
        cpu_sensitivity: sensitivity to CPU caps: high, medium, low or empty.
        gpu_sensitivity: sensitivity to GPU caps, likewise.
    """

    share: float
    duration: Durations
    cpu_util: Range
    cores: Mapping[int, float]
    members: Members = "one"
    gpus: Mapping[int, float] = field(default_factory=dict)
    worker_gpus: tuple[int, ...] = (1, 2, 4)
    workers_per_server: int = 4
    server_cores: int = 4
    trials: Range = Range(4, 16)
    memory_gib_per_core: Range = Range(2.0, 6.0)
    memory_intensity: Range = Range(0.2, 0.5)
    io_intensity: Range = Range(0.05, 0.2)
    cpu_feed: Range = Range(0.0, 0.0)
    cpu_class: str = "mixed"
    gpu_class: str = "mixed"
    cpu_sensitivity: str = ""
    gpu_sensitivity: str = ""

    def __post_init__(self) -> None:
        finite_number("share", self.share, minimum=0.0)
        _check_weights("cores", self.cores)
        if self.gpus:
            _check_weights("gpus", self.gpus)
        elif self.members != "one":
            raise InvalidQuantityError("gpus", f"missing: a family of {self.members} members has GPUs")
        if not all(gpus >= 1 for gpus in self.worker_gpus):
            raise InvalidQuantityError("worker_gpus", "must be whole numbers from 1")
        for name in ("cpu_util", "memory_intensity", "io_intensity", "cpu_feed"):
            _check_share(name, getattr(self, name))
        if self.cpu_util.low == 0.0:
            raise InvalidQuantityError("cpu_util", "low must be above zero, or the CPU work would never end")
        finite_number("memory_gib_per_core", self.memory_gib_per_core.low, minimum=0.0)
        finite_number("workers_per_server", self.workers_per_server, minimum=1.0)
        finite_number("server_cores", self.server_cores, minimum=1.0)
        for bound in (self.trials.low, self.trials.high):
            finite_number("trials", bound, minimum=1.0, maximum=_MAX_PODS)
        _check_word("cpu_class", self.cpu_class, CPU_CLASSES)
        _check_word("gpu_class", self.gpu_class, GPU_CLASSES)
        _check_word("cpu_sensitivity", self.cpu_sensitivity, ("", *Level))
        _check_word("gpu_sensitivity", self.gpu_sensitivity, ("", *Level))


def _weights(*pairs: tuple[int, float]) -> Mapping[int, float]:
    return field(default_factory=lambda: dict(pairs))


_SPREAD = 1.35
"""Standard deviation of the logarithm of training durations."""
_ONE_GPU = ((1, 1.0),)
# Over the default shares of the families, workloads with 1, 2, 4 and 8 GPUs are 0.80, 0.10, 0.07 and 0.03 of all.
_WORKERS = ((2, 0.50), (4, 0.35), (8, 0.15))
_WORKERS_OF_SERVERS = ((1, 10.0), (2, 30.0), (4, 21.0), (8, 9.0))


@dataclass(frozen=True)
class DebugEval(Family):
    """Debugging and evaluation runs on one GPU."""

    share: float = 0.45
    duration: Durations = Durations(206.0, 1.0, 30.0, 1000.0)
    gpus: Mapping[int, float] = _weights(*_ONE_GPU)
    cpu_util: Range = Range(0.20, 0.40)
    cores: Mapping[int, float] = _weights((2, 0.5), (4, 0.5))
    memory_intensity: Range = Range(0.5, 0.8)
    cpu_feed: Range = Range(0.15, 0.35)
    gpu_class: str = "memory_bound"
    cpu_sensitivity: str = "medium"
    gpu_sensitivity: str = "medium"


@dataclass(frozen=True)
class SingleGpuTraining(Family):
    """Training on one GPU."""

    share: float = 0.25
    duration: Durations = Durations(60 * _MINUTE_S, _SPREAD, 15 * _MINUTE_S, 7 * _DAY_S)
    gpus: Mapping[int, float] = _weights(*_ONE_GPU)
    cpu_util: Range = Range(0.20, 0.45)
    cores: Mapping[int, float] = _weights((4, 0.6), (8, 0.4))
    memory_intensity: Range = Range(0.3, 0.6)
    cpu_feed: Range = Range(0.25, 0.55)
    gpu_class: str = "compute_bound"
    cpu_sensitivity: str = "medium"
    gpu_sensitivity: str = "high"


@dataclass(frozen=True)
class DistributedTraining(Family):
    """Training on several GPUs: a launcher and workers that advance only together."""

    share: float = 0.14
    members: Members = "distributed"
    duration: Durations = Durations(90 * _MINUTE_S, _SPREAD, 20 * _MINUTE_S, 14 * _DAY_S)
    gpus: Mapping[int, float] = _weights(*_WORKERS)
    server_cores: int = 2
    cpu_util: Range = Range(0.15, 0.35)
    cores: Mapping[int, float] = _weights((4, 0.5), (8, 0.5))
    memory_intensity: Range = Range(0.45, 0.75)
    cpu_feed: Range = Range(0.35, 0.70)
    gpu_class: str = "compute_bound"
    cpu_sensitivity: str = "medium"
    gpu_sensitivity: str = "high"


@dataclass(frozen=True)
class ParameterServerTraining(Family):
    """Training on several GPUs: parameter servers and workers that advance only together."""

    share: float = 0.07
    members: Members = "parameter-server"
    duration: Durations = Durations(75 * _MINUTE_S, _SPREAD, 15 * _MINUTE_S, 7 * _DAY_S)
    gpus: Mapping[int, float] = _weights(*_WORKERS_OF_SERVERS)
    cpu_util: Range = Range(0.20, 0.40)
    cores: Mapping[int, float] = _weights((4, 0.5), (8, 0.5))
    memory_intensity: Range = Range(0.7, 0.9)
    cpu_feed: Range = Range(0.40, 0.75)
    cpu_class: str = "memory_bound"
    gpu_class: str = "compute_bound"
    cpu_sensitivity: str = "medium"
    gpu_sensitivity: str = "high"


@dataclass(frozen=True)
class HpoExperiment(Family):
    """Hyperparameter optimisation: many independent trials of one model."""

    share: float = 0.09
    members: Members = "trials"
    duration: Durations = Durations(60 * _MINUTE_S, _SPREAD, 20 * _MINUTE_S, 3 * _DAY_S)
    gpus: Mapping[int, float] = _weights(*_ONE_GPU)
    cpu_util: Range = Range(0.15, 0.35)
    cores: Mapping[int, float] = _weights((2, 0.5), (4, 0.5))
    memory_intensity: Range = Range(0.35, 0.7)
    cpu_feed: Range = Range(0.20, 0.45)
    cpu_sensitivity: str = "low"
    gpu_sensitivity: str = "medium"


@dataclass(frozen=True)
class Preprocess(Family):
    """Data preprocessing, without GPUs."""

    share: float = 0.75
    duration: Durations = Durations(10 * _MINUTE_S, 1.2, 2 * _MINUTE_S, 8 * SECONDS_PER_HOUR)
    cpu_util: Range = Range(0.50, 0.75)
    cores: Mapping[int, float] = _weights((2, 0.25), (4, 0.35), (8, 0.25), (16, 0.15))
    memory_intensity: Range = Range(0.7, 0.9)
    io_intensity: Range = Range(0.1, 0.3)
    cpu_class: str = "memory_bound"
    cpu_sensitivity: str = "low"


@dataclass(frozen=True)
class Analytics(Family):
    """Compute-bound analytics, without GPUs."""

    share: float = 0.25
    duration: Durations = Durations(30 * _MINUTE_S, 1.2, 5 * _MINUTE_S, 24 * SECONDS_PER_HOUR)
    cpu_util: Range = Range(0.75, 0.95)
    cores: Mapping[int, float] = _weights((4, 0.25), (8, 0.35), (16, 0.25), (32, 0.15))
    memory_intensity: Range = Range(0.2, 0.45)
    cpu_class: str = "compute_bound"
    cpu_sensitivity: str = "high"


@dataclass(frozen=True)
class Families:
    """Families of workloads."""

    debug_eval: DebugEval = DebugEval()
    single_gpu_training: SingleGpuTraining = SingleGpuTraining()
    distributed_training: DistributedTraining = DistributedTraining()
    parameter_server_training: ParameterServerTraining = ParameterServerTraining()
    hpo_experiment: HpoExperiment = HpoExperiment()
    preprocess: Preprocess = Preprocess()
    analytics: Analytics = Analytics()

    def __post_init__(self) -> None:
        for of_gpus, kind in ((True, "with GPUs"), (False, "without GPUs")):
            if not any(family.share > 0.0 for family in self.of_kind(gpus=of_gpus).values()):
                raise InvalidQuantityError("share", f"no family {kind} has a share above zero")

    def of_kind(self, *, gpus: bool) -> dict[str, Family]:
        """The families with GPUs, or those without, by name."""
        return {name: family for name, family in vars(self).items() if bool(family.gpus) is gpus}


@dataclass(frozen=True)
class GeneratorSettings:
    """Settings of the generator.

    Attributes:
        arrivals: arrivals of workloads.
        families: families of workloads.
        gpu_share: share of the workloads that have GPUs, 0..1.
        performance_share: share of the workloads of class performance, 0..1.
        gpu_resources: weights of the extended resources of GPUs.
        gpu_util: mean GPU utilisation by the number of GPUs of a workload, 0..1; other numbers are interpolated.
        gpu_util_spread: maximum deviation of a workload from the mean.
        duration_scale: multiplies all durations and their clamps, so that a trace of days fits into hours.
        cpu_work_rate: CPU work, core-s, per second of the duration at full utilisation of a core; at 1 the CPU work
            takes the duration.
        gpu_work_rate: GPU work, GPU-s, likewise.
        namespace: namespace of the pods.
    """

    arrivals: Arrivals = Arrivals()
    families: Families = Families()
    gpu_share: float = 0.75
    performance_share: float = 0.25
    gpu_resources: Mapping[str, float] = field(default_factory=lambda: {"nvidia.com/gpu": 1.0})
    gpu_util: Mapping[int, float] = _weights((1, 0.52), (4, 0.45), (8, 0.59), (16, 0.40))
    gpu_util_spread: float = 0.12
    duration_scale: float = 1.0
    cpu_work_rate: float = 1.0
    gpu_work_rate: float = 1.0
    namespace: str = "default"

    def __post_init__(self) -> None:
        finite_number("gpu_share", self.gpu_share, minimum=0.0, maximum=1.0)
        finite_number("performance_share", self.performance_share, minimum=0.0, maximum=1.0)
        finite_number("gpu_util_spread", self.gpu_util_spread, minimum=0.0, maximum=1.0)
        for name in ("duration_scale", "cpu_work_rate", "gpu_work_rate"):
            positive_number(name, getattr(self, name))
        _check_weights("gpu_resources", self.gpu_resources)
        for resource in self.gpu_resources:
            _check_word("gpu_resources", resource, tuple(GPU_RESOURCE_VENDORS))
        if not self.gpu_util:
            raise InvalidQuantityError("gpu_util", "is empty; give the mean for at least one number of GPUs")
        for mean in self.gpu_util.values():
            low, high = mean - self.gpu_util_spread, mean + self.gpu_util_spread
            if not 0.0 < low <= high <= 1.0:
                raise InvalidQuantityError("gpu_util", f"{mean:g} +- {self.gpu_util_spread:g} is not within 0..1")


# The settings are part of experiments' schema, and a file of their own: validated as strictly as every model.
for _part in (
    *(Range, Durations, Bursts, Dips, Surges, Arrivals),
    *(DebugEval, SingleGpuTraining, DistributedTraining, ParameterServerTraining, HpoExperiment, Preprocess, Analytics),
    *(Families, GeneratorSettings),
):
    with_config(STRICT)(_part)
