import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import t

from joulie.domain.profiles.cap_response import CapChange, CapResponse, cap_response, pooled, student_t, with_response
from joulie.domain.profiles.profile import Hints, Use
from joulie.domain.profiles.rules import METRICS_MISSING, classify, decayed
from joulie.domain.signal import Reading
from joulie.domain.units import InvalidQuantityError
from joulie.domain.workload import GpuLevel, Level

TIGHTENED = CapChange(time_s=1000.0, depth_before=0.0, depth_after=0.4)


def readings(rate: Callable[[float], float], noise: float = 0.0, step_s: float = 15.0, seed: int = 0) -> list[Reading]:
    """Ten minutes of throughput on both sides of the change."""
    rng = np.random.default_rng(seed)
    times_s = np.arange(400.0, 1600.0 + step_s, step_s)
    return [Reading(float(at), rate(float(at)) * (1.0 + noise * float(rng.normal()))) for at in times_s]


def under(slowdown: float, change: CapChange = TIGHTENED, rate: float = 50.0) -> Callable[[float], float]:
    return lambda at: rate * (1.0 - slowdown * (change.depth_before if at < change.time_s else change.depth_after))


@pytest.mark.parametrize(
    "change", [TIGHTENED, CapChange(1000.0, 0.4, 0.0), CapChange(1000.0, 0.1, 0.4), CapChange(1000.0, 0.5, 0.3)]
)
@pytest.mark.parametrize("slowdown", [0.0, 0.12, 0.8])
def test_exact_throughput_gives_the_exact_slowdown(change: CapChange, slowdown: float) -> None:
    response = cap_response(readings(under(slowdown, change)), change)
    assert response is not None
    assert (response.slowdown, response.low, response.high) == pytest.approx((slowdown,) * 3, abs=1e-9)


@pytest.mark.parametrize(
    ("slowdown", "level"), [(0.6, Level.HIGH), (0.2, Level.MEDIUM), (0.03, Level.LOW), (0.3, None), (0.1, None)]
)
def test_levels_are_told_where_the_interval_lies_in_one(slowdown: float, level: Level | None) -> None:
    response = cap_response(readings(under(slowdown), noise=0.02), TIGHTENED)
    assert response is not None
    assert response.low < slowdown < response.high
    assert response.level is level


def test_nothing_is_told_of_noise() -> None:
    response = cap_response(readings(under(0.2), noise=0.25), TIGHTENED)
    assert response is not None
    assert response.level is None


def test_too_few_samples_tell_nothing() -> None:
    assert cap_response(readings(under(0.5), step_s=100.0), TIGHTENED) is None
    assert cap_response([], TIGHTENED) is None
    assert cap_response([reading for reading in readings(under(0.5)) if reading.time_s >= 1000.0], TIGHTENED) is None


def test_throughput_that_was_falling_anyway_tells_nothing() -> None:
    falling = readings(lambda at: 50.0 * (1.0 - 0.0003 * (at - 400.0)), noise=0.01)
    assert cap_response(falling, TIGHTENED) is None
    warming_up = readings(lambda at: 50.0 * min(1.0, 0.5 + (at - 400.0) / 1000.0), noise=0.01)
    assert cap_response(warming_up, TIGHTENED) is None


def test_a_slight_trend_in_noise_tells_nothing() -> None:
    falling = [readings(lambda at: 50.0 - 0.01 * (at - 400.0), noise=0.03, seed=seed) for seed in range(50)]
    steady = [readings(lambda _: 50.0, noise=0.03, seed=seed) for seed in range(50)]
    told = [sum(cap_response(rates, TIGHTENED) is not None for rates in runs) for runs in (falling, steady)]
    assert told[0] < 10
    assert told[1] > 40


def test_a_standstill_tells_nothing() -> None:
    assert cap_response(readings(lambda at: 0.0 if at < 1000.0 else 10.0), TIGHTENED) is None


def test_a_small_change_of_the_cap_tells_nothing() -> None:
    change = CapChange(1000.0, 0.0, 0.04)
    assert cap_response(readings(under(0.5, change)), change) is None


def test_no_slowdown_explains_a_collapse_under_a_lifted_cap() -> None:
    lifted = CapChange(1000.0, 0.4, 0.1)
    assert cap_response(readings(lambda at: 50.0 if at < 1000.0 else 5.0), lifted) is None


def test_samples_far_off_and_those_of_the_transition_do_not_count() -> None:
    steady = readings(under(0.5))
    transition = [Reading(at, 1e6) for at in (1001.0, 1059.0, 399.0, 1601.0)]
    assert cap_response([*transition, *steady], TIGHTENED) == cap_response(steady, TIGHTENED)


def test_order_does_not_matter() -> None:
    noisy = readings(under(0.5), noise=0.05)
    assert cap_response(noisy[::-1], TIGHTENED) == cap_response(noisy, TIGHTENED)


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.9)])
def test_the_interval_covers_the_truth_as_often_as_it_says(correlation: float, least: float) -> None:
    """Also where samples are like their neighbours: how much they are is an estimate, so a little less often then."""
    rng = np.random.default_rng(10)
    told = []
    for _ in range(400):
        noise = rng.normal(0.0, 0.1 * math.sqrt(1.0 - correlation**2), 81)
        for index in range(1, 81):
            noise[index] += correlation * noise[index - 1]
        steady = readings(under(0.5))
        rates = [Reading(r.time_s, r.value * (1.0 + float(e))) for r, e in zip(steady, noise, strict=True)]
        told.append(cap_response(rates, TIGHTENED))
    responses = [response for response in told if response is not None]
    assert len(responses) > 200
    covered = sum(response.low <= 0.5 <= response.high for response in responses) / len(responses)
    assert covered > least


@pytest.mark.parametrize("freedom", [3.0, 4.0, 6.5, 20.0, 500.0])
def test_student_t(freedom: float) -> None:
    assert student_t(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=2e-3)


def test_more_changes_tell_more() -> None:
    single = CapResponse(0.35, 0.25, 0.45)
    assert single.level is None
    both = pooled([single, CapResponse(0.41, 0.31, 0.51)])
    assert both is not None
    assert both.slowdown == pytest.approx(0.38)
    assert both.level is Level.HIGH


def test_the_surer_of_two_counts_more() -> None:
    result = pooled([CapResponse(0.2, 0.19, 0.21), CapResponse(0.3, 0.1, 0.5)])
    assert result is not None
    assert result.slowdown == pytest.approx(0.2, abs=0.01)


def test_contradiction_tells_nothing() -> None:
    assert pooled([CapResponse(0.1, 0.0, 0.2), CapResponse(0.5, 0.4, 0.6)]) is None
    assert pooled([]) is None


def test_exact_responses_can_be_pooled() -> None:
    exact = CapResponse(0.4, 0.4, 0.4)
    result = pooled([exact, CapResponse(0.5, 0.3, 0.7)])
    assert result is not None
    assert result.slowdown == pytest.approx(0.4)


@pytest.mark.parametrize("reading", [Reading(500.0, math.nan), Reading(500.0, -1.0), Reading(math.nan, 1.0)])
def test_readings_that_cannot_be_are_refused(reading: Reading) -> None:
    with pytest.raises(InvalidQuantityError):
        cap_response([reading], TIGHTENED)


def test_changes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="depth_after"):
        CapChange(0.0, 0.0, 1.5)


MEMORY = Use(cpu_util_pct=45.0, memory_pressure_pct=68.0, gpu_util_pct=92.0)
SENSITIVE = CapResponse(0.52, 0.41, 0.63)


def test_measured_sensitivity_goes_before_the_guess() -> None:
    guessed = classify(Hints(), MEMORY)
    result = with_response(guessed, Hints(), cpu=SENSITIVE, gpu=CapResponse(0.02, -0.01, 0.05))
    assert (result.cpu.cap_sensitivity, result.gpu.cap_sensitivity) == (Level.HIGH, GpuLevel.LOW)
    assert result.reason == (
        f"{guessed.reason}; cpu-cap-sensitivity=high (measured slowdown 0.52 [0.41, 0.63] per cap depth)"
        "; gpu-cap-sensitivity=low (measured slowdown 0.02 [-0.01, 0.05] per cap depth)"
    )


def test_measured_sensitivity_never_overrides_an_annotation() -> None:
    hints = Hints(cpu_sensitivity=Level.LOW, gpu_sensitivity=Level.LOW)
    annotated = classify(hints, MEMORY)
    assert with_response(annotated, hints, cpu=SENSITIVE, gpu=SENSITIVE) == annotated


def test_a_response_without_a_level_changes_nothing() -> None:
    guessed = classify(Hints(), MEMORY)
    assert with_response(guessed, Hints(), cpu=CapResponse(0.3, 0.2, 0.4)) == guessed
    assert with_response(guessed, Hints()) == guessed


def test_measured_sensitivity_stays_while_metrics_are_missing() -> None:
    measured = with_response(classify(Hints(), MEMORY), Hints(), cpu=SENSITIVE)
    result = decayed(measured, Hints(), 900.0)
    assert result.cpu.cap_sensitivity is Level.HIGH
    assert result.reason == f"{measured.reason}; {METRICS_MISSING}"


def test_thresholds_of_the_levels() -> None:
    levels = [CapResponse(s, s, s).level for s in (-0.2, 0.0, 0.0999, 0.1, 0.2999, 0.3, 2.0)]
    assert levels == [Level.LOW] * 3 + [Level.MEDIUM] * 2 + [Level.HIGH] * 2
