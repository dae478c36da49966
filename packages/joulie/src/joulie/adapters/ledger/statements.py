"""SQL fragments and row conversions shared by the modules of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Double, Row, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from joulie.adapters.ledger import schema
from joulie.domain.accounting.records import ENERGY_FIELDS, Energy, Held, PodMeta

NO_LABELS = "{}"


class _LabelsNote(msgspec.Struct):
    labels: dict[str, str] = {}


_LABELS = msgspec.json.Encoder(order="sorted")


def upsert(connection: Connection, table: Table) -> Any:
    """An INSERT with ON CONFLICT support in the dialect of the database."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table)


def bulk(connection: Connection, statement: Any, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement once per row; without rows, do nothing.

    As `Connection.execute` with many rows, without its work on each of them, which takes longer than the database's.

    Args:
        connection: to run it on.
        statement: with the parameters `names`.
        names: of the values of a row, in order.
        rows: of plain numbers and texts.
    """
    if not rows:
        return
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(names))
    if not compiled.positional:
        connection.exec_driver_sql(compiled.string, [dict(zip(names, row, strict=True)) for row in rows])
        return
    ordered = itemgetter(*(names.index(name) for name in compiled.positiontup))
    connection.exec_driver_sql(compiled.string, [ordered(row) for row in rows])


def state_of(connection: Connection) -> dict[str, str]:
    """All of `schema.state`."""
    return {row.key: row.value for row in connection.execute(select(schema.state))}


def set_state(connection: Connection, values: Mapping[str, str]) -> None:
    """Write keys of `schema.state`."""
    statement = upsert(connection, schema.state)
    statement = statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value})
    connection.execute(statement, [{"key": key, "value": value} for key, value in values.items()])


def add_energy(table: Table, new: Any) -> dict[str, ColumnElement[float]]:
    """Columns of energy, the new row's added."""
    return {name: table.c[name] + new[name] for name in ENERGY_FIELDS}


def energy_sums(table: Table) -> list[ColumnElement[float]]:
    """Sums of the columns of energy, 0 of no rows."""
    return [func.coalesce(func.sum(table.c[name], type_=Double), 0.0).label(name) for name in ENERGY_FIELDS]


def energy_of(row: Row[Any]) -> Energy:
    """The energy in a row."""
    return Energy(*(row._mapping[name] for name in ENERGY_FIELDS))


POD_COLUMNS = (
    "uid",
    "namespace",
    "name",
    "owner_kind",
    "owner_name",
    "node",
    "zone",
    "started_s",
    "pue",
    "gpu_pue",
    "held",
    "labels",
)
"""Of `schema.pods`: whose it is. In the order of `PodMeta`."""


def pod_of(values: Sequence[Any]) -> PodMeta:
    """The pod that values of `POD_COLUMNS` say."""
    arguments = list(values)
    *_, held, labels = values
    if held is not None:
        arguments[-2] = msgspec.json.decode(held, type=Held)
    arguments[-1] = tuple(labels_in(labels).items())
    return PodMeta(*arguments)


def pod_in(row: Row[Any]) -> PodMeta:
    """The pod in a row of `schema.pods`."""
    return pod_of([row._mapping[name] for name in POD_COLUMNS])


def pod_values(pod: PodMeta) -> tuple[Any, ...]:
    """The values of `POD_COLUMNS`."""
    return (
        pod.uid,
        pod.namespace,
        pod.name,
        pod.owner_kind,
        pod.owner_name,
        pod.node,
        pod.zone,
        pod.started_s,
        pod.pue,
        pod.gpu_pue,
        None if pod.held is None else msgspec.json.encode(pod.held).decode(),
        labels_note(pod.labels),
    )


def labels_note(labels: Sequence[tuple[str, str]]) -> str:
    """Labels as `schema.pods` has them, and the note of a booked entry: equal texts for equal labels."""
    return _LABELS.encode(_LabelsNote(dict(labels))).decode() if labels else NO_LABELS


def labels_in(note: str) -> dict[str, str]:
    """The labels in a column of `schema.pods` or in a note; none in notes of other kinds."""
    return {} if note == NO_LABELS else msgspec.json.decode(note, type=_LabelsNote).labels
