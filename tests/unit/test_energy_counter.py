"""From energy counters to power."""

import math

import pytest

from joulie.domain.energy_counter import mean_power_w
from joulie.domain.quantities import InvalidQuantityError


def test_power_from_two_readings() -> None:
    assert mean_power_w(100.0, 4100.0, 20.0) == pytest.approx(200.0)


def test_wrapped_counter() -> None:
    assert mean_power_w(262_000.0, 1_857.0, 20.0, wraps_at_j=262_143.0) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("before_j", "after_j", "elapsed_s", "wraps_at_j"),
    [
        (1000.0, 10.0, 20.0, None),  # reset, no wrap
        (1000.0, 10.0, 20.0, 262_143.0),  # reset: as a wrap it would be 13 kW
        (1000.0, 2000.0, 3600.0, 262_143.0),  # more than one wrap may lie between
        (1000.0, 2000.0, 0.0, None),
        (1000.0, 2000.0, -1.0, None),
        (0.0, 9e14, 20.0, None),  # absurd
    ],
)
def test_trap_readings_that_say_nothing(
    before_j: float, after_j: float, elapsed_s: float, wraps_at_j: float | None
) -> None:
    assert mean_power_w(before_j, after_j, elapsed_s, wraps_at_j=wraps_at_j) is None


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_readings_are_refused(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        mean_power_w(bad, 1.0, 1.0)
    with pytest.raises(InvalidQuantityError):
        mean_power_w(1.0, bad, 1.0)
