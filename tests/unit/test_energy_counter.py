"""From energy counters to power, and what counters do not say."""

import math

import pytest

from joulie.domain.energy_counter import (
    MAX_SAMPLING_INTERVAL_S,
    MIN_SAMPLING_INTERVAL_S,
    PLAUSIBLE_POWER_W,
    EnergyTrack,
    mean_power_w,
    power_bound_w,
    sampling_interval_s,
    track,
)
from joulie.domain.quantities import InvalidQuantityError

INTEL_J = 262_143.0
AMD_J = 65_532.0
EPYC_W = 800.0
"""Bound of an EPYC 9654: twice the upper end of its configurable TDP."""


def tracked(
    *readings: tuple[float, float], wraps_at_j: float | None = None, bound_w: float = PLAUSIBLE_POWER_W
) -> list[EnergyTrack]:
    """The track after each reading of (time, counter)."""
    found: list[EnergyTrack] = []
    for now_s, counter_j in readings:
        before = found[-1] if found else None
        found.append(track(before, counter_j, now_s, wraps_at_j=wraps_at_j, max_power_w=bound_w))
    return found


def power_w(
    *readings: tuple[float, float], wraps_at_j: float | None = None, bound_w: float = PLAUSIBLE_POWER_W
) -> float | None:
    """Mean power from the first to the last reading."""
    found = tracked(*readings, wraps_at_j=wraps_at_j, bound_w=bound_w)
    return mean_power_w(found[0], found[-1])


def test_power_from_two_readings() -> None:
    assert power_w((0.0, 100.0), (20.0, 4100.0)) == pytest.approx(200.0)


def test_wrapped_counter() -> None:
    assert power_w((0.0, 262_000.0), (20.0, 1_857.0), wraps_at_j=INTEL_J) == pytest.approx(100.0)


def test_h1_amd_counter_is_read_at_the_default_interval() -> None:
    # 20 s x 4,000 W exceeds the range of an AMD package, but no EPYC draws 4,000 W.
    assert power_w((0.0, 60_000.0), (20.0, 2_468.0), wraps_at_j=AMD_J, bound_w=EPYC_W) == pytest.approx(400.0)


def test_h1_energy_adds_up_over_many_wraps() -> None:
    readings = [(40.0 * number, 500.0 * 40.0 * number % AMD_J) for number in range(20)]
    assert power_w(*readings, wraps_at_j=AMD_J, bound_w=EPYC_W) == pytest.approx(500.0)


def test_h1_sampling_interval_follows_the_counter_and_the_device() -> None:
    assert sampling_interval_s([(AMD_J, EPYC_W)]) == pytest.approx(AMD_J / EPYC_W / 2.0)
    assert sampling_interval_s([(INTEL_J, 410.0), (65_713.0, PLAUSIBLE_POWER_W)]) == pytest.approx(8.21, abs=0.01)
    assert sampling_interval_s([(None, 700.0)]) == sampling_interval_s([]) == MAX_SAMPLING_INTERVAL_S
    assert sampling_interval_s([(1e-6, 700.0)]) == MIN_SAMPLING_INTERVAL_S


def test_h1_power_bound_is_the_devices_with_a_margin() -> None:
    assert power_bound_w([None, 360.0, 400.0]) == 800.0
    assert power_bound_w([None, 0.0]) == PLAUSIBLE_POWER_W


@pytest.mark.parametrize(
    ("before_j", "after_j", "elapsed_s", "wraps_at_j"),
    [
        (1000.0, 10.0, 20.0, None),  # reset, no wrap
        (1000.0, 10.0, 20.0, INTEL_J),  # reset: as a wrap it would be 13 kW
        (1000.0, 2000.0, 3600.0, INTEL_J),  # more than one wrap may lie between
        (1000.0, 2000.0, 0.0, None),
        (1000.0, 2000.0, -1.0, None),
        (0.0, 9e14, 20.0, None),  # absurd
    ],
)
def test_trap_readings_that_say_nothing(
    before_j: float, after_j: float, elapsed_s: float, wraps_at_j: float | None
) -> None:
    assert power_w((0.0, before_j), (elapsed_s, after_j), wraps_at_j=wraps_at_j) is None


def test_no_power_spans_a_reset() -> None:
    assert power_w((0.0, 5000.0), (20.0, 10.0), (40.0, 2010.0)) is None
    after = tracked((0.0, 5000.0), (20.0, 10.0), (40.0, 2010.0))
    assert mean_power_w(after[1], after[2]) == pytest.approx(100.0)


def test_h10_slow_counter_gives_the_mean_since_its_last_progress() -> None:
    # Updated every 45 s, read every 20 s: 10 W each time that it moves, and never 0 W.
    found = tracked((0.0, 100.0), (20.0, 100.0), (40.0, 100.0), (60.0, 700.0))
    assert mean_power_w(found[0], found[1]) is None
    assert not any(one.stale for one in found)
    assert mean_power_w(found[0], found[3]) == pytest.approx(10.0)


def test_h10_stuck_counter_is_stale_and_what_it_missed_is_not_power() -> None:
    stuck = tracked(*((20.0 * number, 100.0) for number in range(4)))
    assert [one.stale for one in stuck] == [False, False, False, True]
    again = track(stuck[-1], 300.0, 80.0)
    assert not again.stale
    assert mean_power_w(stuck[0], again) is None


def test_h10_an_old_reading_after_a_pause_starts_no_run() -> None:
    """What was read before the pause, once more: it would pass for the moment's counter, and the next for a jump."""
    found = tracked(
        (0.0, 1_000.0), (780.0, 1_000.0), (800.0, 15_400.0), (820.0, 22_600.0), wraps_at_j=AMD_J, bound_w=EPYC_W
    )
    assert mean_power_w(found[0], found[1]) is None
    assert mean_power_w(found[1], found[2]) is None, "the counter may have wrapped in 800 s"
    assert mean_power_w(found[2], found[3]) == pytest.approx(360.0)


def test_h10_readings_close_together_are_not_stale() -> None:
    assert not tracked(*((0.01 * number, 100.0) for number in range(20)))[-1].stale


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_readings_are_refused(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        track(None, bad, 0.0)
