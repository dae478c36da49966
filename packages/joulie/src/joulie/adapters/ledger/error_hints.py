"""Database error hints: the cause of a failure and how to fix it, without secrets."""

from __future__ import annotations

import sqlite3

from sqlalchemy.engine import URL


def redacted(url: URL) -> str:
    """A database URL without its password and options, which may hold one."""
    return url.set(query={}).render_as_string(hide_password=True)


def error_hint(url: URL, error: Exception) -> str:
    """Describe a database error and how to fix it."""
    where = redacted(url)
    if isinstance(error, ImportError):
        return f"{where}: {error}; install joulie[postgres]"
    cause = getattr(error, "orig", None) or error
    said = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    if isinstance(cause, sqlite3.DatabaseError) and "locked" in said:
        return f"{where}: locked by another program ({said}): run only one accounting program"
    if isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError):
        return f"{where}: damaged or not a ledger ({said}): restore a backup, or move the file away to start a new one"
    return f"{where}: {said}: check that it can be reached, read and written"
