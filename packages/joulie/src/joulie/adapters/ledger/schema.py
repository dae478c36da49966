"""Tables of the ledger. Times are s since the epoch, powers W, energies J, hours and days whole numbers since then."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, Integer, MetaData, String, Table

from joulie.domain.accounting.records import ENERGY_FIELDS

VERSION = 1
"""Of the tables; a ledger of another version is refused."""
APPLICATION_ID = 0x4A4F554C
"""By which SQLite files are told from those of other programs: JOUL."""

metadata = MetaData()


def _number(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, String, nullable=False, primary_key=key)


def _energy() -> list[Column[float]]:
    return [_number(name) for name in ENERGY_FIELDS]


state = Table("state", metadata, _text("key", key=True), _text("value"))
"""``version`` of the tables, time of the first cycle (``began_s``), ``basis`` of carbon intensity."""

pods = Table(
    "pods",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uid", String, nullable=False, unique=True),
    _text("namespace"),
    _text("name"),
    _text("owner_kind"),
    _text("owner_name"),
    _text("node"),
    _text("zone"),
    Column("started_s", Double),
    _number("pue"),
    _number("gpu_pue"),
    Column("held", String),
    _number("from_s"),
    _number("sampled_s"),
    _number("cpu_w"),
    _number("mem_w"),
    _number("gpu_w"),
    _text("quality"),
    _text("source"),
    Column("samples", Integer, nullable=False),
    Column("completed_s", Double, index=True),
    *_energy(),
)
"""A pod with its last sample, from which the next stretch goes on, and the energy of its life."""

hours = Table(
    "hours",
    metadata,
    Column("pod_id", Integer, primary_key=True, autoincrement=False),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    _number("from_s"),
    _number("until_s"),
    *_energy(),
    Index("hours_by_hour", "hour"),
    sqlite_with_rowid=False,
)
"""Energy of a pod in an hour. All that was ever counted is in `hours` or in `days`, and in one of them only."""

days = Table(
    "days",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    _text("namespace", key=True),
    _text("owner_kind", key=True),
    _text("owner_name", key=True),
    _text("zone", key=True),
    *_energy(),
    sqlite_with_rowid=False,
)
"""Energy of the pods of a workload in a day, folded from `hours`."""

totals = Table("totals", metadata, _text("namespace", key=True), *_energy())
"""Energy of namespaces since ever, added up cycle by cycle: sums that are made anew differ in their last bits, and what
is dropped would be missing from them; counters must never be lower than they were."""

samples = Table(
    "samples",
    metadata,
    Column("pod_id", Integer, primary_key=True, autoincrement=False),
    Column("time_s", Double, primary_key=True),
    _number("cpu_w"),
    _number("mem_w"),
    _number("gpu_w"),
    sqlite_with_rowid=False,
)
"""The power profile of a pod, thinned. No sum is made from it."""

signals = Table(
    "signals",
    metadata,
    _text("zone", key=True),
    _text("measure", key=True),
    Column("time_s", Double, primary_key=True),
    _number("until_s"),
    _number("value"),
    sqlite_with_rowid=False,
)
"""Steps of carbon intensity (of the ledger's basis) and price."""

savings = Table(
    "savings",
    metadata,
    _text("uid", key=True),
    _text("namespace", key=True),
    _text("measure", key=True),
    _text("method", key=True),
    Column("completed_s", Double, primary_key=True),
    _text("name"),
    _text("owner_kind"),
    _text("owner_name"),
    _number("amount"),
    _number("energy_j"),
    Column("pods", Integer, nullable=False),
)
"""What a pod has saved by waiting; of folded ones, all pods of a namespace that ended in a day, without a uid."""

crossings = Table(
    "crossings",
    metadata,
    _text("scope", key=True),
    Column("since_s", Double, primary_key=True),
    Column("limit_j", Double, primary_key=True),
    _text("action", key=True),
    _number("used_j"),
    _number("time_s"),
    Column("acted", Boolean, nullable=False),
)
"""Budgets that have been crossed."""
