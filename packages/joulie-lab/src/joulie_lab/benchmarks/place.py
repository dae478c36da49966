"""Benchmark place: carbon savings of waiting, of moving, and of both, for jobs that may run in two zones.

The zones have opposite days: one is a published year, the other the same year twelve hours later. Jobs arrive in
either, may wait, and may move their data to the other. Each is decided at every step by the product's function, by the
product's own forecasts of both zones; the best possible run knows the future.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid.deferral import Conditions, Release, Waiting
from joulie.domain.grid.forecast import MIN_HISTORY_DAYS, rolling
from joulie.domain.grid.move import Move
from joulie.domain.grid.place import Place, choose
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality
from joulie.domain.units import FloatArray
from joulie_lab.adapters.published.intensity import HOUR_S, Zone
from joulie_lab.benchmarks.parity import OnStage
from joulie_lab.benchmarks.results import Estimate, Figures, estimate

OPPOSITE_H = 12
RUNTIME_H, SLACK_H = 4, 24
RUN_KWH, WH_PER_GB = 4.0, 10.0
BOTH, TIME, PLACE = "both", "time only", "place only"
RULES: Mapping[str, tuple[int, bool]] = {TIME: (SLACK_H, False), PLACE: (0, True), BOTH: (SLACK_H, True)}
"""Maximum delay in hours, and whether jobs may move, by rule."""
BEST = "best possible"


@dataclass(frozen=True)
class PlacePlan:
    """Size of the benchmark.

    Attributes:
        seeds: seeds of the arrivals.
        arrivals: number of jobs per seed.
        data_gb: data of a job, GB, a case each.
        warm_up_days: days at the start of the year without arrivals.
    """

    seeds: tuple[int, ...]
    arrivals: int
    data_gb: tuple[int, ...]
    warm_up_days: int = 14


FULL = PlacePlan(seeds=(1, 2, 3, 4), arrivals=100, data_gb=(0, 20, 100))
SMALL = PlacePlan(seeds=(1, 2), arrivals=15, data_gb=(0, 100))


class PlaceFigures(Figures, frozen=True):
    """Jobs by one rule: emissions with transfers, savings, their share of the best possible ones, waits, moves."""

    g_per_kwh: Estimate
    saved_pct: Estimate
    share: Estimate
    wait_h: float
    moved: float
    late: int


class PlaceResult(Figures, frozen=True):
    """The result: by zone, by data in GB, by rule."""

    seeds: Sequence[int]
    arrivals: int
    zones: Mapping[str, Mapping[str, Mapping[str, PlaceFigures]]]
    late: int


def measure(zones: Mapping[str, Zone], plan: PlacePlan, on_stage: OnStage) -> PlaceResult:
    """All figures of the benchmark.

    Args:
        zones: carbon intensity; each is opposed to itself.
        plan: `FULL` or `SMALL`.
        on_stage: told what is measured next.
    """
    found: dict[str, dict[str, dict[str, PlaceFigures]]] = {}
    for name, zone in zones.items():
        on_stage(f"place, {name}")
        pair = _Pair(zone, plan)
        found[name] = {f"{data_gb} GB": pair.measure(data_gb) for data_gb in plan.data_gb}
    late = sum(rule.late for cases in found.values() for rules in cases.values() for rule in rules.values())
    return PlaceResult(list(plan.seeds), plan.arrivals, found, late)


@dataclass(frozen=True)
class _Job:
    arrival: int
    home: int


@dataclass(frozen=True)
class _Run:
    """What a job emitted with its transfer, gCO2eq/kWh of the run, how long it waited, h, and whether it moved."""

    g_per_kwh: float
    wait_h: int
    moved: bool


class _Pair:
    """A zone and its opposite in hourly steps, with what was forecast for each at every step."""

    def __init__(self, zone: Zone, plan: PlacePlan) -> None:
        self.plan = plan
        self.start_s = zone.series.start_s
        edges_s = self.start_s + HOUR_S * np.arange((zone.series.end_s - self.start_s) // HOUR_S + 1)
        values = zone.series.integral(edges_s[:-1], edges_s[1:]) / HOUR_S
        self.values: FloatArray = np.stack([values[OPPOSITE_H:], values[:-OPPOSITE_H]])
        self.horizon = RUNTIME_H + SLACK_H + 1
        self.expected = [self._forecast(one) for one in self.values]
        sums = np.concatenate((np.zeros((2, 1)), np.cumsum(self.values, axis=1)), axis=1)
        self.means: FloatArray = (sums[:, RUNTIME_H:] - sums[:, :-RUNTIME_H]) / RUNTIME_H

    def measure(self, data_gb: int) -> dict[str, PlaceFigures]:
        move = Move(data_gb, WH_PER_GB, RUN_KWH)
        jobs = [self._jobs(seed) for seed in self.plan.seeds]
        at_once = [[self.means[job.home, job.arrival] for job in some] for some in jobs]
        best = [[self._best(job, move) for job in some] for some in jobs]
        rules = {
            name: [[self._decided(job, move, slack_h, may_move=may_move) for job in some] for some in jobs]
            for name, (slack_h, may_move) in RULES.items()
        }
        return {name: _figures(runs, at_once, best) for name, runs in (rules | {BEST: best}).items()}

    def _jobs(self, seed: int) -> list[_Job]:
        rng = np.random.default_rng(seed)
        last = self.values.shape[1] - self.horizon
        arrivals = rng.integers(self.plan.warm_up_days * 24, last, self.plan.arrivals)
        return [_Job(int(arrival), index % 2) for index, arrival in enumerate(arrivals)]

    def _forecast(self, values: FloatArray) -> FloatArray:
        days = np.arange(MIN_HISTORY_DAYS, len(values) // 24 + 1)
        made = rolling(values, self.start_s, HOUR_S, self.horizon, days)
        return np.concatenate((np.full((len(values) - len(made), self.horizon), np.nan), made))

    def _decided(self, job: _Job, move: Move, slack_h: int, *, may_move: bool) -> _Run:
        request = GridRequest(
            asked_by=Asked.POD, mode=Mode.OPTIMAL, max_delay_s=slack_h * HOUR_S, runtime_s=RUNTIME_H * HOUR_S
        )
        waiting = Waiting(request, self.start_s + HOUR_S * job.arrival)
        step = job.arrival
        while True:
            home, other = self._place(job.home, step), self._place(1 - job.home, step)
            placed = choose(waiting, home, [other] if may_move else [], move, self.start_s + HOUR_S * step)
            if isinstance(placed.decision, Release):
                return self._run(job, move, int(placed.zone), step)
            step += 1

    def _place(self, zone: int, step: int) -> Place:
        now_s = self.start_s + HOUR_S * step
        ahead_s = now_s + HOUR_S * np.arange(self.horizon + 1)
        forecast = Series(ahead_s[:-1], self.expected[zone][step], ahead_s[-1])
        value = float(self.values[zone, step])
        signal = GridSignal(Measure.CARBON, str(zone), Quality.FRESH, value, now_s, forecast=forecast)
        return Place(str(zone), Conditions(carbon=signal))

    def _best(self, job: _Job, move: Move) -> _Run:
        runs = (self._run(job, move, zone, job.arrival + wait) for zone in (0, 1) for wait in range(SLACK_H + 1))
        return min(runs, key=lambda run: run.g_per_kwh)

    def _run(self, job: _Job, move: Move, zone: int, step: int) -> _Run:
        moved = zone != job.home
        here, there = self.values[job.home, step], self.values[zone, step]
        transfer = (move.g_per_kwh(float(here), float(there)) or 0.0) if moved else 0.0
        return _Run(float(self.means[zone, step]) + transfer, step - job.arrival, moved)


def _figures(
    runs: Sequence[Sequence[_Run]], at_once: Sequence[Sequence[float]], best: Sequence[Sequence[_Run]]
) -> PlaceFigures:
    after = np.array([[run.g_per_kwh for run in some] for some in runs]).mean(axis=1)
    before = np.array(at_once).mean(axis=1)
    optimum = np.array([[run.g_per_kwh for run in some] for some in best]).mean(axis=1)
    everyone = [run for some in runs for run in some]
    return PlaceFigures(
        g_per_kwh=estimate(after),
        saved_pct=estimate(100.0 * (1.0 - after / before)),
        share=estimate((before - after) / (before - optimum)),
        wait_h=float(np.mean([run.wait_h for run in everyone])),
        moved=float(np.mean([run.moved for run in everyone])),
        late=sum(run.wait_h > SLACK_H for run in everyone),
    )
