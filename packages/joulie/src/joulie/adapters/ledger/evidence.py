"""All that the figures of the ledger follow from, for programs that share no code with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.journal import pruned, read_entries
from joulie.adapters.ledger.statements import energy_sums, state_of
from joulie.domain.accounting.journal import ENTRY_FIELDS
from joulie.domain.accounting.records import ENERGY_FIELDS

_HOURS_PER_DAY = 24
_SECONDS_PER_DAY = 86400.0


def evidence(connection: Connection) -> Iterator[dict[str, Any]]:
    """See `joulie.adapters.ledger.SqlLedger.evidence`."""
    number, head = pruned(connection)
    state = state_of(connection)
    yield {
        "record": "ledger",
        "version": schema.VERSION,
        "pruned_number": number,
        "pruned_hash": head,
        "postings_s": float(state.get("postings_s", "0")),
        "entry_fields": ENTRY_FIELDS,
        "energy_fields": ENERGY_FIELDS,
    }
    for table in (schema.factors, schema.postings):
        for row in connection.execute(select(table)):
            yield {"record": table.name, **row._mapping}
    for entry in read_entries(connection):
        fields = {name: getattr(entry, name) for name in ENTRY_FIELDS}
        energy = {name: getattr(entry.energy, name) for name in ENERGY_FIELDS}
        yield {"record": "entries", **fields, **energy, "hash": entry.hash}
    yield from _open_days(connection)
    reserved, assets = schema.reservations, schema.assets
    query = select(reserved, assets.c.content).join_from(reserved, assets, reserved.c.asset_id == assets.c.id)
    for row in connection.execute(query):
        values = dict(row._mapping) | {"asset": json.loads(row.content)}
        del values["content"], values["asset_id"]
        yield {"record": "reservations", "concerns_s": values.pop("day") * _SECONDS_PER_DAY, **values}
    for row in connection.execute(select(schema.units)):
        values = dict(row._mapping)
        yield {"record": "units", "concerns_s": values.pop("day") * _SECONDS_PER_DAY, **values}
    for row in connection.execute(select(schema.pue_days)):
        values = dict(row._mapping)
        yield {"record": "pue_days", "concerns_s": values.pop("day") * _SECONDS_PER_DAY, **values}
    for row in connection.execute(select(schema.pue_sources)):
        yield {"record": "pue_sources", **row._mapping}


def _open_days(connection: Connection) -> Iterator[dict[str, Any]]:
    """Energy of hours by workload and day."""
    pods, hours = schema.pods.c, schema.hours.c
    keys = (hours.hour // _HOURS_PER_DAY, pods.namespace, pods.owner_kind, pods.owner_name, pods.zone)
    query = (
        select(keys[0].label("day"), *keys[1:], *energy_sums(schema.hours))
        .join_from(schema.hours, schema.pods, hours.pod_id == pods.id)
        .group_by(*keys)
    )
    for row in connection.execute(query):
        values = dict(row._mapping)
        yield {"record": "open", "concerns_s": values.pop("day") * _SECONDS_PER_DAY, **values}
