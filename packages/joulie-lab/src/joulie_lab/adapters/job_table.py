"""Job tables from CSV and Parquet files, read with Polars.

Nothing is guessed and nothing is dropped: reading stops at the first invalid cell with an error that names file, line
and value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.jobs import ColumnRef, JobColumns, JobTableError, JobTableSpec


@dataclass(frozen=True)
class _Rule:
    """Validation rule of a field: its description, and a test on an array."""

    needs: str
    holds: Callable[[FloatArray], BoolArray]


_WHOLE_MAX = 32_767
"""Maximum number of cores or GPUs of a job; the simulator stores counts in 16 bits."""

_RULES = {
    "arrival": _Rule("a number of at least 0", lambda x: x >= 0.0),
    "duration": _Rule("a number above 0", lambda x: x > 0.0),
    "cores": _Rule("a whole number of 1..32767", lambda x: (x >= 1) & (x <= _WHOLE_MAX) & (x == np.floor(x))),
    "gpus": _Rule("a whole number of 0..32767", lambda x: (x >= 0) & (x <= _WHOLE_MAX) & (x == np.floor(x))),
    "cpu_util": _Rule("a fraction of 0..1", lambda x: (x >= 0.0) & (x <= 1.0)),
    "gpu_util": _Rule("a fraction of 0..1", lambda x: (x >= 0.0) & (x <= 1.0)),
}
_DEFAULT_CLASS = "job"


def read_job_table(spec: JobTableSpec) -> JobColumns:
    """Read the jobs of a CSV or Parquet file.

    Args:
        spec: the file, its columns, and the values of fields without a column.

    Returns:
        The jobs in file order, in SI units.

    Raises:
        JobTableError: the file is missing, unreadable or empty, lacks a column, or a cell is missing, unparsable, NaN,
            infinite or out of range.
    """
    frame = _read(spec)
    if frame.height == 0:
        raise JobTableError(f"{spec.path}: no jobs in it; a job table needs a header and at least one row")
    place, first_line = (f"{spec.path}:", 2) if spec.format == "csv" else (f"{spec.path}: row ", 1)
    table = _Table(frame, place, first_line, spec)
    numbers = {field: table.numbers(field) for field in _RULES}
    classes, names = table.classes()
    return JobColumns(
        place=place,
        line=np.arange(first_line, first_line + frame.height, dtype=np.int64),
        arrival_s=numbers["arrival"],
        duration_s=numbers["duration"],
        cores=numbers["cores"].astype(np.int64),
        gpus=numbers["gpus"].astype(np.int64),
        cpu_util=numbers["cpu_util"],
        gpu_util=numbers["gpu_util"],
        job_class=classes,
        class_names=names,
    )


def _read(spec: JobTableSpec) -> pl.DataFrame:
    """Read the needed columns; as text for CSV, so that an invalid cell can be shown unchanged."""
    if not spec.path.is_file():
        raise JobTableError(f"{spec.path}: no such file; set workload.{spec.format} to the path of the table")
    try:
        names = _header(spec.path, spec.format)
        for field, column in spec.columns.items():
            if column.name not in names:
                raise JobTableError(
                    f"{spec.path}: no column {column.name!r} (needed for {field}); its columns are {', '.join(names)}"
                )
        wanted = list(dict.fromkeys(column.name for column in spec.columns.values()))
        if spec.format == "parquet":
            return pl.read_parquet(spec.path, columns=wanted)
        return pl.read_csv(spec.path, columns=wanted, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise JobTableError(f"{spec.path}: not a readable {spec.format} file: {_one_line(error)}") from error


def _header(path: Path, file_format: str) -> list[str]:
    if file_format == "parquet":
        return list(pl.read_parquet_schema(path))
    return pl.read_csv(path, n_rows=0, infer_schema=False).columns


@dataclass(frozen=True)
class _Table:
    frame: pl.DataFrame
    place: str
    first_line: int
    spec: JobTableSpec

    def numbers(self, field: str) -> FloatArray:
        """The column of `field` in SI units, or its default for every job."""
        rule = _RULES[field]
        column = self.spec.columns.get(field)
        if column is None:
            return self._default(field, rule)
        cells = self.frame.get_column(column.name)
        if not (cells.dtype == pl.String or cells.dtype.is_numeric()):
            raise JobTableError(
                f"{self.spec.path}: column {column.name!r} is {cells.dtype}, but {field} must be numeric"
            )
        stripped = cells.str.strip_chars() if cells.dtype == pl.String else cells
        values = stripped.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy() * column.factor
        good = np.isfinite(values)
        good[good] = rule.holds(values[good])
        if not np.all(good):
            self._refuse(field, column, cells, int(np.flatnonzero(~good)[0]), rule.needs)
        return np.asarray(values, dtype=np.float64)

    def classes(self) -> tuple[IntArray, tuple[str, ...]]:
        """Class index of each job, and the class names in order of appearance."""
        column = self.spec.columns.get("class")
        if column is None:
            return np.zeros(self.frame.height, dtype=np.int64), (_DEFAULT_CLASS,)
        cells = self.frame.get_column(column.name).cast(pl.String)
        if cells.null_count():
            self._refuse("class", column, cells, int(np.flatnonzero(cells.is_null().to_numpy())[0]), "a name")
        names = cells.unique(maintain_order=True)
        index = cells.replace_strict(names, pl.Series(np.arange(len(names))))
        return index.to_numpy().astype(np.int64), tuple(names)

    def _default(self, field: str, rule: _Rule) -> FloatArray:
        if field not in self.spec.defaults:
            raise JobTableError(f"{self.spec.path}: {field} has neither a column nor a default; give one of them")
        value = np.full(1, float(self.spec.defaults[field]))
        if not (np.isfinite(value[0]) and rule.holds(value)[0]):
            raise JobTableError(f"{self.spec.path}: default {field} is {value[0]:g}, it must be {rule.needs}")
        return np.repeat(value, self.frame.height)

    def _refuse(self, field: str, column: ColumnRef, cells: pl.Series, row: int, needs: str) -> None:
        value: Any = cells[row]
        shown = "missing" if value is None else f"{str(value)!r}"
        raise JobTableError(
            f"{self.place}{self.first_line + row}: {column.name}: {shown}, {field} must be {needs}; correct the table"
        )


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
