"""Benchmark deferral: carbon savings of deferring jobs, relative to the savings with a known future.

Jobs arrive at random times of a year and may wait. The oracle knows future intensity; all other rules know only the
past and decide again at each step. Joulie's rule is the product's with its own forecaster: start when the best forecast
window begins now. A second part has interruptible jobs, which run in the best slots; a third has a cluster with limited
capacity; a fourth repeats a published study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.grid.deferral import Conditions, Release, Waiting, decide
from joulie.domain.grid.forecast import MIN_HISTORY_DAYS, rolling
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters.published.intensity import HOUR_S, Zone
from joulie_lab.adapters.published.pai_jobs import Jobs
from joulie_lab.benchmarks import deferral_capacity as capacity
from joulie_lab.benchmarks import deferral_waitawhile as waitawhile
from joulie_lab.benchmarks.parity import OnStage
from joulie_lab.benchmarks.results import Estimate, Figures, estimate

THRESHOLDS_G_PER_KWH = (150, 200)
FORECASTERS = ("joulie", "yesterday", "usual day")
LEADS_H = (1, 4, 12, 24, 48)
REPLAYED = (4, 24)
"""Runtime and slack in hours of the jobs that are decided once more by the product, one by one."""


@dataclass(frozen=True)
class DeferralPlan:
    """Size of the benchmark.

    Attributes:
        seeds: seeds of the arrivals.
        arrivals: number of jobs per seed.
        runtimes_h: runtimes of jobs, h.
        slacks_h: maximum delays, h.
        warm_up_days: days at the start of each year without arrivals.
        replayed: number of jobs that are also decided by the product's own function, one by one.
        capacity: size of the part with limited CPUs.
        capacity_zones: zones of that part; None for all.
        published: whether the published study is repeated.
    """

    seeds: tuple[int, ...]
    arrivals: int
    runtimes_h: tuple[int, ...]
    slacks_h: tuple[int, ...]
    warm_up_days: int
    replayed: int
    capacity: capacity.Plan
    capacity_zones: tuple[str, ...] | None
    published: bool


FULL = DeferralPlan(
    seeds=(1, 2, 3, 4, 5, 6, 7, 8),
    arrivals=1500,
    runtimes_h=(1, 4, 12),
    slacks_h=(6, 24, 48),
    warm_up_days=14,
    replayed=100,
    capacity=capacity.FULL,
    capacity_zones=("DE", "GB", "CISO-2022"),
    published=True,
)
SMALL = DeferralPlan(
    seeds=(1, 2),
    arrivals=500,
    runtimes_h=(4,),
    slacks_h=(24,),
    warm_up_days=14,
    replayed=20,
    capacity=capacity.SMALL,
    capacity_zones=None,
    published=False,
)


class RuleFigures(Figures, frozen=True):
    """Savings of a rule, %, as a share of the oracle's savings, and number of jobs that started or ended late."""

    saved_pct: Estimate
    share: Estimate
    late: int


class JobFigures(Figures, frozen=True):
    """Jobs of one length and slack, by rule."""

    oracle_pct: Estimate
    late: int
    rules: Mapping[str, RuleFigures]


class ReplayFigures(Figures, frozen=True):
    """Jobs that were also decided by the product's own function, and how many of them started at another moment."""

    jobs: int
    differ: int


class ZoneFigures(Figures, frozen=True):
    """One year of one zone; errors by time ahead, jobs by length and slack."""

    mean_g_per_kwh: float
    step_min: float
    errors: Mapping[str, Mapping[str, float]]
    windows: Mapping[str, JobFigures]
    slots: Mapping[str, JobFigures]
    cold_start: Mapping[str, float]
    replayed: ReplayFigures


class DeferralResult(Figures, frozen=True):
    """The result."""

    seeds: Sequence[int]
    arrivals: int
    zones: Mapping[str, ZoneFigures]
    late: int
    capacity: capacity.CapacityResult
    waitawhile: waitawhile.WaitAwhileResult | None = None


def measure(zones: Mapping[str, Zone], jobs: Jobs, plan: DeferralPlan, on_stage: OnStage) -> DeferralResult:
    """All figures of the benchmark.

    Args:
        zones: carbon intensity.
        jobs: that arrive at the cluster with limited CPUs.
        plan: `FULL` or `SMALL`.
        on_stage: told what is measured next.
    """
    found = {}
    for name, zone in zones.items():
        on_stage(f"deferral, {name}")
        found[name] = _Year(zone, plan).measure()
    late = sum(case.late for zone in found.values() for part in (zone.windows, zone.slots) for case in part.values())
    limited = {name: zones[name].series for name in plan.capacity_zones or zones}
    full = capacity.measure(limited, jobs, plan.capacity, on_stage)
    repeated = None
    if plan.published:
        repeated = waitawhile.measure({name: zones[name].series for name in ("DE", "GB")}, on_stage)
    return DeferralResult(list(plan.seeds), plan.arrivals, found, late, full, repeated)


class _Year:
    """A year of one zone, and what was forecast at each of its steps."""

    def __init__(self, zone: Zone, plan: DeferralPlan) -> None:
        self.plan = plan
        self.step_s = zone.step_s
        self.an_hour = round(HOUR_S / zone.step_s)
        self.a_day = 24 * self.an_hour
        self.start_s = zone.series.start_s
        edges_s = self.start_s + zone.step_s * np.arange((zone.series.end_s - self.start_s) // zone.step_s + 1)
        self.values: FloatArray = zone.series.integral(edges_s[:-1], edges_s[1:]) / zone.step_s
        self.horizon = (max(LEADS_H[-1], max(plan.runtimes_h) + max(plan.slacks_h)) + 1) * self.an_hour
        self.first = plan.warm_up_days * self.a_day
        self.expected = {
            "joulie": self._own(),
            "yesterday": self._as_before(days=1),
            "usual day": self._as_before(days=7),
        }

    def measure(self) -> ZoneFigures:
        """All figures of the zone."""
        return ZoneFigures(
            mean_g_per_kwh=float(self.values.mean()),
            step_min=self.step_s / 60.0,
            errors=self._errors(),
            windows={
                f"{runtime_h}h_{slack_h}h": self._whole(runtime_h, slack_h)
                for runtime_h in self.plan.runtimes_h
                for slack_h in self.plan.slacks_h
            },
            slots={
                f"{runtime_h}h_{slack_h}h": self._in_slots(runtime_h, slack_h)
                for runtime_h in self.plan.runtimes_h
                for slack_h in self.plan.slacks_h
            },
            cold_start=self._cold_start(),
            replayed=self._replay(),
        )

    # ---- forecasts: a row for each step, which begins with the value in force

    def _own(self) -> FloatArray:
        days = np.arange(MIN_HISTORY_DAYS, len(self.values) // self.a_day + 1)
        made = rolling(self.values, self.start_s, self.step_s, self.horizon, days)
        before = np.full((MIN_HISTORY_DAYS * self.a_day - 1, self.horizon), np.nan)
        return np.concatenate((before, made))

    def _as_before(self, days: int) -> FloatArray:
        """The same time of the last days again."""
        steps = np.arange(len(self.values))
        expected = np.full((len(self.values), self.horizon), np.nan)
        expected[:, 0] = self.values
        for lead in range(1, self.horizon):
            back = -(-lead // self.a_day)
            same_time = [steps + lead - (back + day) * self.a_day for day in range(days)]
            made = np.mean([self.values[np.maximum(index, 0)] for index in same_time], axis=0)
            expected[:, lead] = np.where(same_time[-1] >= 0, made, np.nan)
        return expected

    def _errors(self) -> dict[str, dict[str, float]]:
        """Mean absolute errors by lead time, gCO2eq/kWh, and Joulie's relative to the best of the others."""
        errors = {}
        for lead_h in LEADS_H:
            lead = lead_h * self.an_hour
            origins = np.arange(self.first, len(self.values) - lead)
            truth = self.values[origins + lead]
            guesses = {name: expected[origins, lead] for name, expected in self.expected.items()}
            guesses["last value"] = self.values[origins]
            found = {name: float(np.abs(guess - truth).mean()) for name, guess in guesses.items()}
            best_other = min(error for name, error in found.items() if name != "joulie")
            errors[f"{lead_h}h"] = found | {"relative": found["joulie"] / best_other}
        return errors

    # ---- jobs in one piece

    def _whole(self, runtime_h: int, slack_h: int) -> JobFigures:
        runtime, slack = runtime_h * self.an_hour, slack_h * self.an_hour
        means = _means(self.values[None, :], runtime)[0]
        arrivals = np.arange(self.first, len(means) - slack)
        rules = {
            name: starts_by_window(_means(expected, runtime), slack)[arrivals]
            for name, expected in self.expected.items()
        }
        for limit in THRESHOLDS_G_PER_KWH:
            rules[f"threshold {limit}"] = starts_by_threshold(self.values, limit, slack)[arrivals]
        best = np.lib.stride_tricks.sliding_window_view(means, slack + 1).min(axis=1)
        emitted = {name: means[starts] for name, starts in rules.items()}
        late = {name: int((starts > arrivals + slack).sum()) for name, starts in rules.items()}
        return self._compare(means[arrivals], best[arrivals], emitted, late)

    def _cold_start(self) -> dict[str, float]:
        """Shares of the oracle's saving by all jobs that arrive before the others, with days of history only."""
        runtime, slack = (hours * self.an_hour for hours in REPLAYED)
        means = _means(self.values[None, : self.first + slack + runtime], runtime)[0]
        arrivals = np.arange(MIN_HISTORY_DAYS * self.a_day, self.first)
        at_once = means[arrivals].sum()
        best = np.lib.stride_tricks.sliding_window_view(means, slack + 1).min(axis=1)[arrivals].sum()

        def share(rule: str) -> float:
            starts = starts_by_window(_means(self.expected[rule], runtime), slack)[arrivals]
            return float((at_once - means[starts].sum()) / (at_once - best))

        return {rule: share(rule) for rule in ("joulie", "yesterday")}

    def _replay(self) -> ReplayFigures:
        """The same jobs by the product's own decision, asked at each step: how many start at another one."""
        runtime_h, slack_h = REPLAYED
        runtime, slack = runtime_h * self.an_hour, slack_h * self.an_hour
        starts = starts_by_window(_means(self.expected["joulie"], runtime), slack)
        rng = np.random.default_rng(self.plan.seeds[0])
        arrivals = rng.integers(self.first, len(self.values) - runtime - slack, self.plan.replayed)
        decided = np.array([self._decided(int(arrival), runtime_h, slack_h) for arrival in arrivals])
        return ReplayFigures(self.plan.replayed, int((decided != starts[arrivals]).sum()))

    def _decided(self, arrival: int, runtime_h: int, slack_h: int) -> int:
        request = GridRequest(
            asked_by=Asked.POD, mode=Mode.OPTIMAL, max_delay_s=slack_h * HOUR_S, runtime_s=runtime_h * HOUR_S
        )
        waiting = Waiting(request, self.start_s + self.step_s * arrival)
        step = arrival
        while True:
            now_s = self.start_s + self.step_s * step
            ahead_s = now_s + self.step_s * np.arange(self.horizon + 1)
            signal = GridSignal(
                Measure.CARBON,
                "benchmark",
                Quality.FRESH,
                float(self.values[step]),
                now_s,
                forecast=Series(ahead_s[:-1], self.expected["joulie"][step], ahead_s[-1]),
            )
            if isinstance(decide(waiting, Conditions(carbon=signal), now_s), Release):
                return step
            step += 1

    # ---- interruptible jobs

    def _in_slots(self, runtime_h: int, slack_h: int) -> JobFigures:
        work, slack = runtime_h * self.an_hour, slack_h * self.an_hour
        arrivals = np.arange(self.first, len(self.values) - work - slack)
        runs = {name: run_in_slots(expected, arrivals, work, slack) for name, expected in self.expected.items()}
        emitted = {name: (running * self._ahead(arrivals, work + slack)).sum(axis=1) for name, running in runs.items()}
        late = {name: int((running.sum(axis=1) < work).sum()) for name, running in runs.items()}
        best = np.sort(self._ahead(arrivals, work + slack), axis=1)[:, :work].sum(axis=1)
        return self._compare(self._ahead(arrivals, work).sum(axis=1), best, emitted, late)

    def _ahead(self, arrivals: IntArray, count: int) -> FloatArray:
        return np.lib.stride_tricks.sliding_window_view(self.values, count)[arrivals]

    def _compare(
        self, at_once: FloatArray, best: FloatArray, emitted: Mapping[str, FloatArray], late: Mapping[str, int]
    ) -> JobFigures:
        """Savings of random jobs out of all that might arrive, over the seeds."""
        chosen = [np.random.default_rng(seed).integers(0, len(at_once), self.plan.arrivals) for seed in self.plan.seeds]

        def over_seeds(figure: Callable[[IntArray], float]) -> Estimate:
            return estimate([figure(jobs) for jobs in chosen])

        def saved_pct(after: FloatArray) -> Estimate:
            return over_seeds(lambda jobs: float(100.0 * (1.0 - after[jobs].sum() / at_once[jobs].sum())))

        def share(after: FloatArray) -> Estimate:
            def of_oracle(jobs: IntArray) -> float:
                before = at_once[jobs].sum()
                return float((before - after[jobs].sum()) / (before - best[jobs].sum()))

            return over_seeds(of_oracle)

        rules = {name: RuleFigures(saved_pct(after), share(after), late[name]) for name, after in emitted.items()}
        return JobFigures(saved_pct(best), sum(late.values()), rules)


def starts_by_window(means: FloatArray, slack: int) -> IntArray:
    """When jobs start that run in the best window of what is expected, decided anew at each step.

    Args:
        means: (n, k) what is expected at step i of a run that starts j steps later; ``k > slack``.
        slack: steps that a job may wait.

    Returns:
        (n,) the step at which a job starts that arrives at step i.
    """
    best_later = np.minimum.accumulate(means[:, 1 : slack + 1], axis=1)
    # As domain.grid.windows.best_start has it: what is not better by more than rounding is not better.
    now = means[:, 0] - 1e-9 * np.abs(means[:, : slack + 1]).max(axis=1)
    steps = np.arange(len(means))
    starts = steps.copy()
    for left in range(1, slack + 1):
        waits = now > best_later[:, left - 1]
        starts = np.where(waits, np.append(starts[1:], steps[-1]), steps)
    return starts


def starts_by_threshold(values: FloatArray, limit: float, slack: int) -> IntArray:
    """(n,) the step at which a job starts that waits for a value of at most `limit`, for `slack` steps."""
    steps = np.arange(len(values))
    within = np.where(values <= limit, steps, len(values) + slack)
    following = np.minimum.accumulate(within[::-1])[::-1]
    return np.minimum(following, steps + slack)


def run_in_slots(expected: FloatArray, arrivals: IntArray, work: int, slack: int) -> FloatArray:
    """When interruptible jobs run: whenever now is one of the best steps that they still need.

    Args:
        expected: (n, k) what is expected at step i of the step j later; ``k >= work + slack``.
        arrivals: (m,) steps.
        work: steps that a job needs.
        slack: steps that it may wait in all.

    Returns:
        (m, work + slack): 1 where it runs.
    """
    # How many of the steps up to j later are better than now.
    better = np.cumsum(expected[:, : work + slack] < expected[:, :1], axis=1)
    running = np.zeros((len(arrivals), work + slack))
    left = np.full(len(arrivals), work)
    for step in range(work + slack):
        runs = (left > 0) & (better[arrivals + step, work + slack - step - 1] < left)
        running[runs, step] = 1.0
        left -= runs
    return running


def _means(expected: FloatArray, runtime: int) -> FloatArray:
    """(n, k - runtime + 1) means over `runtime` neighbouring columns."""
    sums = np.concatenate((np.zeros((len(expected), 1)), np.cumsum(expected, axis=1)), axis=1)
    return (sums[:, runtime:] - sums[:, :-runtime]) / runtime
