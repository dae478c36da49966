"""The best times for work under an intensity or price that is known or forecast as a step function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulie.domain.grid.series import Series

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

    The integral over a run is piecewise linear in its start, so the best start is one at which the run begins or ends
    at a step, or the first or last allowed one: trying those is exact.

    Args:
        series: intensity or price.
        earliest_s: first allowed start, s since the epoch.
        latest_start_s: last allowed start, s since the epoch.
        runtime_s: length of the run, more than 0.

    Returns:
        The best run among those that the series covers whole; None where it covers none.
    """
    last_s = min(latest_start_s, series.end_s - runtime_s)
    if not series.start_s <= earliest_s <= last_s:
        return None
    edges = np.concatenate((series.starts_s, series.starts_s - runtime_s))
    inside = edges[(edges > earliest_s) & (edges < last_s)]
    starts = np.concatenate(([earliest_s, last_s], inside))
    means = series.integral(starts, starts + runtime_s) / runtime_s
    # Sums of floats differ in their last digits: a start is later only if it is better by more than that.
    equal = np.flatnonzero(means <= means.min() + 1e-9 * np.abs(means).max())
    best = equal[np.argmin(starts[equal])]
    return Window(float(starts[best]), float(means[best]))


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
