"""Whether a waiting workload runs now."""

import dataclasses

import pytest

from joulie.domain.grid.deferral import (
    Conditions,
    FinishBy,
    Hold,
    HoldReason,
    Release,
    ReleaseReason,
    Waiting,
    decide,
    objective,
)
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Period, Provenance
from joulie.domain.signal import Quality

NOW_S = 1_700_000_000.0
HOUR_S = 3600.0
REQUEST = GridRequest(asked_by=Asked.POD, max_delay_s=12 * HOUR_S)
PRICED = dataclasses.replace(REQUEST, price_enabled=True)
OPTIMAL = dataclasses.replace(REQUEST, mode=Mode.OPTIMAL, runtime_s=2 * HOUR_S, runtime_stated=True)


def hours(*values: float, start_s: float = NOW_S) -> Series:
    return Series([start_s + HOUR_S * at for at in range(len(values))], values, start_s + HOUR_S * len(values))


def carbon(value: float | None, forecast: Series | None = None, quality: Quality = Quality.FRESH) -> GridSignal:
    return GridSignal(
        Measure.CARBON,
        "US-CAL-CISO",
        quality,
        value,
        NOW_S - 180.0,
        Provenance("electricity-maps", "US-CAL-CISO", Basis.AVERAGE),
        forecast=forecast,
    )


def price(value: float | None, period: Period | None = None, forecast: Series | None = None) -> GridSignal:
    return GridSignal(
        Measure.PRICE, "US-CAL-CISO", Quality.FRESH, value, NOW_S, Provenance("tou", "pge"), period, forecast=forecast
    )


def decided(request: GridRequest, *signals: GridSignal, waited_s: float = 0.0) -> Hold | Release:
    by_measure = {signal.measure: signal for signal in signals}
    conditions = Conditions(by_measure.get(Measure.CARBON), by_measure.get(Measure.PRICE))
    return decide(Waiting(request, NOW_S - waited_s), conditions, NOW_S)


def held(request: GridRequest, *signals: GridSignal, waited_s: float = 0.0) -> Hold:
    decision = decided(request, *signals, waited_s=waited_s)
    assert isinstance(decision, Hold)
    return decision


def released(request: GridRequest, *signals: GridSignal, waited_s: float = 0.0) -> Release:
    decision = decided(request, *signals, waited_s=waited_s)
    assert isinstance(decision, Release)
    return decision


def test_above_the_threshold_it_waits_and_says_why() -> None:
    hold = held(REQUEST, carbon(412.0))
    assert hold.reason is HoldReason.CARBON
    assert hold.text == "carbon intensity 412 gCO2eq/kWh (US-CAL-CISO, electricity-maps, 3 min old) above 200"
    assert hold.wake_s == hold.latest_start_s == NOW_S + 12 * HOUR_S


def test_equal_to_the_threshold_runs() -> None:
    assert released(REQUEST, carbon(200.0)).reason is ReleaseReason.CLEAN
    assert held(REQUEST, carbon(200.0001)).reason is HoldReason.CARBON


def test_it_wakes_when_the_forecast_crosses_the_threshold() -> None:
    assert held(REQUEST, carbon(300.0, hours(300.0, 250.0, 200.0, 100.0))).wake_s == NOW_S + 2 * HOUR_S


def test_it_wakes_at_the_latest_start_if_the_crossing_is_expected_later() -> None:
    soon = dataclasses.replace(REQUEST, max_delay_s=HOUR_S)
    assert held(soon, carbon(300.0, hours(300.0, 250.0, 200.0))).wake_s == NOW_S + HOUR_S


def test_a_forecast_that_takes_now_for_clean_does_not_wake_it_every_second() -> None:
    assert held(REQUEST, carbon(300.0, hours(100.0, 250.0, 200.0))).wake_s == NOW_S + 2 * HOUR_S


def test_it_never_wakes_at_once() -> None:
    forecast = Series([NOW_S - 10.0, NOW_S + 0.25], [300.0, 100.0], NOW_S + HOUR_S)
    assert held(REQUEST, carbon(300.0, forecast)).wake_s == NOW_S + 1.0


def test_the_longest_delay_is_absolute() -> None:
    signal = carbon(900.0)
    assert held(REQUEST, signal, waited_s=12 * HOUR_S - 1.0).wake_s == NOW_S + 1.0
    release = released(REQUEST, signal, waited_s=12 * HOUR_S)
    assert release == Release(ReleaseReason.DEADLINE, "has waited for its longest delay, 12 h")


def test_no_delay_is_no_delay() -> None:
    assert released(dataclasses.replace(REQUEST, max_delay_s=0.0), carbon(900.0)).reason is ReleaseReason.DEADLINE


def test_the_deadline_of_a_job_leaves_time_to_run() -> None:
    waiting = Waiting(OPTIMAL, NOW_S, FinishBy(NOW_S + 5 * HOUR_S, "the deadline of its Job"))
    assert waiting.latest_start_s == NOW_S + 3 * HOUR_S
    late = Waiting(OPTIMAL, NOW_S, FinishBy(NOW_S + HOUR_S, "the deadline of its Job"))
    release = decide(late, Conditions(carbon(900.0)), NOW_S)
    assert release == Release(ReleaseReason.DEADLINE, "needs 2 h before the deadline of its Job")


def test_trap_missing_signal_never_holds() -> None:
    lost = GridSignal(Measure.CARBON, "DE", problem="no answer for 2 h")
    release = released(REQUEST, lost)
    assert release == Release(ReleaseReason.MISSING, "carbon intensity of DE is not known: no answer for 2 h")


def test_trap_a_failed_fetch_is_not_a_zero() -> None:
    """A missing signal releases for being missing, not for being clean at 0 g/kWh."""
    assert released(REQUEST, carbon(None, quality=Quality.MISSING)).reason is ReleaseReason.MISSING


def test_the_last_good_value_holds() -> None:
    assert held(REQUEST, carbon(300.0, quality=Quality.STALE)).reason is HoldReason.CARBON


def test_one_missing_signal_leaves_the_other_in_force() -> None:
    assert held(PRICED, carbon(None, quality=Quality.MISSING), price(0.4, Period.PEAK)).reason is HoldReason.PRICE
    assert released(PRICED, carbon(100.0), GridSignal(Measure.PRICE, "DE")).reason is ReleaseReason.CLEAN


def test_both_hold_if_either_does_and_both_are_said() -> None:
    limited = dataclasses.replace(PRICED, price_threshold_per_kwh=0.12)
    hold = held(limited, carbon(300.0), price(0.3))
    assert hold.reason is HoldReason.BOTH
    assert "carbon intensity 300 gCO2eq/kWh" in hold.text
    assert "price 0.3/kWh (US-CAL-CISO, tou, 0 s old) above 0.12" in hold.text
    assert held(limited, carbon(100.0), price(0.3)).reason is HoldReason.PRICE
    assert held(limited, carbon(300.0), price(0.1)).reason is HoldReason.CARBON
    assert released(limited, carbon(100.0), price(0.1)).reason is ReleaseReason.CLEAN


def test_of_two_that_hold_the_later_one_is_waited_for() -> None:
    limited = dataclasses.replace(PRICED, price_threshold_per_kwh=0.12)
    dear = price(0.3, forecast=hours(0.3, 0.1))
    assert held(limited, carbon(300.0, hours(300.0, 250.0, 100.0)), dear).wake_s == NOW_S + 2 * HOUR_S


def test_without_a_threshold_a_price_holds_in_its_peak_period() -> None:
    only = dataclasses.replace(PRICED, carbon_enabled=False)
    peak = price(0.4, Period.PEAK, hours(0.4, 0.4, 0.1))
    hold = held(only, dataclasses.replace(peak, forecast=Series([NOW_S, NOW_S + HOUR_S], [0.4, 0.1], NOW_S + 9e4)))
    assert (hold.reason, hold.wake_s) == (HoldReason.PRICE, NOW_S + HOUR_S)
    assert "in its peak period" in hold.text
    assert released(only, price(0.1, Period.OFF_PEAK)).reason is ReleaseReason.CLEAN
    assert released(only, price(0.9)).reason is ReleaseReason.CLEAN  # a price without periods or limit


def test_a_threshold_without_rates_falls_back_to_the_period() -> None:
    limited = dataclasses.replace(PRICED, carbon_enabled=False, price_threshold_per_kwh=0.12)
    assert held(limited, price(None, Period.PEAK)).reason is HoldReason.PRICE
    assert released(limited, price(None, Period.OFF_PEAK)).reason is ReleaseReason.CLEAN


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"skip": True}, ReleaseReason.SKIP),
        ({"asked_by": Asked.NOBODY}, ReleaseReason.NOT_ASKED),
        ({"carbon_enabled": False}, ReleaseReason.NOT_WATCHED),
    ],
)
def test_who_never_waits(change: dict[str, object], reason: ReleaseReason) -> None:
    assert released(dataclasses.replace(REQUEST, **change), carbon(900.0)).reason is reason  # type: ignore[arg-type]


def test_a_price_that_the_cluster_does_not_watch_is_no_reason() -> None:
    assert released(PRICED, carbon(100.0)).reason is ReleaseReason.CLEAN


def test_optimal_waits_for_the_best_window() -> None:
    hold = held(OPTIMAL, carbon(100.0, hours(100.0, 90.0, 50.0, 40.0, 80.0)))
    assert (hold.reason, hold.wake_s) == (HoldReason.WINDOW, NOW_S + 2 * HOUR_S)
    assert hold.text == "carbon intensity of a run of 2 h is expected 53% lower from 2 h on"


def test_optimal_begins_in_the_best_window_even_above_the_threshold() -> None:
    release = released(OPTIMAL, carbon(500.0, hours(500.0, 500.0, 700.0, 600.0)))
    assert release == Release(ReleaseReason.WINDOW, "the best time by carbon intensity for a run of 2 h begins now")


def test_of_equal_windows_optimal_takes_the_first() -> None:
    assert released(OPTIMAL, carbon(200.0, hours(200.0, 200.0, 200.0, 200.0))).reason is ReleaseReason.WINDOW
    assert held(OPTIMAL, carbon(200.0, hours(200.0, 200.0, 199.0, 199.0))).wake_s == NOW_S + 2 * HOUR_S


def test_optimal_looks_no_further_than_the_latest_start() -> None:
    forecast = hours(100.0, 100.0, 90.0, 100.0, 5.0, 5.0)
    soon = dataclasses.replace(OPTIMAL, max_delay_s=1.5 * HOUR_S)
    hold = held(soon, carbon(100.0, forecast))
    assert hold.wake_s == NOW_S + HOUR_S


def test_optimal_without_a_forecast_goes_by_thresholds_and_says_so() -> None:
    hold = held(OPTIMAL, carbon(300.0))
    assert hold.reason is HoldReason.CARBON
    assert hold.text.startswith("no forecast, so by thresholds: carbon intensity 300")
    assert released(OPTIMAL, carbon(100.0)).reason is ReleaseReason.CLEAN
    assert held(OPTIMAL, carbon(300.0, hours(300.0))).text.startswith("forecast shorter than the run")


def test_optimal_says_that_it_assumes_the_runtime() -> None:
    assumed = dataclasses.replace(OPTIMAL, runtime_stated=False)
    assert "(assumed)" in held(assumed, carbon(100.0, hours(100.0, 90.0, 50.0, 40.0))).text


def test_a_forecast_that_begins_later_continues_the_value_in_force() -> None:
    later = hours(50.0, 50.0, 50.0, start_s=NOW_S + HOUR_S)
    assert held(OPTIMAL, carbon(100.0, later)).wake_s == NOW_S + HOUR_S


def test_optimal_still_avoids_the_peak_of_a_tariff_without_rates() -> None:
    both = dataclasses.replace(OPTIMAL, price_enabled=True)
    best_now = carbon(100.0, hours(100.0, 200.0, 300.0))
    assert held(both, best_now, price(None, Period.PEAK)).reason is HoldReason.PRICE
    assert released(both, best_now, price(None, Period.OFF_PEAK)).reason is ReleaseReason.WINDOW


def test_carbon_and_price_are_weighed_over_their_means() -> None:
    dirty_now, dear_later = hours(300.0, 300.0, 100.0, 100.0), hours(0.1, 0.1, 0.3, 0.3)
    signals = (carbon(300.0, dirty_now), price(0.1, forecast=dear_later))
    green = dataclasses.replace(OPTIMAL, price_enabled=True, carbon_weight=0.9, price_weight=0.1)
    cheap = dataclasses.replace(OPTIMAL, price_enabled=True, carbon_weight=0.1, price_weight=0.9)
    assert held(green, *signals).wake_s == NOW_S + 2 * HOUR_S
    assert released(cheap, *signals).reason is ReleaseReason.WINDOW


def test_the_objective_of_several_is_exact_on_their_common_steps() -> None:
    carbon_series = Series([0.0, 100.0, 300.0], [1.0, 3.0, 5.0], 400.0)
    price_series = Series([50.0, 200.0], [2.0, 6.0], 350.0)
    total = objective([(0.5, carbon_series), (2.0, price_series)])
    assert total is not None
    assert (total.start_s, total.end_s) == (50.0, 350.0)
    means = [series.mean(50.0, 350.0) for series in (carbon_series, price_series)]
    for time_s in (50.0, 99.0, 100.0, 199.0, 200.0, 300.0, 349.0):
        expected = 0.5 * carbon_series.at(time_s) / means[0] + 2.0 * price_series.at(time_s) / means[1]  # type: ignore[operator]
        assert total.at(time_s) == pytest.approx(expected)
    assert objective([]) is None
    assert objective([(1.0, constant(1.0, 0.0, 1.0)), (1.0, constant(1.0, 2.0, 3.0))]) is None


def test_negative_prices_are_worth_waiting_for() -> None:
    paid = dataclasses.replace(OPTIMAL, carbon_enabled=False, price_enabled=True)
    assert held(paid, price(0.0, forecast=hours(0.0, 0.0, -0.1, -0.1))).wake_s == NOW_S + 2 * HOUR_S
    assert released(paid, price(-0.1, forecast=hours(-0.1, -0.1, 0.0, 0.0))).reason is ReleaseReason.WINDOW


def test_g1_what_nobody_suspends_runs_in_one_piece() -> None:
    request = dataclasses.replace(OPTIMAL, mode=Mode.INTERRUPTIBLE, interruptible=True)
    cheap_once_then_dear = hours(90.0, 1662.0, 900.0, 100.0, 100.0, 900.0)
    # Its best slots begin now, but a pod that begins now runs through the dear hour: 876 g/kWh instead of 100.
    assert held(request, carbon(90.0, cheap_once_then_dear)).wake_s == NOW_S + 3 * HOUR_S


@pytest.mark.parametrize(
    ("request_", "signals", "measures"),
    [
        (REQUEST, (carbon(300.0),), {Measure.CARBON}),
        (PRICED, (carbon(100.0), price(0.3, Period.PEAK)), {Measure.PRICE}),
        (PRICED, (carbon(300.0), price(0.3, Period.PEAK)), {Measure.CARBON, Measure.PRICE}),
        # Windows: carbon does not hold a pod that disregards it, nor one for which its weight is zero.
        (
            dataclasses.replace(OPTIMAL, carbon_enabled=False, price_enabled=True),
            (carbon(300.0, hours(300.0, 300.0, 300.0, 300.0)), price(0.3, forecast=hours(0.3, 0.3, 0.1, 0.1))),
            {Measure.PRICE},
        ),
        (
            dataclasses.replace(OPTIMAL, price_enabled=True, carbon_weight=0.0),
            (carbon(300.0, hours(300.0, 300.0, 100.0, 100.0)), price(0.3, forecast=hours(0.3, 0.3, 0.1, 0.1))),
            {Measure.PRICE},
        ),
        (
            dataclasses.replace(OPTIMAL, price_enabled=True),
            (carbon(300.0, hours(300.0, 300.0, 100.0, 100.0)), price(0.3, forecast=hours(0.3, 0.3, 0.1, 0.1))),
            {Measure.CARBON, Measure.PRICE},
        ),
        (
            dataclasses.replace(OPTIMAL, price_enabled=True),
            (carbon(300.0, hours(300.0, 300.0, 100.0, 100.0)), price(None, Period.OFF_PEAK)),
            {Measure.CARBON},
        ),
        # A peak without a forecast and a better window both hold it.
        (
            dataclasses.replace(OPTIMAL, price_enabled=True),
            (carbon(300.0, hours(300.0, 300.0, 100.0, 100.0)), price(None, Period.PEAK)),
            {Measure.CARBON, Measure.PRICE},
        ),
        (
            dataclasses.replace(OPTIMAL, price_enabled=True),
            (carbon(100.0, hours(100.0, 100.0, 300.0, 300.0)), price(None, Period.PEAK)),
            {Measure.PRICE},
        ),
    ],
)
def test_g3_a_hold_says_which_signals_hold(
    request_: GridRequest, signals: tuple[GridSignal, ...], measures: set[Measure]
) -> None:
    assert set(held(request_, *signals).held_by) == measures
