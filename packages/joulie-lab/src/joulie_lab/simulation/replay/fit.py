"""Fits the model's power to the measured power, and says how far it is off where it was not fitted.

For each family of nodes the measured power is a base plus a factor times the predicted power: two parameters, fitted by
least squares on the first part of the hours and judged on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray

MIN_NODE_HOURS = 24
"""Number of measured node-hours below which a family is not fitted: the factor would be chance."""
_HOURS_PER_DAY = 24
_MIN_SPREAD = 0.01
"""Relative spread of predicted power below which base and factor cannot be told apart: then the base is zero."""


class Line(NamedTuple):
    """Measured power of a node as ``base_w + factor * predicted power``."""

    base_w: float
    factor: float


@dataclass(frozen=True, eq=False)
class Hourly:
    """Mean power by node and hour, shape ``(n_nodes, n_hours)``; both NaN where nothing was measured.

    Attributes:
        measured_w: measured power, W.
        predicted_w: predicted power over the measured steps, W.
    """

    measured_w: FloatArray
    predicted_w: FloatArray

    @classmethod
    def of(cls, measured_w: FloatArray, predicted_w: FloatArray, steps_per_hour: int) -> Hourly:
        """Means of the steps of each hour in which power was measured; an hour with less than half of them is a gap.

        Args:
            measured_w: measured power by step, NaN where it was not, W, shape ``(n_nodes, n_steps)``.
            predicted_w: predicted power, W, of the same shape.
            steps_per_hour: number of steps in an hour.
        """
        known = ~np.isnan(measured_w).reshape(len(measured_w), -1, steps_per_hour)
        count = known.sum(axis=2)
        enough = np.where(2 * count >= steps_per_hour, count, np.nan)

        def mean(power_w: FloatArray) -> FloatArray:
            steps = np.where(known, power_w.reshape(known.shape), 0.0)
            return np.asarray(steps.sum(axis=2) / enough)

        return cls(mean(measured_w), mean(predicted_w))

    def of_hours(self, first: int, end: int) -> Hourly:
        """A part of the hours."""
        return Hourly(self.measured_w[:, first:end], self.predicted_w[:, first:end])

    @property
    def known(self) -> BoolArray:
        """Where power was measured."""
        return ~np.isnan(self.measured_w)


def fit(hourly: Hourly, family: IntArray, n_families: int, weights: FloatArray | None = None) -> list[Line | None]:
    """Fit each family; None for a family with too few measured hours.

    Args:
        hourly: power by node and hour.
        family: family of each node, shape ``(n_nodes,)``.
        n_families: number of families.
        weights: weight of each node and hour, for a bootstrap; None for equal ones.
    """
    found: list[Line | None] = []
    for number in range(n_families):
        mask = hourly.known & (family == number)[:, np.newaxis]
        if np.count_nonzero(mask) < MIN_NODE_HOURS:
            found.append(None)
            continue
        weight = np.ones(np.count_nonzero(mask)) if weights is None else weights[mask]
        found.append(_line(hourly.predicted_w[mask], hourly.measured_w[mask], weight))
    return found


def _line(predicted_w: FloatArray, measured_w: FloatArray, weight: FloatArray) -> Line:
    total = weight.sum()
    if total <= 0.0:
        return Line(0.0, 1.0)
    mean_w, mean_measured_w = (weight * predicted_w).sum() / total, (weight * measured_w).sum() / total
    spread = (weight * (predicted_w - mean_w) ** 2).sum()
    ratio = Line(0.0, float(mean_measured_w / mean_w))
    if spread <= total * (_MIN_SPREAD * mean_w) ** 2:
        return ratio
    factor = float((weight * (predicted_w - mean_w) * (measured_w - mean_measured_w)).sum() / spread)
    # More work never takes less power: where chance says so, the factor cannot be told from the base.
    return Line(float(mean_measured_w - factor * mean_w), factor) if factor > 0.0 else ratio


def fitted(hourly: Hourly, family: IntArray, lines: Sequence[Line | None]) -> Hourly:
    """Predictions by the fitted model; nodes of families that were not fitted become gaps."""
    base_w = np.array([np.nan if line is None else line.base_w for line in lines])[family]
    factor = np.array([np.nan if line is None else line.factor for line in lines])[family]
    predicted_w = base_w[:, np.newaxis] + factor[:, np.newaxis] * hourly.predicted_w
    return Hourly(np.where(np.isnan(predicted_w), np.nan, hourly.measured_w), predicted_w)


class Errors(NamedTuple):
    """Error of predictions, relative to the mean measured power.

    Attributes:
        bias: mean of predicted minus measured power; positive: predicted too much.
        cluster_error: mean absolute error of the hourly power of all measured nodes together.
        node_error: mean absolute error of the hourly power of single nodes.
        node_bias_p95: 95th percentile of the absolute bias of single nodes.
        by_hour: bias by hour of the day, UTC; None for hours without measurement.
        coverage: share of node-hours that were measured.
        node_hours: number of measured node-hours.
    """

    bias: float
    cluster_error: float
    node_error: float
    node_bias_p95: float
    by_hour: tuple[float | None, ...]
    coverage: float
    node_hours: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self._asdict()


def errors(hourly: Hourly, first_hour: int) -> Errors:
    """Error of predictions.

    Args:
        hourly: power by node and hour.
        first_hour: hour of the day of the first column, UTC.

    Raises:
        ValueError: nothing was measured.
    """
    known = hourly.known
    if not known.any():
        raise ValueError("no power was measured in these hours: there is nothing to judge the model by")
    gap_w = np.where(known, hourly.predicted_w - hourly.measured_w, 0.0)
    measured_w = np.where(known, hourly.measured_w, 0.0)
    total_w = measured_w.sum()
    hours = np.flatnonzero(known.any(axis=0))
    per_hour = np.abs(gap_w.sum(axis=0))[hours]
    own = np.flatnonzero(known.any(axis=1))
    node_bias = np.abs(gap_w.sum(axis=1))[own] / measured_w.sum(axis=1)[own]
    of_day = (first_hour + np.arange(known.shape[1])) % _HOURS_PER_DAY
    day_gap_w, day_w = (np.bincount(of_day, one.sum(axis=0), _HOURS_PER_DAY) for one in (gap_w, measured_w))
    return Errors(
        bias=float(gap_w.sum() / total_w),
        cluster_error=float(per_hour.sum() / total_w),
        node_error=float(np.abs(gap_w).sum() / total_w),
        node_bias_p95=float(np.percentile(node_bias, 95)),
        by_hour=tuple(float(gap / w) if w > 0.0 else None for gap, w in zip(day_gap_w, day_w, strict=True)),
        coverage=float(np.count_nonzero(known) / known.size),
        node_hours=int(np.count_nonzero(known)),
    )


def resampled(
    hourly: Hourly, family: IntArray, n_families: int, rng: np.random.Generator, draws: int
) -> list[list[Line | None]]:
    """Fits of resampled hours: days are drawn with replacement, and so are nodes, since their errors persist."""
    n_nodes, n_hours = hourly.measured_w.shape
    day = np.arange(n_hours) // _HOURS_PER_DAY
    n_days = int(day[-1]) + 1
    found = []
    for _ in range(draws):
        days = np.bincount(rng.integers(n_days, size=n_days), minlength=n_days)
        nodes = np.bincount(rng.integers(n_nodes, size=n_nodes), minlength=n_nodes)
        weights = nodes[:, np.newaxis] * days[day][np.newaxis, :]
        found.append(fit(hourly, family, n_families, np.asarray(weights, dtype=np.float64)))
    return found


def misfit(hourly: Hourly, family: IntArray, n_families: int) -> float:
    """How much the error depends on the load, as a share of the mean measured power.

    Policies move work between nodes, and so load between low and high: the error of a saving is at most about the
    difference of the error between them. Half of it, over the thirds of the load of each family's nodes and hours.
    """
    total = spread = 0.0
    for number in range(n_families):
        mask = hourly.known & (family == number)[:, np.newaxis]
        if np.count_nonzero(mask) < MIN_NODE_HOURS:
            continue
        predicted_w, gap_w = hourly.predicted_w[mask], (hourly.predicted_w - hourly.measured_w)[mask]
        thirds = np.array_split(np.argsort(predicted_w, kind="stable"), 3)
        bias_w = [float(gap_w[third].mean()) for third in thirds]
        measured_w = float(hourly.measured_w[mask].sum())
        total += measured_w
        spread += (max(bias_w) - min(bias_w)) / 2.0 * np.count_nonzero(mask)
    return spread / total if total else 0.0


def families(names: Sequence[str]) -> tuple[list[str], IntArray]:
    """Distinct families, and the family of each node as an index."""
    distinct = sorted(set(names))
    place: Mapping[str, int] = {name: number for number, name in enumerate(distinct)}
    return distinct, np.array([place[name] for name in names], dtype=np.int64)
