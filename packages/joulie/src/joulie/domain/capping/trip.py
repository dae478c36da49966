"""When a circuit breaker trips: a thermal element that heats with the square of the current, and a magnetic one.

The thermal element is a first-order lag towards the square of the load (a share of the rating), so it forgets: a short
overload passes, a long one does not, and one that follows on a high load trips sooner. IEC 60947-2 has a breaker hold
1.05 of its rating for the conventional time (one or two hours) and trip within that time at 1.30; IEC 60898-1 says 1.13
and 1.45, and 1 to 60 or 120 s at 2.55; UL 489 has 1.00, 1.35. Where in that band a breaker lies, its maker's
time-current curve says. `EARLIEST` holds no more than the IEC's breakers must; one by UL 489 may hold less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.dynamics import lagged
from joulie.domain.units import BoolArray, FloatArray, finite, non_negative, positive


@dataclass(frozen=True)
class TripCurve:
    """A breaker's time-current curve, in loads as shares of its rating.

    Attributes:
        hold: largest load that is carried for ever.
        time_constant_s: of the thermal element, s.
        instantaneous: load from which the magnetic element trips at once.
    """

    hold: float
    time_constant_s: float
    instantaneous: float

    def __post_init__(self) -> None:
        finite("hold", self.hold, minimum=1.0)
        positive("time_constant_s", self.time_constant_s)
        finite("instantaneous", self.instantaneous, minimum=self.hold)

    @property
    def trip_heat(self) -> float:
        """Heat at which the thermal element trips: the square of the largest load that it carries."""
        return self.hold**2

    def heated(self, heat: npt.ArrayLike, load: npt.ArrayLike, dt_s: npt.ArrayLike) -> FloatArray:
        """Heat after `dt_s` of a constant load.

        Args:
            heat: now; a load that was carried for ever leaves its square.
            load: share of the rating.
            dt_s: s.

        Raises:
            InvalidQuantityError: an input is NaN or negative.
        """
        return lagged(non_negative("heat", heat), non_negative("load", load) ** 2, dt_s, self.time_constant_s)

    def trips(self, heat: npt.ArrayLike, load: npt.ArrayLike) -> BoolArray:
        """Whether the breaker opens at this heat and load."""
        return np.asarray((np.asarray(heat) >= self.trip_heat) | (np.asarray(load) >= self.instantaneous))

    def time_to_trip_s(self, heat: npt.ArrayLike, load: npt.ArrayLike) -> FloatArray:
        """How long a constant load is carried, s; infinite where it is carried for ever, 0 where the breaker opens.

        Raises:
            InvalidQuantityError: an input is NaN or negative.
        """
        warm = non_negative("heat", heat)
        target = non_negative("load", load) ** 2
        above = np.maximum(target - self.trip_heat, 0.0)
        rest = np.maximum(target - warm, above)
        with np.errstate(divide="ignore", invalid="ignore"):
            time_s = self.time_constant_s * np.log(rest / above)
        carried = np.where(above > 0.0, time_s, np.inf)
        return np.asarray(np.where(self.trips(warm, load), 0.0, carried))

    def largest_load(self, heat: float, time_s: float) -> float:
        """The largest load that is carried for a time from now on.

        Args:
            heat: now.
            time_s: s, above 0.

        Raises:
            InvalidQuantityError: an input is out of range.
        """
        left = float(np.exp(-positive("time_s", time_s) / self.time_constant_s))
        warm = min(float(non_negative("heat", heat)), self.trip_heat)
        most = math.nextafter(self.instantaneous, 0.0)
        return min(float(np.sqrt((self.trip_heat - warm * left) / (1.0 - left))), most)


EARLIEST = TripCurve(hold=1.05, time_constant_s=60.0, instantaneous=5.0)
"""Holds what IEC 60947-2 asks and no more. Trips 24 s after 0.9 has become 1.3, by a time constant that is assumed."""
