import numpy as np
import pytest

from joulie.domain.dynamics import lagged, lagged_mean
from joulie.domain.hardware import BUILTIN_CATALOGUE, GpuModel, Provenance
from joulie.domain.power.gpu import MEASURED_RESPONSE, natural_power_w, operate_gpu
from joulie.domain.units import InvalidQuantityError
from joulie_lab.machines.gpu_clock import ClockPower
from joulie_lab.simulation.job_response import NoPublishedExponentError, UnknownThroughputModelError, throughput_model
from joulie_lab.simulation.live.dynamics import steady_temperature_k, thermal_throttle


def model(key: str) -> GpuModel:
    match = BUILTIN_CATALOGUE.gpu(key).model
    assert match is not None
    return match


def test_natural_power() -> None:
    assert natural_power_w(60.0, 400.0, 0.0) == 60.0
    assert natural_power_w(60.0, 400.0, 1.0) == 400.0
    assert natural_power_w(60.0, 400.0, 0.5) == pytest.approx(60 + 340 * 0.5**1.02)
    assert natural_power_w(60.0, 400.0, 0.5, 1.0) == pytest.approx(60 + 340 * (0.35 * 0.5**0.5 + 0.15))
    assert natural_power_w(60.0, 400.0, 1.0, 0.5) == pytest.approx(60 + 340 * (0.5 + 0.325))


@pytest.mark.parametrize(
    ("ratio", "power", "throughput"),
    [
        (1.3, 0.96, 0.995),
        (1.0, 0.87, 0.97),
        (0.9, 0.81, 0.945),
        (0.8, 0.73, 0.90),
        (0.7, 0.66, 0.83),
        (0.6, 0.57, 0.69),
    ],
)
def test_response_over_limit_by_natural_power(ratio: float, power: float, throughput: float) -> None:
    """A limit acts before the average power reaches it: on the axis of average power, 0.9 cost and saved nothing."""
    effect = MEASURED_RESPONSE.under(200.0, 200.0 * ratio, 400.0)
    assert effect.power_w / 200.0 == pytest.approx(power, abs=0.015)
    assert effect.throughput.median == pytest.approx(throughput, abs=0.015)


def test_measured_spread_is_that_between_jobs() -> None:
    """Runs of one job differ too; no limit is to blame for that."""
    rates = MEASURED_RESPONSE.under(200.0, np.array([120.0, 160.0, 300.0]), 400.0).throughput
    assert (rates.p10 <= rates.median).all()
    assert (rates.median <= rates.p90).all()
    assert rates.p10[0] == pytest.approx(0.53, abs=0.03)
    assert rates.p10[2] == rates.p90[2]


def test_a_job_near_the_largest_limit_is_limited_already() -> None:
    at_full = MEASURED_RESPONSE.under(400.0, 400.0, 400.0)
    assert (at_full.power_w, at_full.throughput.median) == (400.0, 1.0)
    below, below_of_larger = (MEASURED_RESPONSE.under(400.0, 320.0, full_w) for full_w in (400.0, 800.0))
    assert below.throughput.median > below_of_larger.throughput.median


def test_measured_energy_per_work_has_its_minimum_near_70_percent() -> None:
    ratios = np.linspace(0.4, 1.5, 111)
    effect = MEASURED_RESPONSE.under(100.0, 100.0 * ratios, 200.0)
    energy = effect.power_w / effect.throughput.median / 100.0
    assert energy.min() == pytest.approx(0.8, abs=0.01)
    assert ratios[energy.argmin()] == pytest.approx(0.71, abs=0.05)
    assert energy[0] > 1.0


def test_trap_every_capped_job_uses_more_energy() -> None:
    published = throughput_model("published", model("H100 SXM"))
    at_70 = published.under(700.0, 490.0, 700.0)
    assert at_70.throughput.median == pytest.approx(0.586, abs=1e-3)
    assert at_70.power_w / 700.0 / at_70.throughput.median > 1.0
    measured = MEASURED_RESPONSE.under(400.0, 280.0, 700.0)
    assert measured.power_w / 400.0 / measured.throughput.median < 0.81
    assert published.evidence.provenance is Provenance.ASSUMED
    assert MEASURED_RESPONSE.evidence.provenance is Provenance.MEASURED


def test_published_memory_bound() -> None:
    published = throughput_model("published", model("L40S"))
    assert published.under(300.0, 150.0, 350.0, 1.0).throughput.median == pytest.approx(1 - 0.15 * 0.5**0.9)
    assert published.under(300.0, 150.0, 350.0, 0.0).throughput.median == pytest.approx(0.5**1.4)


def test_model_names() -> None:
    with pytest.raises(UnknownThroughputModelError, match="'guess'; known: measured, published"):
        throughput_model("guess", model("T4"))
    with pytest.raises(NoPublishedExponentError, match="Tesla T4"):
        throughput_model("published", model("T4"))


def test_operate_under_a_cap() -> None:
    state = operate_gpu(60.0, 400.0, 1.0, [np.inf, 400.0, 280.0])
    np.testing.assert_allclose(state.power_w[:2], [400.0, 400.0])
    np.testing.assert_allclose(state.throughput.median[:2], [1.0, 1.0])
    assert state.power_w[2] <= 280.0
    assert state.throughput.median[2] == pytest.approx(0.86, abs=0.01)


def test_cap_far_above_the_natural_power_changes_nothing() -> None:
    free, capped = operate_gpu(60.0, 400.0, 0.2), operate_gpu(60.0, 400.0, 0.2, 300.0)
    assert (capped.power_w, capped.throughput.median) == (free.power_w, 1.0)


def test_cap_just_above_the_natural_power_acts() -> None:
    capped = operate_gpu(60.0, 400.0, 0.5, 250.0)
    assert capped.power_w < operate_gpu(60.0, 400.0, 0.5).power_w
    assert 0.97 < capped.throughput.median < 1.0


def test_cap_below_idle_saturates_at_idle() -> None:
    state = operate_gpu(60.0, 400.0, 1.0, 10.0)
    assert state.power_w == 60.0
    assert state.saturated


def test_deep_idle_is_for_unused_devices_only() -> None:
    state = operate_gpu(60.0, 400.0, [0.0, 0.0, 0.1], deep_idle=[True, False, True])
    np.testing.assert_allclose(state.power_w, [6.0, 60.0, natural_power_w(60.0, 400.0, 0.1)])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((60.0, 400.0, float("nan")), "util"),
        ((60.0, 400.0, 1.2), "util"),
        ((-1.0, 400.0, 0.5), "idle_w"),
        ((60.0, 50.0, 0.5), "max_w - idle_w"),
        ((60.0, 400.0, 0.5, float("nan")), "cap_w"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: tuple[float, ...], name: str) -> None:
    with pytest.raises(InvalidQuantityError) as caught:
        operate_gpu(*arguments)
    assert caught.value.quantity == name


# --- clocks

H100 = ClockPower(base_w=150.0, linear_w=250.0, nonlinear_w=1200.0, transition=0.5)


def test_clock_power() -> None:
    assert H100.power_w(0.5) == 275.0
    assert H100.power_w(1.0) == 700.0


@pytest.mark.parametrize("nonlinear_w", [0.0, 1e-9, 300.0, 1200.0])
def test_solved_clock_meets_the_cap(nonlinear_w: float) -> None:
    power = ClockPower(150.0, 250.0, nonlinear_w, 0.5)
    caps_w = np.linspace(220.0, float(power.power_w(1.0)), 50)
    clocks = power.clock_under(caps_w, floor=0.1)
    np.testing.assert_allclose(power.power_w(clocks), caps_w, rtol=1e-12)
    assert power.clock_under(np.inf, floor=0.1) == 1.0
    assert power.clock_under(0.0, floor=0.1) == 0.1


# --- lags and temperature


def test_lag_reaches_63_percent_after_its_time_constant() -> None:
    assert lagged(100.0, 200.0, 10.0, 10.0) == pytest.approx(200 - 100 * np.exp(-1))


def test_no_lag_follows_at_once() -> None:
    np.testing.assert_array_equal(lagged(100.0, [200.0, 50.0], 1.0, [0.0, 0.0]), [200.0, 50.0])
    assert lagged(100.0, 200.0, 0.0, 5.0) == 100.0
    assert lagged_mean(100.0, 200.0, 3.0, 0.0) == 200.0


def test_extreme_steps_do_not_overflow() -> None:
    assert lagged(1.0, 2.0, 1e300, 1e-300) == 2.0


def test_steady_temperature() -> None:
    assert steady_temperature_k(300.0, 700.0, 10.0) == 370.0


def test_thermal_throttle() -> None:
    factors = thermal_throttle([300.0, 350.0, 355.0, 360.0, 400.0], 350.0, 360.0, 0.5)
    np.testing.assert_allclose(factors, [1.0, 1.0, 0.75, 0.5, 0.5])
    with pytest.raises(InvalidQuantityError, match="full_k - start_k"):
        thermal_throttle(300.0, 360.0, 350.0, 0.5)
