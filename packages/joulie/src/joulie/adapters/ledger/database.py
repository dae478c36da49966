"""Opens the ledger's database: SQLite settings, integrity and version checks, and the tables of an empty database.

A file that cannot be used is refused with instructions and never replaced, so that no account restarts silently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from joulie.adapters.ledger import budgets, schema
from joulie.adapters.ledger.error_hints import error_hint, redacted
from joulie.adapters.ledger.migration import migrate_from_1, migrate_from_2, migrate_from_3, migrate_from_4
from joulie.adapters.ledger.store import READS_ONLY, LedgerSettings, SqlLedger
from joulie.ports.ledger import LedgerError

_BUSY_TIMEOUT_S = 5.0
_DIALECTS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_MIGRATIONS = {"1": migrate_from_1, "2": migrate_from_2, "3": migrate_from_3, "4": migrate_from_4}
_EXAMPLES = "sqlite:////var/lib/joulie/ledger.db or postgresql://USER@HOST/DATABASE"


class _UnfitError(Exception):
    """The database is not a usable ledger."""


def open_ledger(url: str, settings: LedgerSettings | None = None) -> SqlLedger:
    """Open the ledger in a database; creates the tables of an empty one.

    Args:
        url: ``sqlite:////path`` (four slashes before an absolute path) or ``postgresql://...``.
        settings: retention of the ledger.

    Raises:
        LedgerError: the database cannot be used; the message contains no password.
    """
    where = _url(url)
    try:
        engine = _engine(where)
        try:
            with engine.begin() as connection:
                _check(connection)
                budgets.create_tables(connection)
        except BaseException:
            engine.dispose()
            raise
    except (SQLAlchemyError, ImportError) as error:
        raise LedgerError(error_hint(where, error)) from error
    except _UnfitError as error:
        raise LedgerError(f"{redacted(where)}: {error}") from error
    return SqlLedger(engine, settings or LedgerSettings())


def _url(text_: str) -> URL:
    try:
        url = make_url(text_)
    except (ArgumentError, ValueError) as error:
        raise LedgerError(f"LEDGER_URL is no URL of a database; write it like {_EXAMPLES}") from error
    driver = _DIALECTS.get(url.drivername) or (url.drivername if url.drivername in _DIALECTS.values() else None)
    if driver is None or not url.database:
        raise LedgerError(f"LEDGER_URL: {url.drivername} is not supported or no database is named; write {_EXAMPLES}")
    return url.set(drivername=driver)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        # One connection, since cycles run one after the other; it is replaced if the server dropped it.
        return create_engine(url, pool_size=1, max_overflow=1, pool_pre_ping=True)
    path = Path(url.database or "")
    if not path.parent.is_dir():
        raise _UnfitError(f"there is no folder {path.parent}; mount the ledger's volume there")
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    """Configure each SQLite connection.

    synchronous=FULL flushes every cycle to disk before it counts as accounted, so that it survives a power failure; it
    costs one flush per cycle. auto_vacuum takes effect in new files only.
    """
    connection.isolation_level = None  # the driver begins no transactions of its own, see `_begin`
    for setting in ("auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}").fetchall()


def _begin(connection: Connection) -> None:
    """Take the write lock at once, or a transaction that reads and then writes could be refused half way."""
    reads_only = connection.get_execution_options().get(READS_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")


def _check(connection: Connection) -> None:
    """Check that the database is a complete ledger, migrate an older one, and create the tables of an empty one."""
    is_file = connection.dialect.name == "sqlite"
    if is_file:
        _check_file(connection)
    tables = set(inspect(connection).get_table_names())
    if not tables & {*schema.metadata.tables, "days"}:
        schema.metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(schema.state).values(key="version", value=str(schema.VERSION)))
        if is_file:
            connection.execute(text(f"PRAGMA application_id = {schema.APPLICATION_ID}"))
        return
    version = connection.scalar(select(schema.state.c.value).where(schema.state.c.key == "version"))
    if version in _MIGRATIONS:
        _MIGRATIONS[version](connection)
        return
    if version != str(schema.VERSION):
        raise _UnfitError(
            f"the ledger has version {version}, this Joulie reads version {schema.VERSION}: "
            "run the Joulie that made it, or begin a new ledger at another place"
        )
    missing = set(schema.metadata.tables) - tables
    if missing:
        raise _UnfitError(f"the ledger has no table {', '.join(sorted(missing))}: restore it from a backup")


def _check_file(connection: Connection) -> None:
    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise _UnfitError(f"the ledger is damaged ({found}): restore it from a backup, or move it away to begin anew")
    owner = connection.exec_driver_sql("PRAGMA application_id").scalar()
    tables = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()
    if tables and owner != schema.APPLICATION_ID:
        raise _UnfitError("the file is an SQLite database of another program: name another one in LEDGER_URL")
