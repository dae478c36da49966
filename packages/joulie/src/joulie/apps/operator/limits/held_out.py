"""The holdout of jobs in the API's terms and in events."""

from __future__ import annotations

import math

from joulie.adapters.kubernetes.api.v1alpha1 import HeldOutSaving
from joulie.domain.capping.held_out import NOT_PAYING, HeldOut, Holdout
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.trial.holdout import Evidence, Interval


def published(job: TunedJob) -> HeldOutSaving | None:
    """What a job's windows say, without an interval while too few were left alone; None before the first one."""
    known = job.active.held_out.known
    if not known.units:
        return None
    interval = known.interval
    saved, low, high = (None, None, None) if interval is None else map(_percent, interval)
    return HeldOutSaving(
        windows=known.units,
        left_out=known.left_out,
        saved_pct=saved,
        low_pct=low,
        high_pct=high,
        mean_log_energy=known.effect / known.weight,
        error_log_energy=math.sqrt(known.square) / known.weight,
        natural_watts=round(job.active.held_out.natural_w, 1),
    )


def restored(stored: HeldOutSaving) -> HeldOut:
    """The holdout of a job that goes on from what its profile says.

    Raises:
        InvalidQuantityError: there can be no such evidence.
    """
    mean, error = stored.mean_log_energy, stored.error_log_energy
    found = Evidence.of(stored.windows, stored.left_out, mean, error, stored.natural_watts)
    return HeldOut(natural_w=stored.natural_watts, evidence=found)


def stopped_paying(before: TunedJob, after: TunedJob, holdout: Holdout) -> str:
    """Why the limit of a job has stopped paying, in words, where it has since the last window; empty otherwise."""
    withdrawn = after.active.problem == NOT_PAYING and before.active.problem != NOT_PAYING
    held_out = after.active.held_out
    if withdrawn:
        return f"its limit surely saves less than {holdout.least_saving:.1%} of the energy for its work: withdrawn"
    if before.active.held_out.stopped_paying(holdout) or not held_out.stopped_paying(holdout):
        return ""
    interval = held_out.interval
    assert interval is not None
    return f"its limit saves {_said(interval)} of the energy for its work, less than {holdout.least_saving:.1%}: kept"


def _said(interval: Interval) -> str:
    return f"{interval.saved:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def _percent(share: float) -> float:
    return round(100.0 * share, 2)
