"""Weather of a run: the outdoor temperature over simulated time."""

from __future__ import annotations

import numpy as np

from joulie_lab.simulation.climate import Climate

WEATHER_STEP_S = 60.0
"""Interval at which the outdoor temperature changes, s."""


class Weather:
    """Outdoor temperature over simulated time, drawn from a climate by a seed; repeated after its length."""

    def __init__(self, climate: Climate, seed: int, length_s: float) -> None:
        """Draw the temperatures.

        Args:
            climate: the climate.
            seed: seed of the climate's noise.
            length_s: length after which the temperatures repeat, s.
        """
        self._length_s = length_s
        steps = int(length_s // WEATHER_STEP_S) + 1
        self._outdoor_k = climate.outdoor_k(steps, WEATHER_STEP_S, np.random.default_rng(seed))

    def outdoor_k(self, time_s: float) -> float:
        """Outdoor temperature at a time since the start, K."""
        # The end itself keeps its own temperature; only later times wrap around to the start.
        within_s = time_s if time_s <= self._length_s else time_s % self._length_s
        return float(self._outdoor_k[int(within_s // WEATHER_STEP_S)])
