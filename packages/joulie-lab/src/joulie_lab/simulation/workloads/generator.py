"""Generator of random job traces: draws arrivals, then the workload of each. Source: spec, simulator, workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR, finite_number, positive_number
from joulie_lab.simulation.trace import WORKLOAD_CLASS_KEY, JobProfile, TraceJob
from joulie_lab.simulation.workloads.arrivals import arrivals_s
from joulie_lab.simulation.workloads.settings import Durations, Family, GeneratorSettings, Range

_GANGS = frozenset({"distributed", "parameter-server"})
_MIB_PER_GIB = 1024.0
_MAX_HOURS = 24.0 * 366.0 * 100.0
_DIGITS = 3
"""Decimals of seconds, shares and work."""

ChoiceT = TypeVar("ChoiceT", int, str)


def generate(settings: GeneratorSettings, seed: int, hours: float) -> Iterator[TraceJob]:
    """Generate the jobs of `hours` of arrivals, in order of submission; equal settings and seeds give equal jobs.

    A job that runs alone and uncapped takes the duration drawn for it (if the work rates are 1).

    Args:
        settings: settings of the generator.
        seed: seed of the random numbers. Arrivals and workloads have separate streams, so that changed families leave
            arrivals as they are.
        hours: length of the arrivals, h.

    Raises:
        InvalidQuantityError: `hours` is not above zero, or more than a century; see `arrivals_s`.
    """
    finite_number("hours", positive_number("hours", hours), maximum=_MAX_HOURS)
    of_arrivals, of_workloads = (np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(2))
    draw = _Draw(of_workloads)
    with_gpus, without_gpus = settings.families.of_kind(gpus=True), settings.families.of_kind(gpus=False)
    for number, submit_s in enumerate(arrivals_s(settings.arrivals, of_arrivals, hours * SECONDS_PER_HOUR), start=1):
        families = with_gpus if draw.happens(settings.gpu_share) else without_gpus
        name = draw.choice({name: family.share for name, family in families.items()})
        yield from _workload(settings, draw, name, f"{name.replace('_', '-')}-{number:06d}", submit_s)


@dataclass(frozen=True)
class _Draw:
    """Random draws from one stream of random numbers."""

    rng: np.random.Generator

    def happens(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def choice(self, weights: Mapping[ChoiceT, float]) -> ChoiceT:
        """One of the keys, with probability proportional to its weight."""
        rest = self.rng.random() * sum(weights.values())
        last = None
        for key, weight in weights.items():
            rest -= weight
            last = key if weight > 0.0 else last
            if rest < 0.0:
                return key
        assert last is not None, "settings have checked that some weight is above zero"
        return last  # rounding errors left a rest of zero or more

    def within(self, bounds: Range) -> float:
        drawn = round(self.rng.uniform(bounds.low, bounds.high), _DIGITS)
        return float(min(max(drawn, bounds.low), bounds.high))  # rounding must not exceed the bounds

    def whole(self, bounds: Range) -> int:
        return int(self.rng.integers(round(bounds.low), round(bounds.high) + 1))

    def duration_s(self, durations: Durations) -> float:
        drawn_s = durations.median_s * float(np.exp(durations.sigma * self.rng.standard_normal()))
        return min(max(drawn_s, durations.min_s), durations.max_s)


@dataclass(frozen=True)
class _Pod:
    """A member of a workload: its role, requested cores and GPUs, and duration, s."""

    role: str
    cores: int
    gpus: int
    duration_s: float


def _workload(settings: GeneratorSettings, draw: _Draw, name: str, workload_id: str, submit_s: float) -> list[TraceJob]:
    family: Family = getattr(settings.families, name)
    gpus = draw.choice(family.gpus) if family.gpus else 0
    resource = draw.choice(settings.gpu_resources) if gpus else ""
    annotations = {WORKLOAD_CLASS_KEY: "performance"} if draw.happens(settings.performance_share) else {}
    gib_per_core = draw.within(family.memory_gib_per_core)
    profile = JobProfile(
        cpu_utilization=draw.within(family.cpu_util),
        gpu_utilization=_gpu_util(settings, draw, gpus) if gpus else 0.0,
        memory_intensity=draw.within(family.memory_intensity),
        io_intensity=draw.within(family.io_intensity),
        cpu_feed_intensity_gpu=draw.within(family.cpu_feed) if gpus else 0.0,
    )
    pods = _pods(family, draw, gpus)
    jobs = []
    for number, pod in enumerate(pods):
        duration_s = pod.duration_s * settings.duration_scale
        requests = {"cpu": str(pod.cores), "memory": f"{round(pod.cores * gib_per_core * _MIB_PER_GIB)}Mi"}
        cpu_units = duration_s * pod.cores * profile.cpu_utilization * settings.cpu_work_rate
        gpu_units = duration_s * pod.gpus * profile.gpu_utilization * settings.gpu_work_rate
        jobs.append(
            TraceJob(
                job_id=workload_id if len(pods) == 1 else f"{workload_id}-{pod.role}-{number}",
                workload_id=workload_id,
                submit_s=round(submit_s, _DIGITS),
                requests=requests | ({resource: str(pod.gpus)} if pod.gpus else {}),
                cpu_units=round(cpu_units, _DIGITS),
                gpu_units=round(gpu_units, _DIGITS),
                workload_type=name,
                role=pod.role,
                gang=family.members in _GANGS,
                namespace=settings.namespace,
                annotations=annotations,
                cpu_class=family.cpu_class,
                gpu_class=family.gpu_class,
                profile=profile,
                cpu_sensitivity=family.cpu_sensitivity,
                gpu_sensitivity=family.gpu_sensitivity if pod.gpus else "",
            )
        )
    return jobs


def _gpu_util(settings: GeneratorSettings, draw: _Draw, gpus: int) -> float:
    """Draw the utilisation of the GPUs of a workload, 0..1."""
    known = sorted(settings.gpu_util.items())
    mean = float(np.interp(gpus, [number for number, _ in known], [util for _, util in known]))
    return draw.within(Range(mean - settings.gpu_util_spread, mean + settings.gpu_util_spread))


def _pods(family: Family, draw: _Draw, gpus: int) -> list[_Pod]:
    """Draw the members of a workload with `gpus` GPUs in total, or for each trial."""
    cores = draw.choice(family.cores)
    if family.members == "trials":
        trials = range(draw.whole(family.trials))
        return [_Pod("trial", cores * gpus, gpus, draw.duration_s(family.duration)) for _ in trials]
    duration_s = draw.duration_s(family.duration)
    if family.members == "one":
        return [_Pod("worker", cores * max(1, gpus), gpus, duration_s)]
    each = _gpus_of_worker(family, draw, gpus)
    workers = [_Pod("worker", cores * each, each, duration_s)] * (gpus // each)
    if family.members == "distributed":
        return [_Pod("launcher", family.server_cores, 0, duration_s), *workers]
    servers = -(-len(workers) // family.workers_per_server)
    return [*[_Pod("ps", family.server_cores, 0, duration_s)] * servers, *workers]


def _gpus_of_worker(family: Family, draw: _Draw, gpus: int) -> int:
    """Draw one of the family's worker sizes that leave at least two workers; 1 if none does."""
    fitting = {each: 1.0 for each in family.worker_gpus if gpus % each == 0 and gpus // each > 1}
    return draw.choice(fitting or {1: 1.0})
