"""Power from cumulative energy counters that wrap.

Pure arithmetic on what the agent has just read.
"""

from __future__ import annotations

from joulie.domain.quantities import finite_number

PLAUSIBLE_POWER_W = 4000.0
"""Maximum plausible power of a CPU package or GPU, W; a counter that gives more was reset."""


def mean_power_w(
    before_j: float,
    after_j: float,
    elapsed_s: float,
    *,
    wraps_at_j: float | None = None,
    plausible_w: float = PLAUSIBLE_POWER_W,
) -> float | None:
    """Mean power between two readings of a cumulative energy counter, W; None where it cannot be told.

    A counter that went back has wrapped or was reset. A reset looks like a wrap with an absurd power, and after a pause
    in which the counter could have wrapped more than once the two readings say nothing.

    Args:
        before_j: earlier reading, J.
        after_j: later reading, J.
        elapsed_s: time between them, s.
        wraps_at_j: value at which the counter starts again at 0, J; None where it does not wrap.
        plausible_w: more than any such device draws, W.

    Raises:
        InvalidQuantityError: a reading is negative, NaN or infinite.
    """
    finite_number("before_j", before_j, minimum=0.0)
    finite_number("after_j", after_j, minimum=0.0)
    if elapsed_s <= 0.0:
        return None
    energy_j = after_j - before_j
    if wraps_at_j is not None:
        if elapsed_s * plausible_w >= wraps_at_j:
            return None
        if energy_j < 0.0:
            energy_j += wraps_at_j
    power_w = energy_j / elapsed_s
    return power_w if 0.0 <= power_w <= plausible_w else None
