"""Step functions of time, which is how carbon intensity and prices are published: one value a settlement period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from joulie.domain.quantities import InvalidQuantityError

FloatArray = npt.NDArray[np.float64]


class Series:
    """A step function: value i holds from start i until start i+1, the last one until `end_s`.

    Args:
        starts_s: (n,), s since the epoch, strictly increasing, n >= 1.
        values: (n,), finite; the function that returns the series states their unit.
        end_s: end of the last step, after its start.

    Raises:
        InvalidQuantityError: NaN or infinite values, times that do not increase, or nothing at all.
    """

    __slots__ = ("_integral", "end_s", "starts_s", "values")

    def __init__(self, starts_s: npt.ArrayLike, values: npt.ArrayLike, end_s: float) -> None:
        starts = np.array(starts_s, dtype=np.float64)
        heights = np.array(values, dtype=np.float64)
        if starts.ndim != 1 or starts.shape != heights.shape or starts.size == 0:
            raise InvalidQuantityError("starts_s", f"must have one start a value, at least one, got {starts.shape}")
        edges = np.append(starts, end_s)
        if not (np.isfinite(edges).all() and (np.diff(edges) > 0.0).all()):
            raise InvalidQuantityError("starts_s", "must be finite and increase up to end_s")
        if not np.isfinite(heights).all():
            raise InvalidQuantityError("values", "must be finite")
        starts.flags.writeable = heights.flags.writeable = False
        self.starts_s: FloatArray = starts
        self.values: FloatArray = heights
        self.end_s = float(end_s)
        self._integral = np.concatenate(([0.0], np.cumsum(heights * np.diff(edges))))

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Series)
            and self.end_s == other.end_s
            and np.array_equal(self.starts_s, other.starts_s)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Series({len(self)} steps from {self.start_s:.0f} to {self.end_s:.0f})"

    @property
    def start_s(self) -> float:
        """Start of the first step, s since the epoch."""
        return float(self.starts_s[0])

    def covers(self, from_s: float, until_s: float) -> bool:
        """Whether all of an interval is known."""
        return self.start_s <= from_s and until_s <= self.end_s

    def at(self, time_s: float) -> float | None:
        """The value at a time; None outside of the series."""
        if not self.start_s <= time_s < self.end_s:
            return None
        return float(self.values[np.searchsorted(self.starts_s, time_s, side="right") - 1])

    def next_change_s(self, time_s: float) -> float | None:
        """When the next step after `time_s` begins; None where there is none."""
        index = int(np.searchsorted(self.starts_s, time_s, side="right"))
        return float(self.starts_s[index]) if index < len(self) else None

    def integral(self, from_s: npt.ArrayLike, until_s: npt.ArrayLike) -> Any:
        """Value times seconds over intervals, exactly; outside of the series nothing is added.

        Args:
            from_s: start or starts of intervals, s since the epoch.
            until_s: their ends, same shape.

        Returns:
            A float64 array, or scalar, of that shape.
        """
        return self._until(until_s) - self._until(from_s)

    def mean(self, from_s: float, until_s: float) -> float | None:
        """The mean over an interval, or the value at it where it has no length; None where not all of it is known."""
        if until_s <= from_s:
            return self.at(from_s)
        if not self.covers(from_s, until_s):
            return None
        return float(self.integral(from_s, until_s)) / (until_s - from_s)

    def between(self, from_s: float, until_s: float) -> Series | None:
        """The part within an interval; None where there is none."""
        low, high = max(from_s, self.start_s), min(until_s, self.end_s)
        if low >= high:
            return None
        first = int(np.searchsorted(self.starts_s, low, side="right")) - 1
        last = int(np.searchsorted(self.starts_s, high, side="left"))
        starts = self.starts_s[first:last].copy()
        starts[0] = low
        return Series(starts, self.values[first:last], high)

    def then(self, later: Series) -> Series:
        """This series until `later` begins, then that one. A gap between the two is filled by the last value.

        Raises:
            InvalidQuantityError: `later` begins before this series.
        """
        if later.start_s <= self.start_s:
            raise InvalidQuantityError("later", "must begin after the series that it follows")
        count = int(np.searchsorted(self.starts_s, later.start_s, side="left"))
        return Series(
            np.concatenate((self.starts_s[:count], later.starts_s)),
            np.concatenate((self.values[:count], later.values)),
            later.end_s,
        )

    def _until(self, time_s: npt.ArrayLike) -> Any:
        """The integral from the start of the series."""
        times = np.clip(time_s, self.start_s, self.end_s)
        index = np.searchsorted(self.starts_s, times, side="right") - 1
        return self._integral[index] + self.values[index] * (times - self.starts_s[index])


def constant(value: float, from_s: float, until_s: float) -> Series:
    """A series of one step."""
    return Series([from_s], [value], until_s)


def of_points(points: Sequence[tuple[float, float]], last_step_s: float) -> Series:
    """A series of (time, value) in any order; of several values at one time the last one counts.

    Args:
        points: time in s since the epoch, and value; at least one.
        last_step_s: how long the last value holds, s.

    Raises:
        InvalidQuantityError: no points, or a value or time that is not finite.
    """
    ordered = dict(sorted(dict(points).items()))
    if not ordered:
        raise InvalidQuantityError("points", "must not be empty")
    starts = list(ordered)
    return Series(starts, list(ordered.values()), starts[-1] + last_step_s)
