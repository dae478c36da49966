from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.twin import (
    capped_power_w,
    estimated_pue,
    hardware_density,
    headroom_score,
    power_trend_w_per_min,
    psu_stress,
    twin_fleet,
)
from joulie.domain.units import InvalidQuantityError
from support.twin_readings import Row, fleet_readings

KELVIN = 273.15


def test_headroom() -> None:
    np.testing.assert_allclose(headroom_score(1000.0, [0.0, 250.0, 1000.0, 1500.0]), [100.0, 75.0, 0.0, 0.0])


def test_capped_power() -> None:
    np.testing.assert_allclose(capped_power_w(1000.0, [100.0, 60.0]), [1000.0, 600.0])
    with pytest.raises(InvalidQuantityError, match="cap_percent"):
        capped_power_w(1000.0, 0.0)


@pytest.mark.parametrize(
    ("ambient_c", "stress"), [(20.0, 50.0), (30.0, 62.5), (45.0, 100.0), (60.0, 100.0), (10.0, 50.0 / 1.2)]
)
def test_linear_cooling_stress(ambient_c: float, stress: float) -> None:
    assert linear_cooling_stress(500.0, 1000.0, ambient_c + KELVIN) == pytest.approx(stress)


def test_cooling_capacity_never_falls_below_half() -> None:
    assert linear_cooling_stress(100.0, 1000.0, 90.0 + KELVIN) == pytest.approx(20.0)


def test_unknown_ambient_counts_as_factor_one() -> None:
    assert linear_cooling_stress(500.0, 1000.0, 45.0 + KELVIN, False) == 50.0


def test_another_cooling_model() -> None:
    fleet = twin_fleet(fleet_readings([Row()]), cooling=lambda power_w, *_: np.zeros(np.shape(power_w)))
    np.testing.assert_array_equal(fleet.cooling_stress, [0.0])


def test_pue() -> None:
    np.testing.assert_allclose(estimated_pue([0.0, 50.0, 100.0]), [1.05, 1.225, 1.4])


def test_density() -> None:
    np.testing.assert_allclose(
        hardware_density([96, 192, 384, 96, 192, 384], [0, 0, 0, 4, 8, 16]), [50, 100, 100, 50, 100, 100]
    )


def test_trend_is_by_time_not_by_sample_count() -> None:
    # 60 W a minute, sampled at irregular moments.
    times_s = np.array([0.0, 5.0, 60.0, 61.0, 300.0])
    assert power_trend_w_per_min(times_s, 100.0 + times_s) == pytest.approx(60.0)


def test_trend_of_times_since_the_epoch() -> None:
    times_s = 1.8e9 + np.array([0.0, 20.0, 40.0, 60.0])
    assert power_trend_w_per_min(times_s, [100.0, 110.0, 120.0, 130.0]) == pytest.approx(30.0)


@pytest.mark.parametrize("samples", [0, 1])
def test_trend_needs_two_samples(samples: int) -> None:
    assert power_trend_w_per_min(np.arange(samples), np.full(samples, 300.0)) == 0.0


def test_trend_of_one_moment_is_zero() -> None:
    assert power_trend_w_per_min([1.8e9, 1.8e9], [100.0, 900.0]) == 0.0


def test_trend_ignores_padding() -> None:
    padded = power_trend_w_per_min(
        [[0.0, 60.0, 0.0], [0.0, 0.0, 0.0]],
        [[10.0, 20.0, 0.0], [5.0, 0.0, 0.0]],
        [[True, True, False], [True, False, False]],
    )
    np.testing.assert_allclose(padded, [10.0, 0.0])


def test_psu_stress_per_rack() -> None:
    stress = psu_stress([10e3, 15e3, 20e3, 5e3], np.array([0, 1, 0, -1]), [60e3, 10e3], 200e3)
    np.testing.assert_allclose(stress, [50.0, 100.0, 50.0, 25.0])


def test_twin_of_a_gpu_node() -> None:
    node = Row(
        (720.0, 2800.0, 128, 4),
        measured_w=1056.0,
        cpu_cap_percent=60.0,
        gpu_cap_percent=70.0,
        samples=((0.0, 996.0), (60.0, 1056.0)),
        ambient_k=30.0 + KELVIN,
    )
    twin = twin_fleet(fleet_readings([node]))
    assert twin.scored.all()
    np.testing.assert_allclose([twin.cpu_capped_w[0], twin.gpu_capped_w[0]], [432.0, 1960.0])
    np.testing.assert_allclose([twin.cpu_tdp_w[0], twin.gpu_tdp_w[0], twin.measured_w[0]], [720.0, 2800.0, 1056.0])
    assert twin.headroom[0] == pytest.approx((2392 - 1056) / 2392 * 100)
    assert twin.cooling_stress[0] == pytest.approx(1056 / 3520 / 0.8 * 100)
    assert twin.psu_stress[0] == pytest.approx(1056 / 50_000 * 100)
    assert twin.estimated_pue[0] == pytest.approx(1.05 + 0.35 * 0.375)
    assert twin.power_trend_w_per_min[0] == pytest.approx(60.0)
    assert twin.density[0] == pytest.approx((128 / 192 * 100 + 50) / 2)


def test_trap_nodes_without_data_scored_best() -> None:
    twin = twin_fleet(fleet_readings([Row(measured_w=100.0), Row(measured_w=None), Row(hardware=None)]))
    np.testing.assert_array_equal(twin.scored, [True, False, False])
    np.testing.assert_allclose(twin.headroom, [90.0, np.nan, np.nan])
    np.testing.assert_array_equal(np.isnan(twin.psu_stress), [False, True, True])


def test_trap_missing_power_counted_as_zero_in_the_rack() -> None:
    rows = [Row(rack="r"), Row(measured_w=None, rack="r", cpu_cap_percent=60.0)]
    assert twin_fleet(fleet_readings(rows)).psu_stress[0] == pytest.approx((500 + 600) / 50_000 * 100)


def test_power_of_unrecognised_hardware_counts_in_the_rack() -> None:
    rows = [Row(rack="r"), Row(hardware=None, measured_w=2000.0, rack="r")]
    assert twin_fleet(fleet_readings(rows)).psu_stress[0] == pytest.approx(5.0)


def test_racks_have_their_own_power_and_capacity() -> None:
    rows = [Row(rack="r1"), Row(measured_w=700.0, rack="r2"), Row(measured_w=800.0)]
    twin = twin_fleet(fleet_readings(rows, {"r1": 1000.0}, 10_000.0))
    # The node without a label shares the cluster's 2 kW.
    np.testing.assert_allclose(twin.psu_stress, [50.0, 7.0, 20.0])


def test_facility_pue_goes_before_the_estimate() -> None:
    np.testing.assert_array_equal(twin_fleet(fleet_readings([Row()]), facility_pue=1.31).estimated_pue, [1.31])
    with pytest.raises(InvalidQuantityError, match="facility_pue"):
        twin_fleet(fleet_readings([Row()]), facility_pue=0.9)


def test_cluster_without_nodes() -> None:
    assert twin_fleet(fleet_readings([])).headroom.shape == (0,)
    assert not twin_fleet(fleet_readings([Row(hardware=None)])).scored.any()


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        ({"measured_w": float("nan")}, "measured_w"),
        ({"measured_w": -1.0}, "measured_w"),
        ({"cpu_cap_percent": 0.0}, "cap_percent"),
        ({"gpu_cap_percent": 101.0}, "cap_percent"),
        ({"ambient_k": float("nan")}, "ambient_k"),
        ({"samples": ((0.0, float("nan")),)}, "power_w"),
        ({"hardware": (0.0, 0.0, 1, 0)}, "capped_w"),
        ({"hardware": (-1.0, 0.0, 1, 0)}, "tdp_w"),
    ],
)
def test_a_bad_reading_is_refused_with_the_index_of_its_node(bad: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidQuantityError, match="index 1") as caught:
        twin_fleet(fleet_readings([Row(), replace(Row(), **bad)]))
    assert caught.value.quantity == name
