"""The SQL ledger: one transaction per call, so that a call is stored whole or not at all.

A pod's row holds its last sample and the time up to which it is accounted. Time before that is never counted again,
even if a sample is repeated; time after it is counted by the next sample, whatever happens in between. A program that
crashes at any point therefore resumes from the database alone.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from joulie.adapters.ledger import budgets, reports, schema
from joulie.adapters.ledger.corrections import by_hand, by_signals
from joulie.adapters.ledger.cycles import Booking
from joulie.adapters.ledger.error_hints import error_hint
from joulie.adapters.ledger.evidence import evidence
from joulie.adapters.ledger.folding import fold_hours
from joulie.adapters.ledger.journal import add_entries, drop_entries, head_of, new_entry, pruned, read_entries
from joulie.adapters.ledger.months import month_records, units_between
from joulie.adapters.ledger.reservations import add_units
from joulie.adapters.ledger.runs import prune_runs, record_runs, run_durations
from joulie.adapters.ledger.statements import energy_of, pod_in, set_state, state_of, upsert
from joulie.domain.accounting.budget import Crossing
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import (
    Correction,
    Entry,
    EntryKind,
    Month,
    Reason,
    Signer,
    Verified,
    Verify,
    closing_note,
    corrections,
    verify_journal,
)
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
from joulie.domain.accounting.thinning import Thinner, time_based
from joulie.domain.grid.series import Series
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.runtimes import Run, Workload
from joulie.ports.ledger import LedgerError

_SECONDS_PER_DAY = 86400.0
_HOURS_PER_DAY = 24
_ENTRIES_AT_ONCE = 10_000
_TEXT = "text:"
"""Before the names of texts among the keys of the state."""
READS_ONLY = "reads_only"
"""Option of connections whose transaction writes nothing."""
_WRITERS_LOCK = 0x4A4F554C
"""PostgreSQL advisory lock that serialises cycles, also while an old and a new program overlap."""


@dataclass(frozen=True)
class LedgerSettings:
    """Retention of the ledger.

    Attributes:
        max_samples_per_pod: of the power profile, at least 4 (MAX_SAMPLES_PER_POD).
        thinner: what chooses the samples that are kept (DOWNSAMPLING_STRATEGY).
        retention_s: how long the profile of a pod is kept after its end, s (COMPLETED_POD_RETENTION).
        hours_kept_s: how long energy is kept by pod and hour, s; then whole UTC days are folded into the journal.
        days_kept_s: how long energy is kept by workload and day, and savings, s.
        signals_kept_s: how long the history of the grid is kept, s: what pods are held and run at most.
        corrections_s: how far back corrections reach, s: how long postings are kept.
        max_gap_s: time between two samples beyond which the power between them counts as assumed, s.
    """

    max_samples_per_pod: int = 500
    thinner: Thinner = time_based
    retention_s: float = 3600.0
    hours_kept_s: float = 2 * _SECONDS_PER_DAY
    days_kept_s: float = 400 * _SECONDS_PER_DAY
    signals_kept_s: float = 14 * _SECONDS_PER_DAY
    corrections_s: float = 45 * _SECONDS_PER_DAY
    max_gap_s: float = 600.0


class SqlLedger:
    """A `joulie.ports.ledger.Ledger` in an SQL database; see `open_ledger`.

    Args:
        engine: engine of a database with the tables.
        settings: retention of the ledger.
    """

    def __init__(self, engine: Engine, settings: LedgerSettings) -> None:
        self._engine = engine
        self._settings = settings

    def append(self, cycle: Cycle) -> CycleResult:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            keep = self._settings
            return Booking(connection, cycle, keep.max_gap_s, keep.max_samples_per_pod, keep.thinner).book()

    def open_pods(self) -> Mapping[str, OpenPod]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            rows = connection.execute(select(schema.pods).where(schema.pods.c.completed_s.is_(None))).all()
        return {
            row.uid: OpenPod(
                pod_in(row),
                row.sampled_s,
                energy_of(row),
                row.cpu_w + row.mem_w + row.gpu_w,
                row.source,
            )
            for row in rows
        }

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
        """See `joulie.ports.ledger.Ledger`."""
        chosen = reports.Selection(reports.Span(since_s, until_s), namespace, node, tuple(labels))
        with self._transaction(reads_only=True) as connection:
            return reports.usage(connection, frozenset({by, *also}), chosen)

    def month(self, month: Month) -> MonthRecords:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return month_records(connection, month)

    def book_units(self, day_s: float, workload: WorkloadKey, count: UnitCount) -> bool:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            if day_s < float(state_of(connection).get("closed_s", "-inf")):
                return False
            known = units_between(connection, reports.Span(day_s, day_s + _SECONDS_PER_DAY))
            if (workload, count.unit, count.source) in {(one, had.unit, had.source) for one, had in known}:
                return False
            key = (workload.namespace, workload.kind, workload.name)
            add_units(connection, [(int(day_s // _SECONDS_PER_DAY), key, count)])
            return True

    def totals(self) -> Mapping[str, Energy]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return {row.namespace: energy_of(row) for row in connection.execute(select(schema.totals))}

    def export(self, *, since_s: float | None = None, until_s: float | None = None) -> Iterator[ExportRow]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            rows = reports.export(connection, reports.Span(since_s, until_s))
        return iter(rows)

    def profile(self, uid: str) -> Sequence[tuple[float, float, float, float]]:
        """See `joulie.ports.ledger.Ledger`."""
        samples, pods = schema.samples.c, schema.pods.c
        with self._transaction(reads_only=True) as connection:
            rows = connection.execute(
                select(samples.time_s, samples.cpu_w, samples.mem_w, samples.gpu_w)
                .where(samples.pod_id == select(pods.id).where(pods.uid == uid).scalar_subquery())
                .order_by(samples.time_s)
            )
            return [(row.time_s, row.cpu_w, row.mem_w, row.gpu_w) for row in rows]

    def savings(self, *, since_s: float | None = None, namespace: str | None = None) -> Sequence[SavingRow]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return reports.savings(connection, since_s, namespace)

    def cross(self, crossings: Sequence[Crossing]) -> Sequence[Crossing]:
        """See `joulie.ports.ledger.Ledger`."""
        table = schema.crossings
        waiting = []
        with self._transaction() as connection:
            for one in crossings:
                acted = connection.scalar(select(table.c.acted).where(_is_crossing(one)))
                if acted is None:
                    connection.execute(
                        table.insert().values(
                            scope=one.budget.scope,
                            since_s=one.budget.since_s,
                            limit_j=one.budget.limit_j,
                            action=one.budget.action.value,
                            used_j=one.used_j,
                            time_s=one.time_s,
                            acted=False,
                        )
                    )
                if not acted:
                    waiting.append(one)
        return waiting

    def acted(self, crossing: Crossing) -> None:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            connection.execute(update(schema.crossings).where(_is_crossing(crossing)).values(acted=True))

    def budget_counts(self, asked: Mapping[str, tuple[float, float]]) -> Mapping[str, BudgetCount]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return budgets.counts(connection, asked)

    def record_runs(self, runs: Sequence[Run]) -> None:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            record_runs(connection, runs)

    def run_durations(self) -> Mapping[Workload, Sequence[float]]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return run_durations(connection)

    def texts(self) -> Mapping[str, str]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            state = state_of(connection)
        return {key.removeprefix(_TEXT): value for key, value in state.items() if key.startswith(_TEXT)}

    def keep(self, texts: Mapping[str, str]) -> None:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            set_state(connection, {_TEXT + name: text_ for name, text_ in texts.items()})

    def counts(self) -> Mapping[str, int]:
        """See `joulie.ports.ledger.Ledger`."""
        pods = schema.pods.c
        with self._transaction(reads_only=True) as connection:
            counted = connection.execute(
                select(
                    func.count().label("pods"),
                    (func.count() - func.count(pods.completed_s)).label("open_pods"),
                    func.coalesce(func.sum(pods.samples), 0).label("samples"),
                )
            ).one()
            counts = {name: int(value) for name, value in counted._mapping.items()}
            for table in (schema.hours, schema.entries, schema.postings):
                counts[table.name] = connection.scalar(select(func.count()).select_from(table)) or 0
            if connection.dialect.name == "sqlite":
                counts["bytes"] = _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return counts

    def rebook(self, history: Mapping[tuple[str, FactorKind], Sequence[Series]], now_s: float) -> Sequence[Correction]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            return list(corrections(by_signals(connection, history, now_s)))

    def correct(
        self, zone: str, kind: FactorKind, time_s: tuple[float, float], value: float, reason: Reason, now_s: float
    ) -> Sequence[Correction]:
        """Set a factor of the past by hand.

        Args:
            zone: zone of the grid.
            kind: which factor.
            time_s: start and end, s since the epoch; factors that reach beyond are left as they are.
            value: the right value.
            reason: who corrects it, and why.
            now_s: current time, s since the epoch.

        Raises:
            LedgerError: see `joulie.ports.ledger.Ledger`; also where postings of that time are kept no more.
        """
        with self._transaction() as connection:
            kept_s = float(state_of(connection).get("postings_s", "0"))
            if time_s[0] < kept_s:
                raise LedgerError(
                    f"corrections reach back to {datetime.fromtimestamp(kept_s, UTC):%Y-%m-%d}: what was booked before "
                    "is kept by day only (LEDGER_CORRECTION_WINDOW)"
                )
            return list(corrections(by_hand(connection, zone, kind, time_s, value, reason, now_s)))

    def close_month(self, month: Month, signer: Signer, now_s: float) -> Entry:
        """Close a month for good: nothing is booked in it any more. Signs the journal.

        Raises:
            LedgerError: see `joulie.ports.ledger.Ledger`; also where the month is not over, already closed, or a
                pod is not accounted until its end.
        """
        pods = schema.pods.c
        with self._transaction() as connection:
            if month.ends_s > now_s:
                raise LedgerError(f"{month} is not over")
            if month.ends_s <= float(state_of(connection).get("closed_s", "-inf")):
                raise LedgerError(f"{month} is closed already")
            behind = connection.scalar(
                select(func.count()).where(pods.completed_s.is_(None), pods.sampled_s < month.ends_s)
            )
            if behind:
                raise LedgerError(f"{behind} pods are not accounted to the end of {month}: let the accounting catch up")
            fold_hours(connection, month.ends_s, now_s)
            number, head = head_of(connection)
            time_s = (month.starts_s, month.ends_s, month.starts_s)
            note = closing_note(month, number + 1, head, signer)
            (entry,) = add_entries(connection, [new_entry(EntryKind.CLOSING, now_s, time_s, note=note)])
            set_state(connection, {"closed_s": repr(month.ends_s)})
            return entry

    def closed_s(self) -> float:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            state = state_of(connection)
        closed_s = state.get("closed_s")
        if closed_s is not None:
            return float(closed_s)
        return Month.of(float(state["began_s"])).starts_s if "began_s" in state else math.inf

    def closings(self) -> Sequence[Entry]:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return list(read_entries(connection, kind=EntryKind.CLOSING))

    def journal(self) -> Iterator[Entry]:
        """All entries, in order, read in batches."""
        with self._transaction(reads_only=True) as connection:
            after, _hash = pruned(connection)
        while True:
            with self._transaction(reads_only=True) as connection:
                batch = list(read_entries(connection, after=after, limit=_ENTRIES_AT_ONCE))
            yield from batch
            if len(batch) < _ENTRIES_AT_ONCE:
                return
            after = batch[-1].number

    def evidence(self) -> Iterator[dict[str, Any]]:
        """All that the figures follow from: factors, postings, the journal, and what is not in the journal yet.

        The first record has the version, the hash before the first entry, and since when postings are complete. Energy
        of hours is summed by workload and UTC day.
        """
        with self._transaction(reads_only=True) as connection:
            yield from evidence(connection)

    def verify(
        self, verify: Verify, *, public_key: str | None = None, published: Mapping[int, str] | None = None
    ) -> Verified:
        """Check the journal, see `joulie.domain.accounting.journal.verify_journal`."""
        with self._transaction(reads_only=True) as connection:
            before = pruned(connection)
        return verify_journal(self.journal(), verify, pruned=before, public_key=public_key, published=published)

    def prune(self, now_s: float) -> None:
        """See `joulie.ports.ledger.Ledger`."""
        with self._transaction() as connection:
            self._drop_profiles(connection, now_s - self._settings.retention_s)
            fold_hours(connection, now_s - self._settings.hours_kept_s, now_s)
            self._fold_savings(connection, now_s - self._settings.hours_kept_s)
            self._drop_old(connection, now_s)
            prune_runs(connection, now_s)
            budgets.drop_old(connection, now_s)
        if self._engine.dialect.name == "sqlite":
            self._give_room_back()

    def close(self) -> None:
        """See `joulie.ports.ledger.Ledger`."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, *, reads_only: bool = False) -> Iterator[Connection]:
        """A transaction; writers are serialised, readers never wait."""
        engine = self._engine.execution_options(**{READS_ONLY: reads_only})
        try:
            with engine.begin() as connection:
                if connection.dialect.name == "postgresql" and not reads_only:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _WRITERS_LOCK})
                yield connection
        except SQLAlchemyError as error:
            raise LedgerError(error_hint(self._engine.url, error)) from error

    def _give_room_back(self) -> None:
        """Return free pages of the file to the volume; a script, for a statement would be left at its first page."""
        try:
            connection = self._engine.raw_connection()
            try:
                connection.cursor().executescript("PRAGMA incremental_vacuum")
            finally:
                connection.close()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise LedgerError(error_hint(self._engine.url, error)) from error

    def _drop_profiles(self, connection: Connection, before_s: float) -> None:
        """Samples of pods that have ended."""
        pods, samples = schema.pods.c, schema.samples.c
        ended = and_(pods.completed_s < before_s, pods.samples > 0)
        connection.execute(delete(schema.samples).where(samples.pod_id.in_(select(pods.id).where(ended))))
        connection.execute(update(schema.pods).where(ended).values(samples=0))

    def _fold_savings(self, connection: Connection, before_s: float) -> None:
        table = schema.savings
        columns = table.c
        before_s = before_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY
        old = and_(columns.completed_s < before_s, columns.uid != "")
        sums: dict[tuple[str, str, str, float], list[float]] = {}
        for row in connection.execute(select(table).where(old).order_by(columns.completed_s, columns.uid)):
            day_s = row.completed_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY
            total = sums.setdefault((row.namespace, row.measure, row.method, day_s), [0.0, 0.0, 0])
            for place, value in enumerate((row.amount, row.energy_j, row.pods)):
                total[place] += value
        if not sums:
            return
        rows = [
            {
                "uid": "",
                "namespace": namespace,
                "measure": measure,
                "method": method,
                "completed_s": day_s,
                "name": "",
                "owner_kind": "",
                "owner_name": "",
                "amount": amount,
                "energy_j": energy_j,
                "pods": int(pods),
            }
            for (namespace, measure, method, day_s), (amount, energy_j, pods) in sums.items()
        ]
        connection.execute(upsert(connection, table, added=("amount", "energy_j", "pods")), rows)
        connection.execute(delete(table).where(old))

    def _drop_postings(self, connection: Connection, before_s: float) -> None:
        """Postings of whole days; factors stay twice as long: energy that was accounted late rests on older ones."""
        before_s = before_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY
        postings, factors = schema.postings, schema.factors
        dropped = connection.execute(delete(postings).where(postings.c.hour < before_s // SECONDS_PER_HOUR))
        if dropped.rowcount:
            connection.execute(delete(factors).where(factors.c.until_s <= before_s - self._settings.corrections_s))
            set_state(connection, {"postings_s": repr(before_s)})

    def _drop_old(self, connection: Connection, now_s: float) -> None:
        last_s = now_s - self._settings.days_kept_s
        drop_entries(connection, last_s // _SECONDS_PER_DAY * _SECONDS_PER_DAY)
        names = schema.totals.c.namespace
        connection.execute(
            delete(schema.totals).where(
                names.not_in(select(schema.pods.c.namespace)), names.not_in(select(schema.entries.c.namespace))
            )
        )
        self._drop_postings(connection, now_s - self._settings.corrections_s)
        connection.execute(delete(schema.savings).where(schema.savings.c.completed_s < last_s))
        connection.execute(delete(schema.crossings).where(schema.crossings.c.time_s < last_s))
        connection.execute(delete(schema.pue_sources).where(schema.pue_sources.c.until_s < last_s))
        connection.execute(
            delete(schema.signals).where(schema.signals.c.until_s < now_s - self._settings.signals_kept_s)
        )


def _is_crossing(one: Crossing) -> ColumnElement[bool]:
    table = schema.crossings.c
    budget = one.budget
    return and_(
        table.scope == budget.scope,
        table.since_s == budget.since_s,
        table.limit_j == budget.limit_j,
        table.action == budget.action.value,
    )


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
