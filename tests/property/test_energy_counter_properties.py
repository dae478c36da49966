"""Power from energy counters is never absurd, and true over a wrap."""

from hypothesis import assume, given
from hypothesis import strategies as st

from joulie.domain.energy_counter import PLAUSIBLE_POWER_W, mean_power_w

energies = st.floats(0.0, 262_143.0)


@given(energies, energies, st.floats(0.01, 600.0), st.none() | st.just(262_143.0))
def test_power_is_plausible_or_unknown(
    before_j: float, after_j: float, elapsed_s: float, wraps_at_j: float | None
) -> None:
    power_w = mean_power_w(before_j, after_j, elapsed_s, wraps_at_j=wraps_at_j)
    assert power_w is None or 0.0 <= power_w <= PLAUSIBLE_POWER_W


@given(st.floats(0.0, 1500.0), energies, st.floats(1.0, 60.0))
def test_a_wrapping_counter_tells_the_true_power(power_w: float, before_j: float, elapsed_s: float) -> None:
    wraps_at_j = 262_143.0
    after_j = (before_j + power_w * elapsed_s) % wraps_at_j
    assume(elapsed_s * PLAUSIBLE_POWER_W < wraps_at_j)
    found_w = mean_power_w(before_j, after_j, elapsed_s, wraps_at_j=wraps_at_j)
    assert found_w is not None
    assert abs(found_w - power_w) < 1e-3
