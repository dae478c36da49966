"""Benchmark of the live search for power limits: which jobs run, and what their accounts say.

Each GPU has a job of a published sweep of the same card. What a job would have taken without a limit is accounted
beside what it took, in the same phases with the same noise; so savings and slowdowns are of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.live import JobGpus
from joulie.domain.capping.measurements import SweptJob
from joulie.domain.capping.replay import TrueJob, true_jobs
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.live.measured_jobs import Account, MeasuredJob

CARDS: Mapping[str, str] = {
    "A40": "NVIDIA-A40",
    "P100": "Tesla-P100-PCIE-16GB",
    "V100": "Tesla-V100-PCIE-16GB",
    "RTX 6000": "Quadro-RTX-6000",
}
"""Cards of the sweeps, and their names in the catalogue."""


class Class(NamedTuple):
    """How jobs take part.

    Attributes:
        name: of the class.
        max_slowdown: bound; None for full power.
        annotations: of their pods.
    """

    name: str
    max_slowdown: float | None
    annotations: Mapping[str, str]


STANDARD = Class("standard", 1.05, {})
OPTED_IN = Class(
    "performance, opted in", 1.02, {"joulie.io/workload-class": "performance", "joulie.io/gpu-limits": "true"}
)
FULL_POWER = Class("performance", None, {"joulie.io/workload-class": "performance"})
CLASSES = (STANDARD, STANDARD, OPTED_IN, FULL_POWER)
"""Classes of the jobs of a node, in turn."""


class LiveJob(NamedTuple):
    """A job on a GPU of its own."""

    pod: str
    node: str
    card: str
    takes_part: Class
    truth: TrueJob

    def oracle_saved(self, min_w: float) -> float:
        """Share of the energy that the best of the limits that Joulie may set saves within the job's bound."""
        if self.takes_part.max_slowdown is None:
            return 0.0
        baseline_w = float(self.truth.truth.limits_w[0])
        offered_w = JobGpus(frozenset(), (), baseline_w, min_w, None).limits_w
        job = MeasuredJob(self.truth.name, self.truth.truth, 0)
        points = [job.response(limit_w) for limit_w in offered_w]
        energies = [power / rate for power, rate in points if 1.0 / rate <= self.takes_part.max_slowdown * (1 + 1e-9)]
        return 1.0 - min(energies) / energies[0]


class Sample(NamedTuple):
    """All jobs at a moment: simulated time, s, and by pod the limit of its GPU, W, and its account."""

    time_s: float
    limits_w: Mapping[str, float]
    accounts: Mapping[str, Account]


class Span(Figures, frozen=True):
    """Jobs over a span of time: energy of their GPUs saved, slowdowns over the same work without limits."""

    saved: float
    share: float
    median: float
    p95: float
    worst: float
    over_bound: int
    over_bound_by_1pct: int


class Group(Figures, frozen=True):
    """Jobs of a class or on a card: the whole run with its search, and its end."""

    jobs: int
    limited: int
    oracle_saved: float
    whole: Span
    end: Span


class Course(Figures, frozen=True):
    """One job over time: limit and mean power since the point before, W, and rate of work over that without a limit."""

    pod: str
    job: str
    card: str
    max_slowdown: float
    natural_w: float
    time_h: list[float]
    limit_w: list[float]
    power_w: list[float]
    rate: list[float]


class LiveLimitsResult(Figures, frozen=True):
    """Result of a run."""

    nodes: int
    gpus: int
    seed: int
    noise: float
    time_scale: float
    hours: float
    end_hours: float
    window_s: float
    settling_s: float
    classes: dict[str, Group]
    cards: dict[str, Group]
    together: Group
    course: Course


def choose(sweeps: Mapping[str, Sequence[SweptJob]], nodes: int, gpus: int, seed: int) -> list[LiveJob]:
    """Jobs for the GPUs of nodes, drawn from the sweep of each node's card without repetition.

    Args:
        sweeps: jobs of the sweeps by card.
        nodes: number of nodes; the cards alternate.
        gpus: number of GPUs of each.
        seed: of the draws.
    """
    rng, cards = np.random.default_rng(seed), list(sweeps)
    decks = {card: _shuffled(true_jobs(jobs), rng) for card, jobs in sweeps.items()}
    return [
        LiveJob(f"job-{node}-{gpu}", f"node-{node}", card, CLASSES[gpu % len(CLASSES)], decks[card].pop())
        for node in range(nodes)
        for card in [cards[node % len(cards)]]
        for gpu in range(gpus)
    ]


def _shuffled(jobs: Sequence[TrueJob], rng: np.random.Generator) -> list[TrueJob]:
    """Jobs in random order, without those that were not measured at their card's largest limit and another."""
    largest_w = max(float(job.truth.limits_w[0]) for job in jobs)
    usable = [job for job in jobs if job.truth.limits_w.size > 1 and job.truth.limits_w[0] == largest_w]
    return [usable[place] for place in rng.permutation(len(usable)).tolist()]


def evaluate(
    jobs: Sequence[LiveJob], samples: Sequence[Sample], min_w: Mapping[str, float], end_s: float
) -> tuple[dict[str, Group], dict[str, Group], Group]:
    """Groups by class and by card, and of all jobs.

    Args:
        jobs: the jobs.
        samples: of the run, in order.
        min_w: smallest limit by card, W.
        end_s: length of the span at the end, s.
    """
    middle = next(sample for sample in samples if sample.time_s >= samples[-1].time_s - end_s)

    def group(chosen: Sequence[LiveJob]) -> Group:
        oracle = np.array([job.oracle_saved(min_w[job.card]) for job in chosen])
        last = samples[-1].limits_w
        return Group(
            jobs=len(chosen),
            limited=sum(last[job.pod] < float(job.truth.truth.limits_w[0]) - 1.0 for job in chosen),
            oracle_saved=_mean(oracle, [samples[-1].accounts[job.pod] for job in chosen]),
            whole=_span(chosen, [samples[-1].accounts[job.pod] for job in chosen], oracle),
            end=_span(chosen, [_since(middle, samples[-1], job.pod) for job in chosen], oracle),
        )

    def groups(names: Sequence[str]) -> dict[str, Group]:
        return {
            name: group([job for job, own in zip(jobs, names, strict=True) if own == name])
            for name in dict.fromkeys(names)
        }

    return groups([job.takes_part.name for job in jobs]), groups([job.card for job in jobs]), group(jobs)


def course(jobs: Sequence[LiveJob], samples: Sequence[Sample]) -> Course:
    """Course of the standard job whose limits changed most often: it shows most of the search."""

    def changes(job: LiveJob) -> int:
        limits_w = [sample.limits_w[job.pod] for sample in samples]
        return int(np.count_nonzero(np.diff(limits_w)))

    job = max((job for job in jobs if job.takes_part is STANDARD), key=changes)
    truth, pairs = job.truth.truth, list(pairwise(samples))
    accounts = [_since(one, other, job.pod) for one, other in pairs]
    return Course(
        pod=job.pod,
        job=job.truth.name,
        card=job.card,
        max_slowdown=STANDARD.max_slowdown or 1.0,
        natural_w=truth.natural_w,
        time_h=[round(sample.time_s / 3600.0, 4) for sample in samples[1:]],
        limit_w=[sample.limits_w[job.pod] for sample in samples[1:]],
        power_w=[round(one.energy_j / one.time_s, 1) for one in accounts],
        rate=[round(one.work / one.time_s, 4) for one in accounts],
    )


def _since(one: Sample, other: Sample, pod: str) -> Account:
    before, after = one.accounts[pod], other.accounts[pod]
    return Account(*(getattr(after, name) - getattr(before, name) for name in Account.__dataclass_fields__))


def _mean(shares: np.ndarray, accounts: Sequence[Account]) -> float:
    """Mean of shares of the energy without limits."""
    return float(np.average(shares, weights=[account.free_energy_j for account in accounts]))


def _span(jobs: Sequence[LiveJob], accounts: Sequence[Account], oracle: np.ndarray) -> Span:
    saved = _mean(np.array([1.0 - one.energy_j / one.free_energy_j for one in accounts]), accounts)
    best = _mean(oracle, accounts)
    slowdown = np.array([one.time_s / one.free_time_s for one in accounts])
    excess = slowdown / np.array([job.takes_part.max_slowdown or 1.0 for job in jobs])
    return Span(
        saved=saved,
        share=saved / best if best > 0.0 else 1.0,
        median=float(np.median(slowdown)),
        p95=float(np.percentile(slowdown, 95)),
        worst=float(slowdown.max()),
        over_bound=int(np.sum(excess > 1.0 + 1e-6)),
        over_bound_by_1pct=int(np.sum(excess > 1.01)),
    )
