"""Records as Parquet files, written with Polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records with the same fields as a Parquet file; None becomes null.

    Raises:
        OSError: the file cannot be written.
    """
    pl.DataFrame([dict(row) for row in rows], infer_schema_length=None).write_parquet(path)
