"""The journal in the database: entries are added at its end, read, and dropped from its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace

from sqlalchemy import Connection, Select, delete, func, insert, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import bulk, energy_of, set_state, state_of
from joulie.domain.accounting.journal import COUNTED_KINDS, ENTRY_FIELDS, GENESIS, Entry, EntryKind, chained
from joulie.domain.accounting.records import ENERGY_FIELDS, Energy

_COLUMNS = (*ENTRY_FIELDS, *ENERGY_FIELDS, "hash")
_NEW_ENTRY = insert(schema.entries)
COUNTED = sorted(kind.value for kind in COUNTED_KINDS)


def new_entry(
    kind: EntryKind,
    recorded_s: float,
    time_s: tuple[float, float, float],
    workload: tuple[str, str, str, str] = ("", "", "", ""),
    energy: Energy | None = None,
    note: str = "{}",
) -> Entry:
    """An entry that has no number and hash yet.

    Args:
        kind: what it says.
        recorded_s: now, s since the epoch.
        time_s: start and end of the time that it is counted in, and start of the time that it is about.
        workload: namespace, kind and name of the owner, and zone.
        energy: of the workload; None for entries without.
        note: JSON object.
    """
    from_s, until_s, concerns_s = map(float, time_s)
    return Entry(0, kind, float(recorded_s), from_s, until_s, concerns_s, *workload, note, energy or Energy(), hash="")


def add_entries(connection: Connection, entries: Sequence[Entry]) -> list[Entry]:
    """Add entries at the end of the journal; returns them with their numbers and hashes."""
    number, head = head_of(connection)
    added = []
    for entry in entries:
        number += 1
        numbered = replace(entry, number=number)
        head = chained(head, numbered)
        added.append(replace(numbered, hash=head))
    rows = [(*(getattr(one, name) for name in ENTRY_FIELDS), *astuple(one.energy), one.hash) for one in added]
    bulk(connection, _NEW_ENTRY, _COLUMNS, rows)
    return added


def head_of(connection: Connection) -> tuple[int, str]:
    """Number and hash of the last entry."""
    entries = schema.entries.c
    last = connection.execute(select(entries.number, entries.hash).order_by(entries.number.desc()).limit(1)).first()
    return pruned(connection) if last is None else (last.number, last.hash)


def pruned(connection: Connection) -> tuple[int, str]:
    """Number and hash of the last entry that is kept no more."""
    state = state_of(connection)
    return int(state.get("pruned_number", "0")), state.get("pruned_hash", GENESIS)


def read_entries(
    connection: Connection, *, after: int = 0, limit: int | None = None, kind: EntryKind | None = None
) -> Iterator[Entry]:
    """Entries after a number, in order; of one kind, if one is given."""
    entries = schema.entries.c
    query: Select[tuple[object, ...]] = (
        select(*(entries[name] for name in _COLUMNS)).where(entries.number > after).order_by(entries.number)
    )
    query = query if kind is None else query.where(entries.kind == kind.value)
    for row in connection.execute(query if limit is None else query.limit(limit)):
        fields = {name: row._mapping[name] for name in ENTRY_FIELDS}
        yield Entry(**(fields | {"kind": EntryKind(fields["kind"])}), energy=energy_of(row), hash=row._mapping["hash"])


def drop_entries(connection: Connection, before_s: float) -> None:
    """Drop the beginning of the journal: all entries before the first one that counts at or after a time."""
    entries = schema.entries.c
    first = connection.scalar(select(func.min(entries.number)).where(entries.from_s >= before_s))
    last = connection.execute(
        select(entries.number, entries.hash)
        .where(entries.from_s < before_s if first is None else entries.number < first)
        .order_by(entries.number.desc())
        .limit(1)
    ).first()
    if last is None:
        return
    set_state(connection, {"pruned_number": str(last.number), "pruned_hash": last.hash})
    connection.execute(delete(schema.entries).where(entries.number <= last.number))
