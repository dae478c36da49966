"""Whether a job can make the progress that it claims, by the power and the counters of its GPUs.

A program may count time instead of work, or count on while it stands: then a limit seems to cost nothing, however deep.
Two things that the program does not write tell:

- **Counted work.** Each step moves the same bytes through a GPU's memory, whatever its limit. So where progress is
  claimed to fall by less than the traffic does, it is not work that is claimed.
- **Power.** A limit that lowers the power of a job by a quarter slows it. `fastest` is what the jobs of the published
  sweeps that were slowed the least lost at each fall of power; nobody may lose less.

Without counters a claim that some measured job might have made cannot be told from the truth. So where nothing vouches
for claims, no limit below `LOWEST_UNVOUCHED` of natural power is tried: few measured jobs keep a bound of 5 % there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.choice import likely_noise
from joulie.domain.capping.trials import Window, findings, natural_w
from joulie.domain.units import FloatArray

TOLERANCE = 0.02
"""By how much more progress than counted work may remain, in logarithms."""
SIGMAS = 4.0
"""Standard errors by which a contradiction must exceed what is possible."""
USUAL_NOISE, USUAL_WEIGHT = 0.02, 3.0
"""Noise of progress over counted work in a window that is expected before windows tell, and how many that is worth."""
NEWEST = 2
"""Windows at the end that are compared by themselves too: a job may change, or begin to lie."""
FEW, ODD_NOISE = 3, 0.06
"""Windows from which their median stands though one of them is odd, and noise that fewer are taken to have."""
UNDISTURBED = 0.9
"""Share of the most work counted in a window of a phase below which a pause fell into one."""
LEAST_DONE = 0.2
"""Share of the usual work below which a window is taken to be no less certain."""
LOWEST_UNVOUCHED = 0.72
"""Smallest limit over natural power that claims alone may lead to."""
RECENT = 12
"""Windows at a limit that are compared: a job changes over time."""
ALIKE = 0.08
"""Difference of progress over counted work, in logarithms, from which a window is of an earlier phase of the job."""
_FALLS_OF_POWER = np.array([0.0, 0.06, 0.08, 0.18, 0.23, 0.25, 0.45, 0.68, 0.8])
_LEAST_SLOWDOWN = np.array([-0.17, -0.16, -0.06, -0.05, -0.03, 0.0, 0.01, 0.04, 0.2])


def fastest(fall_of_power: float) -> float:
    """Logarithm of the smallest slowdown that a job has shown where a limit lowers its power.

    Below zero where runs scatter: jobs of the sweeps were run once at each limit.

    Args:
        fall_of_power: logarithm of the power at the baseline over that at the limit.
    """
    return float(np.interp(fall_of_power, _FALLS_OF_POWER, _LEAST_SLOWDOWN))


def contradicted(windows: Sequence[Window], baseline_w: float, *, limits_power: bool = True) -> bool:
    """Whether the progress that was claimed under the limit of the newest window cannot be true.

    Args:
        windows: in the order in which they were measured.
        baseline_w: limit without Joulie, W.
        limits_power: whether limits are of power; what a clock costs at a fall of power is not known.
    """
    newest = windows[-1]
    if newest.progress_per_s is None:
        return False
    if newest.counted_per_s is not None:
        return _outruns_counters(windows, newest.limit_w, baseline_w)
    return limits_power and _outruns_power(windows, newest.limit_w, baseline_w)


def changed(windows: Sequence[Window], baseline_w: float) -> bool:
    """Whether the newest window, which is at the baseline, departs from those before it there: the job has changed."""
    newest, before = windows[-1:], windows[:-1]
    now, then = (_claimed_over_counted(_newest_phase(some, baseline_w)) for some in (newest, before))
    if now.size and then.size:
        error = max(_noise(then), ODD_NOISE) * math.sqrt(1.0 + 1.0 / then.size)
        if abs(float(np.median(now) - np.median(then))) > TOLERANCE + SIGMAS * error:
            return True
    return findings(windows, baseline_w).disturbed


def lowest_w(windows: Sequence[Window], baseline_w: float) -> float:
    """Smallest limit that the claims of a job's windows may lead to, W: 0 where counters vouch for the newest."""
    if windows[-1].counted_per_s is not None:
        return 0.0
    return LOWEST_UNVOUCHED * (natural_w(windows, baseline_w) or 0.0)


def _outruns_counters(windows: Sequence[Window], limit_w: float, baseline_w: float) -> bool:
    """Whether more progress is claimed than counted, compared with the baseline: lately, or in the newest windows."""
    under, free = (_newest_phase(windows, at_w) for at_w in (limit_w, baseline_w))
    if not under or not free:
        return False
    noise = _noise(*map(_claimed_over_counted, (under, free)))
    usual = float(np.median([window.counted_per_s for window in free]))
    known, least = float(np.median(_claimed_over_counted(free))), _error(free, noise, usual)
    # What a pause took from one window it gave to the next: together the two are right.
    newest = _counted(windows, limit_w)[-NEWEST:]
    claims = (
        (float(np.median(_claimed_over_counted(under))), _error(under, noise, usual)),
        (
            math.log(sum(one.progress_per_s for one in newest) / sum(one.counted_per_s for one in newest)),
            _error(newest, noise, usual),
        ),
    )
    return any(claimed - known > TOLERANCE + SIGMAS * math.hypot(least, error) for claimed, error in claims)


def _error(windows: Sequence[_Counted], noise: float, usual_per_s: float) -> float:
    """Standard error of the median of claimed over counted work, in logarithms.

    Progress and counters are scraped at moments of their own, so that a part of a pause may be seen by one of the two
    alone: it counts for more the less was done in the window, and moves the median where windows are few.
    """
    if len(windows) >= FEW:
        return noise / math.sqrt(len(windows))
    done = float(np.median([window.counted_per_s for window in windows])) / usual_per_s
    return max(noise, ODD_NOISE) / math.sqrt(len(windows)) / min(max(done, LEAST_DONE), 1.0)


def _noise(*groups: FloatArray) -> float:
    """Noise of a window, by how those of each group differ and, while they are few, by what is usual.

    Deviations are medians, as of a normal distribution: pauses that only one of the two saw are no noise of the others.
    """
    deviations = [1.4826 * float(np.median(np.abs(group - np.median(group)))) for group in groups]
    squares = sum(group.size * deviation**2 for group, deviation in zip(groups, deviations, strict=True))
    freedom = sum(group.size - 1 for group in groups)
    return math.sqrt((USUAL_WEIGHT * USUAL_NOISE**2 + squares) / (USUAL_WEIGHT + freedom))


def _outruns_power(windows: Sequence[Window], limit_w: float, baseline_w: float) -> bool:
    """Whether less slowdown is claimed than any job has shown whose power fell as much."""
    found = findings(windows, baseline_w)
    under, free = found.levels.get(limit_w), found.levels.get(baseline_w)
    if under is None or free is None:
        return False
    error = likely_noise(found) * math.sqrt(1.0 / under.windows + 1.0 / free.windows)
    claimed = free.log_progress - under.log_progress
    return claimed + SIGMAS * error < fastest(free.log_power - under.log_power)


class _Counted(NamedTuple):
    """Progress that was claimed in a window, and work that was counted, 1/s."""

    progress_per_s: float
    counted_per_s: float


def _counted(windows: Sequence[Window], limit_w: float) -> list[_Counted]:
    """The newest windows at a limit that have both."""
    return [
        _Counted(window.progress_per_s, window.counted_per_s)
        for window in windows
        if window.limit_w == limit_w and window.progress_per_s is not None and window.counted_per_s is not None
    ][-RECENT:]


def _claimed_over_counted(windows: Sequence[_Counted]) -> FloatArray:
    """In logarithms."""
    return np.array([math.log(window.progress_per_s / window.counted_per_s) for window in windows])


def _newest_phase(windows: Sequence[Window], limit_w: float) -> list[_Counted]:
    """Those of the newest windows at a limit that are of one phase of the job, without those that pauses fell into.

    A phase ends with `FEW` windows in a row that agree with each other, and differ from the newest.
    """
    found = _counted(windows, limit_w)
    if len(found) > FEW:
        ratio = _claimed_over_counted(found)
        rows = np.lib.stride_tricks.sliding_window_view(ratio, FEW)
        differ = (np.abs(rows - np.median(ratio[-FEW:])) > ALIKE).all(axis=1)
        ends = np.flatnonzero(differ & (np.ptp(rows, axis=1) <= ALIKE)) + FEW
        found = found[int(ends[-1]) :] if ends.size else found
    most = max((window.counted_per_s for window in found), default=0.0)
    return [window for window in found if window.counted_per_s >= UNDISTURBED * most]
