"""Benchmark consolidation: what it saves to empty nodes that have few jobs, and what that costs the jobs.

The same jobs run with nodes that sleep once they are empty, and with nodes that are emptied where the product says that
it pays. What is lost when a job is moved differs by case: nothing, what was done since its last checkpoint, or all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from joulie.domain.sleep.demand import ForecastSettings
from joulie.domain.sleep.snapshot import ConsolidationSettings, SleepSettings
from joulie_lab.adapters.executors import in_processes
from joulie_lab.benchmarks.marginal_cluster import Course, Plan, Way, energy_kwh, plan
from joulie_lab.benchmarks.marginal_native import Moving, play
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.benchmarks.sleep_forecast import held_out

RESTART_S = 60.0
MOVING: Mapping[str, Moving] = {
    "services: nothing is lost": Moving(checkpoint_s=0.0, restart_s=RESTART_S, ends=False),
    "checkpoint every 10 min": Moving(checkpoint_s=600.0, restart_s=RESTART_S),
    "the same, half of the jobs may be moved": Moving(share=0.5, checkpoint_s=600.0, restart_s=RESTART_S),
    "checkpoint every 30 min": Moving(checkpoint_s=1800.0, restart_s=RESTART_S),
    "no checkpoints: all is lost": Moving(restart_s=RESTART_S),
}
"""Cases, by name."""


class Load(StrEnum):
    """What runs."""

    OFFICE = "office"
    """Workdays with habits on a small cluster, with a forecast that has learned: benchmark sleep-forecast."""
    DAY = "day"
    """A day without habits on 60 nodes, without forecast: benchmark marginal-cluster."""


OFFICE_DAYS = 2
"""Days with habits that are played: more seeds narrow intervals more than more days of each."""
SEEDS: Mapping[Load, tuple[int, ...]] = {
    Load.OFFICE: (2, 3, 4, 5, 6, 7),
    Load.DAY: (456, 789, 1337, 2024, 9999, 31415),
}
"""Nothing was chosen on them."""


class Judged(Figures, frozen=True):
    """A run.

    Attributes:
        kwh: energy, work that was done twice included.
        mean_wait_s: mean wait before the first start.
        wakes: nodes switched on.
        moves: jobs moved.
        redone_pct: work done twice and restarts, percent of all work.
        unfinished: jobs that did not end.
    """

    kwh: float
    mean_wait_s: float
    wakes: int
    moves: int
    redone_pct: float
    unfinished: int


class Compared(Figures, frozen=True):
    """What emptying nodes changes, over the seeds.

    Attributes:
        energy_pct: change of the energy, percent.
        wait_s: change of the mean wait, s.
        wakes: change of the wakes in a day.
        moves: jobs moved in a day.
        moved_pct: moves, percent of the jobs.
        redone_pct: work done twice and restarts, percent of all work.
        unfinished: change of the number of jobs that did not end.
    """

    energy_pct: Estimate
    wait_s: Estimate
    wakes: Estimate
    moves: Estimate
    moved_pct: Estimate
    redone_pct: Estimate
    unfinished: int


class Baseline(Figures, frozen=True):
    """What happens where no node is emptied, over the seeds.

    Attributes:
        kwh: energy in a day.
        mean_wait_s: mean wait before the first start.
        wakes: nodes switched on in a day.
    """

    kwh: Estimate
    mean_wait_s: Estimate
    wakes: Estimate


class ConsolidationResult(Figures, frozen=True):
    """The result: by load what happens where no node is emptied, and by case what emptying nodes changes."""

    seeds: Mapping[str, Sequence[int]]
    jobs: Mapping[str, Sequence[int]]
    days: Mapping[str, float]
    without: Mapping[str, Baseline]
    compared: Mapping[str, Mapping[str, Compared]]


@dataclass(frozen=True)
class Week:
    """The runs of a seed.

    Attributes:
        load: what runs.
        seed: of the jobs.
        jobs: number of jobs.
        days: length of the run.
        without: where no node is emptied.
        emptied: where nodes are, by case.
    """

    load: Load
    seed: int
    jobs: int
    days: float
    without: Judged
    emptied: Mapping[str, Judged]


def judge(load: Load, seed: int, *, days: int = OFFICE_DAYS, cases: Sequence[str] = tuple(MOVING)) -> Week:
    """Play a seed without emptying nodes, and with it in each case.

    Args:
        load: what runs.
        seed: of the jobs.
        days: days with habits that are played.
        cases: names of the cases.
    """
    if load is Load.DAY:
        of, learned = plan(seed), None
    else:
        of, learned = held_out(seed, days)

    def run(consolidation: ConsolidationSettings, moving: Moving | None) -> Judged:
        settings = SleepSettings(consolidation=consolidation)
        demand = None if learned is None else learned()
        forecast = ForecastSettings()
        return _judged(of, play(of, Way.MARGINAL, settings=settings, demand=demand, forecast=forecast, moving=moving))

    emptied = {name: run(settings_for(MOVING[name]), MOVING[name]) for name in cases}
    return Week(load, seed, len(of.jobs), of.hours / 24.0, run(ConsolidationSettings(), None), emptied)


def settings_for(moving: Moving) -> ConsolidationSettings:
    """The product's defaults for nodes that are emptied, told how much of its work a job loses at most."""
    defaults = ConsolidationSettings(max_nodes=1, restart_s=moving.restart_s)
    return replace(defaults, lost_s=min(moving.checkpoint_s, defaults.lost_s))


def _judged(of: Plan, course: Course) -> Judged:
    redone_s = np.zeros(len(of.jobs)) if course.redone_s is None else course.redone_s
    start_s = np.where(np.isnan(course.start_s), of.end_s, course.start_s)
    cores_s = of.jobs.cores * of.jobs.duration_s
    return Judged(
        kwh=energy_kwh(of, course.awake_s, redone_s),
        mean_wait_s=float(np.mean(start_s - of.jobs.arrival_s)),
        wakes=course.wakes,
        moves=course.moves,
        redone_pct=100.0 * float((of.jobs.cores * redone_s).sum() / cores_s.sum()),
        unfinished=int(np.isnan(course.end_s).sum()),
    )


def judge_all(
    seeds: Mapping[Load, Sequence[int]],
    n_workers: int,
    *,
    days: int = OFFICE_DAYS,
    note: Callable[[str], None] = lambda _text: None,
) -> list[Week]:
    """Play all seeds.

    Args:
        seeds: by load.
        n_workers: number of processes.
        days: days with habits that are played.
        note: told of each seed that was played.
    """
    todo = [(load, seed, days) for load, of_load in seeds.items() for seed in of_load]
    weeks = []
    for week in in_processes(_judge, todo, n_workers):
        weeks.append(week)
        note(f"{week.load}, seed {week.seed}: {len(weeks)} of {len(todo)}")
    return sorted(weeks, key=lambda week: todo.index((week.load, week.seed, days)))


def _judge(todo: tuple[Load, int, int]) -> Week:
    load, seed, days = todo
    return judge(load, seed, days=days)


def summarise(weeks: Sequence[Week]) -> ConsolidationResult:
    """The figures of the benchmark."""
    by_load = {load: [week for week in weeks if week.load is load] for load in Load}
    by_load = {load: found for load, found in by_load.items() if found}
    return ConsolidationResult(
        seeds={load.value: [week.seed for week in found] for load, found in by_load.items()},
        jobs={load.value: [week.jobs for week in found] for load, found in by_load.items()},
        days={load.value: found[0].days for load, found in by_load.items()},
        without={load.value: _baseline(found) for load, found in by_load.items()},
        compared={
            load.value: {name: _compared(found, name) for name in found[0].emptied} for load, found in by_load.items()
        },
    )


def _baseline(weeks: Sequence[Week]) -> Baseline:
    return Baseline(
        kwh=estimate([week.without.kwh / week.days for week in weeks]),
        mean_wait_s=estimate([week.without.mean_wait_s for week in weeks]),
        wakes=estimate([week.without.wakes / week.days for week in weeks]),
    )


def _compared(weeks: Sequence[Week], name: str) -> Compared:
    pairs = [(week.emptied[name], week.without, week) for week in weeks]
    return Compared(
        energy_pct=estimate([100.0 * (with_it.kwh / without.kwh - 1.0) for with_it, without, _ in pairs]),
        wait_s=estimate([with_it.mean_wait_s - without.mean_wait_s for with_it, without, _ in pairs]),
        wakes=estimate([(with_it.wakes - without.wakes) / week.days for with_it, without, week in pairs]),
        moves=estimate([with_it.moves / week.days for with_it, _, week in pairs]),
        moved_pct=estimate([100.0 * with_it.moves / week.jobs for with_it, _, week in pairs]),
        redone_pct=estimate([with_it.redone_pct for with_it, _, _ in pairs]),
        unfinished=sum(with_it.unfinished - without.unfinished for with_it, without, _ in pairs),
    )
