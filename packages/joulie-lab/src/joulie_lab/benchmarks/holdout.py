"""Benchmark holdout: how often the live interval of a job's saving holds the truth, and what is reported falsely.

A job is held at a limit for as long as one evidence lasts, and left alone by the product's own draws. Its energy per
unit of work in a window has noise, and in some settings drifts, changes with phases of the job, or has heavy tails. The
truth at each look is the mean effect over the windows so far; it is checked after every window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulie.domain.capping.held_out import HeldOut, Holdout
from joulie.domain.capping.trials import Window
from joulie.domain.trial.holdout import MAX_UNITS, Evidence, Expected, left_out
from joulie.domain.units import FloatArray
from joulie_lab.benchmarks.coverage import Work, false_savings_pct
from joulie_lab.benchmarks.results import Figures

HOLDOUT = Holdout(0.05, least_saving=0.01)
_NATURAL_W, _LIMIT_W, _PROGRESS = 600.0, 500.0, 10.0
_NOISE = 0.015
_Z = 1.96


@dataclass(frozen=True)
class Setting:
    """What a job is like.

    Attributes:
        saving: what its limit saves of the energy per work, as a share.
        drift: standard deviation of the change of its energy per work from window to window, in logarithms.
        phase: mean number of windows after which that changes by some 20 %; 0 for never.
        heavy: whether noise has heavy tails (Student's t with three degrees of freedom).
        wrong: standard deviation of what the search took for its energy per work, in logarithms.
        ends: whether the saving ends after half of the windows.
    """

    saving: float
    drift: float = 0.0
    phase: int = 0
    heavy: bool = False
    wrong: float = 0.005
    ends: bool = False

    def effects(self, windows: int) -> FloatArray:
        """Effect of the limit in each window, in logarithms."""
        effects = np.full(windows, math.log1p(-self.saving))
        if self.ends:
            effects[windows // 2 :] = 0.0
        return effects

    def alone(self, windows: int, rng: np.random.Generator) -> FloatArray:
        """Energy per work in each window without a limit, in logarithms."""
        noise = rng.standard_t(3, windows) / math.sqrt(3.0) if self.heavy else rng.standard_normal(windows)
        level = np.cumsum(rng.normal(0.0, self.drift, windows)) if self.drift else np.zeros(windows)
        if self.phase:
            changes = rng.random(windows) < 1.0 / self.phase
            level = level + np.cumsum(np.where(changes, rng.normal(0.0, 0.2, windows), 0.0))
        return np.asarray(level + _NOISE * noise)


SETTINGS: Mapping[str, Setting] = {
    "0%": Setting(0.0),
    "2%": Setting(0.02),
    "5%": Setting(0.05),
    "10%": Setting(0.10),
    "0%, drifting job": Setting(0.0, drift=0.005),
    "0%, phases": Setting(0.0, phase=100),
    "0%, heavy tails": Setting(0.0, heavy=True),
    "0%, wrong search": Setting(0.0, wrong=0.05),
    "5%, drifting job": Setting(0.05, drift=0.005),
    "5%, phases": Setting(0.05, phase=100),
    "5% that ends": Setting(0.05, ends=True),
}


class Live(Figures, frozen=True):
    """Courses of one setting.

    Attributes:
        courses: number of courses.
        holds_pct: share of them whose interval holds the truth at every look, %.
        above_zero_pct: share whose lower bound is above zero at some look, %; without a saving these are false.
        stopped_pct: share that is reported to have stopped paying at some look, %.
        one_look_holds_pct: share in which an interval for one look, 1.96 standard errors, holds it at every look, %.
        half_width_pct: median of half the width of the last interval, percentage points.
        seen_after: median number of windows after which the lower bound is above zero, where it ever is; 0 if nowhere.
    """

    courses: int
    holds_pct: float
    above_zero_pct: float
    stopped_pct: float
    one_look_holds_pct: float
    half_width_pct: float
    seen_after: float


class HoldoutResult(Figures, frozen=True):
    """Courses by setting, with the number of windows of each and the share of them without the limit."""

    windows: int
    share: float
    settings: Mapping[str, Live]

    @property
    def false_savings_pct(self) -> float:
        """Largest share of false savings, %."""
        return false_savings_pct(self.settings)

    @property
    def false_stops_pct(self) -> float:
        """Largest share of limits that pay and are reported not to, %."""
        paying = [one for name, one in self.settings.items() if not name.startswith("0%") and "ends" not in name]
        return max(one.stopped_pct for one in paying)


@dataclass(frozen=True)
class Course:
    """What was said over one course.

    Attributes:
        held: whether the interval held the truth at every look.
        one_look_held: whether one for a single look did.
        seen_after: windows after which the lower bound was above zero; None if never.
        stopped: whether the limit was ever said to have stopped paying.
        half_width: half the width of the last interval; None without one.
    """

    held: bool
    one_look_held: bool
    seen_after: int | None
    stopped: bool
    half_width: float | None


def courses(work: Work) -> tuple[str, list[Course]]:
    """The courses, with the name of their setting."""
    return work.name, [played(SETTINGS[work.name], seed) for seed in work.seeds]


def played(setting: Setting, seed: int, windows: int = MAX_UNITS) -> Course:
    """One course."""
    rng = np.random.default_rng([17, seed])
    effects, alone = setting.effects(windows), setting.alone(windows, rng)
    first, error = alone[0], rng.normal(0.0, setting.wrong, 2)
    expected = Expected(first + effects[0] + error[0], first + error[1], 3.0, 3.0)
    held_out = HeldOut(None, _LIMIT_W, _NATURAL_W, expected)
    looks = list(_looks(held_out, effects, alone, seed))
    seen = [count for count, _, state in looks if (found := state.interval) is not None and found.low > 0.0]
    return Course(
        all(_holds(state.evidence, truth) for _, truth, state in looks),
        all(abs(_mean(state.evidence) - truth) <= _Z * _error(state.evidence) for _, truth, state in looks),
        seen[0] if seen else None,
        any(state.stopped_paying(HOLDOUT) for *_, state in looks),
        _half_width(looks[-1][2]) if looks else None,
    )


def _looks(
    held_out: HeldOut, effects: FloatArray, alone: FloatArray, seed: int
) -> Iterator[tuple[int, float, HeldOut]]:
    """Number of windows, truth and state at each look with an interval."""
    truth = 0.0
    for index, (effect, level) in enumerate(zip(effects.tolist(), alone.tolist(), strict=True)):
        drawn = left_out(f"bench/Job/{seed}/{index}", HOLDOUT.share)
        power_w = _PROGRESS * math.exp(level if drawn else level + effect)
        window = Window(_NATURAL_W if drawn else _LIMIT_W, power_w, _PROGRESS)
        held_out = replace(held_out, drawn=drawn).measured(window, HOLDOUT)
        truth += effect
        if held_out.evidence.bounds is not None:
            yield index + 1, truth / (index + 1), held_out


def _holds(evidence: Evidence, truth: float) -> bool:
    bounds = evidence.bounds
    return bounds is None or bounds[0] <= truth <= bounds[1]


def _half_width(state: HeldOut) -> float | None:
    interval = state.interval
    return None if interval is None else (interval.high - interval.low) / 2.0


def _mean(evidence: Evidence) -> float:
    return evidence.effect / evidence.weight


def _error(evidence: Evidence) -> float:
    return math.sqrt(evidence.square) / evidence.weight


def summed_up(courses: Iterable[Course]) -> Live:
    """Figures of courses of one setting."""
    found = list(courses)

    def share(those: Iterable[bool]) -> float:
        return 100.0 * sum(those) / len(found)

    seen = [one.seen_after for one in found if one.seen_after is not None]
    widths = [one.half_width for one in found if one.half_width is not None]
    return Live(
        len(found),
        share(one.held for one in found),
        share(one.seen_after is not None for one in found),
        share(one.stopped for one in found),
        share(one.one_look_held for one in found),
        100.0 * float(np.median(widths)),
        float(np.median(seen)) if seen else 0.0,
    )
