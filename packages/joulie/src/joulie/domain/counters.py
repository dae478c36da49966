"""Rates of cumulative counters that may wrap, reset and be misread. This module needs no numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from joulie.domain.signal import Reading


def mean_rate(
    samples: Sequence[Reading], *, wraps_at: float | None = None, max_rate: float = math.inf
) -> Reading | None:
    """Increase of a counter per second over the time of its samples, at the time of the last one. Never negative.

    A drop is a wrap where `wraps_at` is known. Otherwise the counter was reset at an unknown time:
    counting goes on from the new value, and the interval of the drop counts neither as increase nor as time.

    Args:
        samples: times (s) and values of the counter, in any order. NaN and infinities are left out, and so are all but
            the first of one time.
        wraps_at: value at which the counter wraps to 0; None where it does not wrap, or this is unknown.
        max_rate: maximum plausible rate.

    Returns:
        None where no interval is left, and with a rate above `max_rate`.
    """
    by_time: dict[float, float] = {}
    for time_s, value in samples:
        if math.isfinite(time_s) and math.isfinite(value):
            by_time.setdefault(time_s, value)
    increase = counted_s = 0.0
    for (was_s, was), (now_s, now) in pairwise(sorted(by_time.items())):
        step = now - was
        if step < 0.0:
            if wraps_at is None or was > wraps_at:
                continue
            step += wraps_at
        increase += max(0.0, step)
        counted_s += now_s - was_s
    if counted_s <= 0.0:
        return None
    rate = increase / counted_s
    return Reading(max(by_time), rate) if math.isfinite(rate) and rate <= max_rate else None
