"""What one job has shown under power limits: windows of measurement, their noise, and changes of phase.

A window is a span of time under one limit, with the average power and progress. Everything here is a function of the
windows in the order in which they were measured, so they are all that has to be kept between steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from joulie.domain.units import positive

MAX_WINDOWS = 40
"""Windows kept at each limit; the oldest go first, so that a slow drift is followed."""
PHASE_CHANGE = 0.10
"""Difference of a window from the others at its limit, in logarithms, from which it is of another phase; more where
the noise is larger (`PHASE_CHANGE_SIGMAS`)."""
PHASE_CHANGE_SIGMAS = 5.0
PASSING = 0.04
"""Difference of a window's progress from the median at its limit, in logarithms, from which it does not count: part of
a pause fell into it; more where the noise is larger (`PASSING_SIGMAS`)."""
PASSING_SIGMAS = 3.0
PAUSE_POWER = 0.3
"""Share of that difference by which power is lower too, from which the window is of a pause."""
PHASE_WINDOWS = 3
"""Windows in a row that agree with each other, but not with those before them, and so replace them."""


@dataclass(frozen=True)
class Window:
    """Measurement of a job over a span of time under one limit.

    Attributes:
        limit_w: power limit in force all the time, W for each GPU.
        power_w: average power of a GPU, W.
        progress_per_s: average progress in any unit of work (steps, tokens, samples, a counter that follows work),
            1/s. None where nothing measures it.
        counted_per_s: work that the GPUs themselves counted meanwhile, in any unit, 1/s; None without such a counter.

    Raises:
        InvalidQuantityError: a quantity is not finite or not above zero. A caller that cannot measure a window does
            not make one.
    """

    limit_w: float
    power_w: float
    progress_per_s: float | None = None
    counted_per_s: float | None = None

    def __post_init__(self) -> None:
        positive("limit_w", self.limit_w)
        positive("power_w", self.power_w)
        if self.progress_per_s is not None:
            positive("progress_per_s", self.progress_per_s)
        if self.counted_per_s is not None:
            positive("counted_per_s", self.counted_per_s)


@dataclass(frozen=True)
class Trials:
    """State of the search for a job's limit; all that has to be kept between steps.

    Made of floats, tuples and None only, so ``msgspec.to_builtins`` and ``msgspec.convert`` (or any other mapper of
    dataclasses) carry it through JSON.

    Attributes:
        windows: in the order in which they were measured, at most `MAX_WINDOWS` at each limit.
        start_w: limit that an earlier run of the same workload was held at, W. It is tried first, and held without
            further trials if it still saves energy within the bound. None without one.
    """

    windows: tuple[Window, ...] = ()
    start_w: float | None = None

    def __post_init__(self) -> None:
        if self.start_w is not None:
            positive("start_w", self.start_w)

    def measured(self, window: Window) -> Trials:
        """The state after one more window."""
        windows = [*self.windows, window]
        same = [place for place, one in enumerate(windows) if one.limit_w == window.limit_w]
        if len(same) > MAX_WINDOWS:
            del windows[same[0]]
        return replace(self, windows=tuple(windows))


class Level(NamedTuple):
    """What is known at one limit, from the windows of the job's present phase.

    Attributes:
        limit_w: W.
        windows: number of windows.
        log_progress: mean logarithm of the progress, 1/s.
        log_power: mean logarithm of the power, W.
    """

    limit_w: float
    windows: int
    log_progress: float
    log_power: float

    @property
    def log_energy(self) -> float:
        """Mean logarithm of the energy for a unit of work, J."""
        return self.log_power - self.log_progress


@dataclass(frozen=True)
class Findings:
    """What the windows say, without those of other phases.

    Attributes:
        levels: by limit, W.
        noise: standard deviation of the logarithm of a window's progress, by how windows at one limit differ.
        freedom: degrees of freedom of that estimate; 0 where no limit has two windows, and the noise is unknown.
        disturbed: whether the newest window departs from the others at its limit.
        paused: whether it has less progress and less power than they, and the one before it was as usual. A limit that
            slows a job down holds it near its power; a job that draws less does something else.
    """

    levels: dict[float, Level]
    noise: float
    freedom: int
    disturbed: bool
    paused: bool


def findings(windows: Sequence[Window], baseline_w: float) -> Findings:
    """Evaluate windows with progress.

    Windows of another phase than the others at their limit are left out. Where `PHASE_WINDOWS` in a row agree on
    something new, it replaces what was known there; at the baseline, it replaces all that was measured before.

    Args:
        windows: in the order in which they were measured.
        baseline_w: limit that slowdowns are relative to, W.
    """
    known = [
        _Logged(window.limit_w, math.log(window.progress_per_s), math.log(window.power_w))
        for window in windows
        if window.progress_per_s is not None
    ]
    scatter = _scatter(known)
    tolerance = max(PHASE_CHANGE, PHASE_CHANGE_SIGMAS * scatter)
    settled: dict[float, list[_Logged]] = {}
    odd: dict[float, list[_Logged]] = {}
    paused = False
    for window in known:
        limit_w = window.limit_w
        usual = settled.setdefault(limit_w, [])
        if len(usual) == 1 and usual[0].pauses([window], tolerance):
            usual.clear()  # the first one was of a pause
        if not usual or window.like(usual, tolerance):
            usual.append(window)
            odd[limit_w], paused = [], False
            continue
        paused = not odd[limit_w] and window.pauses(usual, tolerance)
        others = odd[limit_w]
        odd[limit_w] = [*others, window] if not others or window.like(others, tolerance) else [window]
        if len(odd[limit_w]) == PHASE_WINDOWS:
            if limit_w == baseline_w:
                settled, odd = {}, {limit_w: odd[limit_w]}
            settled[limit_w], odd[limit_w] = odd[limit_w], []
    counted = {limit_w: _usual(found, max(PASSING, PASSING_SIGMAS * scatter)) for limit_w, found in settled.items()}
    levels = {limit_w: _level(found) for limit_w, found in counted.items()}
    freedom = sum(level.windows - 1 for level in levels.values())
    squares = sum(
        (window.progress - levels[limit_w].log_progress) ** 2 for limit_w, found in counted.items() for window in found
    )
    noise = math.sqrt(squares / freedom) if freedom else 0.0
    return Findings(levels, noise, freedom, bool(known) and bool(odd.get(known[-1].limit_w)), paused)


def natural_w(windows: Sequence[Window], baseline_w: float) -> float | None:
    """What a job draws at its baseline in its present phase, W; None where it made no progress there yet."""
    level = findings(windows, baseline_w).levels.get(baseline_w)
    return None if level is None else math.exp(level.log_power)


class _Logged(NamedTuple):
    """A window's limit, W, and the logarithms of its progress, 1/s, and power, W."""

    limit_w: float
    progress: float
    power: float

    def distance(self, progress: float, power: float) -> float:
        return max(abs(self.progress - progress), abs(self.power - power))

    def pauses(self, others: Sequence[_Logged], tolerance: float) -> bool:
        """Whether the job did something else for a while: less progress and less power than in the others."""
        progress = median(other.progress for other in others) - self.progress
        power = median(other.power for other in others) - self.power
        return progress > tolerance and power > PAUSE_POWER * tolerance

    def like(self, others: Sequence[_Logged], tolerance: float) -> bool:
        middle = self.distance(median(other.progress for other in others), median(other.power for other in others))
        return middle <= tolerance


def _usual(windows: Sequence[_Logged], within: float) -> list[_Logged]:
    """The windows near the median progress, without those that a short pause fell into.

    Where the newest `PHASE_WINDOWS` all depart from it the job has changed a little: then only they count.
    """
    middle = median(window.progress for window in windows)
    near = [abs(window.progress - middle) <= within for window in windows]
    newest = windows[-PHASE_WINDOWS:]
    if len(newest) == PHASE_WINDOWS and not any(near[-PHASE_WINDOWS:]):
        return list(newest)
    return [window for window, counts in zip(windows, near, strict=True) if counts] or list(windows)


def _scatter(windows: Sequence[_Logged]) -> float:
    """Noise of a window, from differences of neighbours at a limit; up to three quarters may span a change of phase."""
    last: dict[float, _Logged] = {}
    differences = []
    for window in windows:
        before = last.get(window.limit_w)
        if before is not None:
            differences.append(window.distance(before.progress, before.power))
        last[window.limit_w] = window
    # The larger of two normally distributed differences has this lower quartile, in standard deviations of a window.
    return sorted(differences)[len(differences) // 4] / 0.95 if differences else 0.0


def _level(windows: Sequence[_Logged]) -> Level:
    count = len(windows)
    return Level(
        windows[0].limit_w,
        count,
        sum(window.progress for window in windows) / count,
        sum(window.power for window in windows) / count,
    )
