"""Reads sweeps of jobs over GPU power limits from CSV, in the format published by the Zeus project.

A row is a job under one limit: ``power_limit`` (W), ``time_per_epoch`` (s for any unit of work) and ``average_power``
(W) of a GPU. All other columns together name the job; the column ``network`` is its family.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.capping.measurements import Measurement, SweptJob

LIMIT, TIME, POWER = "power_limit", "time_per_epoch", "average_power"
FAMILY = "network"


class PowerSweepError(ValueError):
    """A file without valid sweeps; the message says where and why."""


@dataclass(frozen=True)
class PowerSweeps:
    """Jobs of a file.

    Attributes:
        jobs: jobs in the order of their first rows.
        problems: ignored rows, each as ``line N: reason``.
    """

    jobs: tuple[SweptJob, ...]
    problems: tuple[str, ...]


def read_power_sweeps(path: Path) -> PowerSweeps:
    """Read the jobs of a file.

    Raises:
        PowerSweepError: the file cannot be read or has no valid row.
    """
    try:
        # Spreadsheets write a byte order mark, which is not part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as lines:
            sweeps = parse_power_sweeps(lines)
    except OSError as error:
        raise PowerSweepError(f"{path}: {error.strerror}") from error
    except (PowerSweepError, UnicodeDecodeError, csv.Error) as error:
        raise PowerSweepError(f"{path}: {error}") from error
    return sweeps


def parse_power_sweeps(lines: Iterable[str]) -> PowerSweeps:
    """Parse the jobs from CSV lines; the first line is the header.

    Raises:
        PowerSweepError: a column is missing or duplicate, or there is no valid row.
    """
    table = csv.reader(lines)
    columns = next(table, [])
    missing = [column for column in (LIMIT, TIME, POWER) if column not in columns]
    if missing:
        raise PowerSweepError(f"no column {missing[0]!r}; the columns {LIMIT}, {TIME} and {POWER} are needed")
    twice = [column for place, column in enumerate(columns) if column in columns[:place]]
    if twice:
        raise PowerSweepError(f"column {twice[0]!r} twice")
    keys = [column for column in columns if column not in (LIMIT, TIME, POWER)]
    measured: dict[tuple[str, ...], list[Measurement]] = {}
    problems = []
    for fields in filter(None, table):
        row = dict(zip(columns, fields, strict=False))
        if len(fields) != len(columns):
            problems.append(f"line {table.line_num}: {len(fields)} fields, the header has {len(columns)}")
            continue
        try:
            measurement = _measurement(row)
        except ValueError as error:
            problems.append(f"line {table.line_num}: {error}")
            continue
        measured.setdefault(tuple(row[key] for key in keys), []).append(measurement)
    if not measured:
        raise PowerSweepError(f"no usable row; {'; '.join(problems[:3]) or 'it has none at all'}")
    jobs = tuple(_job(dict(zip(keys, values, strict=True)), found) for values, found in measured.items())
    return PowerSweeps(jobs, tuple(problems))


def _measurement(row: Mapping[str, str]) -> Measurement:
    values = []
    for column in (LIMIT, TIME, POWER):
        try:
            values.append(float(row[column]))
        except ValueError:
            raise ValueError(f"{column} is {row[column] or 'missing'}, not a number") from None
    measurement = Measurement(*values)
    if not measurement.usable:
        raise ValueError(f"{LIMIT}, {TIME} and {POWER} must be above zero and credible, got {values}")
    return measurement


def _job(key: Mapping[str, str], measurements: list[Measurement]) -> SweptJob:
    name = "/".join(key.values()) or "all"
    return SweptJob(name, key.get(FAMILY, name), tuple(measurements))
