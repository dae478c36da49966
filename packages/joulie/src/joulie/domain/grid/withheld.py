"""What ceilings on replicas withhold, and what it would change if all of it ran once they are lifted.

What is withheld is no saving: most of it runs later. What runs later differs by the carbon intensity and price of the
two times, so that difference is estimated, for all of it running at the values in force when the ceiling is lifted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from joulie.domain.quantities import JOULES_PER_KWH


@dataclass(frozen=True, slots=True)
class Amount:
    """Energy that was withheld while a signal was known, and what it would have emitted or cost then.

    Attributes:
        energy_kwh: kWh.
        value: gCO2eq or currency.
    """

    energy_kwh: float = 0.0
    value: float = 0.0

    def plus(self, energy_kwh: float, signal_per_kwh: float | None) -> Amount:
        """With more energy, at a value of the signal; without one it is left out."""
        if signal_per_kwh is None:
            return self
        return Amount(self.energy_kwh + energy_kwh, self.value + energy_kwh * signal_per_kwh)

    def saved(self, signal_per_kwh: float | None) -> float | None:
        """What is saved if all of it runs at another value of the signal; None if it is unknown."""
        return None if signal_per_kwh is None else self.value - self.energy_kwh * signal_per_kwh


@dataclass(frozen=True, slots=True)
class Withheld:
    """What one ceiling has withheld.

    Attributes:
        replica_hours: hours of replicas that did not run.
        energy_kwh: their energy, where their power is known.
        carbon: of it, with its emissions.
        price: of it, with its cost.
    """

    replica_hours: float = 0.0
    energy_kwh: float = 0.0
    carbon: Amount = Amount()
    price: Amount = Amount()

    def plus(
        self,
        replicas: int,
        hours: float,
        power_w: float | None,
        carbon_g_per_kwh: float | None,
        price_per_kwh: float | None,
    ) -> Withheld:
        """With more replicas withheld for a time.

        Args:
            replicas: number of replicas withheld.
            hours: for how long.
            power_w: of one replica, W; None if unknown.
            carbon_g_per_kwh: carbon intensity of that time; None if unknown.
            price_per_kwh: price of that time; None if unknown.
        """
        found = replace(self, replica_hours=self.replica_hours + replicas * hours)
        if power_w is None:
            return found
        energy_kwh = replicas * hours * 3600.0 * power_w / JOULES_PER_KWH
        return replace(
            found,
            energy_kwh=self.energy_kwh + energy_kwh,
            carbon=self.carbon.plus(energy_kwh, carbon_g_per_kwh),
            price=self.price.plus(energy_kwh, price_per_kwh),
        )


def wanted_replicas(running: int, ratios: Iterable[float], *, limited: bool, maximum: int) -> int:
    """How many replicas an autoscaler would run without its maximum.

    The HorizontalPodAutoscaler's own algorithm: the number of running replicas times the ratio of each metric to its
    target, rounded up, of which the highest counts.

    Args:
        running: number of running replicas.
        ratios: of each metric to its target.
        limited: whether the autoscaler says that it is limited by its maximum.
        maximum: its maximum.
    """
    if not limited:
        return running
    return max([maximum + 1, *(ceil(running * ratio - 1e-6) for ratio in ratios)])
