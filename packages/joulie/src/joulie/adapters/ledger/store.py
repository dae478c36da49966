"""The SQL ledger: one transaction per call, so that a call is stored whole or not at all.

A pod's row holds its last sample and the time up to which it is accounted. Time before that is never counted again,
even if a sample is repeated; time after it is counted by the next sample, whatever happens in between. A program that
crashes at any point therefore resumes from the database alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from joulie.adapters.ledger import budgets, reports, schema
from joulie.adapters.ledger.cycles import Booking
from joulie.adapters.ledger.error_hints import error_hint
from joulie.adapters.ledger.statements import add_energy, energy_of, energy_sums, pod_in, upsert
from joulie.domain.accounting.budget import Crossing
from joulie.domain.accounting.records import (
    ENERGY_FIELDS,
    BudgetCount,
    Cycle,
    CycleResult,
    Energy,
    ExportRow,
    Grouping,
    OpenPod,
    SavingRow,
    UsageRow,
)
from joulie.domain.accounting.thinning import Thinner, time_based
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports import LedgerError

_SECONDS_PER_DAY = 86400.0
_HOURS_PER_DAY = 24
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
        hours_kept_s: how long energy is kept by pod and hour, s; then it is folded into days.
        days_kept_s: how long energy is kept by workload and day, and savings, s.
        signals_kept_s: how long the history of the grid is kept, s: what pods are held and run at most.
        max_gap_s: time between two samples beyond which the power between them counts as assumed, s.
    """

    max_samples_per_pod: int = 500
    thinner: Thinner = time_based
    retention_s: float = 3600.0
    hours_kept_s: float = 2 * _SECONDS_PER_DAY
    days_kept_s: float = 400 * _SECONDS_PER_DAY
    signals_kept_s: float = 14 * _SECONDS_PER_DAY
    max_gap_s: float = 600.0


class SqlLedger:
    """A `joulie.ports.Ledger` in an SQL database; see `open_ledger`.

    Args:
        engine: engine of a database with the tables.
        settings: retention of the ledger.
    """

    def __init__(self, engine: Engine, settings: LedgerSettings) -> None:
        self._engine = engine
        self._settings = settings

    def append(self, cycle: Cycle) -> CycleResult:
        """See `joulie.ports.Ledger`."""
        with self._transaction() as connection:
            keep = self._settings
            return Booking(connection, cycle, keep.max_gap_s, keep.max_samples_per_pod, keep.thinner).book()

    def open_pods(self) -> Mapping[str, OpenPod]:
        """See `joulie.ports.Ledger`."""
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
        since_s: float | None = None,
        until_s: float | None = None,
        namespace: str | None = None,
    ) -> Sequence[UsageRow]:
        """See `joulie.ports.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return reports.usage(connection, by, reports.Span(since_s, until_s), namespace)

    def totals(self) -> Mapping[str, Energy]:
        """See `joulie.ports.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return {row.namespace: energy_of(row) for row in connection.execute(select(schema.totals))}

    def export(self, *, since_s: float | None = None, until_s: float | None = None) -> Iterator[ExportRow]:
        """See `joulie.ports.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            rows = reports.export(connection, reports.Span(since_s, until_s))
        return iter(rows)

    def profile(self, uid: str) -> Sequence[tuple[float, float, float, float]]:
        """See `joulie.ports.Ledger`."""
        samples, pods = schema.samples.c, schema.pods.c
        with self._transaction(reads_only=True) as connection:
            rows = connection.execute(
                select(samples.time_s, samples.cpu_w, samples.mem_w, samples.gpu_w)
                .where(samples.pod_id == select(pods.id).where(pods.uid == uid).scalar_subquery())
                .order_by(samples.time_s)
            )
            return [(row.time_s, row.cpu_w, row.mem_w, row.gpu_w) for row in rows]

    def savings(self, *, since_s: float | None = None, namespace: str | None = None) -> Sequence[SavingRow]:
        """See `joulie.ports.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return reports.savings(connection, since_s, namespace)

    def cross(self, crossings: Sequence[Crossing]) -> Sequence[Crossing]:
        """See `joulie.ports.Ledger`."""
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
        """See `joulie.ports.Ledger`."""
        with self._transaction() as connection:
            connection.execute(update(schema.crossings).where(_is_crossing(crossing)).values(acted=True))

    def budget_counts(self, asked: Mapping[str, tuple[float, float]]) -> Mapping[str, BudgetCount]:
        """See `joulie.ports.Ledger`."""
        with self._transaction(reads_only=True) as connection:
            return budgets.counts(connection, asked)

    def counts(self) -> Mapping[str, int]:
        """See `joulie.ports.Ledger`."""
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
            for table in (schema.hours, schema.days):
                counts[table.name] = connection.scalar(select(func.count()).select_from(table)) or 0
            if connection.dialect.name == "sqlite":
                counts["bytes"] = _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return counts

    def prune(self, now_s: float) -> None:
        """See `joulie.ports.Ledger`."""
        with self._transaction() as connection:
            self._drop_profiles(connection, now_s - self._settings.retention_s)
            self._fold_hours(connection, now_s - self._settings.hours_kept_s)
            self._fold_savings(connection, now_s - self._settings.hours_kept_s)
            self._drop_old(connection, now_s)
            budgets.drop_old(connection, now_s)
        if self._engine.dialect.name == "sqlite":
            self._give_room_back()

    def close(self) -> None:
        """See `joulie.ports.Ledger`."""
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

    def _fold_hours(self, connection: Connection, before_s: float) -> None:
        """Whole hours into days; then pods that have ended and have no hours are of no more use."""
        pods, hours, days = schema.pods.c, schema.hours.c, schema.days
        before = int(before_s // SECONDS_PER_HOUR)
        keys = (hours.hour // _HOURS_PER_DAY, pods.namespace, pods.owner_kind, pods.owner_name, pods.zone)
        folded = (
            select(*keys, *energy_sums(schema.hours))
            .join_from(schema.hours, schema.pods, hours.pod_id == pods.id)
            .where(hours.hour < before)
            .group_by(*keys)
        )
        names = [column.name for column in days.primary_key] + list(ENERGY_FIELDS)
        statement = upsert(connection, days).from_select(names, folded)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(days.primary_key), set_=add_energy(days, statement.excluded)
            )
        )
        connection.execute(delete(schema.hours).where(hours.hour < before))
        connection.execute(
            delete(schema.pods).where(
                pods.completed_s < before * SECONDS_PER_HOUR,
                pods.samples == 0,
                ~select(hours.hour).where(hours.pod_id == pods.id).exists(),
            )
        )

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
        statement = upsert(connection, table)
        added = {name: table.c[name] + statement.excluded[name] for name in ("amount", "energy_j", "pods")}
        connection.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added), rows)
        connection.execute(delete(table).where(old))

    def _drop_old(self, connection: Connection, now_s: float) -> None:
        last_s = now_s - self._settings.days_kept_s
        connection.execute(delete(schema.days).where(schema.days.c.day < last_s // _SECONDS_PER_DAY))
        names = schema.totals.c.namespace
        connection.execute(
            delete(schema.totals).where(
                names.not_in(select(schema.pods.c.namespace)), names.not_in(select(schema.days.c.namespace))
            )
        )
        connection.execute(delete(schema.savings).where(schema.savings.c.completed_s < last_s))
        connection.execute(delete(schema.crossings).where(schema.crossings.c.time_s < last_s))
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
