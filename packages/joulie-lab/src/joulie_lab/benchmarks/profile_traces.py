"""Synthetic workloads with ground truth: the classifier's observations, and the correct classification.

A workload is a sequence of phases, such as loading, computing and communicating, each with its use of CPU and GPU. Its
true intensity is that of its whole life; its true cap sensitivity the level of the slowdown that Joulie's own physics
gives for eco caps: on a node whose other pods are busy, since a cap that never binds slows nobody. The classifier sees
a window of it.

All distributions are assumptions, drawn wide. The shifted family differs in what a model could get used to: periods
are shorter and longer than in the others, phases have other shapes, noise is twice as strong and heavy-tailed, memory
pressure says less, and the hardware is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from scipy.signal import lfilter

from joulie.domain.hardware import CpuModel, GpuModel
from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.curves import interpolate_even
from joulie.domain.power.gpu import natural_power_w
from joulie.domain.profiles.cap_response import HIGH_SLOWDOWN, MEDIUM_SLOWDOWN
from joulie.domain.profiles.learned import MEAN_OF_SAMPLES, SAMPLES, Course
from joulie.domain.profiles.profile import Use
from joulie.domain.profiles.rules import CPU_HIGH_PCT, CPU_MEDIUM_PCT, GPU_HIGH_PCT, GPU_MEDIUM_PCT
from joulie.domain.profiles.tree import Target
from joulie.domain.units import FloatArray, IntArray
from joulie.domain.workload import Level
from joulie_lab.simulation.job_response import Boundness, cpu_throughput

WINDOW_S = 600.0
STEP_S = WINDOW_S / SAMPLES
ECO_CAP = 0.6
"""Of the CPU's TDP and of the GPU's default limit."""
_FINE_S = 10.0
"""Resolution of the lives."""
_FINE_PER_STEP = round(STEP_S / _FINE_S)
_SOCKETS = 2
_NODE_SHARE = 0.25
"""Of its node's CPUs that a workload has; the others are busy."""
_FIRST_LOOKS = 0.4
"""Share of windows that are the first of their workload."""
_MOST_MISSING = 0.15
"""Share of samples that are missing, at most."""
_PRESSURE_KNOWN = 0.9
_ACTIVITY_KNOWN = 0.8
"""Shares of workloads of which memory pressure, and the activity of the GPUs' memory, are known."""
_ModelT = TypeVar("_ModelT")


class Family(StrEnum):
    """Kinds of workloads."""

    SERVICE = "service"
    """Load that wanders about."""
    PERIODIC = "periodic"
    """Busy and quiet in turns."""
    STAGED = "staged"
    """Loading, then computing, then writing."""
    TRAINING = "training"
    """GPUs: loading, then epochs of computing and communicating, with pauses for checkpoints."""
    INFERENCE = "inference"
    """GPUs: load that wanders about."""
    FEEDING = "feeding"
    """GPUs that wait for what CPUs prepare, in turns."""


GPU_FAMILIES = frozenset({Family.TRAINING, Family.INFERENCE, Family.FEEDING})


_TRAINED_ON = np.array([0.0, 0.0625, 0.125, 0.1875, 0.25, 0.41, 0.61, 0.88, 0.95, 0.98, 1.0])
"""Throughput of GPU work at average power / natural power 0, 0.1, ... 1, which the shipped classifier was trained on.

Limits act earlier than that (design record 0005): what is sensitive here is so under somewhat smaller limits.
"""


@dataclass(frozen=True)
class World:
    """Parameters of a set of synthetic workloads.

    Attributes:
        cpus: nodes have one of these.
        gpus: nodes have one of these.
        periods_s: shortest and longest period, s; log-uniform.
        startup_s: shortest and longest time to load, s; log-uniform.
        noise: standard deviation of use within a phase, share.
        heavy_tails: whether noise is Student's with three degrees of freedom, not Gaussian.
        sawtooth: whether phases rise and fall in ramps, not in steps.
        pressure_spread: of memory pressure around what the stalls on memory suggest, share.
    """

    cpus: tuple[CpuModel, ...]
    gpus: tuple[GpuModel, ...]
    periods_s: tuple[float, float]
    startup_s: tuple[float, float]
    noise: float
    heavy_tails: bool = False
    sawtooth: bool = False
    pressure_spread: float = 0.15


def _cpus(*keys: str) -> tuple[CpuModel, ...]:
    known = {model.key: model for model in BUILTIN_CATALOGUE.cpus}
    return tuple(known[key] for key in keys)


def _gpus(*keys: str) -> tuple[GpuModel, ...]:
    known = {model.key: model for model in BUILTIN_CATALOGUE.gpus}
    return tuple(known[key] for key in keys)


KNOWN = World(
    cpus=_cpus("AMD EPYC 9654", "AMD EPYC 9655", "Intel Xeon Gold 6530"),
    gpus=_gpus("NVIDIA H100 NVL", "NVIDIA A40", "NVIDIA L40S"),
    periods_s=(60.0, 1800.0),
    startup_s=(60.0, 900.0),
    noise=0.04,
)
SHIFTED = World(
    cpus=_cpus("AMD EPYC 9965", "AMD EPYC 9375F"),
    gpus=_gpus("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "Tesla V100-SXM2-32GB"),
    periods_s=(30.0, 3600.0),
    startup_s=(300.0, 2400.0),
    noise=0.08,
    heavy_tails=True,
    sawtooth=True,
    pressure_spread=0.3,
)


@dataclass(frozen=True, eq=False)
class Observed:
    """A workload as observed by the classifier, with its ground truth.

    Attributes:
        family: it is of.
        use: means over the window.
        course: of it over the window.
        truth: by what there is to tell of it.
    """

    family: Family
    use: Use
    course: Course
    truth: Mapping[Target, Level]


@dataclass(frozen=True, eq=False)
class _Life:
    """A workload over its whole life, at steps of `_FINE_S`; shares of 0..1, shape ``(n_steps,)``.

    Attributes:
        cpu: use of the CPUs that it requests.
        gpu: use of its GPUs.
        stalls: how far its CPU work waits for memory.
        waits: how far CPU time that it does not use is time in which it waits for disks and networks; the rest was
            requested for nothing.
        bound: what bounds its CPU work.
        feed: how far its GPU work waits for its CPU work.
        gpu_memory: how far its GPU work is bound by memory.
    """

    cpu: FloatArray
    gpu: FloatArray
    stalls: float
    waits: float
    bound: Boundness
    feed: float
    gpu_memory: float


class Traces:
    """Draws workloads of a world.

    Args:
        world: what they have in common.
        rng: randomness.
    """

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._world = world
        self._rng = rng
        self._cpu_power = {model.key: CpuPower.of(model, _SOCKETS) for model in world.cpus}

    def draw(self, family: Family) -> Observed:
        """A workload, seen through one window."""
        life = self._life(family)
        gpus = family in GPU_FAMILIES
        use, course = self._seen(life, gpus=gpus)
        truth = {Target.CPU_INTENSITY: _intensity(life.cpu, CPU_HIGH_PCT, CPU_MEDIUM_PCT)}
        cpu_target = Target.FED_CPU_SENSITIVITY if gpus else Target.CPU_SENSITIVITY
        truth[cpu_target] = _sensitivity(self._cpu_rate(life, gpus=gpus))
        if gpus:
            truth[Target.GPU_INTENSITY] = _intensity(life.gpu, GPU_HIGH_PCT, GPU_MEDIUM_PCT)
            truth[Target.GPU_SENSITIVITY] = _sensitivity(self._gpu_rate(life))
        return Observed(family, use, course, MappingProxyType(truth))

    # ---- lives

    def _life(self, family: Family) -> _Life:
        rng = self._rng
        steps = round(self._log_uniform(3.0 * WINDOW_S, 36.0 * WINDOW_S) / _FINE_S)
        cpu, gpu = _COURSES[family](self, steps)
        stalls = float(rng.beta(0.8, 1.4))
        bound = Boundness.COMPUTE if stalls < 0.25 else Boundness.MEMORY if stalls > 0.6 else Boundness.MIXED
        # What CPUs prepare is waited for the more, the harder they work beside busy GPUs.
        feed = float(np.clip(rng.normal(np.average(cpu, weights=gpu + 1e-9), 0.15), 0.0, 1.0))
        return _Life(
            self._noisy(cpu),
            self._noisy(gpu) if gpu.any() else gpu,
            stalls,
            rng.uniform(0.3, 1.0),
            bound,
            feed,
            float(rng.beta(0.8, 1.2)),
        )

    def _service(self, steps: int) -> tuple[FloatArray, FloatArray]:
        return self._wandering(steps), np.zeros(steps)

    def _periodic(self, steps: int) -> tuple[FloatArray, FloatArray]:
        busy = self._turns(steps)
        high, low = self._rng.uniform(0.4, 1.0), self._rng.uniform(0.0, 0.35)
        return low + (high - low) * busy, np.zeros(steps)

    def _staged(self, steps: int) -> tuple[FloatArray, FloatArray]:
        working = self._stages(steps)
        high, low = self._rng.uniform(0.2, 1.0), self._rng.uniform(0.02, 0.4)
        return low + (high - low) * working, np.zeros(steps)

    def _training(self, steps: int) -> tuple[FloatArray, FloatArray]:
        rng = self._rng
        working = self._stages(steps)
        computing = working * self._turns(steps, duty=(0.6, 0.97))
        high, low = rng.uniform(0.6, 1.0), rng.uniform(0.0, 0.4)
        gpu = working * low + (high - low) * computing
        loading, beside = rng.uniform(0.2, 0.9), rng.uniform(0.05, 0.6)
        return loading + (beside - loading) * working, np.clip(gpu, 0.0, 1.0)

    def _inference(self, steps: int) -> tuple[FloatArray, FloatArray]:
        gpu = self._wandering(steps)
        cpu = np.clip(self._rng.uniform(0.1, 0.9) * gpu + self._rng.uniform(0.0, 0.2), 0.0, 1.0)
        return cpu, gpu

    def _feeding(self, steps: int) -> tuple[FloatArray, FloatArray]:
        rng = self._rng
        preparing = self._turns(steps)
        idle, busy = rng.uniform(0.0, 0.2), rng.uniform(0.6, 1.0)
        gpu = busy + (idle - busy) * preparing
        cpu = rng.uniform(0.05, 0.3) + rng.uniform(0.3, 0.7) * preparing
        return cpu, gpu

    # ---- courses of 0..1

    def _turns(self, steps: int, duty: tuple[float, float] = (0.1, 0.9)) -> FloatArray:
        """Busy for a share of each period, in steps or in ramps."""
        period = self._log_uniform(*self._world.periods_s) / _FINE_S
        share = self._rng.uniform(*duty)
        # Periods of real programs are not exact: the phase wanders.
        drift = np.cumsum(self._rng.normal(0.0, 0.02, steps))
        phase = ((np.arange(steps) + drift) / period + self._rng.random()) % 1.0
        if self._world.sawtooth:
            rising = np.minimum(phase / share, (1.0 - phase) / (1.0 - share))
            return np.asarray(np.clip(1.5 * rising, 0.0, 1.0))
        return (phase < share).astype(np.float64)

    def _stages(self, steps: int) -> FloatArray:
        """Nothing while loading, then work, and sometimes nothing again at the end."""
        start = min(round(self._log_uniform(*self._world.startup_s) / _FINE_S), steps // 2)
        working = np.ones(steps)
        working[:start] = np.linspace(0.0, 1.0, start) ** 2 if self._world.sawtooth else 0.0
        if self._rng.random() < 0.4:
            working[steps - round(self._rng.uniform(0.0, 0.2) * steps) :] = 0.0
        return working

    def _wandering(self, steps: int) -> FloatArray:
        """Around a mean, away from it for minutes to an hour."""
        keep = np.exp(-_FINE_S / self._log_uniform(120.0, 3600.0))
        shocks = self._rng.normal(0.0, np.sqrt(1.0 - keep**2), steps)
        shocks[0] = self._rng.normal()
        away = lfilter([1.0], [1.0, -keep], shocks)
        return np.asarray(np.clip(self._rng.uniform(0.05, 0.95) + self._rng.uniform(0.02, 0.25) * away, 0.0, 1.0))

    def _noisy(self, course: FloatArray) -> FloatArray:
        size = len(course)
        noise = (
            self._rng.standard_t(3.0, size) / np.sqrt(3.0) if self._world.heavy_tails else self._rng.normal(size=size)
        )
        return np.asarray(np.clip(course + self._world.noise * noise, 0.0, 1.0))

    def _log_uniform(self, low: float, high: float) -> float:
        return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))

    # ---- truth

    def _cpu_rate(self, life: _Life, *, gpus: bool) -> FloatArray:
        """Rate of work under the eco cap of CPUs, as a share of that without."""
        model = self._pick(self._world.cpus)
        on_node = 1.0 - _NODE_SHARE * (1.0 - life.cpu)
        clock = self._cpu_power[model.key].operate(on_node, ECO_CAP * model.tdp_w * _SOCKETS).frequency
        rate = cpu_throughput(clock, life.stalls, life.waits * (1.0 - life.cpu), life.bound)
        return np.where(life.gpu > 0.0, 1.0 - life.feed * (1.0 - rate), rate) if gpus else rate

    def _gpu_rate(self, life: _Life) -> FloatArray:
        """Rate of work under the eco cap of GPUs, as a share of that without."""
        model = self._pick(self._world.gpus)
        cap_w = model.cap_range.from_percent(100.0 * ECO_CAP)
        natural_w = natural_power_w(model.idle_w, model.default_w, life.gpu, life.gpu_memory)
        return interpolate_even(_TRAINED_ON, np.minimum(cap_w / natural_w, 1.0))

    def _pick(self, models: tuple[_ModelT, ...]) -> _ModelT:
        return models[int(self._rng.integers(len(models)))]

    # ---- what is seen

    def _seen(self, life: _Life, *, gpus: bool) -> tuple[Use, Course]:
        """Means and course over one window: the first of the workload, or any other."""
        rng = self._rng
        first = round(WINDOW_S / _FINE_S)
        end = first if rng.random() < _FIRST_LOOKS else int(rng.integers(first, len(life.cpu) + 1))
        ends = end - _FINE_PER_STEP * np.arange(SAMPLES - 1, -1, -1)
        course = Course(STEP_S, self._sampled_pct(life.cpu, ends), self._sampled_pct(life.gpu, ends) if gpus else None)
        pressure = np.clip(0.1 + 0.75 * life.stalls + rng.normal(0.0, self._world.pressure_spread), 0.0, 1.0)
        activity = life.gpu * (0.15 + 0.8 * life.gpu_memory)
        window = slice(end - first, end)
        use = Use(
            cpu_util_pct=100.0 * float(life.cpu[window].mean()),
            memory_pressure_pct=100.0 * float(pressure) if rng.random() < _PRESSURE_KNOWN else None,
            gpu_util_pct=100.0 * float(life.gpu[window].mean()) if gpus else None,
            holds_gpus=gpus,
            gpu_memory_activity_pct=(
                100.0 * float(activity[window].mean()) if gpus and rng.random() < _ACTIVITY_KNOWN else None
            ),
        )
        return use, course

    def _sampled_pct(self, course: FloatArray, ends: IntArray) -> FloatArray:
        """Samples that end there, each the mean over `MEAN_OF_SAMPLES` steps; some are missing."""
        sums = np.concatenate([[0.0], np.cumsum(course)])
        starts = np.maximum(ends - MEAN_OF_SAMPLES * _FINE_PER_STEP, 0)
        sampled_pct = 100.0 * (sums[ends] - sums[starts]) / (ends - starts)
        missing = self._rng.random(SAMPLES) < self._rng.uniform(0.0, _MOST_MISSING)
        return np.where(missing, np.nan, np.clip(sampled_pct, 0.0, 100.0))


_COURSES: Mapping[Family, Callable[[Traces, int], tuple[FloatArray, FloatArray]]] = {
    Family.SERVICE: Traces._service,
    Family.PERIODIC: Traces._periodic,
    Family.STAGED: Traces._staged,
    Family.TRAINING: Traces._training,
    Family.INFERENCE: Traces._inference,
    Family.FEEDING: Traces._feeding,
}


def _intensity(share: FloatArray, high_pct: float, medium_pct: float) -> Level:
    """By the thresholds of the rules, of the whole life."""
    mean_pct = 100.0 * float(share.mean())
    if mean_pct >= high_pct:
        return Level.HIGH
    return Level.MEDIUM if mean_pct >= medium_pct else Level.LOW


def _sensitivity(rate: FloatArray) -> Level:
    """By how much longer the same work takes under the cap; the thresholds are those of measured sensitivity."""
    slowdown = 1.0 - 1.0 / float((1.0 / rate).mean())
    if slowdown >= HIGH_SLOWDOWN * (1.0 - ECO_CAP):
        return Level.HIGH
    return Level.MEDIUM if slowdown >= MEDIUM_SLOWDOWN * (1.0 - ECO_CAP) else Level.LOW
