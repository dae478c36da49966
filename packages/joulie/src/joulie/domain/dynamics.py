"""How power and temperature follow their targets over time: exact steps of first-order lags, any step length.

The same functions serve cap application, clock ramps, the averaging window of telemetry and temperature, which differ
in their time constants only. An exact step means that ten steps of a second and one of ten seconds agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joulie.domain.units import FloatArray, finite, non_negative, positive


def lagged(current: npt.ArrayLike, target: npt.ArrayLike, dt_s: npt.ArrayLike, tau_s: npt.ArrayLike) -> FloatArray:
    """Value after `dt_s` of a first-order lag towards a constant target.

    Args:
        current: value now, any unit.
        target: what it tends to, same unit.
        dt_s: time that passes, s.
        tau_s: time constant, s; 0 follows at once.

    Raises:
        InvalidQuantityError: an input is NaN, or a time negative.
    """
    start = finite("current", current)
    end = finite("target", target)
    return np.asarray(end + (start - end) * _remaining(dt_s, tau_s))


def lagged_mean(current: npt.ArrayLike, target: npt.ArrayLike, dt_s: npt.ArrayLike, tau_s: npt.ArrayLike) -> FloatArray:
    """Mean over the step of what `lagged` gives at its end: times `dt_s` it is the exact integral (energy of a power).

    Args:
        current: value now, any unit.
        target: what it tends to, same unit.
        dt_s: length of the step, s, above 0.
        tau_s: time constant, s; 0 follows at once.

    Raises:
        InvalidQuantityError: an input is NaN, `dt_s` not above 0, `tau_s` negative.
    """
    start = finite("current", current)
    end = finite("target", target)
    step_s = positive("dt_s", dt_s)
    lag_s = non_negative("tau_s", tau_s)
    return np.asarray(end + (start - end) * lag_s / step_s * (1.0 - _remaining(step_s, lag_s)))


def _remaining(dt_s: npt.ArrayLike, tau_s: npt.ArrayLike) -> FloatArray:
    """Share of the distance to the target that is left after a step."""
    step_s = non_negative("dt_s", dt_s)
    lag_s = non_negative("tau_s", tau_s)
    # Beyond 700 time constants exp() underflows to the zero that a lag of 0 means; the quotient must not overflow.
    quotient = step_s / np.maximum(lag_s, np.maximum(step_s / 700.0, np.finfo(np.float64).tiny))
    return np.where(lag_s > 0.0, np.exp(-quotient), 0.0)
