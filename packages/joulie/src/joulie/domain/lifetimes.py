"""Estimates the remaining runtime of jobs from the jobs that ended: a life table per job class.

Age is divided into bins, each with a constant hazard (ends per minute at risk), the piecewise-exponential model of
survival analysis (Friedman 1982). A prior regularises classes with few ended jobs. The estimate is the mean residual
life: unlike "class mean minus age", it is never negative for old jobs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from joulie.domain.quantities import finite_number, positive_number
from joulie.domain.units import FloatArray, FloatLike, IntArray

BIN_GROWTH = 1.15
MAX_AGE_MIN = 43_200.0
"""Thirty days; older jobs are in the last, open-ended bin."""


def bin_edges_min() -> FloatArray:
    """Whole-minute edges of the age bins, growing by 15 %, from 0 to just above `MAX_AGE_MIN`."""
    edges = [0.0]
    while edges[-1] < MAX_AGE_MIN:
        edges.append(max(edges[-1] + 1.0, float(np.floor(edges[-1] * BIN_GROWTH))))
    return np.array(edges)


def hazard_per_min(
    ends: FloatLike, at_risk_min: FloatLike, prior_mean_min: float, prior_weight_min: float
) -> FloatLike:
    """Ends per minute at risk, with a prior of `prior_weight_min` minutes at risk in every bin."""
    return (ends + prior_weight_min / prior_mean_min) / (at_risk_min + prior_weight_min)


def survival(hazard: FloatLike, minutes: FloatLike) -> FloatLike:
    """Probability to be still running after the given minutes at a constant hazard."""
    return np.exp(-hazard * minutes)


def mean_remaining_min(to_edge_min: FloatLike, hazard: FloatLike, mean_after_edge_min: FloatLike) -> FloatLike:
    """Expected remaining minutes of a job whose bin ends in `to_edge_min`.

    Args:
        to_edge_min: minutes to the end of the bin.
        hazard: hazard of the bin, 1/min.
        mean_after_edge_min: expected remaining minutes of a job that has reached the end of the bin.
    """
    reaches_edge = survival(hazard, to_edge_min)
    return (1.0 - reaches_edge) / hazard + reaches_edge * mean_after_edge_min


class LifeTables:
    """Life tables of many job classes, learned while jobs run and end.

    A class belongs to a group of classes, and the hazard of its group is its prior: a workload of which no run has
    ended is expected to take as long as others of its kind. Of more than `max_classes` the one that was used longest
    ago and of which nothing runs is forgotten, but what it taught its group stays.

    Args:
        prior_mean_min: expected duration in a group of which no job has ended.
        prior_weight_min: job minutes that a prior is worth.
        groups: number of groups.
        max_classes: maximum number of classes.
    """

    def __init__(
        self, prior_mean_min: float, prior_weight_min: float, *, groups: int = 1, max_classes: int = 4096
    ) -> None:
        self._prior_mean_min = positive_number("prior_mean_min", prior_mean_min)
        self._prior_weight_min = positive_number("prior_weight_min", prior_weight_min)
        self._edges_min = bin_edges_min()
        # The last bin is open-ended: its hazard is constant.
        self._widths_min = np.append(np.diff(self._edges_min)[:-1], np.inf)
        shape = (groups + max_classes, len(self._widths_min))
        self._n_groups, self._n_rows = groups, groups
        self._rows: dict[Hashable, int] = {}
        # The first rows are those of the groups.
        self._group = np.arange(shape[0])
        self._users = np.zeros(shape[0], np.int64)
        self._ends, self._at_risk_min = np.zeros(shape), np.zeros(shape)
        self._hazard_per_min = np.full(shape, 1.0 / prior_mean_min)
        self._at_edge_min = np.full(shape, prior_mean_min)

    def started(self, job_class: Hashable, group: int) -> int:
        """The row of a class of which a job runs from now on; that of its group where there is no room for it."""
        row = self._rows.pop(job_class, None)
        if row is None:
            row = self._new_row()
            if row is None:
                return group
            self._group[row] = group
            self._ends[row] = self._at_risk_min[row] = 0.0
            self._hazard_per_min[row], self._at_edge_min[row] = self._hazard_per_min[group], self._at_edge_min[group]
        self._rows[job_class] = row
        self._users[row] += 1
        return row

    def ended(self, row: int, lifetime_min: float | None) -> None:
        """A job runs no longer, and counts if it ended at a known age."""
        self._users[row] -= 1
        if lifetime_min is None:
            return
        age_min = finite_number("lifetime_min", lifetime_min, minimum=0.0)
        at_risk_min = np.clip(age_min - self._edges_min[:-1], 0.0, self._widths_min)
        ended_in = int(self._bin(np.array(age_min)))
        for table in {row, int(self._group[row])}:
            self._at_risk_min[table] += at_risk_min
            self._ends[table, ended_in] += 1.0

    def update(self, rows: IntArray, ages_min: FloatArray) -> None:
        """Compute the hazards anew, with the jobs that run at present.

        Args:
            rows: row of each running job, shape ``(n_jobs,)``.
            ages_min: for how long it has run.
        """
        used, n_groups, weight_min = slice(self._n_rows), self._n_groups, self._prior_weight_min
        at_risk_min = self._at_risk_min[used] + self._running_min(rows, ages_min)
        hazard = np.empty_like(at_risk_min)
        prior = np.full_like(hazard, 1.0 / self._prior_mean_min)
        for part in (slice(n_groups), slice(n_groups, None)):
            ends, at_risk = self._ends[used][part], at_risk_min[part]
            hazard[part] = (ends + weight_min * prior[part]) / (at_risk + weight_min)
            prior[n_groups:] = hazard[self._group[used][n_groups:]]
        at_edge_min = np.empty_like(hazard)
        at_edge_min[:, -1] = 1.0 / hazard[:, -1]
        for which in range(hazard.shape[1] - 2, -1, -1):
            at_edge_min[:, which] = mean_remaining_min(
                float(self._widths_min[which]), hazard[:, which], at_edge_min[:, which + 1]
            )
        self._hazard_per_min[used], self._at_edge_min[used] = hazard, at_edge_min

    def expected_min(self, job_class: Hashable, group: int) -> float:
        """Expected duration of a job of the class that starts now."""
        return float(self._at_edge_min[self._rows.get(job_class, group), 0])

    def remaining_min(self, rows: IntArray, ages_min: FloatArray) -> FloatArray:
        """Expected remaining minutes of jobs of these ages, shape ``(n_jobs,)``."""
        which = self._bin(ages_min)
        last = len(self._widths_min) - 1
        to_edge_min = np.where(which == last, np.inf, self._edges_min[which + 1] - ages_min)
        after_edge_min = self._at_edge_min[rows, np.minimum(which + 1, last)]
        return np.asarray(mean_remaining_min(to_edge_min, self._hazard_per_min[rows, which], after_edge_min))

    def _new_row(self) -> int | None:
        if self._n_rows < len(self._users):
            self._n_rows += 1
            return self._n_rows - 1
        oldest = next((name for name, row in self._rows.items() if self._users[row] == 0), None)
        return None if oldest is None else self._rows.pop(oldest)

    def _bin(self, ages_min: FloatArray) -> IntArray:
        found = np.searchsorted(self._edges_min, ages_min, side="right") - 1
        return np.asarray(np.clip(found, 0, len(self._widths_min) - 1))

    def _running_min(self, rows: IntArray, ages_min: FloatArray) -> FloatArray:
        """Minutes that running jobs have spent in each bin so far, by row; groups have those of all their classes."""
        which = self._bin(ages_min)
        found, reached = np.zeros((2, self._n_rows, len(self._widths_min)))
        np.add.at(found, (rows, which), ages_min - self._edges_min[which])
        np.add.at(reached, (rows, which), 1.0)
        # A job has spent the whole width of every bin below its own.
        beyond = np.cumsum(reached[:, ::-1], axis=1)[:, ::-1] - reached
        found[:, :-1] += beyond[:, :-1] * self._widths_min[:-1]
        mine = slice(self._n_groups, self._n_rows)
        np.add.at(found, self._group[mine], found[mine])
        return found
