"""What budgets count: energy by quarter of an hour, cut where a period begins, so that each period is summed exactly.

Hours and days are too coarse for that: a day in Kathmandu begins at a quarter past an hour of UTC, and days are what
hours are folded into. The tables are not part of the accounts, so they have no version: they are created where they are
missing. What is corrected later in the accounts was not known when a budget was held to it, and changes no count.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    MetaData,
    String,
    Table,
    and_,
    cast,
    delete,
    select,
)

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import bulk, energy_sums, upsert
from joulie.domain.accounting.integrate import Pieces
from joulie.domain.accounting.journal import EntryKind
from joulie.domain.accounting.records import BUDGET_SLOT_S, ENERGY_FIELDS, BudgetCount, BudgetScope, Cycle, Energy
from joulie.domain.quantities import SECONDS_PER_HOUR

_SECONDS_PER_DAY = 86400.0
_KEPT_S = 33 * _SECONDS_PER_DAY
"""How long slots are kept, s: longer than any period. A budget that was not counted for so long is forgotten."""

_metadata = MetaData()
_scopes = Table(
    "budget_scopes",
    _metadata,
    Column("key", String, primary_key=True),
    Column("since_s", Double, nullable=False),
    Column("seen_s", Double, nullable=False),
)
"""Since when a budget is counted, and its latest cycle."""
_slots = Table(
    "budget_slots",
    _metadata,
    Column("key", String, primary_key=True),
    Column("start_s", Double, primary_key=True),
    *(Column(name, Double, nullable=False) for name in ENERGY_FIELDS),
    sqlite_with_rowid=False,
)


def create_tables(connection: Connection) -> None:
    """Create the tables where they are missing."""
    _metadata.create_all(connection)


def begin(connection: Connection, cycle: Cycle, began_s: float) -> None:
    """Note the budgets of a cycle, before its energy is booked; new ones begin with what the accounts have.

    Args:
        connection: connection with the cycle's transaction.
        cycle: the cycle.
        began_s: time of the ledger's first cycle, s since the epoch.
    """
    if not cycle.budgets:
        return
    known = set(connection.scalars(select(_scopes.c.key)))
    for scope in cycle.budgets:
        if scope.key not in known:
            since_s = cycle.time_s if scope.by_labels else max(scope.since_s, began_s)
            connection.execute(_scopes.insert().values(key=scope.key, since_s=since_s, seen_s=cycle.time_s))
            if not scope.by_labels:
                _take_over(connection, scope)
    keys = [scope.key for scope in cycle.budgets]
    connection.execute(_scopes.update().where(_scopes.c.key.in_(keys)).values(seen_s=cycle.time_s))


def _take_over(connection: Connection, scope: BudgetScope) -> None:
    """Count what the accounts have of a new budget since the start of its period."""
    hours, days = schema.hours, schema.entries
    first_hour, first_day = int(scope.since_s // SECONDS_PER_HOUR), int(scope.since_s // _SECONDS_PER_DAY)
    by_hour = (
        select(hours.c.hour, *energy_sums(hours))
        .join_from(hours, schema.pods, hours.c.pod_id == schema.pods.c.id)
        .where(_is_of(schema.pods, scope), hours.c.hour >= first_hour)
        .group_by(hours.c.hour)
    )
    day = cast(days.c.from_s, BigInteger) // int(_SECONDS_PER_DAY)
    by_day = select(day, *energy_sums(days)).where(
        _is_of(days, scope), days.c.kind == EntryKind.BOOKED, days.c.from_s >= first_day * _SECONDS_PER_DAY
    )
    rows = [
        (scope.key, max(scope.since_s, row[0] * span_s), *row[1:])
        for query, span_s in ((by_hour, SECONDS_PER_HOUR), (by_day.group_by(day), _SECONDS_PER_DAY))
        for row in connection.execute(query)
    ]
    _add_rows(connection, rows)


def _is_of(table: Table, scope: BudgetScope) -> ColumnElement[bool]:
    columns = table.c
    of_owner = (columns.owner_kind == scope.owner_kind, columns.owner_name == scope.owner_name)
    return and_(columns.namespace == scope.namespace, *(of_owner if scope.owner_kind else ()))


def add(connection: Connection, scope: BudgetScope, pieces: Pieces) -> None:
    """Count energy of pods of a budget, cut at slots and at the start of its period."""
    starts_s = pieces.low_s // BUDGET_SLOT_S * BUDGET_SLOT_S
    starts_s = np.where(pieces.low_s >= scope.since_s, np.maximum(starts_s, scope.since_s), starts_s)
    slots_s, slot = np.unique(starts_s, return_inverse=True)
    energy = np.zeros((len(slots_s), len(ENERGY_FIELDS)))
    np.add.at(energy, slot, pieces.energy)
    rows = zip(slots_s.tolist(), energy.tolist(), strict=True)
    _add_rows(connection, [(scope.key, start_s, *one) for start_s, one in rows])


def _add_rows(connection: Connection, rows: list[tuple[object, ...]]) -> None:
    bulk(connection, upsert(connection, _slots, added=ENERGY_FIELDS), ("key", "start_s", *ENERGY_FIELDS), rows)


def counts(connection: Connection, asked: Mapping[str, tuple[float, float]]) -> dict[str, BudgetCount]:
    """See `joulie.ports.ledger.Ledger.budget_counts`."""
    known_s = {row.key: row.since_s for row in connection.execute(select(_scopes))}
    return {
        key: BudgetCount(_sum(connection, key, since_s), _sum(connection, key, recently_s), known_s[key])
        for key, (since_s, recently_s) in asked.items()
        if key in known_s
    }


def _sum(connection: Connection, key: str, since_s: float) -> Energy:
    slots = _slots.c
    query = select(*energy_sums(_slots)).where(slots.key == key, slots.start_s >= since_s)
    return Energy(*tuple(connection.execute(query).one()))


def drop_old(connection: Connection, now_s: float) -> None:
    """Drop slots that no period reaches, and budgets that are gone."""
    connection.execute(delete(_slots).where(_slots.c.start_s < now_s - _KEPT_S))
    connection.execute(delete(_scopes).where(_scopes.c.seen_s < now_s - _KEPT_S))
