"""Durable accounts of energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from joulie.domain.accounting.budget import Crossing
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import Correction, Entry, Month, Signer
from joulie.domain.accounting.records import (
    BudgetCount,
    Cycle,
    CycleResult,
    Energy,
    ExportRow,
    Grouping,
    OpenPod,
    SavingRow,
    UnitCount,
    UsageRow,
)
from joulie.domain.accounting.sci import MonthRecords, WorkloadKey
from joulie.domain.grid.series import Series
from joulie.domain.runtimes import Run, Workload


class TooManyRowsError(ValueError):
    """A query whose answer has too many rows; the message says how many are allowed."""


class LedgerError(RuntimeError):
    """A ledger that cannot be used; the message says why and what to do. Nothing of the failed call was kept."""


class Ledger(Protocol):
    """Durable accounts of energy. Methods block, and may be called from any thread, one at a time.

    Each method is one transaction, all or nothing, and idempotent: an interrupted caller repeats the call. Every method
    raises `LedgerError`.
    """

    def append(self, cycle: Cycle) -> CycleResult:
        """Account for the time since each pod's last sample, and for pods that have ended."""
        ...

    def open_pods(self) -> Mapping[str, OpenPod]:
        """All pods whose end is not known, by uid; a restarted program continues with them."""
        ...

    def usage(
        self,
        by: Grouping,
        *,
        also: frozenset[Grouping] = frozenset(),
        since_s: float | None = None,
        until_s: float | None = None,
        namespace: str | None = None,
        node: str | None = None,
        labels: Sequence[str] = (),
    ) -> Sequence[UsageRow]:
        """Sums of energy by one or several groupings, largest first, by days and hours the earliest first.

        Without times over the ledger's whole life. Times are rounded outwards to hours, or to days where hours have
        been folded. Folded energy has no pod and no node: by these it is in one row of empty names, and of one node it
        is left out. `labels` are the keys of the grouping by label.

        Raises:
            TooManyRowsError: several groupings give too many rows to hold.
        """
        ...

    def month(self, month: Month) -> MonthRecords:
        """All that is booked in a month, for its report."""
        ...

    def book_units(self, day_s: float, workload: WorkloadKey, count: UnitCount) -> bool:
        """Book functional units of a UTC day once by workload, unit and source.

        False: they are booked already, or the day's month is closed.
        """
        ...

    def totals(self) -> Mapping[str, Energy]:
        """Energy by namespace over the ledger's whole life, exactly what cycles have added, for counters.

        A namespace is forgotten when nothing else is kept of it.
        """
        ...

    def export(self, *, since_s: float | None = None, until_s: float | None = None) -> Iterator[ExportRow]:
        """All rows that sums are made of, in order of time; corrections are rows of differences."""
        ...

    def rebook(self, history: Mapping[tuple[str, FactorKind], Sequence[Series]], now_s: float) -> Sequence[Correction]:
        """Correct the past by signals that became known late or were revised; returns what was corrected.

        Args:
            history: what is known of the grid by zone and kind: published values only, in parts without gaps.
            now_s: current time, s since the epoch.
        """
        ...

    def close_month(self, month: Month, signer: Signer, now_s: float) -> Entry:
        """Close a month for good: nothing is booked in it any more. Signs the journal, and returns its last entry.

        Also raises where the month is not over, is closed already, or a pod is not accounted until its end.
        """
        ...

    def closed_s(self) -> float:
        """End of the last closed month, s since the epoch; without one, start of the first month, infinite if empty."""
        ...

    def closings(self) -> Sequence[Entry]:
        """Entries that closed the months that are kept, in order."""
        ...

    def profile(self, uid: str) -> Sequence[tuple[float, float, float, float]]:
        """The samples kept of a pod: time, s since the epoch, and power of CPU, memory and GPUs, IT, W."""
        ...

    def savings(self, *, since_s: float | None = None, namespace: str | None = None) -> Sequence[SavingRow]:
        """Savings by waiting, of pods that have ended since then, latest first."""
        ...

    def cross(self, crossings: Sequence[Crossing]) -> Sequence[Crossing]:
        """Remember crossed budgets, and return those that no action was taken on yet."""
        ...

    def acted(self, crossing: Crossing) -> None:
        """Remember that a crossing has been acted on."""
        ...

    def budget_counts(self, asked: Mapping[str, tuple[float, float]]) -> Mapping[str, BudgetCount]:
        """What the pods of budgets have used, by key: since a time, and since a later one (s since the epoch).

        Each is the start of a period that a cycle has named, or a multiple of `BUDGET_SLOT_S`. Keys that no cycle has
        named yet are left out.
        """
        ...

    def record_runs(self, runs: Sequence[Run]) -> None:
        """Remember runs of workloads, joined with the parts of them that are known already."""
        ...

    def run_durations(self) -> Mapping[Workload, Sequence[float]]:
        """Durations of the latest finished runs of each workload, at most `MAX_RUNS` of one, latest first, s."""
        ...

    def texts(self) -> Mapping[str, str]:
        """What programs have kept beside the accounts, by name."""
        ...

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keep texts, each in place of what had its name."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Numbers of ``pods``, ``open_pods``, ``samples``, ``hours``, ``postings``, ``entries``; ``bytes`` if known."""
        ...

    def prune(self, now_s: float) -> None:
        """Drop and fold what is older than it is kept; sums stay the same."""
        ...

    def close(self) -> None:
        """Release the database."""
        ...
