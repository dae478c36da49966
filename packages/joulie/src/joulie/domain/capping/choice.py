"""The power limit with the minimum energy for a job's work within a slowdown, found from few measurements.

`next_limit_w` says where to measure next, or that another measurement is not worth it; `choose_limit` chooses among
measured limits and limits whose outcome is almost certain. Both know the job by its measurements, and other jobs by a
`Response`. The limit to measure next has the largest expected improvement, weighted with the chance that the bound
holds there (constrained Bayesian optimisation; Gardner et al., ICML 2014). Zeus (NSDI'23) measures every limit instead.

`next_step` does both from noisy windows of a running job: it says which limit to set for the next window, or to hold
one. A control loop sets that limit, measures a window, adds it to the job's `Trials`, and asks again; a replay does the
same with recorded measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from joulie.domain.capping.measurements import Sweep
from joulie.domain.capping.response import Estimate, Response
from joulie.domain.capping.trials import Findings, Level, Trials, Window, findings
from joulie.domain.units import BoolArray, FloatArray, finite, non_negative, positive

_NORMAL = NormalDist()
FIRST_WINDOWS = 3
"""Windows at the baseline before the first trial."""
USUAL_NOISE, USUAL_WEIGHT = 0.015, 3.0
"""Noise of a window that is expected before windows tell, as a share, and how many of them that is worth."""
BASELINE_SHARE = 0.5
"""Windows at the baseline for each one at a limit: fewer, since those at the limit save energy."""
BASELINE_AGE = 32
"""Windows after which the baseline is measured again: a job may change while it is limited."""
NEXT_SEARCH = 16
"""Windows at one limit and the baseline after which a search that had ended tries one more limit."""
REJECTED = 1.28
"""Standard deviations by which a slowdown must exceed the bound for its limit to be rejected."""
DOUBTFUL = 0.15
"""Slowdown beyond the bound, in logarithms, that one window does not prove: a checkpoint may have fallen into it."""
SHORT_OF_POWER = 0.05
"""Power by which a first window at a limit is short of that of other jobs there, in logarithms, from which the job is
taken to have paused: a limit that slows a job holds it near that power."""


class Reason(StrEnum):
    """Why a limit was chosen.

    Attributes:
        NO_BASELINE: not measured at the largest limit, so nothing is known of slowdowns: the largest one.
        NOTHING_BETTER: no smaller limit is known to save energy within the slowdown: the largest one.
        MEASURED: the minimum energy among limits that were measured to be within the slowdown.
        PREDICTED: expected to need less energy than those, and almost surely within the slowdown.
        CONTRADICTED: the job's progress cannot be believed (`domain.capping.plausibility`): the largest one.
    """

    NO_BASELINE = "no baseline"
    NOTHING_BETTER = "nothing better"
    MEASURED = "measured"
    PREDICTED = "predicted"
    CONTRADICTED = "its progress contradicts its GPUs"


@dataclass(frozen=True)
class Goal:
    """Constraints on a limit.

    Attributes:
        max_slowdown: largest time for the same work over that at the largest limit, at least 1.
        certainty: standard deviations by which an expected slowdown must stay within it.
        measurement_error: standard deviation of a measured time, as a share of it; 0 takes measurements as they are.
        min_gain: expected saving, as a share of the energy, below which one more measurement is not worth it.
        trials: limits that are tried beside the baseline.
        max_windows: windows at a limit, beyond which no more are measured before the decision: a limit that is then
            not known to keep the bound is rejected.
        tolerance: share by which noise may hide that the bound is exceeded.
        confidence: probability, 0.5..1, with which a limit that is held exceeds the bound by no more than `tolerance`.
    """

    max_slowdown: float = 1.05
    certainty: float = 2.0
    measurement_error: float = 0.0
    min_gain: float = 0.002
    trials: int = 3
    max_windows: int = 32
    tolerance: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        finite("max_slowdown", self.max_slowdown, minimum=1.0)
        non_negative("certainty", self.certainty)
        non_negative("measurement_error", self.measurement_error)
        non_negative("min_gain", self.min_gain)
        finite("trials", self.trials, minimum=0)
        finite("max_windows", self.max_windows, minimum=FIRST_WINDOWS)
        positive("tolerance", self.tolerance)
        finite("confidence", self.confidence, minimum=0.5, maximum=0.9999)

    def kept_by(self, slowdown: FloatArray) -> BoolArray:
        """Which measured slowdowns are within the bound, as surely as their error allows."""
        # A slowdown is the quotient of two times, each with its error.
        margin = math.exp(self.certainty * self.measurement_error * math.sqrt(2.0))
        return np.asarray(slowdown * margin <= self.max_slowdown * (1.0 + 1e-12))


@dataclass(frozen=True)
class LimitChoice:
    """A power limit, and what is expected of it.

    Attributes:
        limit_w: W.
        slowdown: time for the same work, over that at the largest limit; None where unknown.
        energy_ratio: energy for the same work, likewise.
        reason: why this one.
    """

    limit_w: float
    slowdown: float | None
    energy_ratio: float | None
    reason: Reason


@dataclass(frozen=True)
class Trial:
    """Set this limit, measure one window under it, add it to `Trials`, and ask again.

    Attributes:
        limit_w: W for each GPU.
        why: for people.
    """

    limit_w: float
    why: str


@dataclass(frozen=True)
class Hold:
    """Leave the job at this limit. Further windows may be added: the answer changes where they say so.

    Attributes:
        limit_w: W for each GPU; the baseline where nothing smaller is known to be better.
        reason: why this one.
        slowdown: time for the same work, over that at the baseline; measured, or expected (`Reason.PREDICTED`). None
            where nothing is known of it.
        saving: share of the energy for the same work that is saved, likewise.
        confidence: probability, 0..1, that the bound is exceeded by no more than the goal's tolerance.
    """

    limit_w: float
    reason: Reason
    slowdown: float | None
    saving: float | None
    confidence: float


def next_step(trials: Trials, response: Response | None, limits_w: Sequence[float], goal: Goal) -> Trial | Hold:
    """What to do next with a running job. Pure: the same windows give the same answer.

    Begins with the baseline (the largest of `limits_w`), tries up to `Goal.trials` smaller limits, each for as many
    windows as the noise between windows needs, confirms the one with the minimum energy for the same work among those
    within the bound, and holds it. A window that departs from the others at its limit (a checkpoint, an evaluation) is
    not counted, and one at the baseline is asked for: where that has changed too, the job has changed, and is measured
    anew. A job whose windows have no progress is held at a limit that the response alone makes certain, if any.

    Args:
        trials: of this job; empty at first.
        response: of other jobs; None where nothing is known of them: limits are tried from the largest down, each once
            the one before it saves energy and surely keeps the bound.
        limits_w: limits that the GPU may be given, W, in any order. The largest is the baseline: the limit in force
            before Joulie's first write, or a smaller upper bound. Windows at other limits are ignored.
        goal: what must be kept.

    Raises:
        InvalidQuantityError: no limits, or one that is not above zero.
    """
    offered_w = _offered(limits_w)
    baseline_w = float(offered_w[0])
    allowed = set(offered_w.tolist())
    windows = [window for window in trials.windows if window.limit_w in allowed]
    found = findings(windows, baseline_w)
    baseline = found.levels.get(baseline_w)
    if baseline is None or baseline.windows < FIRST_WINDOWS:
        return _without_baseline(windows, response, offered_w, goal)
    smaller = sorted((limit_w for limit_w in found.levels if limit_w < baseline_w), reverse=True)
    tried = [_Tried.of(found.levels[limit_w], baseline, found, response, goal) for limit_w in smaller]
    again = _measure_again(windows, tried, baseline, found, goal)
    if again is not None:
        return again
    sweep = _sweep_of([baseline, *(one.level for one in tried)])
    kept = np.array([True, *(one.kept for one in tried)])
    settled = any(one.kept and one.level.limit_w == trials.start_w for one in tried)
    if (len(tried) < goal.trials and not settled) or _may_try_again(windows, baseline_w):
        start_w = trials.start_w if trials.start_w in allowed - {baseline_w, *smaller} else None
        limit_w = start_w or (
            _next_smaller_w(tried, baseline, offered_w, goal)
            if response is None
            else _worth_measuring_w(sweep, kept, offered_w, response, goal)
        )
        if limit_w is not None:
            return Trial(limit_w, "may save energy within the bound")
    choice = _choose(sweep, kept, offered_w, response, goal)
    chosen = next((one for one in tried if one.level.limit_w == choice.limit_w), None)
    if chosen is not None and not chosen.sure:
        return Trial(chosen.next_w(windows[-1], baseline, goal), "confirm the limit before it is held")
    return _held(choice, 1.0 if chosen is None else chosen.confidence, goal)


def _may_try_again(windows: Sequence[Window], baseline_w: float) -> bool:
    """Whether the job has been at one limit for so long that one more trial costs little."""
    return len(windows) >= NEXT_SEARCH and len({one.limit_w for one in windows[-NEXT_SEARCH:]} - {baseline_w}) <= 1


def choose_limit(
    measured: Sweep | None, limits_w: Sequence[float], response: Response | None, goal: Goal
) -> LimitChoice:
    """The limit with the minimum energy for the same work within the bound.

    Args:
        measured: the job so far; None without any usable measurement.
        limits_w: limits that the GPU may be given, W, in any order. The baseline is the largest limit that was
            measured, and none of these may be larger.
        response: of other jobs; None chooses among measured limits only.
        goal: what must be kept.

    Raises:
        InvalidQuantityError: no limits, or one that is not above zero.
    """
    offered_w = _offered(limits_w)
    if measured is None or measured.limits_w[0] < offered_w[0]:
        return LimitChoice(float(offered_w[0]), None, None, Reason.NO_BASELINE)
    kept = _kept(measured, goal)
    kept[1:] &= np.isin(measured.limits_w[1:], offered_w)
    return _choose(measured, kept, offered_w, response, goal)


def _choose(
    measured: Sweep, kept: BoolArray, offered_w: FloatArray, response: Response | None, goal: Goal
) -> LimitChoice:
    best = int(np.argmin(np.where(kept, measured.energy_ratio, np.inf)))
    reason = Reason.NOTHING_BETTER if best == 0 else Reason.MEASURED
    choice = LimitChoice(
        float(measured.limits_w[best]), float(measured.slowdown[best]), float(measured.energy_ratio[best]), reason
    )
    open_w = _unmeasured(offered_w, measured)
    if response is None or not open_w.size:
        return choice
    slowdown, energy = _expected(response, measured, open_w)
    sure = slowdown.mean + goal.certainty * slowdown.deviation <= math.log(goal.max_slowdown)
    if not sure.any():
        return choice
    place = int(np.argmin(np.where(sure, energy.mean, np.inf)))
    expected = math.exp(energy.mean[place])
    if expected >= measured.energy_ratio[best]:
        return choice
    return LimitChoice(float(open_w[place]), math.exp(slowdown.mean[place]), expected, Reason.PREDICTED)


def next_limit_w(measured: Sweep | None, limits_w: Sequence[float], response: Response, goal: Goal) -> float | None:
    """The limit to measure next, W; None where no limit promises enough. The first is always the largest limit.

    Args:
        measured: the job so far; None without any usable measurement.
        limits_w: limits that the GPU may be given, W, in any order.
        response: of other jobs.
        goal: what must be kept.

    Raises:
        InvalidQuantityError: no limits, or one that is not above zero.
    """
    offered_w = _offered(limits_w)
    if measured is None or measured.limits_w[0] < offered_w[0]:
        return float(offered_w[0])
    return _worth_measuring_w(measured, _kept(measured, goal), offered_w, response, goal)


def _worth_measuring_w(
    measured: Sweep, kept: BoolArray, offered_w: FloatArray, response: Response, goal: Goal
) -> float | None:
    open_w = _unmeasured(offered_w, measured)
    if not open_w.size:
        return None
    best = math.log(float(measured.energy_ratio[kept].min()))
    slowdown, energy = _expected(response, measured, open_w)
    gains = [
        _NORMAL.cdf((math.log(goal.max_slowdown) - t) / t_sd) * _improvement(best, e, e_sd)
        for t, t_sd, e, e_sd in zip(*slowdown, *energy, strict=True)
    ]
    place = int(np.argmax(gains))
    return float(open_w[place]) if gains[place] >= goal.min_gain else None


def _next_smaller_w(tried: Sequence[_Tried], baseline: Level, offered_w: FloatArray, goal: Goal) -> float | None:
    """The limit below those that were tried, W; None where the last may be beyond the bound, or saves less."""
    levels = [baseline, *(one.level for one in tried)]
    below_w = offered_w[offered_w < levels[-1].limit_w]
    if not below_w.size:
        return None
    pays = not tried or levels[-1].log_energy < levels[-2].log_energy
    kept = not tried or tried[-1].slowest <= math.log(goal.max_slowdown)
    return float(below_w[0]) if pays and kept else None


def _offered(limits_w: Sequence[float]) -> FloatArray:
    """From the largest down."""
    finite("number of limits", len(limits_w), minimum=1)
    return np.unique(positive("limits_w", limits_w))[::-1]


def _kept(measured: Sweep, goal: Goal) -> BoolArray:
    """Which measured limits keep the bound; the baseline does, however uncertain its measurement is."""
    kept = goal.kept_by(measured.slowdown)
    kept[0] = True
    return kept


def _unmeasured(offered_w: FloatArray, measured: Sweep) -> FloatArray:
    return offered_w[~np.isin(offered_w, measured.limits_w)]


def _expected(response: Response, measured: Sweep, open_w: FloatArray) -> tuple[Estimate, Estimate]:
    """Logarithms of slowdown and energy at limits that were not measured."""
    at, seen_at = np.log(open_w / measured.natural_w), np.log(measured.limits_w[1:] / measured.natural_w)
    return (
        response.slowdown.given(at, seen_at, np.log(measured.slowdown[1:])),
        response.energy.given(at, seen_at, np.log(measured.energy_ratio[1:])),
    )


def _improvement(best: float, mean: float, deviation: float) -> float:
    """Expected improvement on the best value so far, of a normally distributed one (Jones et al., 1998)."""
    z = (best - mean) / deviation
    return deviation * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z))


@dataclass(frozen=True)
class _Tried:
    """Verdict on a limit that was tried.

    Attributes:
        level: what was measured there.
        kept: it keeps the bound.
        open: more windows are needed to tell.
        paused: its only window looks like a pause of the job.
        sure: nothing but drift could change the verdict that it keeps the bound.
        confidence: probability that the bound is exceeded by no more than the goal's tolerance.
        slowest: largest slowdown that it may have, as surely as the goal asks, in logarithms.
    """

    level: Level
    kept: bool
    open: bool
    paused: bool
    sure: bool
    confidence: float
    slowest: float

    @classmethod
    def of(cls, level: Level, baseline: Level, found: Findings, response: Response | None, goal: Goal) -> _Tried:
        log_slowdown = baseline.log_progress - level.log_progress
        bound = math.log(goal.max_slowdown) + 1e-12
        error = likely_noise(found) * math.sqrt(1.0 / baseline.windows + 1.0 / level.windows)
        slack = bound + goal.tolerance - log_slowdown
        kept = log_slowdown <= bound and error * _NORMAL.inv_cdf(goal.confidence) <= slack
        exhausted = min(level.windows, baseline.windows) >= goal.max_windows
        first = level.windows == 1 and log_slowdown > bound
        paused = first and response is not None and _short_of_power(level, baseline, response)
        doubtful = paused or (first and log_slowdown <= bound + DOUBTFUL)
        unclear = not exhausted and (log_slowdown - error * REJECTED <= bound or doubtful)
        sure = exhausted or error <= goal.tolerance / 2.0
        confidence = _NORMAL.cdf(slack / error) if error > 0.0 else float(slack >= 0.0)
        slowest = log_slowdown + goal.certainty * error
        return cls(level, kept, not kept and unclear, paused, sure, confidence, slowest)

    def next_w(self, last: Window, baseline: Level, goal: Goal) -> float:
        """Where the next window tells most: those at the baseline cost energy, those here save some."""
        few = self.level.windows * BASELINE_SHARE if self.level.windows < goal.max_windows else goal.max_windows
        if baseline.windows < few or (self.paused and last.limit_w == self.level.limit_w):
            return baseline.limit_w
        return self.level.limit_w


def _short_of_power(level: Level, baseline: Level, response: Response) -> bool:
    at, nothing = np.array([math.log(level.limit_w) - baseline.log_power]), np.empty(0)
    energy, slowdown = (curve.given(at, nothing, nothing).mean[0] for curve in (response.energy, response.slowdown))
    return bool(level.log_power - baseline.log_power < energy - slowdown - SHORT_OF_POWER)


def likely_noise(found: Findings) -> float:
    """Noise of a window, by how windows differ and, while they are few, by what is usual.

    It is no more than the upper 95 % limit that the windows alone give: windows that repeat exactly have none. That
    limit uses the approximation of the chi-squared distribution by Wilson and Hilferty (1931), within 5 % here.
    """
    squares = USUAL_WEIGHT * USUAL_NOISE**2 + found.freedom * found.noise**2
    share = 2.0 / (9.0 * found.freedom)
    root = 1.0 - share - _NORMAL.inv_cdf(0.95) * math.sqrt(share)
    most = found.noise / math.pow(root, 1.5) if root > 0.0 else math.inf
    return min(math.sqrt(squares / (USUAL_WEIGHT + found.freedom)), most)


def _measure_again(
    windows: Sequence[Window], tried: Sequence[_Tried], baseline: Level, found: Findings, goal: Goal
) -> Trial | None:
    """Another window at a limit that was measured before; None where nothing is open."""
    baseline_w, last = baseline.limit_w, windows[-1]
    if found.paused:
        return Trial(last.limit_w, "the job paused")
    if found.disturbed:
        return Trial(baseline_w, "the last window departs from the others at its limit")
    if all(window.limit_w != baseline_w for window in windows[-BASELINE_AGE:]):
        return Trial(baseline_w, "the baseline was measured long ago")
    for one in tried:
        if one.open:
            return Trial(one.next_w(last, baseline, goal), "measure again: windows differ")
        if one.kept and one.level.limit_w == last.limit_w and _beyond(last, baseline, found, goal):
            return Trial(baseline_w, "progress fell below the bound")
    return None


def _beyond(window: Window, baseline: Level, found: Findings, goal: Goal) -> bool:
    """Whether one window alone shows that the bound is exceeded."""
    if window.progress_per_s is None:
        return False
    log_slowdown = baseline.log_progress - math.log(window.progress_per_s)
    return log_slowdown > math.log(goal.max_slowdown) + goal.tolerance + 3.0 * found.noise


def _held(choice: LimitChoice, confidence: float, goal: Goal) -> Hold:
    """The choice as a step; a predicted one is as certain as the goal asks, whatever `confidence` is."""
    if choice.reason is Reason.PREDICTED:
        confidence = _NORMAL.cdf(goal.certainty)
    saving = None if choice.energy_ratio is None else 1.0 - choice.energy_ratio
    return Hold(choice.limit_w, choice.reason, choice.slowdown, saving, confidence)


def _sweep_of(levels: Sequence[Level]) -> Sweep:
    """Levels, from the largest limit down, as a sweep; the unit of work is one of progress."""
    return Sweep(
        np.array([level.limit_w for level in levels]),
        np.exp([-level.log_progress for level in levels]),
        np.exp([level.log_power for level in levels]),
    )


def _without_baseline(
    windows: Sequence[Window], response: Response | None, offered_w: FloatArray, goal: Goal
) -> Trial | Hold:
    """Measure the baseline first; without progress, hold the limit that other jobs make certain."""
    baseline_w = float(offered_w[0])
    # Natural power is that at the baseline: counted with windows under the limit that is held, it would fall ever more.
    power_w = [window.power_w for window in windows if window.limit_w == baseline_w and window.progress_per_s is None]
    if len(power_w) < FIRST_WINDOWS or any(window.progress_per_s is not None for window in windows):
        return Trial(baseline_w, "measure the baseline")
    alone = Sweep(offered_w[:1], np.ones(1), np.array([np.mean(power_w)]))
    choice = _choose(alone, np.ones(1, dtype=np.bool_), offered_w, response, goal)
    if choice.reason is not Reason.PREDICTED:
        choice = LimitChoice(choice.limit_w, None, None, choice.reason)
    return _held(choice, 1.0, goal)
