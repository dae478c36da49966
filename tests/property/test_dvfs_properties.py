"""The frequency controller on any signal: bounded, damped, and right in its direction."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.dvfs import DvfsAction, DvfsSettings, DvfsState, frequency_limit_hz, step, throttle_of_limit_pct

settings = st.builds(
    DvfsSettings,
    ema_alpha=st.floats(0.01, 1.0),
    high_margin_w=st.floats(0.0, 50.0),
    low_margin_w=st.floats(0.0, 50.0),
    trip_count=st.integers(1, 5),
    step_pct=st.floats(0.1, 100.0),
    cooldown_s=st.floats(0.0, 100.0),
)
signals = st.lists(st.none() | st.floats(0.0, 1000.0), max_size=60)
caps_w = st.floats(1.0, 900.0)


def states(signal: list[float | None], cap_w: float, chosen: DvfsSettings) -> list[DvfsState]:
    found = [DvfsState()]
    for number, power_w in enumerate(signal):
        found.append(step(found[-1], power_w, cap_w, 20.0 * number, chosen))
    return found


@given(signals, caps_w, settings)
def test_throttle_is_a_percentage_and_moves_by_steps(
    signal: list[float | None], cap_w: float, chosen: DvfsSettings
) -> None:
    found = states(signal, cap_w, chosen)
    for before, after in pairwise(found):
        assert 0.0 <= after.throttle_pct <= 100.0
        assert abs(after.throttle_pct - before.throttle_pct) <= chosen.step_pct + 1e-9
        assert (after.throttle_pct != before.throttle_pct) == (after.action is not None)


@given(signals, caps_w, settings)
def test_actions_point_towards_the_cap(signal: list[float | None], cap_w: float, chosen: DvfsSettings) -> None:
    for state in states(signal, cap_w, chosen):
        if state.action is not None:
            before_w = state.acted_from_w
            inside = cap_w - chosen.low_margin_w <= before_w <= cap_w + chosen.high_margin_w
            trim = 0.25 * chosen.step_pct + 1e-9
            assert (before_w > cap_w if state.action is DvfsAction.UP else before_w < cap_w) or inside
            assert abs(state.acted_by_pct) <= (trim if inside else chosen.step_pct + 1e-9)


@given(signals, caps_w, settings)
def test_actions_keep_their_distance(signal: list[float | None], cap_w: float, chosen: DvfsSettings) -> None:
    times = [20.0 * (n - 1) for n, state in enumerate(states(signal, cap_w, chosen)) if state.action is not None]
    for one, next_one in pairwise(times):
        assert next_one - one >= max(chosen.cooldown_s, 20.0 * chosen.trip_count) - 1e-9


@given(st.floats(0.0, 100.0), st.floats(0.1e9, 2e9), st.floats(2.1e9, 6e9), st.floats(0.1e9, 6e9))
def test_frequencies_are_within_the_hardware_and_above_the_floor(
    throttle_pct: float, min_hz: float, max_hz: float, floor_hz: float
) -> None:
    limit_hz = frequency_limit_hz(throttle_pct, min_hz, max_hz, floor_hz)
    assert min(min_hz, floor_hz) - 1.0 <= limit_hz <= max_hz
    assert limit_hz >= min(floor_hz, max_hz)
    if limit_hz > floor_hz:
        assert abs(throttle_of_limit_pct(limit_hz, min_hz, max_hz) - throttle_pct) < 1e-6


@given(
    st.integers(1, 8),
    st.floats(1.5, 3.0),
    st.floats(0.5, 0.85),
    st.floats(0.8, 1.0),
    st.sampled_from([0.0, 25e6]),
    st.sampled_from([5.0, 20.0, 60.0]),
    st.integers(0, 2**32 - 1),
)
def test_h1_average_of_ten_minutes_is_the_cap(
    sockets: int,
    exponent: float,
    cap_share: float,
    all_core_share: float,
    step_hz: float,
    interval_s: float,
    seed: int,
) -> None:
    """Packages of 360 W, of which 25 W are idle power, under a load that wants more than the cap, with 1 % of noise."""
    peak_hz = 3.7e9 * all_core_share
    noise = np.random.default_rng(seed)
    cap_w, state, powers_w = 360.0 * cap_share * sockets, DvfsState(), []
    for number in range(60 + round(600.0 / interval_s)):
        limit_hz = frequency_limit_hz(state.throttle_pct, 0.4e9, 3.7e9, 0.4e9)
        limit_hz = limit_hz // step_hz * step_hz if step_hz else limit_hz
        dynamic_w = 335.0 * (min(limit_hz, peak_hz) / peak_hz) ** exponent
        powers_w.append((25.0 + dynamic_w) * sockets * noise.uniform(0.99, 1.01))
        state = step(state, powers_w[-1], cap_w, interval_s * number, DvfsSettings())
    settled_w = powers_w[60:]
    assert abs(sum(settled_w) / len(settled_w) / cap_w - 1.0) <= 0.03
