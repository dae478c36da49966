"""Interpolation on evenly spaced points, shared by the CPU and the GPU models."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joulie.domain.units import FloatArray, InvalidQuantityError


def interpolate_even(curve: FloatArray, position: FloatArray) -> FloatArray:
    """Piecewise-linear interpolation on points that are evenly spaced over 0..1.

    Monotone where the points are, and exact at each of them. Cost does not grow with the number of points.

    Args:
        curve: values, shape ``(..., n_points)``; leading dimensions broadcast against `position`.
        position: 0..1, any shape; the caller has checked it.

    Returns:
        Values, of the broadcast shape.
    """
    last = curve.shape[-1] - 1
    shape = np.broadcast_shapes(curve.shape[:-1], position.shape)
    scaled = np.broadcast_to(position * last, shape)
    left = np.minimum(scaled.astype(np.int64), last - 1)
    if curve.ndim == 1:
        low, high = curve[left], curve[left + 1]
    else:
        rows = np.broadcast_to(curve, (*shape, last + 1))
        low = np.take_along_axis(rows, left[..., np.newaxis], axis=-1)[..., 0]
        high = np.take_along_axis(rows, left[..., np.newaxis] + 1, axis=-1)[..., 0]
    share = scaled - left
    # This form, unlike low + share * (high - low), returns the points themselves at both ends.
    result: FloatArray = low * (1.0 - share) + high * share
    return result


def cap_or_uncapped(quantity: str, cap_w: npt.ArrayLike) -> FloatArray:
    """A power cap in watts, ``inf`` where there is none.

    Raises:
        InvalidQuantityError: NaN or negative.
    """
    array = np.asarray(cap_w, dtype=np.float64)
    if np.any(np.isnan(array) | (array < 0.0)):
        raise InvalidQuantityError(quantity, "must be at least 0 (inf for uncapped), got NaN or a negative value")
    return array
