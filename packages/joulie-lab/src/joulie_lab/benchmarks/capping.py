"""Benchmark of power limits chosen from few measurements of a job, against the best limit.

Published sweeps of training jobs over the power limits of two GPUs are replayed: a chooser sees the job at the maximum
limit and at a few limits that it requests, and its choice is evaluated with the sweep. Its knowledge of other jobs
excludes the network under test (held out), and in one column comes only from the other GPU. The oracle knows all
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.domain.capping.choice import Goal, choose_limit, next_limit_w
from joulie.domain.capping.measurements import Measurement, Sweep, SweptJob, sweep_of
from joulie.domain.capping.response import Response, learn
from joulie_lab.benchmarks.breaker import FeedResult
from joulie_lab.benchmarks.results import Figures, Spread, spread

HOME = "github.com/ml-energy/zeus"
DATASET = "gpu_power"
"""Dataset name for `joulie bench fetch`."""
FILES: Mapping[str, str] = {"A40": "summary_power_a40.csv", "P100": "summary_power_p100.csv"}

PROFILE_S = 30.0
"""How long a job is measured at one limit: some to settle, the rest to count."""
CERTAIN_SHARE = 0.95
"""A single limit for all jobs must keep the slowdown bound for this share of other networks' jobs."""
OnStage = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark.

    Attributes:
        budgets: numbers of measurements beside the one at the maximum limit.
        shown: budget of all figures that are not about budgets.
        bounds: allowed slowdowns, as factors; the first is that of the target.
        lengths_s: runtimes at the maximum limit of jobs that include profiling, s.
        errors: relative standard deviations of measured times and powers.
        seeds: seeds of these errors.
    """

    budgets: tuple[int, ...] = (0, 1, 2, 3, 4)
    shown: int = 3
    bounds: tuple[float, ...] = (1.05, 1.02, 1.10, 1.20)
    lengths_s: tuple[float, ...] = (600.0, 3600.0, 21600.0)
    errors: tuple[float, ...] = (0.003, 0.01, 0.02)
    seeds: tuple[int, ...] = tuple(range(1, 9))


FULL = Plan()
SMALL = Plan(budgets=(0, 1, 3), bounds=(1.05,), lengths_s=(3600.0,), errors=(0.003,), seeds=(1, 2))


@dataclass(frozen=True, eq=False)
class Job:
    """A job with its complete sweep.

    Attributes:
        name: name in the file.
        family: its network.
        truth: its sweep.
    """

    name: str
    family: str
    truth: Sweep

    def measurement(self, place: int) -> Measurement:
        """Result of a measurement at one limit."""
        truth = self.truth
        return Measurement(float(truth.limits_w[place]), float(truth.time_s[place]), float(truth.power_w[place]))

    def oracle(self, max_slowdown: float) -> int:
        """Index of the best limit within a slowdown."""
        kept = self.truth.slowdown <= max_slowdown * (1.0 + 1e-12)
        return int(np.argmin(np.where(kept, self.truth.energy_ratio, np.inf)))


@dataclass(frozen=True, eq=False)
class Chosen:
    """The chosen limit of a job.

    Attributes:
        job: the job.
        place: index of the chosen limit in its sweep.
        measured: indices measured beside the maximum limit, in order.
    """

    job: Job
    place: int
    measured: tuple[int, ...] = ()

    @property
    def saving(self) -> float:
        """Share of the energy that is saved, excluding profiling."""
        return 1.0 - float(self.job.truth.energy_ratio[self.place])

    @property
    def slowdown(self) -> float:
        """Time for the same work, over that at the largest limit."""
        return float(self.job.truth.slowdown[self.place])

    def with_profiling(self, length_s: float) -> tuple[float, float]:
        """Share of the energy saved and slowdown of a whole job, which begins with its profiles.

        Args:
            length_s: of the job at the largest limit, s.
        """
        truth = self.job.truth
        places = np.array(self.measured, dtype=np.int64)
        # Work done while profiling counts, only slower. The rest is done under the chosen limit.
        done = PROFILE_S / truth.time_s[places]
        rest = max(length_s / truth.time_s[0] - float(done.sum()), 0.0)
        time_s = PROFILE_S * len(places) + rest * truth.time_s[self.place]
        energy_j = float(np.sum(PROFILE_S * truth.power_w[places]))
        energy_j += rest * truth.time_s[self.place] * truth.power_w[self.place]
        work = rest + float(done.sum())
        plain_s = work * truth.time_s[0]
        return 1.0 - float(energy_j / (plain_s * truth.power_w[0])), float(time_s / plain_s)


class SweepData(Figures, frozen=True):
    """The published sweeps of one GPU."""

    jobs: int
    runs: int
    networks: int
    largest_limit_w: float
    smallest_limit_w: float


class WholeJobs(Figures, frozen=True):
    """Saving and slowdown of jobs with their profiles."""

    saving_pct: float
    mean_slowdown: float
    worst_slowdown: float


class ChoiceFigures(Figures, frozen=True):
    """Savings of jobs, beside the oracle's, and how far the bound is kept; `share` is that of the oracle's saving."""

    saving_pct: float
    oracle_pct: float
    share: float
    violations: int
    violating_pct: float
    mean_slowdown: float
    worst_slowdown: float
    measured: float
    jobs: int


class ErrorFigures(Figures, frozen=True):
    """Effect of measurement errors, over the seeds."""

    share: Spread
    violating_pct: Spread
    worst_slowdown: Spread


class GpuFigures(Figures, frozen=True):
    """The choice of limits on one GPU: by source and number measured, by simpler ways, bounds, networks and errors."""

    data: SweepData
    choice: Mapping[str, Mapping[str, ChoiceFigures]]
    simpler: Mapping[str, ChoiceFigures]
    bounds: Mapping[str, ChoiceFigures]
    networks: Mapping[str, ChoiceFigures]
    profiling: Mapping[str, Mapping[str, WholeJobs]]
    errors: Mapping[str, ErrorFigures]


class CappingResult(Figures, frozen=True):
    """The result; the choice of limits by GPU."""

    max_slowdown: float
    profile_s: float
    gpus: Mapping[str, GpuFigures]
    feed: FeedResult


def measure(sweeps: Mapping[str, Sequence[SweptJob]], plan: Plan, on_stage: OnStage) -> dict[str, GpuFigures]:
    """The choice of limits, by GPU.

    Args:
        sweeps: by GPU; two GPUs or more.
        plan: what to measure.
        on_stage: is told what comes next.
    """
    jobs = {gpu: jobs_of(swept) for gpu, swept in sweeps.items()}
    gpus = {}
    for gpu, own in jobs.items():
        on_stage(f"{gpu}: limits of {len(own)} jobs")
        others = [job for name, found in jobs.items() if name != gpu for job in found]
        gpus[gpu] = _of_gpu(own, others, plan)
    return gpus


def jobs_of(swept: Sequence[SweptJob]) -> list[Job]:
    """Jobs that were measured at two limits or more."""
    found = [(job, sweep_of(job.measurements)) for job in swept]
    return [Job(job.name, job.family, sweep) for job, sweep in found if sweep is not None and len(sweep.limits_w) > 1]


def _of_gpu(own: Sequence[Job], others: Sequence[Job], plan: Plan) -> GpuFigures:
    goal = Goal(plan.bounds[0])
    sources = {"other_networks": (*own, *others), "same_gpu": tuple(own), "other_gpu": tuple(others)}
    shown = replayed(own, left_out(own, sources["other_networks"]), goal, plan.shown)
    return GpuFigures(
        data=_data(own),
        choice={
            source: {
                str(budget): figures(replayed(own, left_out(own, teachers), goal, budget), goal)
                for budget in plan.budgets
            }
            for source, teachers in sources.items()
        },
        simpler={name: figures(chosen, goal) for name, chosen in _simpler(own, sources["other_networks"], goal)},
        bounds={
            f"{bound:g}".replace(".", "_"): figures(
                replayed(own, left_out(own, sources["other_networks"]), Goal(bound), plan.shown), Goal(bound)
            )
            for bound in plan.bounds
        },
        networks={
            family: figures([one for one in shown if one.job.family == family], goal) for family in _families(own)
        },
        profiling=_profiling(shown, _every_limit(own, goal), plan),
        errors=_errors(own, sources["other_networks"], plan),
    )


def _data(own: Sequence[Job]) -> SweepData:
    limits_w = np.concatenate([job.truth.limits_w for job in own])
    return SweepData(
        jobs=len(own),
        runs=int(limits_w.size),
        networks=len(_families(own)),
        largest_limit_w=float(limits_w.max()),
        smallest_limit_w=float(limits_w.min()),
    )


def _families(jobs: Sequence[Job]) -> list[str]:
    return sorted({job.family for job in jobs})


def left_out(tested: Sequence[Job], teachers: Sequence[Job]) -> dict[str, Response]:
    """By network that is tested, the response learned from the other networks of the teachers."""
    return {family: learn(job.truth for job in teachers if job.family != family) for family in _families(tested)}


def replayed(
    jobs: Sequence[Job],
    responses: Mapping[str, Response],
    goal: Goal,
    budget: int,
    error: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Chosen]:
    """What is chosen for each job after at most `budget` measurements beside the largest limit.

    Args:
        jobs: tested.
        responses: of other jobs, by the network that they leave out.
        goal: what to keep.
        budget: largest number of measurements.
        error: standard deviation of measured times and powers, as a share.
        rng: draws these errors; needed where `error` is not 0.
    """
    return [_replayed(job, responses[job.family], goal, budget, error, rng) for job in jobs]


def _replayed(
    job: Job, response: Response, goal: Goal, budget: int, error: float, rng: np.random.Generator | None
) -> Chosen:
    limits_w = job.truth.limits_w.tolist()
    seen: list[Measurement] = []
    places: list[int] = []
    while len(seen) <= budget:
        limit_w = next_limit_w(sweep_of(seen), limits_w, response, goal)
        if limit_w is None:
            break
        places.append(limits_w.index(limit_w))
        seen.append(_with_error(job.measurement(places[-1]), error, rng))
    choice = choose_limit(sweep_of(seen), limits_w, response, goal)
    return Chosen(job, limits_w.index(choice.limit_w), tuple(places[1:]))


def _with_error(true: Measurement, error: float, rng: np.random.Generator | None) -> Measurement:
    if rng is None:
        return true
    time, power = np.exp(error * rng.standard_normal(2))
    return Measurement(true.limit_w, true.time_s * float(time), true.power_w * float(power))


def figures(chosen: Sequence[Chosen], goal: Goal) -> ChoiceFigures:
    """Savings of jobs that each count alike, beside the oracle's, and how far the bound is kept."""
    saving = np.array([one.saving for one in chosen])
    oracle = np.array([1.0 - one.job.truth.energy_ratio[one.job.oracle(goal.max_slowdown)] for one in chosen])
    slowdown = np.array([one.slowdown for one in chosen])
    over = slowdown > goal.max_slowdown * (1.0 + 1e-9)
    return ChoiceFigures(
        saving_pct=100.0 * float(saving.mean()),
        oracle_pct=100.0 * float(oracle.mean()),
        # Jobs without possible savings cannot miss any.
        share=float(saving.mean() / oracle.mean()) if oracle.any() else 1.0,
        violations=int(over.sum()),
        violating_pct=100.0 * float(over.mean()),
        mean_slowdown=float(slowdown.mean()),
        worst_slowdown=float(slowdown.max()),
        measured=float(np.mean([len(one.measured) for one in chosen])),
        jobs=len(chosen),
    )


def _simpler(own: Sequence[Job], teachers: Sequence[Job], goal: Goal) -> Iterator[tuple[str, list[Chosen]]]:
    """Simpler methods for comparison."""
    yield "every limit measured (Zeus)", _every_limit(own, goal)
    yield "three measured by bisection", [_bisected(job, goal, 3) for job in own]
    yield "median response, nothing measured", replayed(own, left_out(own, teachers), replace(goal, certainty=0.0), 0)
    yield "one limit for all jobs", [_fixed(job, _one_limit_w(own, job.family, goal)) for job in own]
    yield "70 % of the largest limit", [_fixed(job, 0.7 * float(job.truth.limits_w[0])) for job in own]


def _every_limit(own: Sequence[Job], goal: Goal) -> list[Chosen]:
    return [Chosen(job, job.oracle(goal.max_slowdown), tuple(range(1, len(job.truth.limits_w)))) for job in own]


def _bisected(job: Job, goal: Goal, budget: int) -> Chosen:
    """Halves the limits between the smallest known to keep the bound and the largest known not to."""
    kept, lost, measured = 0, len(job.truth.limits_w), [0]
    while lost - kept > 1 and len(measured) <= budget:
        middle = (kept + lost) // 2
        measured.append(middle)
        if job.truth.slowdown[middle] <= goal.max_slowdown:
            kept = middle
        else:
            lost = middle
    within = [place for place in measured if job.truth.slowdown[place] <= goal.max_slowdown]
    return Chosen(job, min(within, key=lambda place: job.truth.energy_ratio[place]), tuple(measured[1:]))


def _one_limit_w(own: Sequence[Job], family: str, goal: Goal) -> float:
    """The limit that saves other networks' jobs most, of those which nearly all of them keep the bound under."""
    teachers = [job for job in own if job.family != family]
    largest_w = max(float(job.truth.limits_w[0]) for job in own)
    best_w, best = largest_w, 0.0
    for limit_w in sorted({float(limit) for job in teachers for limit in job.truth.limits_w}):
        chosen = [_fixed(job, limit_w) for job in teachers]
        kept = np.mean([one.slowdown <= goal.max_slowdown for one in chosen])
        saving = float(np.mean([one.saving for one in chosen]))
        if kept >= CERTAIN_SHARE and saving > best:
            best_w, best = limit_w, saving
    return best_w


def _fixed(job: Job, limit_w: float) -> Chosen:
    """The smallest limit of the job's sweep that is not below a fixed one; the largest where all of them are."""
    return Chosen(job, max(int(np.sum(job.truth.limits_w >= limit_w - 1e-9)) - 1, 0))


def _profiling(shown: Sequence[Chosen], every: Sequence[Chosen], plan: Plan) -> dict[str, dict[str, WholeJobs]]:
    """Saving and slowdown of whole jobs that begin with their profiles."""
    return {
        f"{length_s / 60.0:g}_min": {
            name: _whole(chosen, length_s) for name, chosen in (("few", shown), ("all", every))
        }
        for length_s in plan.lengths_s
    }


def _whole(chosen: Sequence[Chosen], length_s: float) -> WholeJobs:
    saving, slowdown = np.transpose([one.with_profiling(length_s) for one in chosen])
    return WholeJobs(100.0 * float(saving.mean()), float(slowdown.mean()), float(slowdown.max()))


def _errors(own: Sequence[Job], teachers: Sequence[Job], plan: Plan) -> dict[str, ErrorFigures]:
    """Effect of measurement errors, with and without a margin for them."""
    responses = left_out(own, teachers)
    found = {}
    for error in plan.errors:
        for name, stated in (("without_margin", 0.0), ("with_margin", error)):
            goal = Goal(plan.bounds[0], measurement_error=stated)
            runs = [
                figures(replayed(own, responses, goal, plan.shown, error, np.random.default_rng(seed)), goal)
                for seed in plan.seeds
            ]
            found[f"{1000.0 * error:g}_permille_{name}"] = ErrorFigures(
                spread([run.share for run in runs]),
                spread([run.violating_pct for run in runs]),
                spread([run.worst_slowdown for run in runs]),
            )
    return found


def synthetic_sweeps(seed: int, jobs_of_family: int = 4) -> dict[str, tuple[SweptJob, ...]]:
    """Synthetic sweeps for the small benchmark: power falls to the limit, throughput by its cube root.

    Args:
        seed: of the jobs.
        jobs_of_family: jobs of each of five families.
    """
    rng = np.random.default_rng(seed)
    made = {}
    for gpu, limits_w in {"A": np.arange(100.0, 301.0, 25.0), "B": np.arange(125.0, 251.0, 25.0)}.items():
        jobs = []
        for family in range(5):
            level, steepness = rng.uniform(0.5, 0.95), rng.uniform(0.6, 1.6)
            for index in range(jobs_of_family):
                natural_w = limits_w[-1] * min(level * rng.uniform(0.85, 1.15), 1.0)
                ratio = np.minimum(limits_w / natural_w, 1.0)
                # Flat near the natural power, steep far below it, as measured sweeps are.
                slowdown = 1.0 + steepness * (1.0 / ratio - 1.0) ** 1.8
                time_s = 10.0 * slowdown * np.exp(0.01 * rng.standard_normal(limits_w.size))
                power_w = natural_w * ratio * np.exp(0.005 * rng.standard_normal(limits_w.size))
                jobs.append(
                    SweptJob(
                        f"family-{family}/{index}",
                        f"family-{family}",
                        tuple(Measurement(*map(float, run)) for run in zip(limits_w, time_s, power_w, strict=True)),
                    )
                )
        made[gpu] = tuple(jobs)
    return made
