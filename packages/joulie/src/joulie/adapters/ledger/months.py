"""Reads all that is booked in a month, for its report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

from sqlalchemy import Connection, Row, Select, literal, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.reports import Span, counted
from joulie.adapters.ledger.reservations import asset_in
from joulie.adapters.ledger.statements import energy_of, energy_sums, state_of
from joulie.domain.accounting.embodied import Shares
from joulie.domain.accounting.journal import EntryKind, Month
from joulie.domain.accounting.records import Energy, UnitCount
from joulie.domain.accounting.sci import MonthRecords, PueUse, ReservedAsset, WorkloadKey
from joulie.domain.quantities import SECONDS_PER_HOUR

_SECONDS_PER_DAY = 86400.0
_WORKLOAD = ("namespace", "owner_kind", "owner_name")
_Sums = dict[tuple[WorkloadKey, str], Energy]
"""Energy by workload and zone."""


def month_records(connection: Connection, month: Month) -> MonthRecords:
    """See `joulie.ports.ledger.Ledger`."""
    state = state_of(connection)
    span = Span(month.starts_s, month.ends_s)
    return MonthRecords(
        month,
        float(state.get("began_s", "inf")),
        month.ends_s <= float(state.get("closed_s", "-inf")),
        *_month_energy(connection, span),
        [*_reserved_in_entries(connection, span), *_reserved_in_days(connection, span)],
        units_between(connection, span),
        _pues(connection, span),
    )


def _pues(connection: Connection, span: Span) -> list[PueUse]:
    entries, days, earlier = schema.entries.c, schema.pue_days, schema.pue_sources
    kept: Select[Any] = select(entries.zone, entries.note).where(
        entries.kind == EntryKind.PUE.value, entries.from_s >= span.since_s, entries.from_s < span.until_s
    )
    found = {PueUse(row.zone, **json.loads(row.note)) for row in connection.execute(kept)}
    for query in (
        select(days).where(*span.within(days.c.day, _SECONDS_PER_DAY)),
        select(earlier).where(earlier.c.from_s < span.until_s, earlier.c.until_s >= span.since_s),
    ):
        found |= {PueUse(row.zone, row.pue, row.gpu_pue, row.source) for row in connection.execute(query)}
    return sorted(found, key=astuple)


def _month_energy(connection: Connection, span: Span) -> tuple[_Sums, _Sums]:
    """Energy of a month by workload and zone, and corrections of earlier months that are booked in it."""
    entries, hours, pods = schema.entries.c, schema.hours.c, schema.pods.c
    is_earlier = (entries.concerns_s < span.since_s).label("is_earlier")
    keys = [*(entries[name] for name in _WORKLOAD), entries.zone]
    booked: Select[Any] = (
        select(*keys, is_earlier, *energy_sums(schema.entries)).where(*counted(span)).group_by(*keys, is_earlier)
    )
    keys = [*(pods[name] for name in _WORKLOAD), pods.zone]
    still_open: Select[Any] = (
        select(*keys, literal(False).label("is_earlier"), *energy_sums(schema.hours))
        .join_from(schema.hours, schema.pods, hours.pod_id == pods.id)
        .where(*span.within(hours.hour, SECONDS_PER_HOUR))
        .group_by(*keys)
    )
    found: tuple[_Sums, _Sums] = ({}, {})
    for query in (booked, still_open):
        for row in connection.execute(query):
            sums, key = found[bool(row.is_earlier)], (_workload(row), row.zone)
            sums[key] = sums.get(key, Energy()) + energy_of(row)
    return found


def _entries_of(connection: Connection, kind: EntryKind, span: Span) -> Iterator[tuple[WorkloadKey, dict[str, Any]]]:
    """Notes of the entries of a kind, by workload."""
    entries = schema.entries.c
    query: Select[Any] = select(*(entries[name] for name in _WORKLOAD), entries.note).where(
        entries.kind == kind.value, entries.from_s >= span.since_s, entries.from_s < span.until_s
    )
    for row in connection.execute(query):
        yield _workload(row), json.loads(row.note)


def _reserved_in_entries(connection: Connection, span: Span) -> Iterator[ReservedAsset]:
    for workload, note in _entries_of(connection, EntryKind.EMBODIED, span):
        reserved_s = Shares(note["cpu_s"], note["memory_s"], note["gpu_s"])
        yield ReservedAsset(workload, asset_in(note["asset"]), reserved_s)


def _reserved_in_days(connection: Connection, span: Span) -> Iterator[ReservedAsset]:
    table, assets = schema.reservations, schema.assets.c
    query = select(table, assets.content).join_from(table, schema.assets, table.c.asset_id == assets.id)
    for row in connection.execute(query.where(*span.within(table.c.day, _SECONDS_PER_DAY))):
        reserved_s = Shares(row.cpu_s, row.memory_s, row.gpu_s)
        yield ReservedAsset(_workload(row), asset_in(json.loads(row.content)), reserved_s)


def units_between(connection: Connection, span: Span) -> list[tuple[WorkloadKey, UnitCount]]:
    """Functional units by workload, in whole days."""
    return [*_units_in_entries(connection, span), *_units_in_days(connection, span)]


def _units_in_entries(connection: Connection, span: Span) -> Iterator[tuple[WorkloadKey, UnitCount]]:
    for workload, note in _entries_of(connection, EntryKind.UNITS, span):
        yield workload, UnitCount(note["unit"], note["amount"], note["source"])


def _units_in_days(connection: Connection, span: Span) -> Iterator[tuple[WorkloadKey, UnitCount]]:
    table = schema.units
    for row in connection.execute(select(table).where(*span.within(table.c.day, _SECONDS_PER_DAY))):
        yield _workload(row), UnitCount(row.unit, row.amount, row.source)


def _workload(row: Row[Any]) -> WorkloadKey:
    return WorkloadKey(row.namespace, row.owner_kind, row.owner_name)
