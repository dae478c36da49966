"""Hysteresis of a number of performance nodes that follows demand: up at once, down only after a while.

Demand that crosses a threshold back and forth would otherwise cap and uncap a node each time. More power is always
safe, so only the way down waits: the longer, the closer demand is to the threshold. Where demand is steady the number
is in the end the one that demand asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.units import non_negative

_WITHIN_BAND = 6.0
"""How many times longer the number is held while demand stays within the band below a threshold."""


@dataclass(frozen=True)
class PreviousPlan:
    """The plan before.

    Attributes:
        performance_nodes: number of its performance nodes.
        age_s: time since this number last changed, s.
    """

    performance_nodes: int
    age_s: float

    def __post_init__(self) -> None:
        non_negative("performance_nodes", self.performance_nodes)
        non_negative("age_s", self.age_s)


@dataclass(frozen=True)
class Hysteresis:
    """How long a number is held.

    Attributes:
        hold_s: minimum age of the previous plan before the number goes down, s; 0 follows demand without delay.
        band: how far demand has to be below a threshold for that, as a share of the demand that one node serves; closer
            to it, the number is held six times as long.

    Raises:
        InvalidQuantityError: a setting is NaN, infinite or negative.
    """

    hold_s: float = 300.0
    band: float = 0.5

    def __post_init__(self) -> None:
        non_negative("hold_s", self.hold_s)
        non_negative("band", self.band)

    def held(self, needed: int, needed_with_band: int, previous: PreviousPlan | None) -> tuple[int, float | None]:
        """The number of performance nodes to plan.

        Args:
            needed: number that demand asks for.
            needed_with_band: the same for a demand that is higher by the band.
            previous: the plan before; None where nothing is held.

        Returns:
            The number, and how long it is held yet if demand stays as it is, s; None where demand decides.
        """
        if previous is None or needed >= previous.performance_nodes:
            return needed, None
        below_band = needed_with_band < previous.performance_nodes
        wait_s = self.hold_s if below_band else self.hold_s * _WITHIN_BAND
        if previous.age_s >= wait_s:
            return needed, None
        return previous.performance_nodes, wait_s - previous.age_s
