"""Accounts of pods: their rows in the database, read and written in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.statements import POD_COLUMNS, bulk, pod_of, pod_values
from joulie.domain.accounting.embodied import NO_SHARES, Shares
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
    "asset_id",
    "cpu_share",
    "memory_share",
    "gpu_share",
    *ENERGY_FIELDS,
)


def _setting(names: Sequence[str]) -> Update:
    columns: dict[str, Any] = {name: bindparam(name) for name in names}
    return update(schema.pods).where(schema.pods.c.id == bindparam("row_id")).values(columns)


_NEW_POD = insert(schema.pods)
_NEW_STATE = _setting(_STATE_COLUMNS)
_NEW_IDENTITY = _setting(POD_COLUMNS)
_SELECTED = select(*(schema.pods.c[name] for name in ("id", *POD_COLUMNS, *_STATE_COLUMNS)))

Power = tuple[float, float, float]
"""Power of CPU, memory and GPUs, W."""


@dataclass(slots=True, eq=False)
class Account:
    """The account of a pod, as it will be written to the database.

    Attributes:
        pod: identity of the pod.
        stored: its identity columns as stored; None for a new pod.
        id: its row number; 0 until it has one.
        from_s: start of accounting, s since the epoch.
        sampled_s: until when it is, s since the epoch.
        power_w: its last power.
        quality: how that is known.
        source: who says so.
        samples: how many its profile has.
        completed: whether it has ended.
        energy: in the order of `ENERGY_FIELDS`.
        asset_id: of the hardware of its node in `schema.assets`; None where no sample has said.
        shares: what it reserves of it.
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
    asset_id: int | None = None
    shares: Shares = NO_SHARES

    @classmethod
    def new(cls, sample: Sample, from_s: float) -> Self:
        """The account of a pod that was never seen before."""
        power_w = (sample.cpu_w, sample.mem_w, sample.gpu_w)
        energy = (0.0,) * len(ENERGY_FIELDS)
        return cls(sample.pod, None, 0, from_s, from_s, power_w, sample.quality, sample.source, 0, False, energy)

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """The account in a row of `_SELECTED`; read by position, since attribute access of rows dominates the time."""
        number, others = row[0], row[1:]
        stored = tuple(others[: len(POD_COLUMNS)])
        (from_s, sampled_s, cpu_w, mem_w, gpu_w, quality, source, samples, completed_s, asset_id, *numbers) = others[
            len(stored) :
        ]
        shares, energy = numbers[:3], numbers[3:]
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
            asset_id,
            NO_SHARES if asset_id is None else Shares(*shares),
        )


def find_accounts(connection: Connection, uids: set[str]) -> dict[str, Account]:
    """Read the accounts of pods, by UID."""
    pods = schema.pods.c
    rows = connection.execute(_SELECTED.where(pods.completed_s.is_(None))).all()
    found = {row[1]: Account.of(row) for row in rows if row[1] in uids}
    missing = sorted(uids - found.keys())
    for first in range(0, len(missing), _IN_ONE_QUESTION):
        asked = _SELECTED.where(pods.uid.in_(missing[first : first + _IN_ONE_QUESTION]))
        found |= {row[1]: Account.of(row) for row in connection.execute(asked)}
    return found


def add_accounts(connection: Connection, accounts: Sequence[Account]) -> None:
    """Insert the rows of new pods and read the numbers that the database gave them."""
    names = (*POD_COLUMNS, *_STATE_COLUMNS)
    bulk(connection, _NEW_POD, names, [(*pod_values(one.pod), *_state(one)) for one in accounts])
    pods = schema.pods.c
    for first in range(0, len(accounts), _IN_ONE_QUESTION):
        asked = {account.pod.uid: account for account in accounts[first : first + _IN_ONE_QUESTION]}
        for row in connection.execute(select(pods.uid, pods.id).where(pods.uid.in_(asked))):
            asked[row.uid].id = row.id


def write_accounts(connection: Connection, accounts: Sequence[Account]) -> None:
    """Update the state of accounts, and the identity columns that changed."""
    bulk(connection, _NEW_STATE, (*_STATE_COLUMNS, "row_id"), [(*_state(one), one.id) for one in accounts])
    pods = [(pod_values(one.pod), one) for one in accounts if one.stored is not None]
    changed = [(*values, one.id) for values, one in pods if values != one.stored]
    bulk(connection, _NEW_IDENTITY, (*POD_COLUMNS, "row_id"), changed)


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
        account.asset_id,
        account.shares.cpu,
        account.shares.memory,
        account.shares.gpu,
        *account.energy,
    )
