"""Evidence of a holdout by calendar month: what is kept over restarts, and what a month's report is made of.

Each month is a confidence sequence of its own (`joulie.domain.trial.holdout`). It is kept as text, and what the
text says is checked: evidence that cannot be believed is an error, never a saving of zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from joulie.domain.accounting.journal import Month
from joulie.domain.trial.holdout import NO_EVIDENCE, Effect, Evidence

MONTHS_KEPT = 13
"""Months that are kept: a year, and the one that lasts."""
_FIELDS = ("units", "left_out", "weight", "effect", "square")


class MonthOfEvidence(NamedTuple):
    """What the units of a month say.

    Attributes:
        since_s: when the first of them ended, s since the epoch.
        evidence: what they say.
    """

    since_s: float
    evidence: Evidence


@dataclass(frozen=True)
class EvidenceByMonth:
    """Evidence by calendar month of UTC.

    Attributes:
        months: by month, ``2026-11``.
    """

    months: Mapping[str, MonthOfEvidence] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.months)

    def added(self, time_s: float, effect: Effect) -> EvidenceByMonth:
        """The evidence with a unit that ended at a time, s since the epoch."""
        month = str(Month.of(time_s))
        return self + EvidenceByMonth({month: MonthOfEvidence(time_s, NO_EVIDENCE.added(effect))})

    def __add__(self, other: EvidenceByMonth) -> EvidenceByMonth:
        """The evidence of both, of different units; the oldest months beyond `MONTHS_KEPT` are dropped."""
        months = dict(self.months)
        for month, one in other.months.items():
            had = months.get(month, MonthOfEvidence(one.since_s, NO_EVIDENCE))
            months[month] = MonthOfEvidence(min(had.since_s, one.since_s), had.evidence + one.evidence)
        return EvidenceByMonth({month: months[month] for month in sorted(months)[-MONTHS_KEPT:]})

    def updated(self, copy: EvidenceByMonth) -> EvidenceByMonth:
        """A copy brought up to date: of each month the evidence with more units, since one may have begun anew."""
        months = dict(self.months)
        for month, one in copy.months.items():
            if month not in months or one.evidence.units >= months[month].evidence.units:
                months[month] = one
        return EvidenceByMonth({month: months[month] for month in sorted(months)[-MONTHS_KEPT:]})

    @property
    def now(self) -> Evidence:
        """What the fewest latest months say that have enough units left alone together; of all while none have."""
        known = NO_EVIDENCE
        for month in sorted(self.months, reverse=True):
            known = known + self.months[month].evidence
            if known.bounds is not None:
                break
        return known

    def text(self) -> str:
        """The evidence as text."""
        plain = {
            month: {"since_s": one.since_s} | {name: getattr(one.evidence, name) for name in _FIELDS}
            for month, one in self.months.items()
        }
        return json.dumps(plain, allow_nan=False, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> EvidenceByMonth:
        """The evidence of a text.

        Raises:
            ValueError: the text is spoilt, or what it says cannot be.
        """
        try:
            return cls(_months(json.loads(text)))
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"evidence of a holdout cannot be read: {error}") from error


NO_MONTHS = EvidenceByMonth()


def _months(plain: object) -> dict[str, MonthOfEvidence]:
    if isinstance(plain, dict):
        return {month: _month(month, plain[month]) for month in sorted(plain)[-MONTHS_KEPT:]}
    raise ValueError("it must be an object by month")


def _month(month: str, plain: object) -> MonthOfEvidence:
    if not isinstance(plain, dict) or plain.keys() != {"since_s", *_FIELDS}:
        raise ValueError(f"{month} has not the fields since_s, {', '.join(_FIELDS)}")
    if wrong := [name for name, one in plain.items() if isinstance(one, bool) or not isinstance(one, int | float)]:
        raise ValueError(f"{wrong[0]} of {month} is not a number")
    asked = Month.parse(month)
    if not asked.starts_s <= plain["since_s"] < asked.ends_s:
        raise ValueError(f"since_s of {month} is {plain['since_s']:g}, of another month")
    return MonthOfEvidence(float(plain["since_s"]), Evidence(*(plain[name] for name in _FIELDS)).checked())
