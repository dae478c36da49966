"""What to say about a database that fails."""

from __future__ import annotations

import sqlite3

from sqlalchemy.engine import URL


def shown(url: URL) -> str:
    """A URL without its password, which may also stand among its options."""
    return url.set(query={}).render_as_string(hide_password=True)


def advice(url: URL, error: Exception) -> str:
    """What is wrong with a database, and what to do; without secrets."""
    where = shown(url)
    if isinstance(error, ImportError):
        return f"{where}: {error}; install joulie[postgres]"
    cause = getattr(error, "orig", None) or error
    said = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    if isinstance(cause, sqlite3.DatabaseError) and "locked" in said:
        return f"{where}: is locked by another program ({said}): let one accounting program run, and end the other"
    if isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError):
        return f"{where}: is damaged or no ledger ({said}): restore it from a backup, or move it away to begin anew"
    return f"{where}: {said}: see that it can be reached, read and written"
