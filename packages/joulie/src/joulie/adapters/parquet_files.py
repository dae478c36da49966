"""Records as Parquet files, written with Polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl


def convert_lines(lines: Path, path: Path, types: Mapping[str, type]) -> None:
    """Write a file of JSON lines as a Parquet file, piece by piece: the whole may not fit into memory.

    Args:
        lines: one object a line.
        path: file to write.
        types: columns, each str, float or bool; null is null.

    Raises:
        OSError: a file cannot be read or written.
    """
    pl.scan_ndjson(lines, schema=pl.Schema(types)).sink_parquet(path)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records with the same fields as a Parquet file; None becomes null.

    Raises:
        OSError: the file cannot be written.
    """
    pl.DataFrame([dict(row) for row in rows], infer_schema_length=None).write_parquet(path)
