"""The frequency controller, step by step."""

import math
from typing import Any

import pytest

from joulie.domain.dvfs import (
    DvfsAction,
    DvfsSettings,
    DvfsState,
    frequency_limit_hz,
    open_loop_throttle_pct,
    possible_throttles_pct,
    step,
    throttle_of_limit_pct,
)
from joulie.domain.quantities import InvalidQuantityError

AT_ONCE = DvfsSettings(ema_alpha=1.0, cooldown_s=0.0)


def run(
    powers: list[float | None], settings: DvfsSettings, cap_w: float = 200.0, state: DvfsState | None = None
) -> DvfsState:
    """The state after samples every 20 s."""
    state = state or DvfsState()
    for number, power_w in enumerate(powers):
        state = step(state, power_w, cap_w, 20.0 * number, settings)
    return state


def test_acts_only_after_enough_samples_in_a_row() -> None:
    assert run([300.0], AT_ONCE).throttle_pct == 0.0
    assert run([300.0, 300.0], AT_ONCE).throttle_pct == 10.0
    assert run([300.0, 200.0, 300.0], AT_ONCE).throttle_pct == 0.0


def test_margins_are_tolerated() -> None:
    assert run([209.0, 187.0] * 10, AT_ONCE, state=DvfsState(throttle_pct=50.0)).throttle_pct == 50.0


def test_low_power_gives_the_throttle_back() -> None:
    state = run([100.0, 100.0], AT_ONCE, state=DvfsState(throttle_pct=30.0))
    assert state.throttle_pct == 20.0
    assert state.action is DvfsAction.DOWN


def test_an_action_restarts_the_count() -> None:
    state = run([300.0, 300.0], AT_ONCE)
    assert (state.above, state.action) == (0, DvfsAction.UP)
    assert run([300.0] * 3, AT_ONCE).throttle_pct == 10.0
    assert run([300.0] * 4, AT_ONCE).throttle_pct == 20.0


def test_cooldown_delays_the_next_action() -> None:
    slow = DvfsSettings(ema_alpha=1.0, cooldown_s=70.0)
    # Acts at 20 s, may act again at 90 s: the sample at 100 s.
    assert run([300.0] * 5, slow).throttle_pct == 10.0
    assert run([300.0] * 6, slow).throttle_pct == 20.0


def test_smoothing() -> None:
    settings = DvfsSettings(ema_alpha=0.3)
    assert run([100.0, 200.0], settings).ema_w == pytest.approx(130.0)


def test_missing_sample_changes_nothing() -> None:
    before = DvfsState(throttle_pct=40.0, ema_w=150.0, above=1)
    assert step(before, None, 200.0, 100.0, AT_ONCE) == before


def test_throttle_stays_within_bounds() -> None:
    assert run([500.0] * 100, AT_ONCE).throttle_pct == 100.0
    assert run([10.0] * 100, AT_ONCE, state=DvfsState(throttle_pct=95.0)).throttle_pct == 0.0


def test_no_action_is_counted_at_the_bounds() -> None:
    assert run([10.0] * 4, AT_ONCE).action is None
    assert run([500.0] * 4, AT_ONCE, state=DvfsState(throttle_pct=100.0)).action is None


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_power_is_refused(bad: float) -> None:
    with pytest.raises(InvalidQuantityError):
        step(DvfsState(), bad, 200.0, 0.0, AT_ONCE)


@pytest.mark.parametrize(
    "bad",
    [
        {"ema_alpha": 0.0},
        {"ema_alpha": 1.1},
        {"high_margin_w": -1.0},
        {"low_margin_w": math.nan},
        {"trip_count": 0},
        {"step_pct": 0.0},
        {"step_pct": 101.0},
        {"cooldown_s": -1.0},
        {"min_frequency_hz": 0.0},
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidQuantityError):
        DvfsSettings(**bad)


def test_h5_throttles_are_among_those_that_a_later_process_looks_for() -> None:
    possible = possible_throttles_pct(AT_ONCE)
    state, power_w = DvfsState(throttle_pct=11.1), 300.0
    for number in range(40):
        power_w = 300.0 - 1.3 * state.throttle_pct
        state = step(state, power_w, 200.0, 20.0 * number, AT_ONCE)
        assert state.throttle_pct in {0.0, 11.1, *possible}
    assert 197.0 <= power_w <= 200.0


def test_frequency_of_a_throttle() -> None:
    assert frequency_limit_hz(0.0, 0.8e9, 3.5e9, 1.5e9) == 3.5e9
    assert frequency_limit_hz(40.0, 0.8e9, 3.5e9, 1.5e9) == pytest.approx(2.42e9)
    assert frequency_limit_hz(100.0, 0.8e9, 3.5e9, 1.5e9) == 1.5e9
    assert frequency_limit_hz(100.0, 0.8e9, 1.2e9, 1.5e9) == 1.2e9


def test_throttle_of_a_limit_found() -> None:
    assert throttle_of_limit_pct(2.42e9, 0.8e9, 3.5e9) == pytest.approx(40.0)
    assert throttle_of_limit_pct(4e9, 0.8e9, 3.5e9) == 0.0
    assert throttle_of_limit_pct(1e9, 1e9, 1e9) == 0.0


def test_open_loop() -> None:
    assert open_loop_throttle_pct(60.0) == 40.0
    with pytest.raises(InvalidQuantityError):
        open_loop_throttle_pct(101.0)
