"""Jobs of Alibaba's PAI trace over a year, as github.com/umassos/GAIA publishes them, in whole hours."""

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
    """Jobs by arrival; arrays of shape ``(n_jobs,)``.

    Attributes:
        arrival_h: whole hours.
        length_h: whole hours, 1 at least.
        cpus: 1 at least.
    """

    arrival_h: IntArray
    length_h: IntArray
    cpus: IntArray

    def __len__(self) -> int:
        return len(self.cpus)

    def between(self, from_h: int, until_h: int) -> Jobs:
        """Those that arrive in an interval, counted from its beginning."""
        chosen = (self.arrival_h >= from_h) & (self.arrival_h < until_h)
        return Jobs(self.arrival_h[chosen] - from_h, self.length_h[chosen], self.cpus[chosen])


def read_jobs(lines: Iterable[str]) -> Jobs:
    """The jobs of a trace.

    Args:
        lines: of a CSV file with the columns `TRACE_COLUMNS`, times in hours.

    Raises:
        PublishedDataError: it lacks a column, or a row is no job.
    """
    table = csv.DictReader(lines)
    missing = [column for column in TRACE_COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        raise PublishedDataError(f"no column {missing[0]!r}: this is no copy of {HOME}")
    rows = []
    for row in table:
        try:
            arrival_h, length_h, cpus = (float(row[column]) for column in TRACE_COLUMNS)
        except (TypeError, ValueError):
            raise PublishedDataError(f"line {table.line_num}: no job: {row}") from None
        if not (0.0 <= arrival_h < np.inf and 0.0 < length_h < np.inf and 1.0 <= cpus < np.inf):
            raise PublishedDataError(f"line {table.line_num}: no job: {row}")
        rows.append((arrival_h, length_h, cpus))
    return whole_hours(np.array(sorted(rows)).reshape(-1, 3))


def whole_hours(table: FloatArray) -> Jobs:
    """Jobs of rows (arrival in h, length in h, CPUs), rounded up."""
    rounded = np.ceil(table).astype(np.int64)
    return Jobs(rounded[:, 0], np.maximum(rounded[:, 1], 1), rounded[:, 2])
