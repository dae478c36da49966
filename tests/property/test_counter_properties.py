"""What is true of every counter, however it is read."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from joulie.domain.counters import mean_rate
from joulie.domain.signal import Reading

WRAP_J = 262_143.328850
numbers = st.floats(allow_nan=True, allow_infinity=True)
sane = st.floats(min_value=0.0, max_value=1e15, allow_nan=False)
steps = st.lists(
    st.tuples(st.floats(min_value=0.5, max_value=120.0), st.floats(min_value=0.0, max_value=2000.0)),
    min_size=1,
    max_size=20,
)


def true_counter(start_j, intervals):
    """Samples of a counter that never wraps: intervals of seconds and watts."""
    time_s, energy_j, samples = 1e9, start_j, [Reading(1e9, start_j)]
    for dt_s, power_w in intervals:
        time_s, energy_j = time_s + dt_s, energy_j + dt_s * power_w
        samples.append(Reading(time_s, energy_j))
    return samples


@given(st.lists(st.builds(Reading, numbers, numbers), max_size=30), st.none() | sane, sane | st.just(math.inf))
def test_no_power_is_ever_negative_absurd_or_not_a_number(samples, wraps_at_j, max_power_w):
    found = mean_rate(samples, wraps_at=wraps_at_j, max_rate=max_power_w)
    if found is not None:
        assert 0.0 <= found.value <= max_power_w
        assert math.isfinite(found.value)
        assert found.time_s == max(
            time_s for time_s, value in samples if math.isfinite(time_s) and math.isfinite(value)
        )


@given(steps, st.randoms(use_true_random=False))
def test_the_mean_is_the_energy_over_the_time_in_whatever_order(intervals, random):
    samples = true_counter(0.0, intervals)
    random.shuffle(samples)
    total_j = sum(dt_s * power_w for dt_s, power_w in intervals)
    assert math.isclose(
        mean_rate(samples).value, total_j / sum(dt_s for dt_s, _ in intervals), rel_tol=1e-6, abs_tol=1e-6
    )


@given(steps, st.floats(min_value=0.0, max_value=WRAP_J - 1.0))
def test_a_counter_that_wraps_tells_the_same_as_one_that_does_not(intervals, start_j):
    assume(all(dt_s * power_w < WRAP_J / 2 for dt_s, power_w in intervals))
    straight = true_counter(start_j, intervals)
    wrapped = [Reading(time_s, energy_j % WRAP_J) for time_s, energy_j in straight]
    assert math.isclose(
        mean_rate(wrapped, wraps_at=WRAP_J).value, mean_rate(straight).value, rel_tol=1e-6, abs_tol=1e-6
    )


@given(steps, st.data())
def test_a_reset_anywhere_never_takes_power_outside_of_what_was_drawn(intervals, data):
    samples = true_counter(5e5, intervals)
    at = data.draw(st.integers(min_value=1, max_value=len(samples)))
    start_j = samples[at - 1].value
    reset = samples[:at] + [Reading(time_s, energy_j - start_j) for time_s, energy_j in samples[at:]]
    found = mean_rate(reset)
    if found is not None:
        powers_w = [power_w for _, power_w in intervals]
        assert min(powers_w) - 1e-3 <= found.value <= max(powers_w) + 1e-3
