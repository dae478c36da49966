"""The frequency controller on any signal: bounded, damped, and right in its direction."""

from itertools import pairwise

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
        if state.action is DvfsAction.UP:
            assert state.ema_w is not None
            assert state.ema_w > cap_w + chosen.high_margin_w
        if state.action is DvfsAction.DOWN:
            assert state.ema_w is not None
            assert state.ema_w < cap_w - chosen.low_margin_w


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
