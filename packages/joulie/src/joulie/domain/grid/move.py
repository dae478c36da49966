"""The cost of running a workload in another zone than the one where its data is."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.quantities import finite_number, positive_number

WH_PER_KWH = 1000.0


@dataclass(frozen=True, slots=True)
class Move:
    """What moving a workload costs.

    Attributes:
        data_gb: data that it needs where it runs, GB.
        wh_per_gb: energy of the network for its transfer, Wh/GB.
        run_kwh: energy of the run, kWh; None if unknown. What has data is not moved then.

    Raises:
        InvalidQuantityError: a value is NaN or negative, or `run_kwh` is 0.
    """

    data_gb: float = 0.0
    wh_per_gb: float = 0.0
    run_kwh: float | None = None

    def __post_init__(self) -> None:
        finite_number("data_gb", self.data_gb, minimum=0.0)
        finite_number("wh_per_gb", self.wh_per_gb, minimum=0.0)
        if self.run_kwh is not None:
            positive_number("run_kwh", self.run_kwh)

    def g_per_kwh(self, from_g_per_kwh: float, to_g_per_kwh: float) -> float | None:
        """Emissions of the transfer for each kWh of the run, gCO2eq/kWh; None if unknown.

        The network's energy is taken from both grids in equal parts.
        """
        if self.data_gb * self.wh_per_gb == 0.0:
            return 0.0
        if self.run_kwh is None:
            return None
        return self.data_gb * self.wh_per_gb / WH_PER_KWH * (from_g_per_kwh + to_g_per_kwh) / 2.0 / self.run_kwh


NO_MOVE = Move()
"""Costs nothing: there is no data."""
