"""Savings of a pod by waiting: the emissions of running when it was first held, minus those of running when it did.

The computation is the same, so the power profile is, only earlier. Negative where the grid got worse meanwhile.
Source: spec, grid; documentation of the Compute Gardener Scheduler, carbon and cost calculations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain.accounting.records import Method, Saving
from joulie.domain.grid.series import Series
from joulie.domain.units import JOULES_PER_KWH, FloatArray


@dataclass(frozen=True, eq=False)
class Profile:
    """The power of a pod over its life, PUE included; a straight line between its points.

    Attributes:
        times_s: (n,), s since the epoch, increasing, n >= 2.
        power_w: (n,), W.
    """

    times_s: FloatArray
    power_w: FloatArray

    def energy_j(self) -> float:
        """Its energy, J."""
        return float(np.trapezoid(self.power_w, self.times_s))

    def earlier(self, shift_s: float) -> Profile:
        """The same, begun `shift_s` seconds before."""
        return Profile(self.times_s - shift_s, self.power_w)

    def weighted(self, series: Series) -> float:
        """The integral of power times a series that covers it, W s times the unit of the series, exactly."""
        inside = series.starts_s[(series.starts_s > self.times_s[0]) & (series.starts_s < self.times_s[-1])]
        times_s = np.union1d(self.times_s, inside)
        power_w = np.interp(times_s, self.times_s, self.power_w)
        energy_j = np.diff(times_s) * (power_w[1:] + power_w[:-1]) / 2.0
        values = series.values[np.searchsorted(series.starts_s, times_s[:-1], side="right") - 1]
        return float(energy_j @ values)


def saving(
    profile: Profile | None,
    held_since_s: float | None,
    history: Series | None,
    energy_j: float,
    actual: float | None,
    moments: tuple[float | None, float | None],
) -> Saving | None:
    """What waiting has saved of one measure.

    Args:
        profile: of the pod's power; it may be thinned, for only its shape counts. None: not known.
        held_since_s: when the pod was first held for this measure, s since the epoch; None: never.
        history: intensity, gCO2eq/kWh, or price, currency/kWh, since then; None: not known.
        energy_j: of the pod, PUE included, J.
        actual: emissions, gCO2eq, or cost that came of it; None where those of a part of it are not known.
        moments: intensity or price when it was first held, and when it was let go.

    Returns:
        The saving; None for a pod that was not held, or where nothing can be said.
    """
    if held_since_s is None:
        return None
    if profile is not None and history is not None and actual is not None:
        earlier = profile.earlier(profile.times_s[0] - held_since_s)
        shape_j = profile.energy_j()
        if shape_j > 0.0 and history.covers(float(earlier.times_s[0]), float(earlier.times_s[-1])):
            then = earlier.weighted(history) / shape_j * energy_j / JOULES_PER_KWH
            return Saving(then - actual, Method.TIMESERIES)
    initial, bind = moments
    if initial is None or bind is None:
        return None
    return Saving((initial - bind) * energy_j / JOULES_PER_KWH, Method.SIMPLE)
