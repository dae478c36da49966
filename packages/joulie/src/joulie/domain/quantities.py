"""Physical quantities one at a time: units, conversions and the checks of plain numbers.

Inside Joulie everything is SI (watts, joules, seconds, kelvin); names carry the unit as a suffix. Conversions happen
here and in adapters, nowhere else. `joulie.domain.units` has the same checks for arrays; this module needs no numpy,
since the agent, which runs on every node, must stay small.
"""

from __future__ import annotations

import math

SECONDS_PER_MINUTE = 60.0
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
WATTS_PER_KW = 1000.0
ZERO_CELSIUS_K = 273.15


class InvalidQuantityError(ValueError):
    """An invalid physical quantity: NaN, infinite, or outside its range.

    Attributes:
        quantity: the name of the argument, with its unit suffix.
    """

    def __init__(self, quantity: str, problem: str) -> None:
        super().__init__(f"{quantity}: {problem}")
        self.quantity = quantity


def finite_number(quantity: str, value: float, *, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Return `value` as a float, or refuse it by name.

    Args:
        quantity: name used in the error, with its unit suffix (``power_w``).
        value: the number.
        minimum: smallest allowed value, inclusive.
        maximum: largest allowed value, inclusive.

    Raises:
        InvalidQuantityError: the number is NaN, infinite or out of range.
    """
    number = float(value)
    if not math.isfinite(number):
        raise InvalidQuantityError(quantity, f"must be finite, got {number:g}")
    if not minimum <= number <= maximum:
        raise InvalidQuantityError(quantity, f"must be within [{minimum:g}, {maximum:g}], got {number:g}")
    return number


def positive_number(quantity: str, value: float) -> float:
    """Like `finite_number`, refusing zero and less."""
    number = finite_number(quantity, value)
    if number <= 0.0:
        raise InvalidQuantityError(quantity, f"must be above zero, got {number:g}")
    return number


def joules_to_kwh(energy_j: float) -> float:
    """Kilowatt-hours of `energy_j` joules."""
    return energy_j / JOULES_PER_KWH
