"""SQL fragments and row conversions shared by the modules of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Dialect, Double, Row, Table, func, select
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from joulie.adapters.ledger import schema
from joulie.domain.accounting.records import ENERGY_FIELDS, Energy, Held, PodMeta

NO_LABELS = "{}"


class _LabelsNote(msgspec.Struct):
    labels: dict[str, str] = {}


_LABELS = msgspec.json.Encoder(order="sorted")


def upsert(connection: Connection, table: Table, *, added: Sequence[str] = (), replaced: Sequence[str] = ()) -> Any:
    """An INSERT that joins a new row with the one of the same primary key, in the dialect of the database.

    Args:
        connection: to the database.
        table: to insert into.
        added: columns whose sum is kept.
        replaced: columns whose new value is kept; all others stay as they are.
    """
    return _upsert(connection.dialect.name, table, tuple(added), tuple(replaced))


@cache
def _upsert(dialect: str, table: Table, added: tuple[str, ...], replaced: tuple[str, ...]) -> Any:
    statement = _insert(dialect, table)
    new, key = statement.excluded, list(table.primary_key)
    if not added and not replaced:
        return statement.on_conflict_do_nothing(index_elements=key)
    changed = {name: table.c[name] + new[name] for name in added} | {name: new[name] for name in replaced}
    return statement.on_conflict_do_update(index_elements=key, set_=changed)


def _insert(dialect: str, table: Table) -> Any:
    """An INSERT of the dialect; PostgreSQL's is imported only where it is used: it takes 4 % of a start."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    return sqlite_insert(table)


def bulk(connection: Connection, statement: Any, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement once per row; without rows, do nothing.

    As `Connection.execute` with many rows, without its work on each of them, which takes longer than the database's.

    Args:
        connection: to run it on.
        statement: with the parameters `names`; the same object each time, for it is compiled once.
        names: of the values of a row, in order.
        rows: of plain numbers and texts.
    """
    if not rows:
        return
    dialect: Any = type(connection.dialect)
    text, values_of = _compiled(statement, dialect, tuple(names))
    connection.exec_driver_sql(text, [values_of(row) for row in rows])


@lru_cache(maxsize=128)
def _compiled(statement: Any, dialect: type[Dialect], names: tuple[str, ...]) -> tuple[str, Callable[[Any], Any]]:
    """The text of a statement, and what makes its parameters of a row."""
    compiled = statement.compile(dialect=dialect(), column_keys=list(names))
    if not compiled.positional:
        return compiled.string, lambda row: dict(zip(names, row, strict=True))
    return compiled.string, itemgetter(*(names.index(name) for name in compiled.positiontup))


def state_of(connection: Connection) -> dict[str, str]:
    """All of `schema.state`."""
    return {row.key: row.value for row in connection.execute(select(schema.state))}


def set_state(connection: Connection, values: Mapping[str, str]) -> None:
    """Write keys of `schema.state`."""
    bulk(connection, upsert(connection, schema.state, replaced=("value",)), ("key", "value"), list(values.items()))


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
