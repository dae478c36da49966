"""Rows of pods: where each one stands, read and written all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection, bindparam, insert, select, update

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import POD_COLUMNS, bulk, pod_of, pod_values
from joulie.domain.accounting.records import ENERGY_FIELDS, PodMeta, PowerQuality, Sample

_IN_ONE_QUESTION = 1000
"""Uids asked for at once: databases bound the parameters of a statement."""
_QUALITIES = {quality.value: quality for quality in PowerQuality}

_STATE_COLUMNS = (
    "from_s",
    "sampled_s",
    "cpu_w",
    "mem_w",
    "gpu_w",
    "quality",
    "source",
    "samples",
    "completed_s",
    *ENERGY_FIELDS,
)
_SELECTED = select(*(schema.pods.c[name] for name in ("id", *POD_COLUMNS, *_STATE_COLUMNS)))

Power = tuple[float, float, float]
"""Of CPU, memory and GPUs, W."""


@dataclass(slots=True, eq=False)
class Account:
    """A pod as it will be in the database.

    Attributes:
        pod: whose.
        stored: what the database says of whose it is; None of a pod that is new.
        id: its number there; 0 until it has one.
        from_s: since when it is accounted, s since the epoch.
        sampled_s: until when it is, s since the epoch.
        power_w: its last power.
        quality: how that is known.
        source: who says so.
        samples: how many its profile has.
        completed: whether it has ended.
        energy: in the order of `ENERGY_FIELDS`.
    """

    pod: PodMeta
    stored: tuple[Any, ...] | None
    id: int
    from_s: float
    sampled_s: float
    power_w: Power
    quality: PowerQuality
    source: str
    samples: int
    completed: bool
    energy: Sequence[float]

    @classmethod
    def new(cls, sample: Sample, from_s: float) -> Self:
        """Of a pod that was never seen before."""
        power_w = (sample.cpu_w, sample.mem_w, sample.gpu_w)
        energy = (0.0,) * len(ENERGY_FIELDS)
        return cls(sample.pod, None, 0, from_s, from_s, power_w, sample.quality, sample.source, 0, False, energy)

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """Of a row of `_SELECTED`; by place, since attributes of rows take longer than all the rest."""
        number, others = row[0], row[1:]
        stored = tuple(others[: len(POD_COLUMNS)])
        from_s, sampled_s, cpu_w, mem_w, gpu_w, quality, source, samples, completed_s, *energy = others[len(stored) :]
        return cls(
            pod_of(stored),
            stored,
            number,
            from_s,
            sampled_s,
            (cpu_w, mem_w, gpu_w),
            _QUALITIES[quality],
            source,
            samples,
            completed_s is not None,
            energy,
        )


def find_accounts(connection: Connection, uids: set[str]) -> dict[str, Account]:
    """What the database has of pods, by uid."""
    pods = schema.pods.c
    rows = connection.execute(_SELECTED.where(pods.completed_s.is_(None))).all()
    found = {row[1]: Account.of(row) for row in rows if row[1] in uids}
    missing = sorted(uids - found.keys())
    for first in range(0, len(missing), _IN_ONE_QUESTION):
        asked = _SELECTED.where(pods.uid.in_(missing[first : first + _IN_ONE_QUESTION]))
        found |= {row[1]: Account.of(row) for row in connection.execute(asked)}
    return found


def add_accounts(connection: Connection, accounts: Sequence[Account]) -> None:
    """Make the rows of new pods; the database numbers them."""
    names = (*POD_COLUMNS, *_STATE_COLUMNS)
    bulk(connection, insert(schema.pods), names, [(*pod_values(one.pod), *_state(one)) for one in accounts])
    pods = schema.pods.c
    for first in range(0, len(accounts), _IN_ONE_QUESTION):
        asked = {account.pod.uid: account for account in accounts[first : first + _IN_ONE_QUESTION]}
        for row in connection.execute(select(pods.uid, pods.id).where(pods.uid.in_(asked))):
            asked[row.uid].id = row.id


def write_accounts(connection: Connection, accounts: Sequence[Account]) -> None:
    """Write where pods stand, and of whose they are only what has changed."""
    _update(connection, _STATE_COLUMNS, [(*_state(one), one.id) for one in accounts])
    pods = [(pod_values(one.pod), one) for one in accounts if one.stored is not None]
    _update(connection, POD_COLUMNS, [(*values, one.id) for values, one in pods if values != one.stored])


def _update(connection: Connection, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    columns: dict[str, Any] = {name: bindparam(name) for name in names}
    statement = update(schema.pods).where(schema.pods.c.id == bindparam("row_id")).values(columns)
    bulk(connection, statement, (*names, "row_id"), rows)


def _state(account: Account) -> tuple[Any, ...]:
    """The values of `_STATE_COLUMNS`."""
    return (
        account.from_s,
        account.sampled_s,
        *account.power_w,
        account.quality.value,
        account.source,
        account.samples,
        account.sampled_s if account.completed else None,
        *account.energy,
    )
