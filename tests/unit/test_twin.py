from typing import Any

import numpy as np
import pytest

from joulie.domain.cooling_stress import COOLING_MODELS, UnknownCoolingModelError, cooling_model, linear_cooling_stress
from joulie.domain.twin import (
    NEUTRAL_SCORE,
    NodeLimits,
    NodeReading,
    PowerSample,
    capped_power_w,
    estimated_pue,
    hardware_density,
    headroom_score,
    pack_readings,
    power_trend_w_per_min,
    psu_stress,
    twin_fleet,
    twin_nodes,
)
from joulie.domain.units import InvalidQuantityError

GPU_NODE = NodeLimits(cpu_tdp_w=720.0, gpu_tdp_w=2800.0, cores=128, gpus=4)
CPU_NODE = NodeLimits(cpu_tdp_w=1000.0, gpu_tdp_w=0.0, cores=96, gpus=0)
KELVIN = 273.15


def reading(node: str = "n", measured_w: float | None = 500.0, **changes: Any) -> NodeReading:
    return NodeReading(**({"node": node, "limits": CPU_NODE, "measured_w": measured_w} | changes))


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


def test_cooling_models_by_name() -> None:
    assert cooling_model("linear") is linear_cooling_stress
    with pytest.raises(UnknownCoolingModelError, match="'fmu'; known: linear"):
        cooling_model("fmu")
    extended = {**COOLING_MODELS, "none": lambda power_w, *_: np.zeros(np.shape(power_w))}
    (twin,) = twin_nodes([reading()], cooling=cooling_model("none", extended))
    assert twin.scores is not None
    assert twin.scores.cooling_stress == 0.0


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
    (twin,) = twin_nodes(
        [
            NodeReading(
                "gpu-1",
                GPU_NODE,
                measured_w=1056.0,
                cpu_cap_percent=60.0,
                gpu_cap_percent=70.0,
                samples=(PowerSample(0.0, 996.0), PowerSample(60.0, 1056.0)),
                ambient_k=30.0 + KELVIN,
            )
        ]
    )
    scores = twin.scores
    assert scores is not None
    assert twin.missing is None
    assert (scores.cpu_capped_w, scores.gpu_capped_w, scores.tdp_w) == (432.0, pytest.approx(1960.0), 3520.0)
    assert scores.headroom == pytest.approx((2392 - 1056) / 2392 * 100)
    assert scores.cooling_stress == pytest.approx(1056 / 3520 / 0.8 * 100)
    assert scores.psu_stress == pytest.approx(1056 / 50_000 * 100)
    assert scores.estimated_pue == pytest.approx(1.05 + 0.35 * 0.375)
    assert scores.power_trend_w_per_min == pytest.approx(60.0)
    assert scores.density == pytest.approx((128 / 192 * 100 + 50) / 2)


def test_trap_nodes_without_data_scored_best() -> None:
    known, no_power, no_hardware = twin_nodes(
        [
            reading("known", 100.0),
            reading("no-power", None),
            reading("no-hardware", limits=None),
        ]
    )
    assert known.scores is not None
    assert no_power.scores is None
    assert no_hardware.scores is None
    assert "power unknown" in (no_power.missing or "")
    assert "hardware unknown" in (no_hardware.missing or "")
    assert no_power.headroom_or_neutral == no_hardware.headroom_or_neutral == NEUTRAL_SCORE
    assert known.headroom_or_neutral == pytest.approx(90.0)


def test_trap_missing_power_counted_as_zero_in_the_rack() -> None:
    twins = twin_nodes([reading("a", 500.0, rack="r"), reading("b", None, rack="r", cpu_cap_percent=60.0)])
    assert twins[0].scores is not None
    assert twins[0].scores.psu_stress == pytest.approx((500 + 600) / 50_000 * 100)


def test_power_of_unrecognised_hardware_counts_in_the_rack() -> None:
    twins = twin_nodes([reading("a", 500.0, rack="r"), reading("b", 2000.0, rack="r", limits=None)])
    assert twins[0].scores is not None
    assert twins[0].scores.psu_stress == pytest.approx(5.0)


def test_racks_have_their_own_power_and_capacity() -> None:
    twins = twin_nodes(
        [reading("a", 500.0, rack="r1"), reading("b", 700.0, rack="r2"), reading("c", 800.0)],
        rack_capacity_w={"r1": 1000.0},
        default_capacity_w=10_000.0,
    )
    # The node without a label shares the cluster's 2 kW.
    assert [t.scores.psu_stress for t in twins if t.scores] == pytest.approx([50.0, 7.0, 20.0])


def test_fleet_form_is_loud_about_missing_data() -> None:
    fleet = twin_fleet(pack_readings([reading("a", 100.0), reading("b", None), reading("c", limits=None)]))
    np.testing.assert_array_equal(fleet.scored, [True, False, False])
    np.testing.assert_allclose(fleet.headroom, [90.0, np.nan, np.nan])
    np.testing.assert_allclose(fleet.headroom_or_neutral(), [90.0, NEUTRAL_SCORE, NEUTRAL_SCORE])


def test_facility_pue_goes_before_the_estimate() -> None:
    (twin,) = twin_nodes([reading()], facility_pue=1.31)
    assert twin.scores is not None
    assert twin.scores.estimated_pue == 1.31
    with pytest.raises(InvalidQuantityError, match="facility_pue"):
        twin_nodes([reading()], facility_pue=0.9)


def test_cluster_without_nodes() -> None:
    assert twin_nodes([]) == ()
    assert twin_nodes([reading(limits=None)])[0].scores is None


@pytest.mark.parametrize(
    "bad",
    [
        {"measured_w": float("nan")},
        {"measured_w": -1.0},
        {"cpu_cap_percent": 0.0},
        {"gpu_cap_percent": 101.0},
        {"ambient_k": float("nan")},
        {"samples": (PowerSample(0.0, float("nan")),)},
    ],
)
def test_bad_reading_is_refused_by_the_name_of_its_node(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidQuantityError, match=r"node ip-10-0-0-7\.eu"):
        twin_nodes([reading("fine"), reading("ip-10-0-0-7.eu", **bad)])


def test_bad_limits_are_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="cpu_tdp_w"):
        NodeLimits(0.0, 0.0, 1, 0)
