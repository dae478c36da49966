"""How long the beginning of a block has to be left out, by how long pods still run that began in the block before.

A pod that began under the other arm draws power now and did part of its work then. Seen at any moment, a pod of runtime
L is there with a weight of L and has a remaining time anywhere between 0 and L (length-biased, as in renewal theory).
So of the work that runs at a switch, the share that still runs after r is the sum of max(L - r, 0) over that of L.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from joulie.domain.recording import Exit, PodRecord
from joulie.domain.units import finite

LEFT = 0.1
"""Share of the work running at a switch that may still run when the washout ends."""
LONGEST = 0.5
"""Longest washout, as a share of a block: beyond it more is lost than won."""
MIN_RUNNING = 20
"""Running pods below which their ages do not tell how long pods run."""


def runtimes_s(pods: Iterable[PodRecord]) -> list[tuple[float, float]]:
    """Runtime, s, and size, in cores and GPUs, of each pod that completed."""
    return [
        (one.ended_s - one.started_s, (one.cpu_cores or 0.0) + (one.gpus or 0.0))
        for one in pods
        if one.exit == Exit.SUCCEEDED
        and one.started_s is not None
        and one.ended_s is not None
        and one.ended_s > one.started_s
    ]


def still_running(runtimes: Iterable[tuple[float, float]], after_s: float) -> float:
    """Share of the work running at a moment that still runs so much later, 0..1; 0 without any.

    Args:
        runtimes: runtime, s, and size of pods.
        after_s: s.

    Raises:
        InvalidQuantityError: the time is negative or not finite.
    """
    finite("after_s", after_s, minimum=0.0)
    length_s, size = np.array(list(runtimes), dtype=np.float64).reshape(-1, 2).T
    all_s = float(size @ length_s)
    return float(size @ np.maximum(length_s - after_s, 0.0)) / all_s if all_s > 0.0 else 0.0


def washout_by_ages_s(ages: Iterable[tuple[float, float]], block_s: float, *, left: float = LEFT) -> float | None:
    """Shortest washout, whole minutes in s, by how long what runs now has run; None if too little runs to tell.

    What runs at a moment has run for as long, on average over moments, as it will yet run (renewal theory): both are
    anywhere within its runtime. So the ages of what runs now tell what will still run after the next switch.

    Args:
        ages: how long each pod has run, s, and its size; of pods that end by themselves.
        block_s: length of a block, s.
        left: share of the work that may still run, 0..1.

    Raises:
        InvalidQuantityError: a length or share is out of range.
    """
    finite("block_s", block_s, minimum=60.0)
    finite("left", left, minimum=0.0, maximum=1.0)
    oldest_first = sorted(((age_s, size) for age_s, size in ages if size > 0.0), reverse=True)
    if len(oldest_first) < MIN_RUNNING:
        return None
    may_run = left * math.fsum(size for _, size in oldest_first)
    longest_s = 60.0 * math.floor(LONGEST * block_s / 60.0)
    older = 0.0
    for age_s, size in oldest_first:
        older += size
        if older > may_run:  # with this one, too much would still run
            return min(60.0 * math.ceil(max(age_s, 0.0) / 60.0), longest_s)
    return 0.0


def washout_s(runtimes: Iterable[tuple[float, float]], block_s: float, *, left: float = LEFT) -> float:
    """Shortest washout, whole minutes in s, after which no more than `left` of the work still runs; at most `LONGEST`.

    Args:
        runtimes: runtime, s, and size of pods.
        block_s: length of a block, s.
        left: share of the work, 0..1.

    Raises:
        InvalidQuantityError: a length or share is out of range.
    """
    finite("block_s", block_s, minimum=60.0)
    finite("left", left, minimum=0.0, maximum=1.0)
    known = list(runtimes)
    longest_min = math.floor(LONGEST * block_s / 60.0)
    low, high = 0, longest_min
    while low < high:  # what still runs only falls
        middle = (low + high) // 2
        if still_running(known, 60.0 * middle) <= left:
            high = middle
        else:
            low = middle + 1
    return 60.0 * low
