"""Validation of physical quantities, for scalars and arrays alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from joulie.domain.quantities import (
    JOULES_PER_KWH,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    WATTS_PER_KW,
    ZERO_CELSIUS_K,
    InvalidQuantityError,
    joules_to_kwh,
)

__all__ = [
    "JOULES_PER_KWH",
    "SECONDS_PER_HOUR",
    "SECONDS_PER_MINUTE",
    "WATTS_PER_KW",
    "ZERO_CELSIUS_K",
    "BoolArray",
    "FloatArray",
    "FloatLike",
    "IntArray",
    "InvalidQuantityError",
    "finite",
    "joules_to_kwh",
    "non_negative",
    "positive",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_LARGEST = float(np.finfo(np.float64).max)
FloatLike = float | FloatArray
"""A scalar or an array: the formulas of the domain serve one node and ten thousand alike."""


def finite(quantity: str, value: npt.ArrayLike, *, minimum: float = -np.inf, maximum: float = np.inf) -> FloatArray:
    """Return `value` as float64, or refuse it by name.

    Args:
        quantity: name used in the error, with its unit suffix (``power_w``).
        value: scalar or array of any shape.
        minimum: smallest allowed value, inclusive.
        maximum: largest allowed value, inclusive.

    Returns:
        An array of the shape of `value` (0-d for a scalar).

    Raises:
        InvalidQuantityError: any element is NaN, infinite or out of range.
    """
    array = np.asarray(value, dtype=np.float64)
    # Fast path: two reductions for valid input. NaN fails both comparisons and is reported below.
    if array.size == 0 or (
        max(minimum, -_LARGEST) <= np.minimum.reduce(array, axis=None)
        and np.maximum.reduce(array, axis=None) <= min(maximum, _LARGEST)
    ):
        return array
    if not np.all(np.isfinite(array)):
        raise InvalidQuantityError(quantity, f"must be finite, got {_first(array, ~np.isfinite(array))}")
    bad = (array < minimum) | (array > maximum)
    if np.any(bad):
        raise InvalidQuantityError(quantity, f"must be within [{minimum:g}, {maximum:g}], got {_first(array, bad)}")
    return array


def non_negative(quantity: str, value: npt.ArrayLike) -> FloatArray:
    """Like `finite`, with zero as the smallest allowed value."""
    return finite(quantity, value, minimum=0.0)


def positive(quantity: str, value: npt.ArrayLike) -> FloatArray:
    """Like `finite`, refusing zero and less."""
    array = finite(quantity, value)
    if np.any(array <= 0.0):
        raise InvalidQuantityError(quantity, f"must be above zero, got {_first(array, array <= 0.0)}")
    return array


def _first(array: FloatArray, bad: npt.NDArray[Any]) -> str:
    """Describe the first offending element, with its index where there is one."""
    if array.ndim == 0:
        return f"{float(array):g}"
    index = int(np.flatnonzero(bad)[0])
    return f"{float(array.flat[index]):g} at index {index}"
