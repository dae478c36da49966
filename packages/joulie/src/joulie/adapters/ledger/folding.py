"""Folds the energy of pods and hours into the journal, as that of workloads and UTC days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import add

from sqlalchemy import Connection, delete, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.journal import add_entries, new_entry
from joulie.adapters.ledger.reservations import fold
from joulie.adapters.ledger.statements import energy_of, energy_sums, labels_in, labels_note, set_state
from joulie.domain.accounting.journal import Entry, EntryKind
from joulie.domain.accounting.records import OTHER_VALUE, Energy
from joulie.domain.quantities import SECONDS_PER_HOUR

_SECONDS_PER_DAY = 86400.0
_HOURS_PER_DAY = 24
MAX_LABEL_SETS = 20
"""Maximum number of entries of a workload, zone and day by the labels of its pods: tenants choose those."""


def fold_hours(connection: Connection, before_s: float, now_s: float) -> None:
    """Fold whole days of hours; then pods that have ended and have no hours are of no more use.

    Args:
        connection: connection with the open transaction.
        before_s: fold what ends by the last midnight before it, s since the epoch.
        now_s: current time, s since the epoch.
    """
    pods, hours = schema.pods.c, schema.hours.c
    before_day = int(before_s // _SECONDS_PER_DAY)
    before = before_day * _HOURS_PER_DAY
    entries = [*_booked(connection, before, now_s), *fold(connection, before_day, now_s)]
    if entries:
        add_entries(connection, entries)
        set_state(connection, {"folded_s": repr(before_day * _SECONDS_PER_DAY)})
        connection.execute(delete(schema.hours).where(hours.hour < before))
    connection.execute(
        delete(schema.pods).where(
            pods.completed_s < before * SECONDS_PER_HOUR,
            pods.samples == 0,
            ~select(hours.hour).where(hours.pod_id == pods.id).exists(),
        )
    )


def _booked(connection: Connection, before: int, now_s: float) -> Iterator[Entry]:
    """Entries of the hours before one."""
    pods, hours = schema.pods.c, schema.hours.c
    day = (hours.hour // _HOURS_PER_DAY).label("day")
    keys = (day, pods.namespace, pods.owner_kind, pods.owner_name, pods.zone, pods.labels)
    folded = (
        select(*keys, *energy_sums(schema.hours))
        .join_from(schema.hours, schema.pods, hours.pod_id == pods.id)
        .where(hours.hour < before)
        .group_by(*keys)
        .order_by(*keys)
    )
    for (number, *workload), rows in groupby(connection.execute(folded), lambda row: row[: len(keys) - 1]):
        from_s = number * _SECONDS_PER_DAY
        time_s = (from_s, from_s + _SECONDS_PER_DAY, from_s)
        namespace, kind, name, zone = workload
        for note, energy in bounded_label_sets({row.labels: energy_of(row) for row in rows}).items():
            yield new_entry(EntryKind.BOOKED, now_s, time_s, (namespace, kind, name, zone), energy, note)


def bounded_label_sets(energies: Mapping[str, Energy]) -> Mapping[str, Energy]:
    """Energy by set of labels, the smallest ones as one set of `OTHER_VALUE` where there are too many.

    Args:
        energies: by note with the labels, see `labels_note`.
    """
    if len(energies) <= MAX_LABEL_SETS:
        return energies
    largest = sorted(energies, key=lambda note: (-energies[note].energy_j, note))
    kept = {note: energies[note] for note in sorted(largest[: MAX_LABEL_SETS - 1])}
    others: Sequence[str] = largest[MAX_LABEL_SETS - 1 :]
    keys = sorted({key for note in others for key in labels_in(note)})
    rest = labels_note([(key, OTHER_VALUE) for key in keys])
    merged = reduce(add, (energies[note] for note in others))
    return kept | {rest: kept[rest] + merged if rest in kept else merged}
