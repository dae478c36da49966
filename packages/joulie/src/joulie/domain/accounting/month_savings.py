"""What a month has saved, and how it is known: measured by a holdout, or modelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joulie.domain.accounting.holdout_evidence import EvidenceByMonth
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import SavingRow
from joulie.domain.grid.signals import Measure
from joulie.domain.trial.holdout import Interval

DEFERRAL_EVIDENCE, DEFERRAL_MEMORY, LIMITS_EVIDENCE = "holdout-deferral", "holdout-deferral-memory", "holdout-limits"
"""Names of the texts of a ledger that evidence of holdouts is kept in, and what its next outcome is compared to."""
BY_HOLDOUT = "measured by holdout"
MODELLED = "modelled"
_MEASURED = {
    LIMITS_EVIDENCE: "power limits of GPUs: energy for the same work",
    DEFERRAL_EVIDENCE: "waiting: emissions",
}


@dataclass(frozen=True)
class MonthSaving:
    """One saving of a month.

    Attributes:
        what: what saves, and what of.
        how_known: how it is known.
        interval: the share that is saved; None where it is modelled, or too little is known.
        units: number of windows of time or workloads behind it; 0 where it is modelled.
        left_out: number of those that were left alone by chance.
        since_s: when the first of them ended, s since the epoch; None where it is modelled.
        amount_g: emissions that are saved, gCO2eq; None where a share is measured.
    """

    what: str
    how_known: str
    interval: Interval | None = None
    units: int = 0
    left_out: int = 0
    since_s: float | None = None
    amount_g: float | None = None


def read_evidence(texts: Mapping[str, str]) -> tuple[dict[str, EvidenceByMonth], list[str]]:
    """Evidence of holdouts by its name, from the texts of a ledger, and what of it is spoilt."""
    found, problems = {}, []
    for name in _MEASURED:
        try:
            found[name] = EvidenceByMonth.parse(texts.get(name, "{}"))
        except ValueError as error:
            problems.append(str(error))
    return found, problems


def month_savings(
    month: Month, evidence: Mapping[str, EvidenceByMonth], deferred: Iterable[SavingRow]
) -> list[MonthSaving]:
    """All that is known of a month's savings.

    Args:
        month: of UTC.
        evidence: of holdouts, by its name.
        deferred: what pods that have waited saved, by the model.
    """
    savings = []
    for name, what in _MEASURED.items():
        one = evidence[name].months.get(str(month)) if name in evidence else None
        if one is not None:
            known = one.evidence
            savings.append(
                MonthSaving(what, BY_HOLDOUT, known.interval, known.units, known.left_out, since_s=one.since_s)
            )
    amounts_g = [
        row.amount
        for row in deferred
        if row.measure is Measure.CARBON and month.starts_s <= row.completed_s < month.ends_s
    ]
    if amounts_g:
        savings.append(MonthSaving(_MEASURED[DEFERRAL_EVIDENCE], MODELLED, amount_g=sum(amounts_g)))
    return savings
