"""A holdout: a small share is left alone at random for good, so that a saving goes on being measured.

What is left alone or not (a unit) is a window of time of a job with a power limit, or a workload that may be deferred.
Chance alone says which, with a known probability, so nothing has to be assumed about loads, jobs or the grid: with
predictions made before the draw, inverse probability weights make of every unit an unbiased estimate of what was saved
there (augmented inverse propensity weighting). Predictions that are wrong make the interval wider, never false.

The interval is looked at for ever, so it is a confidence sequence, which holds at all looks together. Sources: D. W.
Ham, I. Bojinov, M. Lindon and M. Tingley, "Design-Based Confidence Sequences", 2022, arXiv:2210.08639, for units with
fixed outcomes, whose variance is bounded by the squares of what is observed; I. Waudby-Smith et al., Annals of
Statistics 52, 2024, for the mixture (`guard.sequence`). Both hold for many units: below `MIN_LEFT_OUT` of them left
alone nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

from joulie.domain.quantities import InvalidQuantityError, finite_number
from joulie.domain.trial.guard import sequence

MIN_LEFT_OUT = 10
"""Units left alone below which nothing is said: the sequence is an asymptotic one."""
MAX_UNITS = 1000
"""Units of one job after which its evidence begins anew, so that a limit that has stopped paying is noticed."""
_TIGHTEST_AT = 40
"""Number of units left alone at which the sequence is narrowest."""
_MEMORY, _MEMORY_LEFT = 20.0, 5.0
"""Units over which expectations are averaged, of treated ones and of those left alone: they follow what drifts."""


def left_out(unit: str, share: float) -> bool:
    """Whether chance leaves a unit alone: the same answer for the same name, for whoever checks it.

    Raises:
        InvalidQuantityError: the share is not within 0..1.
    """
    finite_number("share", share, minimum=0.0, maximum=1.0)
    number = int.from_bytes(sha256(unit.encode()).digest()[:8])
    return number < share * 2.0**64


class Effect(NamedTuple):
    """What one unit says.

    Attributes:
        value: unbiased estimate of the effect on it.
        residual: what chance has put into that estimate, by the predictions.
        left_out: whether it was left alone.
        weight: what it counts against others, fixed before the draw.
    """

    value: float
    residual: float
    left_out: bool
    weight: float = 1.0


@dataclass(frozen=True)
class Expected:
    """Outcome that is expected of the next unit, if it is treated and if it is left alone.

    What drifts, drifts in both: treated units, which are many, move both expectations; those left alone their distance.

    Attributes:
        treated: of a treated one.
        left: of one left alone.
        treated_units: number of units that the first is learned from.
        left_units: number of units that the second is learned from.
    """

    treated: float
    left: float
    treated_units: float = 1.0
    left_units: float = 1.0

    def effect(self, outcome: float, share: float, *, left_out: bool, weight: float = 1.0) -> Effect:
        """What a unit says whose outcome is now known.

        Args:
            outcome: its outcome.
            share: probability with which it was left alone.
            left_out: whether it was.
            weight: what it counts.

        Raises:
            InvalidQuantityError: the outcome is not finite, the share is not between 0 and 1, or the weight is not
                above zero.
        """
        finite_number("outcome", outcome)
        if not 0.0 < share < 1.0:
            raise InvalidQuantityError("share", f"must be between 0 and 1, got {share}")
        if not (math.isfinite(weight) and weight > 0.0):
            raise InvalidQuantityError("weight", f"must be finite and above zero, got {weight}")
        residual = (self.left - outcome) / share if left_out else (outcome - self.treated) / (1.0 - share)
        return Effect(self.treated - self.left + residual, residual, left_out, weight)

    def surprise(self, outcome: float, *, left_out: bool) -> float:
        """By how much an outcome departs from what was expected."""
        return outcome - (self.left if left_out else self.treated)

    def shifted(self, by: float) -> Expected:
        """What is expected where everything has changed by so much, treated or not."""
        return replace(self, treated=self.treated + by, left=self.left + by)

    def learned(self, outcome: float, *, left_out: bool) -> Expected:
        """What is expected after that outcome."""
        if left_out:
            moved = _step(self.left, outcome, min(self.left_units, _MEMORY_LEFT))
            return replace(self, left=self.left + moved, left_units=self.left_units + 1.0)
        moved = _step(self.treated, outcome, min(self.treated_units, _MEMORY))
        return replace(
            self, treated=self.treated + moved, left=self.left + moved, treated_units=self.treated_units + 1.0
        )


def _step(mean: float, outcome: float, units: float) -> float:
    """By how much a mean moves with one more outcome."""
    return (outcome - mean) / (units + 1.0)


class Interval(NamedTuple):
    """A saving as a share: 0.05 is 5 %; its bounds hold at all looks together in 95 % of cases."""

    saved: float
    low: float
    high: float


@dataclass(frozen=True)
class Evidence:
    """What all units so far say; the effects are of logarithms of what is to be saved.

    Attributes:
        units: number of units.
        left_out: number of those left alone.
        weight: sum of the weights.
        effect: weighted sum of the effects.
        square: sum of the squares of the weighted residuals.
    """

    units: int = 0
    left_out: int = 0
    weight: float = 0.0
    effect: float = 0.0
    square: float = 0.0

    @classmethod
    def of(cls, units: int, left_out: int, mean: float, error: float, weight: float) -> Evidence:
        """The evidence whose mean effect has that standard error, each unit with that weight.

        Raises:
            InvalidQuantityError: there can be no such evidence.
        """
        finite_number("error", error, minimum=0.0)
        total = units * weight
        return cls(units, left_out, total, mean * total, (error * total) ** 2).checked()

    def checked(self) -> Evidence:
        """The same evidence, which comes from outside.

        Raises:
            InvalidQuantityError: there can be no such evidence.
        """
        for name in ("units", "left_out"):
            if not isinstance(count := getattr(self, name), int) or count < 0:
                raise InvalidQuantityError(name, f"must be a whole number of at least 0, got {count}")
        if self.left_out > self.units:
            raise InvalidQuantityError("left_out", f"must be at most {self.units}, the number of units")
        finite_number("weight", self.weight, minimum=0.0)
        finite_number("effect", self.effect)
        finite_number("square", self.square, minimum=0.0)
        if (self.units > 0) != (self.weight > 0.0):
            raise InvalidQuantityError("weight", f"must be above zero for units only, got {self.weight}")
        return self

    def added(self, one: Effect) -> Evidence:
        """The evidence with one more unit."""
        return Evidence(
            self.units + 1,
            self.left_out + one.left_out,
            self.weight + one.weight,
            self.effect + one.weight * one.value,
            self.square + (one.weight * one.residual) ** 2,
        )

    def __add__(self, other: Evidence) -> Evidence:
        """The evidence of both, of different units."""
        return Evidence(
            self.units + other.units,
            self.left_out + other.left_out,
            self.weight + other.weight,
            self.effect + other.effect,
            self.square + other.square,
        )

    @property
    def interval(self) -> Interval | None:
        """The saving on average over the units, by weight; None with too few units left alone."""
        bounds = self.bounds
        if bounds is None:
            return None
        low, high = bounds
        return Interval(-math.expm1(self.effect / self.weight), -math.expm1(high), -math.expm1(low))

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds of the mean effect; None with too few units left alone."""
        if self.left_out < MIN_LEFT_OUT or self.weight <= 0.0:
            return None
        mean = self.effect / self.weight
        return sequence(mean, math.sqrt(self.square) / self.weight, self.left_out, tightest_at=_TIGHTEST_AT)


NO_EVIDENCE = Evidence()
