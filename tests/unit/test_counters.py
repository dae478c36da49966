"""Counters as exporters really publish them."""

import math

import pytest

from joulie.domain.counters import mean_rate
from joulie.domain.signal import Reading


def samples(*pairs):
    return [Reading(time_s, value) for time_s, value in pairs]


def test_mean_power_over_all_samples():
    assert mean_rate(samples((100, 5000), (115, 6500), (130, 8600))) == Reading(130, 120.0)


def test_a_counter_that_stands_still_is_0_w():
    assert mean_rate(samples((0, 7), (10, 7))) == Reading(10, 0.0)


@pytest.mark.parametrize("few", [[], samples((1, 2)), samples((1, 2), (1, 3)), samples((1, 2), (2, math.nan))])
def test_what_cannot_be_a_rate_is_missing_not_zero(few):
    assert mean_rate(few) is None


def test_trap_a_counter_that_starts_again_is_not_9e14_j():
    reset = samples((0, 9e14), (10, 9e14 + 1000), (20, 300), (30, 1300))
    assert mean_rate(reset) == Reading(30, 100.0)  # the interval in which it started again says nothing


def test_a_reset_alone_says_nothing():
    assert mean_rate(samples((0, 5000), (10, 100))) is None


def test_a_wrap_is_unwrapped_where_its_end_is_known():
    wrap = samples((0, 262_100.0), (10, 262_140.0), (20, 960.0))
    assert mean_rate(wrap, wraps_at=262_143.0) == Reading(20, pytest.approx((40 + 3 + 960) / 20))
    assert mean_rate(wrap) == Reading(20, 4.0)


def test_a_value_beyond_the_end_has_not_wrapped():
    assert mean_rate(samples((0, 300.0), (10, 5.0), (20, 25.0)), wraps_at=200.0) == Reading(20, 2.0)


def test_absurd_power_is_no_measurement():
    jump = samples((0, 0), (10, 9e14))
    assert mean_rate(jump, max_rate=3000.0) is None
    assert mean_rate(samples((0, 0), (10, 30_000)), max_rate=3000.0) == Reading(10, 3000.0)


def test_order_and_repeated_times_do_not_matter():
    assert mean_rate(samples((20, 300), (0, 100), (20, 999), (10, 200))) == Reading(20, 10.0)


def test_two_counters_under_one_name_are_no_power():
    flapping = [
        sample for step in range(4) for sample in samples((20 * step, 1e6 + step), (20 * step + 10, 5e5 + step))
    ]
    assert mean_rate(flapping, max_rate=3000.0) is None


def test_seconds_per_second_are_cores():
    assert mean_rate(samples((0, 10), (10, 35))) == Reading(10, 2.5)
