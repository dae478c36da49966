"""The holdout of jobs, as profiles and people are told of it."""

from __future__ import annotations

import math

from joulie.adapters.kubernetes.api.v1alpha1 import HeldOutSaving
from joulie.domain.capping.held_out import NOT_PAYING, Holdout
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.trial.holdout import Interval


def published(job: TunedJob) -> HeldOutSaving | None:
    """What a job's limit saves; None while too little is known."""
    known = job.active.held_out.known
    interval = known.interval
    if interval is None:
        return None
    return HeldOutSaving(
        windows=known.units,
        left_out=known.left_out,
        saved_pct=_percent(interval.saved),
        low_pct=_percent(interval.low),
        high_pct=_percent(interval.high),
        mean_log_energy=known.effect / known.weight,
        error_log_energy=math.sqrt(known.square) / known.weight,
        natural_watts=round(job.active.held_out.natural_w, 1),
    )


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
