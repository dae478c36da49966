"""What reports need beside energy: what workloads reserve of hardware, what they deliver, and where PUEs come from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from joulie.adapters.ledger import schema
from joulie.adapters.ledger.accounts import Account
from joulie.adapters.ledger.journal import new_entry
from joulie.adapters.ledger.statements import bulk, upsert
from joulie.domain.accounting.embodied import Asset, Shares, Spread
from joulie.domain.accounting.journal import Entry, EntryKind
from joulie.domain.accounting.records import IDLE_OWNER, Sample, UnitCount

_SECONDS_PER_DAY = 86400.0
_WORKLOAD = ("namespace", "owner_kind", "owner_name")
_PLACE = ("day", *_WORKLOAD, "zone", "asset_id")
_SECONDS = ("cpu_s", "memory_s", "gpu_s")
_NOBODY = ("", "", "")
_UNIT = ("day", *_WORKLOAD, "unit", "source")
_PUE = ("day", "zone", "pue", "gpu_pue", "source")


def asset_text(asset: Asset | None) -> str:
    """An asset as JSON; ``null`` where its embodied emissions are not known."""
    return json.dumps(None if asset is None else asdict(asset), separators=(",", ":"), ensure_ascii=False)


def asset_in(content: Mapping[str, Any] | None) -> Asset | None:
    """The asset that JSON says."""
    if content is None:
        return None
    parts = {name: Spread(**content[name]) for name in ("cpu", "memory", "gpu")}
    return Asset(content["name"], content["source"], content["lifespan_s"], **parts)


def asset_ids(connection: Connection, samples: Sequence[Sample]) -> dict[Asset | None, int]:
    """Ids of the hardware in samples; new hardware gets its row."""
    assets = {one.reservation.asset for one in samples if one.reservation is not None}
    texts = {asset_text(asset): asset for asset in assets}
    found = _ids(connection, texts)
    new = [text for text in texts if text not in found]
    if new:
        connection.execute(insert(schema.assets), [{"content": text} for text in new])
        found |= _ids(connection, new)
    return {asset: found[text] for text, asset in texts.items()}


def _ids(connection: Connection, texts: Iterable[str]) -> dict[str, int]:
    assets = schema.assets.c
    rows = connection.execute(select(assets.content, assets.id).where(assets.content.in_(list(texts))))
    return {row.content: row.id for row in rows}


def reserve(connection: Connection, stretches: Sequence[tuple[Account, float, float]], first_day: int) -> None:
    """Book what pods have reserved of nodes, and what is left of each node as that of its own account.

    So the sums over workloads and what is unallocated are the time of the nodes, whatever pods come and go in a cycle.

    Args:
        connection: connection with the cycle's transaction.
        stretches: accounts with the start and end of the time that is booked.
        first_day: first day that is not closed; what is earlier is booked in it.
    """
    sums: defaultdict[tuple[Any, ...], Shares] = defaultdict(Shares)
    used: defaultdict[tuple[str, int], Shares] = defaultdict(Shares)
    for is_node in (False, True):
        for account, from_s, until_s in stretches:
            pod, asset_id = account.pod, account.asset_id
            if asset_id is None or (pod.owner_kind == IDLE_OWNER) is not is_node:
                continue
            for day, seconds in _days(from_s, until_s):
                reserved = account.shares * seconds
                if is_node:
                    reserved += used.pop((pod.node, day), Shares()) * -1.0
                else:
                    used[pod.node, day] += reserved
                place = (max(day, first_day), pod.namespace, pod.owner_kind, pod.owner_name, pod.zone, asset_id)
                sums[place] += reserved
    statement = upsert(connection, schema.reservations, added=_SECONDS)
    rows = [(*place, one.cpu, one.memory, one.gpu) for place, one in sums.items()]
    bulk(connection, statement, (*_PLACE, *_SECONDS), rows)


def _days(from_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """UTC days of a time with their seconds of it."""
    for day in range(int(from_s // _SECONDS_PER_DAY), int(until_s // _SECONDS_PER_DAY) + 1):
        seconds = min(until_s, (day + 1) * _SECONDS_PER_DAY) - max(from_s, day * _SECONDS_PER_DAY)
        if seconds > 0.0:
            yield day, seconds


def count_units(
    connection: Connection, ended: Iterable[Account], delivered: Mapping[str, UnitCount], first_day: int
) -> None:
    """Book what pods that have ended have delivered, by uid."""
    rows = [
        (max(int(one.sampled_s // _SECONDS_PER_DAY), first_day), _workload(one), delivered[one.pod.uid])
        for one in ended
        if one.pod.uid in delivered
    ]
    add_units(connection, rows)


def add_units(connection: Connection, rows: Iterable[tuple[int, tuple[str, str, str], UnitCount]]) -> None:
    """Book functional units by day and workload."""
    statement = upsert(connection, schema.units, added=("amount",))
    values = [(day, *workload, one.unit, one.source, one.amount) for day, workload, one in rows]
    bulk(connection, statement, (*_UNIT, "amount"), values)


def _workload(account: Account) -> tuple[str, str, str]:
    return account.pod.namespace, account.pod.owner_kind, account.pod.owner_name


def note_pue_sources(
    connection: Connection,
    stretches: Iterable[tuple[Account, float, float]],
    sources: Mapping[tuple[str, float, float], str],
    first_day: int,
) -> None:
    """Book where the PUEs come from that energy was booked on, by day.

    Args:
        connection: connection with the cycle's transaction.
        stretches: accounts with the start and end of the time that is booked.
        sources: by zone, PUE, and PUE of GPUs.
        first_day: first day that is not closed; what is earlier is booked in it.
    """
    rows = set()
    for account, from_s, until_s in stretches:
        place = (account.pod.zone, account.pod.pue, account.pod.gpu_pue)
        if place in sources:
            rows |= {(max(day, first_day), *place, sources[place]) for day, _seconds in _days(from_s, until_s)}
    bulk(connection, upsert(connection, schema.pue_days), _PUE, sorted(rows))


def fold(connection: Connection, before_day: int, now_s: float) -> list[Entry]:
    """Take whole days of reservations, units and PUEs out of their tables, as entries for the journal."""
    assets = {row.id: json.loads(row.content) for row in connection.execute(select(schema.assets))}
    entries = []
    reserved, units, pues = schema.reservations, schema.units, schema.pue_days
    for row in connection.execute(select(reserved).where(reserved.c.day < before_day).order_by(*reserved.primary_key)):
        note = {"asset": assets[row.asset_id], **{name: row._mapping[name] for name in _SECONDS}}
        entries.append(_entry(EntryKind.EMBODIED, _of(row), row.zone, row.day, note, now_s))
    for row in connection.execute(select(units).where(units.c.day < before_day).order_by(*units.primary_key)):
        note = {"unit": row.unit, "amount": row.amount, "source": row.source}
        entries.append(_entry(EntryKind.UNITS, _of(row), "", row.day, note, now_s))
    for row in connection.execute(select(pues).where(pues.c.day < before_day).order_by(*pues.primary_key)):
        note = {"pue": row.pue, "gpu_pue": row.gpu_pue, "source": row.source}
        entries.append(_entry(EntryKind.PUE, _NOBODY, row.zone, row.day, note, now_s))
    for table in (reserved, units, pues):
        connection.execute(delete(table).where(table.c.day < before_day))
    return entries


def _of(row: Any) -> tuple[str, str, str]:
    return row.namespace, row.owner_kind, row.owner_name


def _entry(
    kind: EntryKind, workload: tuple[str, str, str], zone: str, day: int, note: Mapping[str, Any], now_s: float
) -> Entry:
    from_s = day * _SECONDS_PER_DAY
    time_s = (from_s, from_s + _SECONDS_PER_DAY, from_s)
    return new_entry(
        kind, now_s, time_s, (*workload, zone), note=json.dumps(note, separators=(",", ":"), ensure_ascii=False)
    )
