"""Power of a GPU over its clock: a linear part, and a nonlinear one above a transition frequency.

Source: arXiv 2607.00819, A40 to H200.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulie.domain.power.curves import cap_or_uncapped
from joulie.domain.units import FloatArray, finite, non_negative, positive


@dataclass(frozen=True)
class ClockPower:
    """Power over the clock c, a share of the highest: ``base + linear c + nonlinear max(0, c - transition) ** 2``.

    Attributes:
        base_w: W, at a clock of zero.
        linear_w: W for the whole range of the clock.
        nonlinear_w: W per squared share above the transition.
        transition: clock where the nonlinear part begins, 0..1.
    """

    base_w: float
    linear_w: float
    nonlinear_w: float
    transition: float

    def __post_init__(self) -> None:
        non_negative("base_w", self.base_w)
        positive("linear_w", self.linear_w)
        non_negative("nonlinear_w", self.nonlinear_w)
        finite("transition", self.transition, minimum=0.0, maximum=1.0)

    def power_w(self, clock: npt.ArrayLike) -> FloatArray:
        """Draw at a clock of 0..1 of the highest, W."""
        share = finite("clock", clock, minimum=0.0, maximum=1.0)
        above = np.maximum(share - self.transition, 0.0)
        return np.asarray(self.base_w + self.linear_w * share + self.nonlinear_w * above**2)

    def clock_under(self, cap_w: npt.ArrayLike, floor: float) -> FloatArray:
        """The highest clock within floor..1 whose draw meets a cap, solved in closed form.

        Args:
            cap_w: power limit, W; inf where uncapped.
            floor: lowest clock; kept even where the cap is not met by it.
        """
        full_w = self.power_w(1.0)
        limit_w = np.minimum(cap_or_uncapped("cap_w", cap_w), full_w)
        linear = (limit_w - self.base_w) / self.linear_w
        # Above the transition: nonlinear x^2 + linear x = excess, x = c - transition, in the form that stays exact for
        # a vanishing nonlinear part.
        excess_w = np.maximum(limit_w - self.base_w - self.linear_w * self.transition, 0.0)
        root = np.sqrt(self.linear_w**2 + 4.0 * self.nonlinear_w * excess_w)
        curved = self.transition + 2.0 * excess_w / (self.linear_w + root)
        solved = np.where(linear <= self.transition, linear, curved)
        return np.clip(np.where(limit_w < full_w, solved, 1.0), floor, 1.0)
