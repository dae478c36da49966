"""The best times for work under an intensity or price that is known or forecast as a step function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.grid.series import FloatArray, Series

_ROUNDING_S = 1e-3
"""Work left that is rounding of times since the epoch, s: no run of its own."""


class Window(NamedTuple):
    """One uninterrupted run."""

    start_s: float
    """s since the epoch."""
    mean_value: float
    """Mean of the series over the run, in the series' unit."""


def best_start(series: Series, earliest_s: float, latest_start_s: float, runtime_s: float) -> Window | None:
    """The start whose run has the lowest mean; of equal ones the earliest.

    Args:
        series: intensity or price.
        earliest_s: first allowed start, s since the epoch.
        latest_start_s: last allowed start, s since the epoch.
        runtime_s: length of the run, more than 0.

    Returns:
        The best run among those that the series covers whole; None where it covers none.
    """
    starts_s, means = best_starts(series, earliest_s, [latest_start_s], runtime_s)
    return None if np.isnan(starts_s[0]) else Window(float(starts_s[0]), float(means[0]))


def best_starts(
    series: Series, earliest_s: float, latest_starts_s: npt.ArrayLike, runtime_s: float
) -> tuple[FloatArray, FloatArray]:
    """`best_start` for several last allowed starts.

    The integral over a run is piecewise linear in its start, so the best start is one at which the run begins or ends
    at a step, or the first or last allowed one: trying those is exact.

    Args:
        series: intensity or price.
        earliest_s: first allowed start, s since the epoch.
        latest_starts_s: (m,) last allowed starts, s since the epoch.
        runtime_s: length of the run, more than 0.

    Returns:
        (m,) starts in s since the epoch, and (m,) means over the runs; NaN where the series covers no run.
    """
    last_s = np.minimum(np.asarray(latest_starts_s, dtype=np.float64), series.end_s - runtime_s)
    covered = (series.start_s <= earliest_s) & (earliest_s <= last_s)
    edges = np.concatenate((series.starts_s, series.starts_s - runtime_s))
    shared = np.append(edges[(edges > earliest_s) & (edges < last_s.max(initial=earliest_s))], earliest_s)
    starts = np.concatenate((shared, last_s))
    allowed = np.hstack((shared <= last_s[:, None], np.eye(len(last_s), dtype=np.bool_)))
    means = np.where(allowed, series.integral(starts, starts + runtime_s) / runtime_s, np.inf)
    # Sums of floats differ in their last digits: a start is later only if it is better by more than that.
    rounding = 1e-9 * np.abs(means, where=allowed, out=np.zeros_like(means)).max(axis=1)
    equal = means <= (means.min(axis=1) + rounding)[:, None]
    best = np.where(equal, starts, np.inf).argmin(axis=1)
    return np.where(covered, starts[best], np.nan), np.where(covered, means[np.arange(len(best)), best], np.nan)


def best_slots(
    series: Series, earliest_s: float, deadline_s: float, work_s: float, slot_s: float
) -> tuple[tuple[float, float], ...] | None:
    """When to run work that may be interrupted: in the slots with the lowest means.

    Args:
        series: intensity or price.
        earliest_s: where the first slot begins, s since the epoch.
        deadline_s: when the work must be done, s since the epoch. What is left of the last slot counts as one.
        work_s: time that the work takes, more than 0.
        slot_s: length of a slot, the shortest run but the last.

    Returns:
        Start and end of each run in s since the epoch, in order, neighbouring slots joined, `work_s` in all; None where
        there is no time for the work or the series does not cover it.
    """
    if work_s > deadline_s - earliest_s or not series.covers(earliest_s, deadline_s):
        return None
    edges = np.append(np.arange(earliest_s, deadline_s, slot_s), deadline_s)
    lengths_s = np.diff(edges)
    means = series.integral(edges[:-1], edges[1:]) / lengths_s
    order = np.argsort(means, kind="stable")
    needed = int(np.searchsorted(np.cumsum(lengths_s[order]), work_s * (1.0 - 1e-12))) + 1
    chosen = np.sort(order[:needed])
    runs: list[tuple[float, float]] = []
    left_s = work_s
    for slot in chosen:
        start_s = float(edges[slot])
        end_s = min(float(edges[slot + 1]), start_s + left_s)
        left_s -= end_s - start_s
        if runs and runs[-1][1] == start_s:
            runs[-1] = (runs[-1][0], end_s)
        else:
            runs.append((start_s, end_s))
        if left_s <= _ROUNDING_S:
            break
    return tuple(runs)
