"""Migrates ledgers of earlier versions in place, within the transaction that opens them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, column, func, inspect, select, table, text, update

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.journal import add_entries, new_entry
from joulie.adapters.ledger.statements import set_state, state_of
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import EntryKind
from joulie.domain.accounting.records import Energy
from joulie.domain.grid.signals import Basis

_SECONDS_PER_DAY = 86400.0
_ENERGY_1 = (
    "cpu_j",
    "mem_j",
    "gpu_j",
    "energy_j",
    "measured_j",
    "assumed_j",
    "emissions_g",
    "energy_without_intensity_j",
    "cost",
    "energy_without_price_j",
)
"""Columns of energy in version 1."""
_KEYS_1 = ("day", "namespace", "owner_kind", "owner_name", "zone")
_RESERVED_3 = ("asset_id", "cpu_share", "memory_share", "gpu_share")
"""Columns of pods that are new in version 3."""
_NOTE = '{"migrated_from":1}'


def migrate_from_1(connection: Connection) -> None:
    """Version 1 had one basis of carbon intensity and its days in a table that was added to.

    Days become entries of the journal, and each sum gets its marginal emissions. Version 1 kept no postings: what it
    has booked cannot be corrected, so corrections begin with the first whole day of version 2.
    """
    state = state_of(connection)
    is_marginal = state.get("basis") == Basis.MARGINAL.value
    migrate_from_2(connection)
    for name in ("pods", "hours", "totals"):
        _add_basis(connection, schema.metadata.tables[name], is_marginal=is_marginal)
    names = {"carbon": FactorKind.MARGINAL if is_marginal else FactorKind.INTENSITY, "price": FactorKind.PRICE}
    for before, kind in names.items():
        signals = schema.signals
        connection.execute(update(signals).where(signals.c.measure == before).values(measure=kind.value))
    _days_to_entries(connection, is_marginal=is_marginal)
    connection.execute(text("DROP TABLE days"))
    last_s = connection.scalar(select(func.max(schema.pods.c.sampled_s))) or 0.0
    until_s = math.ceil(last_s / _SECONDS_PER_DAY) * _SECONDS_PER_DAY
    set_state(connection, {"version": str(schema.VERSION), "postings_s": repr(until_s)})


def migrate_from_4(connection: Connection) -> None:
    """Version 4 kept no labels: energy can be summed by them from its first cycle here on."""
    connection.execute(text("ALTER TABLE pods ADD COLUMN labels VARCHAR DEFAULT '{}' NOT NULL"))
    set_state(connection, {"version": str(schema.VERSION)})


def migrate_from_3(connection: Connection) -> None:
    """Version 3 kept the sources of PUEs outside of the journal. They stay where they are: no month changes by them."""
    for name in set(schema.metadata.tables) - set(inspect(connection).get_table_names()):
        schema.metadata.tables[name].create(connection)
    migrate_from_4(connection)


def migrate_from_2(connection: Connection) -> None:
    """Version 2 had energy only: what pods reserve, deliver and rest on is known from its first cycle here on."""
    migrate_from_3(connection)
    for column_ in _RESERVED_3:
        kind = schema.pods.c[column_].type.compile(connection.dialect)
        connection.execute(text(f"ALTER TABLE pods ADD COLUMN {column_} {kind}"))


def _add_basis(connection: Connection, sums: Table, *, is_marginal: bool) -> None:
    for name in ("marginal_g", "energy_without_marginal_j"):
        connection.execute(text(f"ALTER TABLE {sums.name} ADD COLUMN {name} DOUBLE PRECISION NOT NULL DEFAULT 0"))
    columns = sums.c
    values: dict[str, Any] = {"energy_without_marginal_j": columns.energy_j}
    if is_marginal:
        values = {
            "marginal_g": columns.emissions_g,
            "energy_without_marginal_j": columns.energy_without_intensity_j,
            "emissions_g": 0.0,
            "energy_without_intensity_j": columns.energy_j,
        }
    connection.execute(update(sums).values(values))


def _days_to_entries(connection: Connection, *, is_marginal: bool) -> None:
    days = table("days", *map(column, (*_KEYS_1, *_ENERGY_1)))
    entries = []
    until_s = 0.0
    for row in connection.execute(select(days).order_by(*(days.c[name] for name in _KEYS_1))):
        day, *workload = row[: len(_KEYS_1)]
        energy = Energy(*row[len(_KEYS_1) :])
        energy = replace(energy, energy_without_marginal_j=energy.energy_j)
        if is_marginal:
            energy = replace(
                energy,
                marginal_g=energy.emissions_g,
                energy_without_marginal_j=energy.energy_without_intensity_j,
                emissions_g=0.0,
                energy_without_intensity_j=energy.energy_j,
            )
        from_s = day * _SECONDS_PER_DAY
        until_s = from_s + _SECONDS_PER_DAY
        namespace, kind, name, zone = workload
        entries.append(
            new_entry(
                EntryKind.BOOKED, until_s, (from_s, until_s, from_s), (namespace, kind, name, zone), energy, _NOTE
            )
        )
    if entries:
        add_entries(connection, entries)
        set_state(connection, {"folded_s": repr(until_s)})
