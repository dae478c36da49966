"""What power limits save by the holdout of the operator, over all workloads whose profiles say so."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import HeldOutSaving, WorkloadProfile
from joulie.adapters.program_api.energy import HoldoutSaving
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.trial.holdout import Evidence

HOW_KNOWN = "measured by holdout"
"""How these savings are known: windows left without the limit at random say what it saves."""


class LimitsSaving(msgspec.Struct, frozen=True, rename="camel"):
    """Energy for the same work that power limits save, while they are held.

    Attributes:
        how_known: how it is known.
        saved_pct: estimate, %; negative where they cost energy.
        low_pct: lower bound of an interval that holds at all looks together, %.
        high_pct: upper bound, %.
        windows: number of windows of time behind it.
        left_out: number of those without the limit.
        workloads: number of workloads; None where it is not known.
    """

    how_known: str
    saved_pct: float
    low_pct: float
    high_pct: float
    windows: int
    left_out: int
    workloads: int | None

    @property
    def sentence(self) -> str:
        """For people."""
        whose = "all workloads" if self.workloads is None else f"{self.workloads} workloads"
        return (
            f"Limits of GPUs save {self.saved_pct:.1f} % of the energy for the same work ({self.low_pct:.1f} to"
            f" {self.high_pct:.1f} %), {self.how_known}: {self.left_out} of {self.windows} windows of"
            f" {whose} were left without"
        )

    @classmethod
    def of_all(cls, saving: HoldoutSaving | None) -> LimitsSaving | None:
        """What the operator has measured over all workloads, those that are gone included."""
        if saving is None:
            return None
        shares = saving.saved_pct, saving.low_pct, saving.high_pct
        return cls(HOW_KNOWN, *shares, saving.workloads, saving.left_out, None)


def limits_saving(profiles: Iterable[WorkloadProfile]) -> LimitsSaving | None:
    """The saving over all workloads, by the power that they draw; None while too little is known."""
    held = (one.status.gpu_limit.holdout for one in profiles if one.status.gpu_limit is not None)
    known = [found for one in held if one is not None and (found := _evidence(one)) is not None]
    evidence = sum(known, Evidence())
    interval = evidence.interval
    if interval is None:
        return None
    saved, low, high = (round(100.0 * share, 2) for share in interval)
    return LimitsSaving(HOW_KNOWN, saved, low, high, evidence.units, evidence.left_out, len(known))


def _evidence(one: HeldOutSaving) -> Evidence | None:
    """The evidence of a profile; None where it says what cannot be, which the operator reports."""
    try:
        return Evidence.of(one.windows, one.left_out, one.mean_log_energy, one.error_log_energy, one.natural_watts)
    except InvalidQuantityError:
        return None
