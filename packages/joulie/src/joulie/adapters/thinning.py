"""Downsampling of a pod's power samples: evenly spaced in time, or by the tsdownsample library."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulie.domain.accounting.thinning import Strategy, Thinner, time_based
from joulie.domain.units import FloatArray, IntArray


def thinner(strategy: Strategy) -> Thinner:
    """Downsampling function of a strategy.

    Raises:
        ImportError: the strategy needs tsdownsample, which is not installed.
    """
    if strategy is Strategy.TIME_BASED:
        return time_based
    from tsdownsample import LTTBDownsampler, MinMaxDownsampler

    kind: Any = LTTBDownsampler if strategy is Strategy.LTTB else MinMaxDownsampler
    library = kind()

    def thin(times_s: FloatArray, power_w: FloatArray, keep: int) -> IntArray:
        # The library requires an even number. Both end points are added afterwards, so two fewer are requested.
        wanted = max(4, (keep - 2) // 2 * 2)
        columns = np.ascontiguousarray(times_s), np.ascontiguousarray(power_w)
        chosen = np.asarray(library.downsample(*columns, n_out=wanted), dtype=np.int64)
        ends = np.array([0, len(times_s) - 1])
        result: IntArray = np.union1d(chosen, ends)
        return result

    return thin
