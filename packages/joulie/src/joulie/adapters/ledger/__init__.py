"""Durable accounts of energy: an SQLite file, or PostgreSQL by URL."""

from joulie.adapters.ledger.database import open_ledger
from joulie.adapters.ledger.store import LedgerSettings, SqlLedger

__all__ = ["LedgerSettings", "SqlLedger", "open_ledger"]
