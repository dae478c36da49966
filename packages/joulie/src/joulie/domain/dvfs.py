"""Power limits by frequency, for CPUs whose power cannot be limited directly: a feedback controller as a pure step.

The controller raises and lowers a throttle, 0 % (the highest frequency) to 100 % (the floor), until the smoothed power
of the packages stays near the cap. Hysteresis, a trip count and a cooldown keep it from oscillating; steps that shrink
with the distance, as the secant method makes them, and a slow trim inside the margins bring the mean to the cap.
Source: spec, control loop, agent; the settings are those of the public configuration reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from joulie.domain.quantities import InvalidQuantityError, finite_number, positive_number

_FULL_PERCENT = 100.0

_TARGET_SHARE = 0.995
"""Mean power aimed at, as a share of the cap: a little below, so that noise does not exceed it half of the time."""
_TRIMMED_SHARE = 0.01
"""Distance of the mean power from the target that is left alone, as a share of the cap."""
_TRIM_SAMPLES = 4
"""Minimum number of samples after a change before the throttle is trimmed."""
_MEAN_SAMPLES = 16
_TRIM_SHARE = 0.25
"""Maximum trim as a share of the step."""
_QUANTA_OF_A_STEP = 20
"""The throttle is a multiple of the step divided by this, so that the limits of a lost process can be recognised."""
_MIN_MEASURED_PCT = 1.0
"""Minimum change of the throttle whose effect is measured, percent: that of a smaller one is lost in noise."""
_MIN_SLOPE_SHARE = 0.002
"""Minimum power that a percent of throttle takes off, as a share of the cap, to be taken for its effect."""


@dataclass(frozen=True)
class DvfsSettings:
    """How the controller reacts.

    Attributes:
        ema_alpha: weight of the newest sample in the smoothed power, 0 (exclusive) to 1.
        high_margin_w: power above the cap that is still tolerated, W.
        low_margin_w: power below the cap at which there is room for more, W.
        trip_count: samples in a row outside the margins before the throttle changes.
        step_pct: change of the throttle at a time, percent.
        cooldown_s: pause after a change, s.
        min_frequency_hz: the throttle never asks for less, Hz.
    """

    ema_alpha: float = 0.3
    high_margin_w: float = 10.0
    low_margin_w: float = 15.0
    trip_count: int = 2
    step_pct: float = 10.0
    cooldown_s: float = 20.0
    min_frequency_hz: float = 1.5e9

    def __post_init__(self) -> None:
        finite_number("ema_alpha", positive_number("ema_alpha", self.ema_alpha), maximum=1.0)
        finite_number("high_margin_w", self.high_margin_w, minimum=0.0)
        finite_number("low_margin_w", self.low_margin_w, minimum=0.0)
        if self.trip_count < 1:
            raise InvalidQuantityError("trip_count", f"must be at least 1, got {self.trip_count}")
        finite_number("step_pct", positive_number("step_pct", self.step_pct), maximum=_FULL_PERCENT)
        finite_number("cooldown_s", self.cooldown_s, minimum=0.0)
        positive_number("min_frequency_hz", self.min_frequency_hz)


class DvfsAction(StrEnum):
    """What a step did, as `joulie_dvfs_actions_total` counts it."""

    UP = "throttle_up"
    DOWN = "throttle_down"


@dataclass(frozen=True)
class DvfsState:
    """What the controller remembers between samples.

    Attributes:
        throttle_pct: throttle in force, 0 to 100 %.
        ema_w: smoothed power, W; None before the first sample.
        above: samples in a row above the upper margin.
        below: samples in a row below the lower margin.
        acted_at_s: time of the last change, s; None before the first.
        action: what the last step did.
        acted_from_w: smoothed power before the last change, W.
        acted_by_pct: last change of the throttle, percent.
        samples: samples since the last change.
        mean_w: mean power of these samples, the latest `_MEAN_SAMPLES` counting most, W.
        balance_w: mean power above the target, over changes smaller than a step too; the latest `_MEAN_SAMPLES` samples
            count most, W.
        balanced: samples in `balance_w`.
        slope_w: power that one percent of throttle took off at an earlier change, W; None where unknown.
    """

    throttle_pct: float = 0.0
    ema_w: float | None = None
    above: int = 0
    below: int = 0
    acted_at_s: float | None = None
    action: DvfsAction | None = None
    acted_from_w: float = 0.0
    acted_by_pct: float = 0.0
    samples: int = 0
    mean_w: float = 0.0
    balance_w: float = 0.0
    balanced: int = 0
    slope_w: float | None = None


def step(state: DvfsState, power_w: float | None, cap_w: float, now_s: float, settings: DvfsSettings) -> DvfsState:
    """The controller's state after one more sample of power.

    Outside the margins the throttle changes by a step, or by less where the last change has shown what a percent of
    throttle is worth. Inside them it is trimmed, seldom and little, until the mean power is within 1 % of the target:
    the margins alone would leave a package that is capped at 216 W anywhere between 201 and 226 W. Where none of the
    hardware's frequencies meets the cap, it alternates between two so that the mean does.

    Args:
        state: the state before.
        power_w: power of all packages, W; None where it could not be read; the state then stays.
        cap_w: cap of all packages, W.
        now_s: time on a monotonic clock, s.
        settings: margins and damping.

    Raises:
        InvalidQuantityError: a power that is negative or NaN, or a cap that is not positive.
    """
    positive_number("cap_w", cap_w)
    if power_w is None:
        return replace(state, action=None)
    finite_number("power_w", power_w, minimum=0.0)
    cooling = state.acted_at_s is not None and now_s - state.acted_at_s < settings.cooldown_s
    # Power from before the last change says nothing about the throttle in force.
    first = cooling or (state.samples == 0 and state.acted_at_s is not None)
    seen = _with_sample(state, power_w, cap_w, settings, first=first)
    if cooling:
        return seen
    change_pct = _change_pct(seen, cap_w, settings)
    throttle_pct = _quantised_pct(seen.throttle_pct + change_pct, settings) if change_pct else seen.throttle_pct
    if throttle_pct == seen.throttle_pct or seen.ema_w is None:
        return seen
    trimmed = abs(change_pct) < settings.step_pct
    return DvfsState(
        throttle_pct,
        seen.ema_w,
        acted_at_s=now_s,
        action=DvfsAction.UP if change_pct > 0.0 else DvfsAction.DOWN,
        acted_from_w=seen.ema_w,
        acted_by_pct=throttle_pct - seen.throttle_pct,
        balance_w=seen.balance_w if trimmed else 0.0,
        balanced=seen.balanced if trimmed else 0,
        slope_w=_slope_w(seen, cap_w, settings),
    )


def _with_sample(state: DvfsState, power_w: float, cap_w: float, settings: DvfsSettings, *, first: bool) -> DvfsState:
    """The state with one more sample; `first`: none of the earlier ones counts."""
    last_w = power_w if first or state.ema_w is None else state.ema_w
    ema_w = settings.ema_alpha * power_w + (1.0 - settings.ema_alpha) * last_w
    samples = 1 if first else state.samples + 1
    balanced = min(state.balanced + 1, _MEAN_SAMPLES)
    return replace(
        state,
        ema_w=ema_w,
        above=state.above + 1 if ema_w > cap_w + settings.high_margin_w else 0,
        below=state.below + 1 if ema_w < cap_w - settings.low_margin_w else 0,
        action=None,
        samples=samples,
        mean_w=power_w if samples == 1 else state.mean_w + (power_w - state.mean_w) / min(samples, _MEAN_SAMPLES),
        balance_w=state.balance_w + (power_w - cap_w * _TARGET_SHARE - state.balance_w) / balanced,
        balanced=balanced,
    )


def _change_pct(state: DvfsState, cap_w: float, settings: DvfsSettings) -> float:
    """Change of the throttle that a state asks for, percent; a positive one takes power off."""
    target_w, slope_w = cap_w * _TARGET_SHARE, _slope_w(state, cap_w, settings)
    if max(state.above, state.below) >= settings.trip_count:
        error_w = (state.ema_w or 0.0) - target_w
        if state.below and max(error_w, state.balance_w) > 0.0:  # what was drawn too much comes first
            return 0.0
        wanted_pct = settings.step_pct if slope_w is None else abs(error_w) / slope_w
        most_pct = settings.step_pct
    elif not (state.above or state.below) and state.samples >= max(_TRIM_SAMPLES, settings.trip_count):
        error_w = state.mean_w - target_w
        least_w = min(error_w, state.balance_w) if error_w > 0.0 else -max(error_w, state.balance_w)
        if least_w <= _TRIMMED_SHARE * cap_w:
            return 0.0
        wanted_pct = 0.0 if slope_w is None else abs(error_w) / slope_w
        moved_w = abs(state.mean_w - state.acted_from_w)
        if error_w * state.acted_by_pct > 0.0 and moved_w < 0.25 * wanted_pct * (slope_w or 0.0):
            # The last trim was too small for the hardware's frequencies.
            wanted_pct = max(wanted_pct, 2.0 * abs(state.acted_by_pct))
        most_pct = settings.step_pct * _TRIM_SHARE
    else:
        return 0.0
    change_pct = min(max(wanted_pct, settings.step_pct / _QUANTA_OF_A_STEP), most_pct)
    return change_pct if error_w > 0.0 else -change_pct


def _quantised_pct(throttle_pct: float, settings: DvfsSettings) -> float:
    quantum_pct = settings.step_pct / _QUANTA_OF_A_STEP
    return min(max(round(throttle_pct / quantum_pct) * quantum_pct, 0.0), _FULL_PERCENT)


def _slope_w(state: DvfsState, cap_w: float, settings: DvfsSettings) -> float | None:
    """Power that one percent of throttle takes off, W: as the last change showed, else as known before it.

    None where a whole step showed none: the load has changed too, or the frequency was not what limited it.
    """
    if abs(state.acted_by_pct) < _MIN_MEASURED_PCT or state.samples == 0 or state.ema_w is None:
        return state.slope_w
    measured_w = (state.acted_from_w - state.ema_w) / state.acted_by_pct
    if measured_w >= _MIN_SLOPE_SHARE * cap_w:
        return measured_w
    return None if abs(state.acted_by_pct) >= settings.step_pct else state.slope_w


def open_loop_throttle_pct(cap_percent: float) -> float:
    """Throttle for a cap in percent where power cannot be measured: the same share of the frequency span is taken off.

    Args:
        cap_percent: cap in percent of the base, 0 (exclusive) to 100.
    """
    return _FULL_PERCENT - finite_number("cap_percent", cap_percent, minimum=0.0, maximum=_FULL_PERCENT)


def frequency_limit_hz(
    throttle_pct: float, min_hz: float, max_hz: float, floor_hz: float, steps_hz: Iterable[float] = ()
) -> float:
    """Upper frequency limit of a throttle: a share of the hardware's span, never below the floor, Hz.

    Where the driver has a table, it is the next step down, as the driver would make of it: known before it is written.

    Args:
        throttle_pct: 0 (the hardware's maximum) to 100 (its minimum, or the floor).
        min_hz: lowest frequency of the hardware, Hz.
        max_hz: highest frequency of the hardware, Hz.
        floor_hz: minimum limit that is ever set, Hz; a floor above the hardware's maximum means the maximum.
        steps_hz: limits that the driver can set, Hz; empty where it sets any.
    """
    share = finite_number("throttle_pct", throttle_pct, minimum=0.0, maximum=_FULL_PERCENT) / _FULL_PERCENT
    limit_hz = max(max_hz - (max_hz - min_hz) * share, min(floor_hz, max_hz))
    return max((step_hz for step_hz in steps_hz if min_hz <= step_hz <= limit_hz), default=limit_hz)


def throttle_of_limit_pct(limit_hz: float, min_hz: float, max_hz: float) -> float:
    """Throttle that a limit in force corresponds to, percent; a restarted agent continues from it."""
    if max_hz <= min_hz:
        return 0.0
    return min(max((max_hz - limit_hz) / (max_hz - min_hz), 0.0), 1.0) * _FULL_PERCENT


def possible_throttles_pct(settings: DvfsSettings) -> tuple[float, ...]:
    """Throttles above 0 that the controller sets, percent."""
    quantum_pct = settings.step_pct / _QUANTA_OF_A_STEP
    return (*(quantum_pct * number for number in range(1, int(_FULL_PERCENT // quantum_pct) + 1)), _FULL_PERCENT)
