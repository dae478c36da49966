"""Downsampling of a pod's samples, so that storage is bounded. Sums are never made from what is left."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np

from joulie.domain.units import FloatArray, IntArray

Thinner = Callable[[FloatArray, FloatArray, int], IntArray]
"""Times (n,), s, powers (n,), W, and how many to keep, at least 3 and fewer than n -> indices of those to keep, in
order, at most as many; the first and the last are among them."""


class Strategy(StrEnum):
    """Which samples are kept (DOWNSAMPLING_STRATEGY)."""

    TIME_BASED = "timeBased"
    """At even times."""
    MIN_MAX = "minMax"
    """Those with the minimum and the maximum power of each interval."""
    LTTB = "lttb"
    """Those that keep the shape: largest triangle three buckets (Steinarsson 2013)."""


def time_based(times_s: FloatArray, power_w: FloatArray, keep: int) -> IntArray:
    """Samples nearest to even times."""
    even_s = np.linspace(times_s[0], times_s[-1], keep)
    after = np.clip(np.searchsorted(times_s, even_s), 1, len(times_s) - 1)
    nearer = np.where(even_s - times_s[after - 1] <= times_s[after] - even_s, after - 1, after)
    return np.unique(nearer)
