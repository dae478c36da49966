"""Reads and writes Parquet files with Polars; `joulie.adapters.parquet_files` writes records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import polars as pl


class ParquetError(ValueError):
    """Invalid Parquet file; the message says which and why."""


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays of equal length as the columns of a Parquet file.

    Raises:
        OSError: the file cannot be written.
    """
    pl.DataFrame(dict(columns)).write_parquet(path)


def read_columns(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of a Parquet file as arrays.

    Raises:
        ParquetError: the file cannot be read, or is not a Parquet file.
    """
    return {column.name: column.to_numpy() for column in _read(path).iter_columns()}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The records of a Parquet file; null becomes None.

    Raises:
        ParquetError: the file cannot be read, or is not a Parquet file.
    """
    return _read(path).to_dicts()


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ParquetError(f"{path}: {str(error).splitlines()[0]}") from error
