"""Tables of the ledger. Times are s since the epoch, powers W, energies J, hours and days whole numbers since then."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Index, Integer, MetaData, String, Table

from joulie.domain.accounting.records import ENERGY_FIELDS

VERSION = 5
"""Of the tables; ledgers of earlier versions are migrated, those of later ones refused."""
APPLICATION_ID = 0x4A4F554C
"""By which SQLite files are told from those of other programs: JOUL."""

FACTOR_COLUMNS = ("intensity", "marginal", "price", "pue", "gpu_pue")
"""Of `postings`: ids of factors, in the order of `FACTOR_KINDS`."""

metadata = MetaData()


def _number(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, String, nullable=False, primary_key=key)


def _energy() -> list[Column[float]]:
    return [_number(name) for name in ENERGY_FIELDS]


state = Table("state", metadata, _text("key", key=True), _text("value"))
"""``version`` of the tables, time of the first cycle (``began_s``), end of the last closed month (``closed_s``), number
and hash of the last entry that is kept no more (``pruned_number``, ``pruned_hash``), since when `postings` has all
energy (``postings_s``), and what programs keep beside the accounts (``text:NAME``)."""

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
    Column("labels", String, nullable=False, server_default="{}"),
    _number("from_s"),
    _number("sampled_s"),
    _number("cpu_w"),
    _number("mem_w"),
    _number("gpu_w"),
    _text("quality"),
    _text("source"),
    Column("samples", Integer, nullable=False),
    Column("completed_s", Double, index=True),
    Column("asset_id", Integer),
    Column("cpu_share", Double),
    Column("memory_share", Double),
    Column("gpu_share", Double),
    *_energy(),
)
"""A pod with its last sample, from which the next stretch goes on, what it reserves, and the energy of its life."""

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
"""Energy of a pod in an hour. All that was ever counted is in `hours` or `entries`, and in one of them only."""

entries = Table(
    "entries",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text("kind"),
    _number("recorded_s"),
    _number("from_s"),
    _number("until_s"),
    _number("concerns_s"),
    _text("namespace"),
    _text("owner_kind"),
    _text("owner_name"),
    _text("zone"),
    _text("note"),
    *_energy(),
    _text("hash"),
    Index("entries_by_time", "from_s"),
)
"""The journal, see `joulie.domain.accounting.journal`: only added to, and dropped from its beginning."""

factors = Table(
    "factors",
    metadata,
    Column("id", Integer, primary_key=True),
    _text("zone"),
    _text("kind"),
    _number("from_s"),
    _number("until_s"),
    Column("booked", Double),
    Column("current", Double),
    _text("changed_by"),
    Index("factors_by_time", "zone", "kind", "from_s"),
)
"""What energy was multiplied by (``booked``), and what it is multiplied by now; NULL: unknown."""

postings = Table(
    "postings",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    _text("namespace", key=True),
    _text("owner_kind", key=True),
    _text("owner_name", key=True),
    _text("zone", key=True),
    _text("quality", key=True),
    *(Column(name, Integer, primary_key=True, autoincrement=False) for name in FACTOR_COLUMNS),
    _number("cpu_j"),
    _number("mem_j"),
    _number("gpu_j"),
    sqlite_with_rowid=False,
)
"""IT energy of a workload in an hour on certain factors: what all figures can be computed from, and corrected by."""

assets = Table("assets", metadata, Column("id", Integer, primary_key=True), Column("content", String, unique=True))
"""Hardware of nodes with its embodied emissions, as JSON; ``null``: hardware that nobody knows them of."""

reservations = Table(
    "reservations",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    _text("namespace", key=True),
    _text("owner_kind", key=True),
    _text("owner_name", key=True),
    _text("zone", key=True),
    Column("asset_id", Integer, primary_key=True, autoincrement=False),
    _number("cpu_s"),
    _number("memory_s"),
    _number("gpu_s"),
    sqlite_with_rowid=False,
)
"""Shares of nodes, times seconds, that a workload has reserved in a day; then they are folded into `entries`."""

units = Table(
    "units",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    _text("namespace", key=True),
    _text("owner_kind", key=True),
    _text("owner_name", key=True),
    _text("unit", key=True),
    _text("source", key=True),
    _number("amount"),
    sqlite_with_rowid=False,
)
"""Functional units that a workload has delivered in a day; then they are folded into `entries`."""

pue_sources = Table(
    "pue_sources",
    metadata,
    _text("zone", key=True),
    Column("pue", Double, primary_key=True),
    Column("gpu_pue", Double, primary_key=True),
    _text("source", key=True),
    _number("from_s"),
    _number("until_s"),
)
"""Where PUEs came from and when, as version 3 kept it outside of the journal. Only read: closed months have it here."""

pue_days = Table(
    "pue_days",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    _text("zone", key=True),
    Column("pue", Double, primary_key=True),
    Column("gpu_pue", Double, primary_key=True),
    _text("source", key=True),
    sqlite_with_rowid=False,
)
"""Where the PUEs came from that energy of a day was booked on; then they are folded into `entries`."""

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
"""Steps of carbon intensity of both bases, and of price."""

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

runs = Table(
    "runs",
    metadata,
    _text("uid", key=True),
    _text("namespace"),
    _text("kind"),
    _text("name"),
    _number("started_s"),
    _number("ended_s"),
    _number("ran_s"),
    Column("finished", Boolean, nullable=False),
    Index("runs_by_workload", "namespace", "kind", "name", "ended_s"),
)
"""Runs of workloads by the UID of their Job or pod, from which runtimes are learned; the latest of each workload."""

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
