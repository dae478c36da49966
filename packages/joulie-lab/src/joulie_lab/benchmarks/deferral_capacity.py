"""Part of benchmark deferral: jobs that wait for clean power in a cluster with limited capacity.

A week of a job trace runs on a fixed number of CPUs. Each job may start up to a day late and runs in one piece. By the
hour, Joulie's own decision with its own forecasts releases waiting jobs; released jobs start in order while CPUs are
free, like pending pods. Joulie does not know the free capacity, so a job that is held until its latest start may be
late: jobs with a slack of a day are held for at most half of it, and the rest is a reserve for queueing. The same rule
with a known future shows the value of better forecasts. The baseline starts the same jobs as soon as CPUs are free.

The bound is the optimum of a linear program that knows the future: how many CPUs of each kind of job start in an hour,
all jobs started in time, never more CPUs than there are. It may split a job over its CPUs and start parts of it at
different hours, so no schedule of whole jobs emits less. Time is in whole hours, for jobs as for intensity: arrivals
and lengths are rounded up, so that the bound is one for just the jobs that are scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from joulie.domain.grid.deferral import Conditions, Release, Waiting, decide
from joulie.domain.grid.forecast import rolling
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters.published.pai_jobs import Jobs, whole_hours
from joulie_lab.benchmarks.results import Figures

HOUR_S = 3600.0
SLACK_H = 24
RESERVE_H = 12
"""Part of the slack that is reserved for queueing. Chosen on seeds 100 to 103, where 9 h would do; elsewhere not."""
LOAD = 0.6
"""Mean share of the CPUs that the jobs need while they arrive."""
HORIZON_H = 96
"""How far forecasts look: a day and the longest jobs."""

TOTALS = ("jobs", "late", "late_held_to_the_last", "late_not_held")
"""Counts; other figures are means of the seeds."""


class Plan(NamedTuple):
    """What is run.

    Attributes:
        days: in which jobs arrive.
        history_days: before them, which forecasts are made from.
        seeds: each has other days and other jobs.
    """

    days: int
    history_days: int
    seeds: tuple[int, ...]


FULL = Plan(days=7, history_days=104, seeds=(0, 1, 2))
SMALL = Plan(days=2, history_days=28, seeds=(0,))


class Run(NamedTuple):
    """A schedule.

    Attributes:
        start_h: of each job, hours; shape ``(n_jobs,)``.
        emitted_g: for one kW a CPU, gCO2eq.
        late: jobs that started more than the slack after their arrival.
        wait_h: mean time from arrival to start, h.
    """

    start_h: IntArray
    emitted_g: float
    late: int
    wait_h: float


Released = Callable[[int, IntArray], IntArray]
"""Of the jobs that are held at an hour, those that may start."""


def synthetic_jobs(seed: int, days: int = 28) -> Jobs:
    """Made-up jobs, many short and few long, for tests without the trace."""
    rng = np.random.default_rng(seed)
    count = rng.poisson(6 * 24 * days)
    arrival_h = np.sort(rng.uniform(0.0, 24.0 * days, count))
    length_h = np.clip(rng.lognormal(0.0, 1.2, count), 0.1, HORIZON_H - SLACK_H)
    return whole_hours(np.column_stack((arrival_h, length_h, rng.choice([1, 2, 8], count, p=[0.7, 0.2, 0.1]))))


class CapacityFigures(Figures, frozen=True):
    """Savings in one zone and the bound, %; `late` are jobs that started after their slack."""

    jobs: int
    late: int
    late_held_to_the_last: int
    late_not_held: int
    cpus: float
    load: float
    wait_h: float
    saved_pct: float
    known_future_pct: float
    bound_pct: float
    share_of_bound: float


class CapacityResult(Figures, frozen=True):
    """The result, by zone."""

    slack_h: int
    reserve_h: int
    days: int
    seeds: Sequence[int]
    zones: Mapping[str, CapacityFigures]


def measure(zones: Mapping[str, Series], jobs: Jobs, plan: Plan, on_stage: Callable[[str], None]) -> CapacityResult:
    """Savings and the bound by zone.

    Args:
        zones: carbon intensity, gCO2eq/kWh; at least the weeks of history and the week of the plan.
        jobs: of which each seed takes another part.
        plan: days and seeds.
        on_stage: told what is next.
    """
    found = {}
    for zone, series in zones.items():
        runs = []
        for seed in plan.seeds:
            on_stage(f"limited CPUs, {zone}, seed {seed}")
            runs.append(_measure(series, jobs, plan, np.random.default_rng(seed)))
        means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0] if key not in TOTALS}
        totals = {key: sum(run[key] for run in runs) for key in TOTALS}
        found[zone] = msgspec.convert(
            totals | means | {"share_of_bound": means["saved_pct"] / means["bound_pct"]}, CapacityFigures
        )
    return CapacityResult(SLACK_H, RESERVE_H, plan.days, list(plan.seeds), found)


def at_once(_hour: int, held: IntArray) -> IntArray:
    """Jobs wait for CPUs only."""
    return held


def decided(jobs: Jobs, start_s: float, expected: Callable[[float], Series | None], max_delay_h: int) -> Released:
    """Jobs wait as Joulie decides, by what is expected at each hour.

    Args:
        jobs: the jobs.
        start_s: when their hour 0 begins, s since the epoch.
        expected: the forecast that is made at a time, gCO2eq/kWh.
        max_delay_h: how long a job is held at most, h.
    """
    requests = {int(length_h): _request(int(length_h), max_delay_h) for length_h in np.unique(jobs.length_h)}

    def released(hour: int, held: IntArray) -> IntArray:
        now_s = start_s + hour * HOUR_S
        series = expected(now_s)
        signal = GridSignal(
            Measure.CARBON, "", Quality.FRESH, None if series is None else series.at(now_s), now_s, forecast=series
        )
        # Jobs of the same age and length are decided alike, so one of them is asked.
        kinds, member = np.unique(
            np.column_stack((jobs.arrival_h[held], jobs.length_h[held])), axis=0, return_inverse=True
        )
        runs = [
            isinstance(
                decide(Waiting(requests[int(length_h)], start_s + int(arrival_h) * HOUR_S), Conditions(signal), now_s),
                Release,
            )
            for arrival_h, length_h in kinds
        ]
        return held[np.array(runs, dtype=np.bool_)[member]]

    return released


def play(jobs: Jobs, cpus: int, intensity: FloatArray, released: Released) -> Run:
    """Start released jobs, the oldest first, where there are CPUs; later ones may pass one that does not fit.

    Args:
        jobs: the jobs.
        cpus: how many CPUs there are.
        intensity: by hour, gCO2eq/kWh; shape ``(n_hours,)``.
        released: which of the held jobs may start.

    Raises:
        ValueError: the hours do not suffice for all jobs.
    """
    start_h = np.full(len(jobs), -1)
    free_from = np.zeros(len(intensity) + 1, dtype=np.int64)
    free = cpus
    held = pending = np.empty(0, dtype=np.int64)
    for hour in range(len(intensity)):
        free += int(free_from[hour])
        held = np.concatenate((held, np.flatnonzero(jobs.arrival_h == hour)))
        if held.size:
            going = released(hour, held)
            held = np.setdiff1d(held, going)
            pending = np.union1d(pending, going)
        for job in pending:
            if jobs.cpus[job] <= free:
                start_h[job] = hour
                free -= int(jobs.cpus[job])
                free_from[min(hour + int(jobs.length_h[job]), len(intensity))] += jobs.cpus[job]
        pending = pending[start_h[pending] < 0]
    if (start_h < 0).any() or (start_h + jobs.length_h > len(intensity)).any():
        raise ValueError(f"{len(intensity)} hours are too few for all jobs on {cpus} CPUs")
    sums = np.concatenate(([0.0], np.cumsum(intensity)))
    emitted_g = float((jobs.cpus * (sums[start_h + jobs.length_h] - sums[start_h])).sum())
    waits_h = start_h - jobs.arrival_h
    return Run(start_h, emitted_g, int((waits_h > SLACK_H).sum()), float(waits_h.mean()))


def least_emitted_g(jobs: Jobs, cpus: int, intensity: FloatArray) -> float:
    """Lower bound on the emissions of any schedule that starts all jobs in time, for one kW per CPU, gCO2eq.

    Raises:
        ValueError: no schedule starts all jobs in time.
    """
    kinds, member = np.unique(np.column_stack((jobs.arrival_h, jobs.length_h)), axis=0, return_inverse=True)
    needed = np.bincount(member, weights=jobs.cpus)
    starts = SLACK_H + 1
    first_h = np.repeat(kinds[:, 0], starts) + np.tile(np.arange(starts), len(kinds))
    length_h = np.repeat(kinds[:, 1], starts)
    sums = np.concatenate(([0.0], np.cumsum(intensity)))
    variable = np.arange(len(first_h))
    all_started = csr_array((np.ones(len(variable)), (np.repeat(np.arange(len(kinds)), starts), variable)))
    # A start takes CPUs in each hour of its run.
    running = np.repeat(variable, length_h)
    hour = np.repeat(first_h, length_h) + np.arange(len(running)) - np.repeat(np.cumsum(length_h) - length_h, length_h)
    in_use = csr_array((np.ones(len(running)), (hour, running)), shape=(len(intensity), len(variable)))
    found = linprog(  # type: ignore[call-overload]  # the stubs know no sparse arrays
        sums[first_h + length_h] - sums[first_h],
        A_ub=in_use,
        b_ub=np.full(len(intensity), float(cpus)),
        A_eq=all_started,
        b_eq=needed,
        method="highs",
    )
    if not found.success:
        raise ValueError(f"no bound: {found.message}")
    return float(found.fun)


def _request(length_h: int, max_delay_h: int) -> GridRequest:
    return GridRequest(
        asked_by=Asked.POD,
        mode=Mode.OPTIMAL,
        max_delay_s=max_delay_h * HOUR_S,
        runtime_s=length_h * HOUR_S,
        runtime_stated=True,
    )


def forecasts(intensity: FloatArray, start_s: float, history_days: int) -> Callable[[float], Series]:
    """Joulie's own forecast at each hour after the history, which knows nothing of later hours.

    Args:
        intensity: by hour, the history first, gCO2eq/kWh; shape ``(n_hours,)``.
        start_s: when the history ends, s since the epoch.
        history_days: how long it is.
    """
    history_h = 24 * history_days
    days = np.arange(history_days, len(intensity) // 24)
    expected = rolling(intensity, start_s - history_h * HOUR_S, HOUR_S, HORIZON_H, days)

    def at(now_s: float) -> Series:
        # The first row is for the last hour of the history.
        row = expected[1 + round((now_s - start_s) / HOUR_S)]
        return Series(now_s + HOUR_S * np.arange(HORIZON_H), row, now_s + HOUR_S * HORIZON_H)

    return at


def _measure(series: Series, trace: Jobs, plan: Plan, rng: np.random.Generator) -> dict[str, Any]:
    days, history_h = plan.days, 24 * plan.history_days
    from_h = int(rng.integers(0, int(trace.arrival_h.max()) - 24 * days, endpoint=True))
    jobs = trace.between(from_h, from_h + 24 * days)
    hours = 24 * days + SLACK_H + 2 * HORIZON_H
    spare_h = int((series.end_s - series.start_s) // HOUR_S) - history_h - hours
    if spare_h < 0:
        raise ValueError(f"{series} is too short: {history_h + hours} hours are needed")
    start_s = series.start_s + HOUR_S * (history_h + int(rng.integers(0, spare_h, endpoint=True)))
    edges_s = start_s + HOUR_S * np.arange(-history_h, hours + 1)
    known = series.integral(edges_s[:-1], edges_s[1:]) / HOUR_S
    intensity = known[history_h:]
    truth = Series(edges_s[history_h:-1], intensity, edges_s[-1])

    def foreseen(now_s: float) -> Series | None:
        return truth.between(now_s, truth.end_s)

    forecasted = forecasts(known, start_s, plan.history_days)
    work_h = int((jobs.length_h * jobs.cpus).sum())
    cpus = max(math.ceil(work_h / (LOAD * 24 * days)), int(jobs.cpus.max()))
    unheld = play(jobs, cpus, intensity, at_once)
    joulie = play(jobs, cpus, intensity, decided(jobs, start_s, forecasted, SLACK_H - RESERVE_H))
    informed = play(jobs, cpus, intensity, decided(jobs, start_s, foreseen, SLACK_H - RESERVE_H))
    to_the_last = play(jobs, cpus, intensity, decided(jobs, start_s, forecasted, SLACK_H))
    bound_g = least_emitted_g(jobs, cpus, intensity)

    def saved_pct(emitted_g: float) -> float:
        return 100.0 * (1.0 - emitted_g / unheld.emitted_g)

    return {
        "jobs": len(jobs),
        "late": joulie.late,
        "late_held_to_the_last": to_the_last.late,
        "late_not_held": unheld.late,
        "cpus": cpus,
        "load": work_h / (cpus * 24 * days),
        "wait_h": joulie.wait_h,
        "saved_pct": saved_pct(joulie.emitted_g),
        "known_future_pct": saved_pct(informed.emitted_g),
        "bound_pct": saved_pct(bound_g),
    }
