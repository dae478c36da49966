"""Benchmark of the check of claimed progress: honest jobs that it doubts, and what lies cost a job.

Jobs of the published sweeps run under the search of the operator, with noise, checkpoints and evaluations, as a
Prometheus shows them. It scrapes the pod and the exporter of its GPU at moments of their own, and misses some; the
exporter reads the GPU at others yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.choice import Goal, Reason
from joulie.domain.capping.live import JobGpus, LiveJob, Pace
from joulie.domain.capping.measurements import Sweep
from joulie.domain.capping.prior import POOLED
from joulie.domain.capping.replay import TrueJob
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.live.measured_jobs import Account, MeasuredJob

STEP_S, SCRAPE_S, EXPORTER_S = 5.0, 15.0, 30.0
"""A step of time, the interval of scrapes, and that in which dcgm-exporter reads a GPU by default."""
MISSED = 0.01
"""Share of scrapes that fail."""
TRAFFIC, TRAFFIC_NOISE = 0.4, 0.01
"""Share of the time in which an unlimited job's GPU moves data, and the noise of a reading of it."""
HONEST_HOURS, LYING_HOURS = 9.0, 2.0
LIE_FROM_S = 2400.0
"""When a program begins to lie that was honest at first: after some windows under a limit."""
POD = ("team", "train-0")

Lie = Callable[[float, float], float]
"""What a program counts in a second, by the rate of its work over that without a limit, and its age, s."""


def honest(rate: float, age_s: float) -> float:
    """The work."""
    return rate


LIES: Mapping[str, Lie] = {
    "counts time": lambda rate, age_s: 1.0 + 0.001 * math.sin(age_s),
    "hides half": lambda rate, age_s: math.sqrt(rate),
    "hides most": lambda rate, age_s: rate**0.1 if rate > 0.0 else 0.0,
    "gains by limits": lambda rate, age_s: 1.0 / max(rate, 0.1),
    "starts to lie": lambda rate, age_s: rate if age_s < LIE_FROM_S else 1.0 + 0.001 * math.sin(age_s),
}


class Honest(Figures, frozen=True):
    """Jobs that count their work: how many were ever doubted, and to the end; saved, of what the best limits save."""

    jobs: int
    doubted: int
    doubted_at_end: int
    saved_pct: float
    over_bound_by_1pct: int


class Lying(Figures, frozen=True):
    """Jobs that tell one lie: how many were contradicted, time lost beyond the bound in windows, P95 slowdown."""

    jobs: int
    contradicted: int
    beyond_a_window: int
    most_windows: float
    p95_slowdown: float


class Claims(Figures, frozen=True):
    """With and without the GPUs' memory traffic."""

    honest: Mapping[str, Honest]
    lying: Mapping[str, Mapping[str, Lying]]


class Scrape(NamedTuple):
    """A moment, s, and what was read at it."""

    at_s: float
    value: float


@dataclass
class Prometheus:
    """What is scraped of one job.

    Attributes:
        window_s: time over which it is asked, s.
        rng: draws when it scrapes, and what it misses.
    """

    window_s: float
    rng: np.random.Generator
    _progress: list[Scrape] = field(default_factory=list)
    _power_w: list[Scrape] = field(default_factory=list)
    _traffic: list[Scrape] = field(default_factory=list)
    _claimed: float = 0.0
    _moved: float = 0.0
    _read: tuple[float, float] | None = None
    """Power, W, and traffic that the exporter read last."""

    def __post_init__(self) -> None:
        self._pod_at_s, self._gpu_at_s = STEP_S * self.rng.integers(0, round(SCRAPE_S / STEP_S), 2)
        self._exporter_at_s = STEP_S * self.rng.integers(0, round(EXPORTER_S / STEP_S))

    def passed(self, now_s: float, claimed_per_s: float, power_w: float, rate: float) -> None:
        """A step of time has passed."""
        self._claimed += claimed_per_s * STEP_S
        self._moved += TRAFFIC * rate * STEP_S / EXPORTER_S
        if now_s % EXPORTER_S == self._exporter_at_s:
            self._read = power_w, self._moved * math.exp(TRAFFIC_NOISE * self.rng.standard_normal())
            self._moved = 0.0
        scraped = [
            now_s % SCRAPE_S == at_s and self.rng.random() >= MISSED for at_s in (self._pod_at_s, self._gpu_at_s)
        ]
        if scraped[0]:
            self._progress.append(Scrape(now_s, self._claimed))
        if scraped[1] and self._read is not None:
            self._power_w.append(Scrape(now_s, self._read[0]))
            self._traffic.append(Scrape(now_s, self._read[1]))

    def window(self, now_s: float) -> tuple[float | None, float | None, float | None]:
        """Power, W, progress, 1/s, and memory traffic over the window that ends now; older scrapes are forgotten."""
        power_w, progress, traffic = (
            [one for one in scrapes if one.at_s > now_s - self.window_s]
            for scrapes in (self._power_w, self._progress, self._traffic)
        )
        self._power_w, self._progress, self._traffic = power_w, progress, traffic
        if len(progress) < 2:
            return _mean(power_w), None, _mean(traffic)
        first, last = progress[0], progress[-1]
        return _mean(power_w), (last.value - first.value) / (last.at_s - first.at_s), _mean(traffic)


def _mean(scrapes: Sequence[Scrape]) -> float | None:
    return math.fsum(one.value for one in scrapes) / len(scrapes) if scrapes else None


@dataclass(frozen=True)
class Course:
    """What became of a job.

    Attributes:
        live: its search at the end.
        account: what it did.
        doubted: how often it began to be doubted.
        problems: all that it was left at full power for.
        most_lost_s: largest time lost beyond the bound until any moment, s.
    """

    live: LiveJob
    account: Account
    doubted: int
    problems: frozenset[str]
    most_lost_s: float


def run(
    truth: Sweep, seed: int, hours: float, lie: Lie = honest, goal: Goal | None = None, *, with_traffic: bool = True
) -> Course:
    """Run a job under the operator's search.

    Args:
        truth: its sweep.
        seed: of its noise, phases and scrapes.
        hours: length, h.
        lie: what it counts.
        goal: the operator's.
        with_traffic: whether an exporter tells the memory traffic of its GPU.
    """
    goal, pace, job = goal or Goal(), Pace(), MeasuredJob("job", truth, seed)
    allowed = 1.0 - 1.0 / (goal.max_slowdown * (1.0 + goal.tolerance))
    prometheus = Prometheus(pace.window_s, np.random.default_rng((seed, 1)))
    live = LiveJob.found(_gpus(truth, float(truth.limits_w[0])), None)
    doubted, problems, most_lost_s = 0, set(), 0.0
    for number in range(1, round(hours * 3600.0 / STEP_S)):
        now_s = number * STEP_S
        job.at(now_s)
        power_w, rate = job.operate(live.limit_w)
        job.did(STEP_S, power_w, rate)
        prometheus.passed(now_s, lie(rate, now_s), power_w, rate)
        lost_s = job.account.time_s - job.account.free_time_s - allowed * job.account.time_s
        most_lost_s = max(most_lost_s, lost_s)
        if live.since_s is None:
            live = live.observed(_gpus(truth, live.limit_w), now_s)
        if (due_s := live.due_s(pace)) is not None and now_s >= due_s:
            before = live.problem
            watts, progress, traffic = prometheus.window(now_s)
            counted = traffic if with_traffic else None
            live = live.measured(watts, progress, POOLED, goal, now_s, counted_per_s=counted)
            doubted += live.problem == Reason.CONTRADICTED != before
            problems.add(live.problem)
    return Course(live, job.account, doubted, frozenset(problems), most_lost_s)


def _gpus(truth: Sweep, in_force_w: float) -> JobGpus:
    largest_w, least_w = float(truth.limits_w[0]), float(truth.limits_w[-1])
    return JobGpus(frozenset({POD}), (("node", "GPU-1", POD),), largest_w, least_w, in_force_w)


def measure(jobs: Sequence[TrueJob], hours: tuple[float, float], on_stage: Callable[[str], None]) -> Claims:
    """Honest jobs and liars, with and without memory traffic.

    Args:
        jobs: with two limits or more.
        hours: that honest ones and liars run, h.
        on_stage: is told what comes next.
    """
    truths = [job.truth for job in jobs if job.truth.limits_w.size > 1]
    believed: dict[str, Honest] = {}
    lying: dict[str, dict[str, Lying]] = {}
    for name, with_traffic in (("traffic", True), ("power", False)):
        on_stage(f"claims checked by {name}: {len(truths)} honest jobs")
        believed[name] = _honest(
            [run(truth, seed, hours[0], with_traffic=with_traffic) for seed, truth in enumerate(truths)]
        )
        lying[name] = {}
        for said, lie in LIES.items():
            on_stage(f"claims checked by {name}: {said}")
            lying[name][said] = _lying(
                [run(truth, seed, hours[1], lie, with_traffic=with_traffic) for seed, truth in enumerate(truths)]
            )
    return Claims(believed, lying)


def _slowdowns(courses: Sequence[Course]) -> list[float]:
    return [one.account.time_s / one.account.free_time_s for one in courses]


def _honest(courses: Sequence[Course]) -> Honest:
    excess = np.array(_slowdowns(courses)) / Goal().max_slowdown
    return Honest(
        jobs=len(courses),
        doubted=sum(one.doubted > 0 for one in courses),
        doubted_at_end=sum(one.live.problem == Reason.CONTRADICTED for one in courses),
        saved_pct=100.0 * float(np.mean([1.0 - one.account.energy_j / one.account.free_energy_j for one in courses])),
        over_bound_by_1pct=int(np.sum(excess > 1.01)),
    )


def _lying(courses: Sequence[Course]) -> Lying:
    pace = Pace()
    windows = np.array([one.most_lost_s for one in courses]) / (pace.settling_s + pace.window_s)
    return Lying(
        jobs=len(courses),
        contradicted=sum(one.doubted > 0 for one in courses),
        beyond_a_window=int(np.sum(windows > 1.0)),
        most_windows=float(windows.max()),
        p95_slowdown=float(np.percentile(_slowdowns(courses), 95)),
    )
