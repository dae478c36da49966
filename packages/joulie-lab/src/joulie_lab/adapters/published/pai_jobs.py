"""Reads the year-long PAI job trace of Alibaba, as published by github.com/umassos/GAIA."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters.published.errors import PublishedDataError

HOME = "github.com/umassos/GAIA, the jobs of Alibaba's PAI trace (MIT)"
TRACE_COLUMNS = ("arrival_time", "length", "cpus")


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in order of arrival; arrays of shape ``(n_jobs,)``.

    Attributes:
        arrival_h: arrival, whole hours.
        length_h: runtime, whole hours, at least 1.
        cpus: number of CPUs, at least 1.
    """

    arrival_h: IntArray
    length_h: IntArray
    cpus: IntArray

    def __len__(self) -> int:
        return len(self.cpus)

    def between(self, from_h: int, until_h: int) -> Jobs:
        """Jobs that arrive in an interval, with arrivals relative to its start."""
        chosen = (self.arrival_h >= from_h) & (self.arrival_h < until_h)
        return Jobs(self.arrival_h[chosen] - from_h, self.length_h[chosen], self.cpus[chosen])


def read_jobs(lines: Iterable[str]) -> Jobs:
    """Read the jobs of a trace in whole hours; see `read_rows`."""
    return whole_hours(read_rows(lines))


def read_rows(lines: Iterable[str]) -> FloatArray:
    """Read the jobs of a trace, (n_jobs, 3): arrival and length in h, CPUs; in order of arrival.

    Args:
        lines: lines of a CSV file with the columns `TRACE_COLUMNS`, times in hours.

    Raises:
        PublishedDataError: a column is missing, or a row is not a valid job.
    """
    table = csv.DictReader(lines)
    missing = [column for column in TRACE_COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        raise PublishedDataError(f"no column {missing[0]!r}: not a copy of {HOME}")
    rows = []
    for row in table:
        try:
            arrival_h, length_h, cpus = (float(row[column]) for column in TRACE_COLUMNS)
        except (TypeError, ValueError):
            raise PublishedDataError(f"line {table.line_num}: invalid job: {row}") from None
        if not (0.0 <= arrival_h < np.inf and 0.0 < length_h < np.inf and 1.0 <= cpus < np.inf):
            raise PublishedDataError(f"line {table.line_num}: invalid job: {row}")
        rows.append((arrival_h, length_h, cpus))
    return np.array(sorted(rows), dtype=np.float64).reshape(-1, 3)


def whole_hours(table: FloatArray) -> Jobs:
    """Jobs from rows (arrival in h, length in h, CPUs), rounded up to whole hours."""
    rounded = np.ceil(table).astype(np.int64)
    return Jobs(rounded[:, 0], np.maximum(rounded[:, 1], 1), rounded[:, 2])
