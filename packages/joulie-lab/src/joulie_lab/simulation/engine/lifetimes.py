"""How much longer a job will run, learned from the jobs that ended: a life table by class.

Age is cut into bins, each with a constant hazard (ends per minute at risk), the piecewise-exponential model of survival
analysis (Friedman 1982). A prior keeps a class sane before its first jobs end. What comes out is the mean residual
life: unlike "class mean minus age" it never says that an old job is already gone.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.units import FloatArray, FloatLike

BIN_GROWTH = 1.15
LONGEST_MIN = 43_200.0
"""Thirty days; older jobs are in the last, open bin."""


def bin_edges_min() -> FloatArray:
    """Whole-minute edges of the age bins, growing by 15 %, from 0 to `LONGEST_MIN` and a little over."""
    edges = [0.0]
    while edges[-1] < LONGEST_MIN:
        edges.append(max(edges[-1] + 1.0, float(np.floor(edges[-1] * BIN_GROWTH))))
    return np.array(edges)


def hazard_per_min(
    ends: FloatLike, at_risk_min: FloatLike, prior_mean_min: float, prior_weight_min: float
) -> FloatLike:
    """Ends per minute at risk, as if the prior's `prior_weight_min` minutes had been seen in every bin too."""
    return (ends + prior_weight_min / prior_mean_min) / (at_risk_min + prior_weight_min)


def survival(hazard: FloatLike, minutes: FloatLike) -> FloatLike:
    """Probability to be still running after so many minutes of a constant hazard."""
    return np.exp(-hazard * minutes)


def mean_remaining_min(to_edge_min: FloatLike, hazard: FloatLike, mean_after_edge_min: FloatLike) -> FloatLike:
    """Expected minutes left of a job whose bin ends in `to_edge_min`.

    Args:
        to_edge_min: minutes to the end of the bin.
        hazard: of the bin, 1/min.
        mean_after_edge_min: expected minutes left of a job that has reached the end of the bin.
    """
    reaches_edge = survival(hazard, to_edge_min)
    return (1.0 - reaches_edge) / hazard + reaches_edge * mean_after_edge_min
