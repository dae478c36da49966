"""One power limit for all jobs of a GPU model, where limits per job are not possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.capping.choice import Goal
from joulie.domain.capping.measurements import Sweep
from joulie.domain.units import InvalidQuantityError, finite


@dataclass(frozen=True)
class FleetLimit:
    """A limit for all jobs.

    Attributes:
        limit_w: W.
        largest_w: the largest limit, which it is compared with, W.
        saving: mean share of the energy that a job saves.
        worst_slowdown: of the slowest job.
        kept: jobs within the slowdown.
        jobs: that were measured at this limit.
    """

    limit_w: float
    largest_w: float
    saving: float
    worst_slowdown: float
    kept: int
    jobs: int


def limit_for_all(sweeps: Sequence[Sweep], goal: Goal, share: float) -> FleetLimit:
    """The limit that saves most, among those under which enough jobs stay within the slowdown.

    Only jobs that were measured at the largest limit and at the limit in question count, and all that were measured at
    the largest one must be: a limit that some of them were not measured at is not known to be safe for them.

    Args:
        sweeps: of jobs, at least one.
        goal: what must be kept.
        share: of the jobs that must keep it, 0..1.

    Raises:
        InvalidQuantityError: no sweeps, or a share out of range.
    """
    finite("share", share, minimum=0.0, maximum=1.0)
    if not sweeps:
        raise InvalidQuantityError("sweeps", "must not be empty")
    largest_w = max(float(sweep.limits_w[0]) for sweep in sweeps)
    known = [sweep for sweep in sweeps if float(sweep.limits_w[0]) == largest_w]
    common = set.intersection(*(set(map(float, sweep.limits_w)) for sweep in known))
    fitting = [found for limit_w in common if (found := _at(limit_w, known, goal)).kept >= share * found.jobs]
    return max(fitting, key=lambda found: (found.saving, found.limit_w))


def _at(limit_w: float, known: Sequence[Sweep], goal: Goal) -> FleetLimit:
    # np.flatnonzero finds each limit exactly once: all of these jobs were measured at it.
    places = [int(np.flatnonzero(sweep.limits_w == limit_w)[0]) for sweep in known]
    slowdown = np.array([sweep.slowdown[place] for sweep, place in zip(known, places, strict=True)])
    ratio = np.array([sweep.energy_ratio[place] for sweep, place in zip(known, places, strict=True)])
    largest_w = float(known[0].limits_w[0])
    kept = goal.kept_by(slowdown) | (limit_w == largest_w)
    return FleetLimit(limit_w, largest_w, 1.0 - float(ratio.mean()), float(slowdown.max()), int(kept.sum()), len(known))
