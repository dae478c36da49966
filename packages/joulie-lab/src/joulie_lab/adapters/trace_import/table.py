"""Imports a user's own table, CSV or Parquet, with a mapping of columns and units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from joulie_lab.adapters.trace_import.rows import Row, parsed, read_rows
from joulie_lab.adapters.trace_import.source_jobs import Parsed, SourceJob, SourcePods, TraceSourceError, by_submission

_DATE = "iso"
_TIMES = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CORES = {"cores": 1.0, "milli": 1e-3, "percent": 1e-2}
_GPUS = {"gpus": 1.0, "milli": 1e-3, "percent": 1e-2}
_GIB = 1024.0**3
_MEMORY = {"GiB": 1.0, "MiB": 1.0 / 1024.0, "KiB": 1.0 / 1024.0**2, "GB": 1e9 / _GIB, "MB": 1e6 / _GIB, "B": 1.0 / _GIB}
_SHARES = {"fraction": 1.0, "percent": 1e-2}
_PLAIN: Mapping[str, float] = {}
_SHOWN_CLASSES = 10

FIELDS: Mapping[str, Mapping[str, float]] = {
    "id": _PLAIN,
    "arrival": _TIMES | {_DATE: 1.0},
    "duration": _TIMES,
    "start": _TIMES | {_DATE: 1.0},
    "end": _TIMES | {_DATE: 1.0},
    "cores": _CORES,
    "memory": _MEMORY,
    "gpus": _GPUS,
    "pods": _PLAIN,
    "cpu_util": _SHARES,
    "gpu_util": _SHARES,
    "type": _PLAIN,
    "class": _PLAIN,
    "gpu_model": _PLAIN,
}
"""Supported fields, with their units and factors; the first unit is the default."""


@dataclass(frozen=True)
class Column:
    """The column of a field.

    Attributes:
        name: name of the column.
        unit: unit of its numbers; empty for none.
        factor: conversion factor to the importer's units.
    """

    name: str
    unit: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class TableOptions:
    """Import options of a table.

    Attributes:
        columns: column by field, see `FIELDS`.
        performance_classes: values of ``class`` whose jobs are of class performance.
        from_first: whether times are made relative to the first arrival; dates always are.
    """

    columns: Mapping[str, Column]
    performance_classes: tuple[str, ...] = ("performance",)
    from_first: bool = False


def column_mapping(text: str) -> dict[str, Column]:
    """Parse a mapping like ``arrival=submit,duration=runtime:h,cores=cpus``.

    Raises:
        ValueError: the mapping is invalid, or a required field is missing.
    """
    columns: dict[str, Column] = {}
    for part in text.split(","):
        field, equals, place = (piece.strip() for piece in part.partition("="))
        if not equals or not place:
            raise ValueError(f"invalid mapping {part!r}: use FIELD=COLUMN or FIELD=COLUMN:UNIT")
        if field not in FIELDS:
            raise ValueError(f"unknown field {field!r}; use one of {', '.join(FIELDS)}")
        if field in columns:
            raise ValueError(f"duplicate field {field}")
        columns[field] = _column(field, place)
    if "arrival" not in columns:
        raise ValueError("needs arrival=COLUMN")
    if "duration" not in columns and not {"start", "end"} <= columns.keys():
        raise ValueError("needs duration=COLUMN, or start=COLUMN and end=COLUMN")
    if "cores" not in columns and "gpus" not in columns:
        raise ValueError("needs cores=COLUMN or gpus=COLUMN")
    return columns


def jobs(path: Path, options: TableOptions) -> Iterator[Parsed]:
    """Read the jobs of a table, one per row, in order of arrival.

    Raises:
        TraceSourceError: the file cannot be read, a column is missing, or no row has a performance class.
    """
    needed = [column.name for column in options.columns.values()]
    reader = _Reader(options)
    rows = parsed(read_rows(path, needed), reader.job)
    from_first = options.from_first or options.columns["arrival"].unit == _DATE
    yield from by_submission(rows, from_first=from_first)
    reader.check_classes(path)


def _column(field: str, place: str) -> Column:
    units = FIELDS[field]
    name, colon, unit = place.rpartition(":")
    if colon and unit in units:
        return Column(name, unit, units[unit])
    if colon and not name.count(":") and units:
        raise ValueError(f"unknown unit {unit!r} of {field}; use one of {', '.join(units)}")
    return Column(place, next(iter(units), ""))


class _Reader:
    def __init__(self, options: TableOptions) -> None:
        self._columns = options.columns
        self._performance = frozenset(options.performance_classes)
        self._classes: set[str] = set()

    def check_classes(self, path: Path) -> None:
        """Raise TraceSourceError if no row had one of the performance classes, though they have classes."""
        column = self._columns.get("class")
        if column and self._performance and self._classes and not self._performance & self._classes:
            seen = sorted(filter(None, self._classes)) or ["empty cells"]
            shown = ", ".join(seen[:_SHOWN_CLASSES]) + (", ..." if len(seen) > _SHOWN_CLASSES else "")
            named = " or ".join(sorted(self._performance))
            raise TraceSourceError(
                f"{path}: column {column.name}: no row has class {named},"
                f" only {shown}; nothing is written: name the performance classes, upper and lower case as they are"
            )

    def job(self, row: Row) -> SourceJob:
        pods = SourcePods(
            count=self._whole(row, "pods", 1),
            cores=self._known(row, "cores"),
            gpus=self._known(row, "gpus") or 0.0,
            memory_gib=self._known(row, "memory"),
            cpu_utilization=self._known(row, "cpu_util"),
            gpu_utilization=self._known(row, "gpu_util"),
        )
        model = self._text(row, "gpu_model")
        workload_class = self._text(row, "class")
        if workload_class in self._performance or len(self._classes) <= _SHOWN_CLASSES:
            self._classes.add(workload_class)
        return SourceJob(
            place=row.place,
            name=self._text(row, "id") or "job-" + row.place.rpartition(":")[2].removeprefix(" row "),
            submit_s=self._time_s(row, "arrival"),
            duration_s=self._duration_s(row),
            pods=(pods,),
            kind=self._text(row, "type"),
            performance=workload_class in self._performance,
            gpu_models=(model,) if model else (),
        )

    def _text(self, row: Row, field: str) -> str:
        column = self._columns.get(field)
        return "" if column is None else row.text(column.name)

    def _known(self, row: Row, field: str) -> float | None:
        column = self._columns.get(field)
        number = None if column is None else row.known_number(column.name)
        return None if column is None or number is None else number * column.factor

    def _whole(self, row: Row, field: str, default: int) -> int:
        number = self._known(row, field)
        if number is None:
            return default
        if number != int(number):
            raise ValueError(f"{self._columns[field].name} is {number:g}, it must be whole")
        return int(number)

    def _duration_s(self, row: Row) -> float:
        column = self._columns.get("duration")
        if column is not None:
            return row.number(column.name) * column.factor
        return self._time_s(row, "end") - self._time_s(row, "start")

    def _time_s(self, row: Row, field: str) -> float:
        column = self._columns[field]
        if column.unit != _DATE:
            return row.number(column.name) * column.factor
        text = row.text(column.name)
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{column.name} is {text!r}, which is not a date like 2024-05-01T12:00:00") from None
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
