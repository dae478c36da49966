"""Benchmark sleep forecast: waits and energy of nodes that sleep, with the forecast of demand and without.

The forecast learns three weeks of arrivals and is judged on the workdays after them, which it has not seen. Jobs are
those of an office with machines to train on: people on workdays, a nightly batch, training in the morning, and jobs at
any time. How many come, when, and how large they are differs from day to day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.sleep.demand import SLOT_S, DemandHistory, ForecastSettings
from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.benchmarks.marginal_cluster import Plan, Run, Way, measured, plan
from joulie_lab.benchmarks.marginal_native import play, requests_of
from joulie_lab.benchmarks.results import Estimate, Figures, estimate
from joulie_lab.simulation.workload import JobTable

DAY_S = 24.0 * SECONDS_PER_HOUR
LEARNED_DAYS = 21
HELD_OUT_DAYS = 5
TUNED_SEED = 1
"""The defaults of the forecast were chosen on it."""
REPORT_SEEDS = (2, 3, 4)
NODES = (12, 6)
"""Nodes without and with GPUs."""
LONG_WAIT_S = 60.0
QUANTILES = (0.5, 0.8)


@dataclass(frozen=True)
class Habit:
    """Jobs that come in the same way again and again.

    Attributes:
        per_day: mean number on a day.
        workdays: whether they come on workdays only.
        hour: hour around which they come; NaN for any.
        spread_min: standard deviation of the time at which they come, min.
        median_min: median of their durations, min.
        sigma: standard deviation of the logarithm of the durations.
        cores: cores that one asks for, one of these.
        gpus: GPUs, one of these.
    """

    per_day: float
    workdays: bool
    hour: float
    spread_min: float
    median_min: float
    sigma: float
    cores: tuple[int, ...]
    gpus: tuple[int, ...]


HABITS = (
    Habit(240.0, True, 13.0, 150.0, 30.0, 1.0, (2, 4, 8, 16), (0,)),
    Habit(40.0, False, np.nan, 0.0, 30.0, 1.0, (2, 4, 8, 16), (0,)),
    Habit(30.0, False, 2.0, 2.0, 40.0, 0.3, (16,), (0,)),
    Habit(6.0, True, 9.5, 5.0, 90.0, 0.5, (12,), (1, 2, 4)),
    Habit(4.0, False, np.nan, 0.0, 60.0, 0.8, (12,), (1, 1, 2, 4, 8)),
)


def jobs_of(seed: int, days: int = LEARNED_DAYS + HELD_OUT_DAYS, habits: Iterable[Habit] = HABITS) -> JobTable:
    """Jobs of some days, of which the first is a Monday."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[float, float, int, int]] = []
    for day in range(days):
        for habit in habits:
            if habit.workdays and day % 7 >= 5:
                continue
            for _ in range(rng.poisson(habit.per_day)):
                hour = rng.uniform(0.0, 24.0) if np.isnan(habit.hour) else habit.hour
                at_s = day * DAY_S + hour * SECONDS_PER_HOUR + 60.0 * rng.normal(0.0, habit.spread_min)
                duration_s = 60.0 * rng.lognormal(np.log(habit.median_min), habit.sigma)
                rows.append((at_s, duration_s, int(rng.choice(habit.cores)), int(rng.choice(habit.gpus))))
    rows = sorted(row for row in rows if 0.0 <= row[0] < days * DAY_S)
    arrival_s, lengths_s, cores, gpus = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return JobTable(
        arrival_s=arrival_s,
        duration_s=np.ceil(np.clip(lengths_s, 60.0, DAY_S)),
        cores=cores.astype(np.int16),
        gpus=gpus.astype(np.int16),
        performance=np.zeros(count, np.bool_),
        cpu_util=np.full(count, 0.6),
        gpu_util=np.where(gpus > 0, 0.7, 0.0),
        job_class=(gpus > 0).astype(np.int8),
    )


def learned(jobs: JobTable, until_s: float, since_s: float) -> DemandHistory:
    """What the operator learned of the jobs from `since_s` until a time, which becomes zero."""
    history = DemandHistory()
    for slot_s in np.arange(since_s - until_s, 0.0, SLOT_S):
        history.watch(float(slot_s))
    for job in np.flatnonzero((jobs.arrival_s >= since_s) & (jobs.arrival_s < until_s)):
        requests = requests_of(float(jobs.cores[job]), float(jobs.gpus[job]))
        history.arrived(requests, ANYWHERE, float(jobs.arrival_s[job] - until_s))
    return history


class Judged(Figures, frozen=True):
    """Held-out days.

    Attributes:
        run: energies, waits and wakes.
        long_waits_pct: share of the jobs that waited for more than `LONG_WAIT_S`.
    """

    run: Run
    long_waits_pct: float


class Compared(Figures, frozen=True):
    """What a forecast changes, over the reported seeds.

    Attributes:
        mean_wait_pct: change of the mean wait, percent.
        long_waits_pct: change of the share of long waits, percent.
        energy_pct: change of the energy, percent.
    """

    mean_wait_pct: Estimate
    long_waits_pct: Estimate
    energy_pct: Estimate


class SleepForecastResult(Figures, frozen=True):
    """The result.

    Attributes:
        seeds: reported seeds.
        judged: by forecast, the held-out days of the first reported seed.
        compared: by forecast, what it changes against none.
        quantile: the default of the product.
    """

    seeds: tuple[int, ...]
    judged: Mapping[str, Judged]
    compared: Mapping[str, Compared]
    quantile: float


NONE = "no forecast"


def name_of(quantile: float) -> str:
    """Name of a forecast."""
    return f"{100.0 * quantile:g} %"


def judge(seed: int, held_out_days: int = HELD_OUT_DAYS) -> dict[str, Judged]:
    """The held-out days of a seed without a forecast, and with it by quantile."""
    of, taught = held_out(seed, held_out_days)
    found = {NONE: _judged(of, None, None)}
    for quantile in QUANTILES:
        found[name_of(quantile)] = _judged(of, taught(), ForecastSettings(quantile=quantile))
    return found


def held_out(seed: int, days: int = HELD_OUT_DAYS) -> tuple[Plan, Callable[[], DemandHistory]]:
    """The held-out days of a seed, and what makes a history that has learned the days before."""
    jobs, until_s = jobs_of(seed, LEARNED_DAYS + days), LEARNED_DAYS * DAY_S
    later = jobs.select(jobs.arrival_s >= until_s)
    later = JobTable(**{**vars(later), "arrival_s": later.arrival_s - until_s})
    of = Plan(plan(seed, NODES, 1.0).groups, later, days * 24.0, seed)
    return of, partial(learned, jobs, until_s, 0.0)


def _judged(of: Plan, demand: DemandHistory | None, forecast: ForecastSettings | None) -> Judged:
    course = play(of, Way.MARGINAL, demand=demand, forecast=forecast)
    waited_s = np.where(np.isnan(course.start_s), of.end_s, course.start_s) - of.jobs.arrival_s
    return Judged(run=measured(of, course), long_waits_pct=100.0 * float(np.mean(waited_s > LONG_WAIT_S)))


def summarise(by_seed: Mapping[int, Mapping[str, Judged]]) -> SleepForecastResult:
    """The figures of the benchmark."""
    weeks = list(by_seed.values())

    def changes(name: str, figure: str) -> Estimate:
        pairs = [(_figure(week[name], figure), _figure(week[NONE], figure)) for week in weeks]
        return estimate([100.0 * (value / without - 1.0) for value, without in pairs])

    names = [name for name in weeks[0] if name != NONE]
    return SleepForecastResult(
        seeds=tuple(by_seed),
        judged=weeks[0],
        compared={
            name: Compared(
                mean_wait_pct=changes(name, "mean_wait_min"),
                long_waits_pct=changes(name, "long_waits_pct"),
                energy_pct=changes(name, "kwh"),
            )
            for name in names
        },
        quantile=ForecastSettings().quantile,
    )


def _figure(judged: Judged, name: str) -> float:
    return float(judged.long_waits_pct if name == "long_waits_pct" else getattr(judged.run, name))
