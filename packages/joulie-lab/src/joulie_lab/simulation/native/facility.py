"""Facility of a native run: energy of the cooling plant, carbon emissions and cost."""

from __future__ import annotations

import math

from joulie.domain.grid.series import Series
from joulie.domain.quantities import JOULES_PER_KWH
from joulie_lab.simulation.cooling_plant import CoolingOutput, CoolingPlant


class Facility:
    """Accumulates cooling energy, emissions and cost of the nodes' energy.

    Attributes:
        cooling_j: energy of the cooling plant so far, J.
        carbon_g: emissions so far, gCO2eq.
        cost: cost so far, in the currency of the price.
        latest: latest output of the plant.
    """

    def __init__(self, plant: CoolingPlant | None, intensity_g_per_kwh: Series | None, price: Series | None) -> None:
        """Start with all totals at zero.

        Args:
            plant: a cooling plant that has been started; None without one.
            intensity_g_per_kwh: carbon intensity over the run, gCO2eq/kWh; None if unknown.
            price: price of a kWh over the run; None if unknown.
        """
        self._plant = plant
        self._intensity = intensity_g_per_kwh
        self._price = price
        self.cooling_j = 0.0
        self.carbon_g = 0.0
        self.cost = 0.0
        self.latest = CoolingOutput(0.0, 0.0, math.inf)

    @property
    def cooled(self) -> bool:
        """Whether there is a cooling plant."""
        return self._plant is not None

    @property
    def counts(self) -> bool:
        """Whether there is anything to count."""
        return self.cooled or self._intensity is not None or self._price is not None

    def advance(self, it_j: float, outdoor_k: float, from_s: float, until_s: float) -> None:
        """Account for `it_j` joules of the nodes over a step; power is assumed constant within it."""
        dt_s = until_s - from_s
        cooling_j = 0.0
        if self._plant is not None:
            self.latest = self._plant.step(it_j / dt_s, outdoor_k, dt_s)
            cooling_j = self.latest.cooling_w * dt_s
        self.cooling_j += cooling_j
        kwh_per_s = (it_j + cooling_j) / JOULES_PER_KWH / dt_s
        if self._intensity is not None:
            self.carbon_g += kwh_per_s * float(self._intensity.integral(from_s, until_s))
        if self._price is not None:
            self.cost += kwh_per_s * float(self._price.integral(from_s, until_s))
