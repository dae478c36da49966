"""Queries of the ledger: energy sums, the rows behind them, and savings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, case, cast, func, literal, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.journal import COUNTED
from joulie.adapters.ledger.statements import NO_LABELS, energy_of, energy_sums, labels_in, pod_in
from joulie.domain.accounting.journal import EntryKind
from joulie.domain.accounting.records import IDLE_VALUE, ExportRow, Grouping, Method, PodMeta, SavingRow, UsageRow
from joulie.domain.grid.signals import Measure
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports.ledger import TooManyRowsError

_HOURS_PER_DAY = 24

_NAMES = ("uid", "namespace", "name", "owner_kind", "owner_name", "node", "label_note")
_NAMES_OF = {
    Grouping.POD: _NAMES[:-1],
    Grouping.JOB: ("namespace", "owner_kind", "owner_name"),
    Grouping.LABEL: ("label_note",),
    Grouping.NAMESPACE: ("namespace",),
    Grouping.NODE: ("node",),
    Grouping.DAY: (),
    Grouping.HOUR: (),
}
_MAX_ROWS = 200_000
"""Maximum number of rows by several groupings: one grouping has no more rows than there are pods."""


@dataclass(frozen=True)
class Span:
    """A reporting period; None means unbounded."""

    since_s: float | None = None
    until_s: float | None = None

    def within(self, column: ColumnElement[int], unit_s: float) -> list[ColumnElement[bool]]:
        """Conditions on a number of whole units since the epoch, rounded outwards."""
        found: list[ColumnElement[bool]] = []
        if self.since_s is not None:
            found.append(column >= math.floor(self.since_s / unit_s))
        if self.until_s is not None:
            found.append(column < math.ceil(self.until_s / unit_s))
        return found


@dataclass(frozen=True)
class Selection:
    """What is summed: a period, and a namespace or node; None for all of them. And the labels that it is summed by."""

    span: Span
    namespace: str | None = None
    node: str | None = None
    labels: tuple[str, ...] = ()


def usage(connection: Connection, by: frozenset[Grouping], chosen: Selection) -> list[UsageRow]:
    """See `joulie.ports.ledger.Ledger`."""
    rows: dict[tuple[Any, ...], UsageRow] = {}
    # Folded energy has no node.
    queries = [_of_hours(by, chosen)] if chosen.node is not None else [_of_hours(by, chosen), _of_entries(by, chosen)]
    for query in queries:
        for row in connection.execute(query if len(by) == 1 else query.limit(_MAX_ROWS + 1)):
            if row.first_s is None:  # a sum of nothing
                continue
            *names, labels = [row._mapping[name] for name in _NAMES]
            names.append(_label_values(labels, chosen.labels))
            new = UsageRow(row.first_s, row.last_s, energy_of(row), *names)
            key = (row.bucket, *names)
            rows[key] = _sum(rows[key], new) if key in rows else new
    if len(by) > 1 and len(rows) > _MAX_ROWS:
        raise TooManyRowsError(f"more than {_MAX_ROWS} rows: ask for a shorter period, one namespace or larger groups")
    largest = sorted(rows.items(), key=lambda item: item[1].energy.energy_j, reverse=True)
    # The bucket is 0 without a grouping by time.
    return [row for _, row in sorted(largest, key=lambda item: item[0][0])]


def export(connection: Connection, span: Span) -> list[ExportRow]:
    """See `joulie.ports.ledger.Ledger`."""
    entries, hours, pods = schema.entries.c, schema.hours.c, schema.pods.c
    folded = select(schema.entries).where(*counted(span)).order_by(entries.from_s, entries.number)
    rows = [
        ExportRow(
            row.from_s,
            row.until_s,
            PodMeta(
                "",
                row.namespace,
                "",
                row.owner_kind,
                row.owner_name,
                zone=row.zone,
                labels=tuple(labels_in(row.note).items()),
            ),
            "",
            energy_of(row),
            correction=row.kind == EntryKind.CORRECTION,
        )
        for row in connection.execute(folded)
    ]
    with_hours = select(hours.pod_id).where(*span.within(hours.hour, SECONDS_PER_HOUR))
    found = connection.execute(select(schema.pods).where(pods.id.in_(with_hours)))
    metas = {row.id: (pod_in(row), row.source) for row in found}
    kept = (
        select(schema.hours)
        .join(schema.pods, hours.pod_id == pods.id)
        .where(*span.within(hours.hour, SECONDS_PER_HOUR))
        .order_by(hours.hour, pods.namespace, pods.name, pods.uid)
    )
    rows += [ExportRow(row.from_s, row.until_s, *metas[row.pod_id], energy_of(row)) for row in connection.execute(kept)]
    return rows


def savings(connection: Connection, since_s: float | None, namespace: str | None) -> list[SavingRow]:
    """See `joulie.ports.ledger.Ledger`."""
    columns = schema.savings.c
    query = select(schema.savings).order_by(columns.completed_s.desc(), columns.namespace, columns.uid, columns.measure)
    if since_s is not None:
        query = query.where(columns.completed_s >= since_s)
    if namespace is not None:
        query = query.where(columns.namespace == namespace)
    return [
        SavingRow(
            completed_s=row.completed_s,
            uid=row.uid,
            namespace=row.namespace,
            name=row.name,
            owner_kind=row.owner_kind,
            owner_name=row.owner_name,
            measure=Measure(row.measure),
            method=Method(row.method),
            amount=row.amount,
            energy_j=row.energy_j,
            pods=row.pods,
        )
        for row in connection.execute(query)
    ]


def _of_hours(by: frozenset[Grouping], chosen: Selection) -> Select[Any]:
    pods, hours = schema.pods.c, schema.hours.c
    query = _grouped(
        by,
        {name: pods[name] for name in _NAMES[:-1]} | {"label_note": _labels(pods.namespace, pods.labels)},
        hours.hour,
        [
            func.min(hours.from_s).label("first_s"),
            func.max(hours.until_s).label("last_s"),
            *energy_sums(schema.hours),
        ],
    )
    query = query.join_from(schema.hours, schema.pods, hours.pod_id == pods.id)
    query = query.where(*chosen.span.within(hours.hour, SECONDS_PER_HOUR))
    query = query if chosen.namespace is None else query.where(pods.namespace == chosen.namespace)
    return query if chosen.node is None else query.where(pods.node == chosen.node)


def _of_entries(by: frozenset[Grouping], chosen: Selection) -> Select[Any]:
    entries = schema.entries.c
    booked = case((entries.kind == EntryKind.BOOKED, entries.note), else_=NO_LABELS)
    query = _grouped(
        by,
        {name: entries[name] for name in _NAMES if name in entries and Grouping.POD not in by}
        | {"label_note": _labels(entries.namespace, booked)},
        cast(entries.from_s, BigInteger) // int(SECONDS_PER_HOUR),
        [
            func.min(entries.from_s).label("first_s"),
            func.max(entries.until_s).label("last_s"),
            *energy_sums(schema.entries),
        ],
    )
    query = query.where(*counted(chosen.span))
    return query if chosen.namespace is None else query.where(entries.namespace == chosen.namespace)


def _labels(namespace: ColumnElement[str], note: ColumnElement[str]) -> ColumnElement[str]:
    """The note with the labels of a pod or entry; that of the energy of nodes is empty."""
    return case((namespace == "", ""), else_=note)


def _label_values(note: str, keys: Sequence[str]) -> tuple[str, ...]:
    if keys and not note:
        return (IDLE_VALUE,) * len(keys)
    labels = labels_in(note) if keys else {}
    return tuple(labels.get(key, "") for key in keys)


def counted(span: Span) -> list[ColumnElement[bool]]:
    """Conditions on entries with energy that touch a period."""
    entries = schema.entries.c
    found: list[ColumnElement[bool]] = [entries.kind.in_(COUNTED)]
    if span.since_s is not None:
        found.append(entries.until_s > span.since_s)
    if span.until_s is not None:
        found.append(entries.from_s < span.until_s)
    return found


def _grouped(
    by: frozenset[Grouping],
    names: Mapping[str, ColumnElement[str]],
    hour: ColumnElement[int],
    values: Sequence[ColumnElement[Any]],
) -> Select[Any]:
    """Sums by the names that the groupings have, and that there are; other names are empty."""
    wanted = {name for grouping in by for name in _NAMES_OF[grouping]} & names.keys()
    keys = [names[name].label(name) for name in _NAMES if name in wanted]
    empty = [literal("").label(name) for name in _NAMES if name not in wanted]
    hours = 1 if Grouping.HOUR in by else _HOURS_PER_DAY if Grouping.DAY in by else None
    bucket = [] if hours is None else [(hour // hours).label("bucket")]
    columns: list[Any] = [*keys, *empty, *(bucket or [literal(0).label("bucket")]), *values]
    query = select(*columns)
    return query.group_by(*keys, *bucket) if keys or bucket else query


def _sum(one: UsageRow, other: UsageRow) -> UsageRow:
    return UsageRow(
        min(one.from_s, other.from_s),
        max(one.until_s, other.until_s),
        one.energy + other.energy,
        one.uid,
        one.namespace,
        one.name,
        one.owner_kind,
        one.owner_name,
        one.node,
        one.labels,
    )
