"""Estimates the remaining runtime of jobs from the jobs that ended: a life table per job class.

Age is divided into bins, each with a constant hazard (ends per minute at risk), the piecewise-exponential model of
survival analysis (Friedman 1982). A prior regularises classes with few ended jobs. The estimate is the mean residual
life: unlike "class mean minus age", it is never negative for old jobs.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.units import FloatArray, FloatLike

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
