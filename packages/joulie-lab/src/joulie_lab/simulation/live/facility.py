"""What is around the nodes: the weather of a run."""

from __future__ import annotations

import numpy as np

from joulie_lab.simulation.climate import Climate

WEATHER_STEP_S = 60.0
"""How often the outdoor temperature changes, s."""


class Weather:
    """Outdoor temperature over simulated time: a climate, the same for a seed; over and over after its length."""

    def __init__(self, climate: Climate, seed: int, length_s: float) -> None:
        """Draw it.

        Args:
            climate: what it is like.
            seed: of its noise.
            length_s: how long until it repeats, s.
        """
        self._length_s = length_s
        steps = int(length_s // WEATHER_STEP_S) + 1
        self._outdoor_k = climate.outdoor_k(steps, WEATHER_STEP_S, np.random.default_rng(seed))

    def outdoor_k(self, time_s: float) -> float:
        """Temperature at a time since the start, K."""
        # The end is still the weather of its own hour, not that of the start again.
        within_s = time_s if time_s <= self._length_s else time_s % self._length_s
        return float(self._outdoor_k[int(within_s // WEATHER_STEP_S)])
