"""What rules of deferral save in a history, against an oracle.

Every rule decides as the grid controller does, for all waiting jobs at once: at a job's arrival and at every new value.
A job starts late if it starts after its latest start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from joulie.domain.grid.deferral import Conditions, Release, Waiting, decide, expected_goal
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.signals import Measure
from joulie.domain.grid.windows import best_start, best_starts
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.apps.backtest.history import FORECASTERS, JOULIE, YESTERDAY, History

RESAMPLES = 2000
MIN_WEEKS = 3
"""Minimum number of weeks with arrivals for an interval."""
WEEK_S = 7 * 86400.0
THRESHOLD_G_PER_KWH = 200.0
JOINT = "joulie, carbon and price"


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in order of arrival; arrays of shape ``(n_jobs,)``.

    Attributes:
        arrival_s: arrival, the start of a step, s since the epoch.
        runtime_s: how long each runs, s.
        weight: power of each, relative.
    """

    arrival_s: FloatArray
    runtime_s: FloatArray
    weight: FloatArray

    def __len__(self) -> int:
        return len(self.arrival_s)

    def only(self, chosen: IntArray) -> Jobs:
        """Some of the jobs."""
        return Jobs(self.arrival_s[chosen], self.runtime_s[chosen], self.weight[chosen])


@dataclass(frozen=True)
class Rule:
    """How the start of a job is chosen.

    Attributes:
        name: of the rule.
        mode: of the grid controller.
        forecasters: of the measures that it watches; None for a measure without a forecast.
        judged_on: measures that it is to save.
    """

    name: str
    mode: Mode
    forecasters: Mapping[Measure, str | None]
    judged_on: Sequence[Measure]


def rules_of(measures: Sequence[Measure]) -> Iterator[Rule]:
    """Rules for some measures: for each alone, and for all together."""
    for measure in measures:
        for forecaster in FORECASTERS:
            yield Rule(forecaster, Mode.OPTIMAL, {measure: forecaster}, [measure])
    if Measure.CARBON in measures:
        name = f"threshold {THRESHOLD_G_PER_KWH:g}"
        yield Rule(name, Mode.THRESHOLD, {Measure.CARBON: None}, [Measure.CARBON])
    if len(measures) > 1:
        yield Rule(JOINT, Mode.OPTIMAL, dict.fromkeys(measures, JOULIE), measures)


def starts_s(
    rule: Rule, jobs: Jobs, slack_s: float, histories: Mapping[Measure, History], told: Callable[[int], None]
) -> FloatArray:
    """(n_jobs,) when jobs start under a rule, s since the epoch.

    Args:
        rule: the rule.
        jobs: whose waits and runs the histories cover.
        slack_s: how long a job may wait, s.
        histories: of the measures of the rule, with the same steps.
        told: called with the number of jobs that have started.
    """
    clock = next(iter(histories.values()))
    latest_s = jobs.arrival_s + slack_s
    requests = {runtime_s: _request(rule, slack_s, float(runtime_s)) for runtime_s in np.unique(jobs.runtime_s)}
    arrival_step = np.round((jobs.arrival_s - clock.start_s) / clock.step_s).astype(np.int64)
    started_s = np.full(len(jobs), np.nan)
    pending = np.empty(0, dtype=np.int64)
    step = int(arrival_step[0])
    while step <= arrival_step[-1] or pending.size:
        now_s = clock.start_s + clock.step_s * step
        arrived = np.arange(*np.searchsorted(arrival_step, (step, step + 1)))
        pending = np.concatenate((pending, arrived))
        conditions = Conditions(
            **{measure.value: histories[measure].signal(name, step) for measure, name in rule.forecasters.items()}
        )
        for runtime_s in np.unique(jobs.runtime_s[pending]):
            alike = pending[jobs.runtime_s[pending] == runtime_s]
            started_s[alike] = _starts_s(requests[runtime_s], latest_s[alike], conditions, now_s)
        # What is planned after the next value is planned anew with it.
        runs = started_s[pending] < now_s + clock.step_s
        told(int(runs.sum()))
        pending = pending[~runs]
        step += 1
    return started_s


def _starts_s(request: GridRequest, latest_s: FloatArray, conditions: Conditions, now_s: float) -> FloatArray:
    """When jobs start by what is known now, s since the epoch: `decide` for jobs that differ in their latest start."""
    goal = expected_goal(request, conditions, now_s) if request.mode is Mode.OPTIMAL else None
    planned_s = latest_s if goal is None else best_starts(goal.series, now_s, latest_s, request.runtime_s)[0]
    if goal is None or np.isnan(planned_s).any():
        # By thresholds, which hold all of them or none.
        decision = decide(Waiting(request, float(latest_s.max()) - request.max_delay_s), conditions, now_s)
        by_threshold_s = np.full(len(latest_s), now_s) if isinstance(decision, Release) else latest_s
        planned_s = by_threshold_s if goal is None else np.where(np.isnan(planned_s), by_threshold_s, planned_s)
    return np.minimum(np.maximum(planned_s, now_s), np.maximum(latest_s, now_s))


def _request(rule: Rule, slack_s: float, runtime_s: float) -> GridRequest:
    return GridRequest(
        asked_by=Asked.POD,
        mode=rule.mode,
        carbon_enabled=Measure.CARBON in rule.forecasters,
        carbon_threshold_g_per_kwh=THRESHOLD_G_PER_KWH,
        price_enabled=Measure.PRICE in rule.forecasters,
        max_delay_s=slack_s,
        runtime_s=runtime_s,
        runtime_stated=True,
    )


class RuleFigures(msgspec.Struct, frozen=True):
    """What a rule saves.

    Attributes:
        saved_pct: of what starting at once emits or costs, %; None where that is not above zero.
        saved_per_kwh: mean, gCO2eq/kWh or currency/kWh.
        share: of what the oracle saves; None where that is nothing.
        interval: 95 % confidence interval of the share; None for less than `MIN_WEEKS`.
        above_yesterday: the same of the difference to the share of `yesterday`, week by week.
        late: number of jobs that started late.
    """

    saved_pct: float | None
    saved_per_kwh: float
    share: float | None
    interval: tuple[float, float] | None
    above_yesterday: tuple[float, float] | None
    late: int


class MeasureFigures(msgspec.Struct, frozen=True):
    """What rules save of one measure; `late` counts jobs under all rules, `weeks` those in which jobs arrive."""

    mean: float
    oracle_pct: float | None
    oracle_per_kwh: float
    late: int
    weeks: int
    rules: Mapping[str, RuleFigures]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Means over the runs of jobs; arrays of shape ``(n_jobs,)``, in gCO2eq/kWh or currency/kWh.

    Attributes:
        jobs: the jobs.
        at_once: if they start when they arrive.
        best: if they start at their best moment.
        by_rule: under each rule.
        late: number of late jobs under each rule.
    """

    jobs: Jobs
    at_once: FloatArray
    best: FloatArray
    by_rule: Mapping[str, FloatArray]
    late: Mapping[str, int]


def run_means(history: History, starts: FloatArray, runtime_s: FloatArray) -> FloatArray:
    """(n_jobs,) means of a measure over runs."""
    means: FloatArray = history.truth.integral(starts, starts + runtime_s) / runtime_s
    return means


def best_means(history: History, jobs: Jobs, slack_s: float) -> FloatArray:
    """(n_jobs,) means over the best runs that end in time, with the future known."""
    return np.array([_best(history, *job, slack_s) for job in zip(jobs.arrival_s, jobs.runtime_s, strict=True)])


def _best(history: History, arrival_s: float, runtime_s: float, slack_s: float) -> float:
    known = history.truth.between(arrival_s, arrival_s + slack_s + runtime_s)
    window = None if known is None else best_start(known, arrival_s, arrival_s + slack_s, runtime_s)
    assert window is not None, "the history covers every job"
    return window.mean_value


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcomes of several parts of a history as one."""
    return Outcome(
        Jobs(*(np.concatenate([getattr(one.jobs, name) for one in outcomes]) for name in Jobs.__dataclass_fields__)),
        np.concatenate([one.at_once for one in outcomes]),
        np.concatenate([one.best for one in outcomes]),
        {name: np.concatenate([one.by_rule[name] for one in outcomes]) for name in outcomes[0].by_rule},
        {name: sum(one.late[name] for one in outcomes) for name in outcomes[0].late},
    )


def figures(outcome: Outcome, mean: float, seed: int) -> MeasureFigures:
    """Savings, and their intervals from resampled weeks of arrivals.

    Args:
        outcome: of all jobs.
        mean: of the measure over the history.
        seed: of the resampling.
    """
    energy = outcome.jobs.weight * outcome.jobs.runtime_s
    week = ((outcome.jobs.arrival_s - outcome.jobs.arrival_s.min()) // WEEK_S).astype(np.int64)
    weeks, place = np.unique(week, return_inverse=True)

    def by_week(values: FloatArray) -> FloatArray:
        sums: FloatArray = np.bincount(place, energy * values, len(weeks)).astype(np.float64)
        return sums

    drawn = np.random.default_rng(seed).integers(0, len(weeks), (RESAMPLES, len(weeks)))
    at_once, by_oracle = by_week(outcome.at_once), by_week(outcome.at_once - outcome.best)
    saved = {name: by_week(outcome.at_once - means) for name, means in outcome.by_rule.items()}

    def interval(weekly: FloatArray) -> tuple[float, float] | None:
        of_oracle = by_oracle[drawn].sum(axis=1)
        if len(weeks) < MIN_WEEKS or of_oracle.min() <= 0.0:
            return None
        low, high = np.quantile(weekly[drawn].sum(axis=1) / of_oracle, (0.025, 0.975))
        return float(low), float(high)

    def pct(weekly: FloatArray) -> float | None:
        return float(100.0 * weekly.sum() / at_once.sum()) if at_once.sum() > 0.0 else None

    rules = {
        name: RuleFigures(
            pct(weekly),
            float(weekly.sum() / energy.sum()),
            float(weekly.sum() / by_oracle.sum()) if by_oracle.sum() > 0.0 else None,
            interval(weekly),
            None if name == YESTERDAY else interval(weekly - saved[YESTERDAY]),
            outcome.late[name],
        )
        for name, weekly in saved.items()
    }
    late = sum(outcome.late.values())
    return MeasureFigures(mean, pct(by_oracle), float(by_oracle.sum() / energy.sum()), late, len(weeks), rules)
