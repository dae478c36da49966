"""Power from cumulative energy counters that wrap, reset, stand still and are read late.

A counter is tracked from reading to reading. As long as every reading can be told from the one before it, the energy
adds up to a total over any number of wraps; the mean power of an interval is the difference of two totals. A reading
that can mean several things (the counter was reset, or may have wrapped more often than it shows) starts a new run, and
no power spans two runs.

A counter without progress is not 0 W. RAPL counters have a resolution of 15 to 61 uJ and are updated every millisecond,
so that one of a package that has power, however idle, differs from reading to reading. One that does not is either
slow, and its next progress gives the mean power since the last, or stuck.
Source: Intel SDM volume 3, RAPL interfaces (MSR_RAPL_POWER_UNIT, MSR_PKG_ENERGY_STATUS); Linux,
drivers/powercap/intel_rapl_common.c.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from joulie.domain.quantities import finite_number, positive_number

PLAUSIBLE_POWER_W = 4000.0
"""Maximum plausible power of a CPU package or GPU, W, where nothing better is known; more means a reset."""

DRAW_MARGIN = 2.0
"""Maximum power of a device as a multiple of its maximum limit: limits are averages, turbo exceeds them for seconds."""

STALE_READINGS = 3
"""Readings in a row without progress after which a counter is stale."""

STALE_AFTER_S = 2.0
"""Minimum time without progress after which a counter is stale, s: readings may follow each other closely."""

_ROUNDING = 1e-6
"""Relative rounding of the energy between two readings."""

MIN_SAMPLING_INTERVAL_S = 0.1
MAX_SAMPLING_INTERVAL_S = 60.0


@dataclass(frozen=True)
class EnergyTrack:
    """What is known of a counter after its latest reading.

    Attributes:
        counter_j: latest reading, J.
        read_at_s: time of it, s on a monotonic clock.
        since_s: time of the first reading of this unbroken run, s; it identifies the run.
        total_j: energy since then, over any number of wraps, J.
        progress_at_s: time of the latest reading that differed from the one before, s.
        still: readings in a row without progress.
    """

    counter_j: float
    read_at_s: float
    since_s: float
    total_j: float
    progress_at_s: float
    still: int = 0

    @property
    def stale(self) -> bool:
        """Whether the counter has stopped: several readings, some time apart, without progress."""
        return self.still >= STALE_READINGS and self.read_at_s - self.progress_at_s >= STALE_AFTER_S


def track(
    before: EnergyTrack | None,
    counter_j: float,
    now_s: float,
    *,
    wraps_at_j: float | None = None,
    max_power_w: float = PLAUSIBLE_POWER_W,
) -> EnergyTrack:
    """What is known of a counter after one more reading.

    Args:
        before: what was known before; None at the first reading.
        counter_j: the reading, J.
        now_s: time of the reading, s on a monotonic clock.
        wraps_at_j: value at which the counter starts again at 0, J; None where it does not wrap.
        max_power_w: the most that the device can draw, W.

    Raises:
        InvalidQuantityError: a reading that is negative, NaN or infinite.
    """
    finite_number("counter_j", counter_j, minimum=0.0)
    if before is None:
        return EnergyTrack(counter_j, now_s, now_s, 0.0, now_s)
    if now_s <= before.read_at_s:
        return before
    if counter_j == before.counter_j:  # no number of turns ends at the very same count: this is an old one
        return replace(before, read_at_s=now_s, still=before.still + 1)
    energy_j = _increase_j(counter_j - before.counter_j, now_s - before.progress_at_s, wraps_at_j, max_power_w)
    if energy_j is None or before.stale:  # what a stuck counter missed is not known
        return EnergyTrack(counter_j, now_s, now_s, 0.0, now_s)
    return EnergyTrack(counter_j, now_s, before.since_s, before.total_j + energy_j, now_s)


def mean_power_w(before: EnergyTrack, after: EnergyTrack) -> float | None:
    """Mean power between the last progress known at two moments, W; None without progress, or over two runs."""
    if before.since_s != after.since_s or after.progress_at_s <= before.progress_at_s:
        return None
    return (after.total_j - before.total_j) / (after.progress_at_s - before.progress_at_s)


def power_bound_w(limits_w: Iterable[float | None]) -> float:
    """The most that a device can draw, W, from what is known of its limits; without any, what is plausible at all."""
    return max((DRAW_MARGIN * limit_w for limit_w in limits_w if limit_w), default=PLAUSIBLE_POWER_W)


def sampling_interval_s(wraps: Iterable[tuple[float | None, float]]) -> float:
    """Time between readings that misses no wrap, s: half of the shortest time in which a counter can wrap.

    Args:
        wraps: by counter, the value at which it wraps, J (None where it does not), and the most that its device can
            draw, W.
    """
    shortest_s = min(
        (wraps_at_j / positive_number("max_power_w", power_w) for wraps_at_j, power_w in wraps if wraps_at_j),
        default=math.inf,
    )
    return min(max(shortest_s / 2.0, MIN_SAMPLING_INTERVAL_S), MAX_SAMPLING_INTERVAL_S)


def _increase_j(change_j: float, elapsed_s: float, wraps_at_j: float | None, max_power_w: float) -> float | None:
    """Energy between two readings, J; None where the counter was reset, or may have wrapped more often than it shows.

    A reset looks like a wrap with an absurd power. After a long pause another whole turn is possible too, unless the
    device cannot have drawn that much.
    """
    most_j = elapsed_s * max_power_w * (1.0 + _ROUNDING)
    if wraps_at_j is None:
        return change_j if 0.0 <= change_j <= max(most_j, elapsed_s * PLAUSIBLE_POWER_W) else None
    wrapped = change_j < 0.0
    energy_j = change_j + wraps_at_j if wrapped else change_j
    # The limits that a device states may be wrong; without a wrap nothing depends on them.
    plausible_j = most_j if wrapped else max(most_j, elapsed_s * PLAUSIBLE_POWER_W)
    if not 0.0 <= energy_j <= plausible_j or energy_j + wraps_at_j <= most_j:
        return None
    return energy_j
