import numpy as np
import pytest

from joulie.domain.hardware import BUILTIN_CATALOGUE, CpuModel
from joulie.domain.power.cpu import FREQUENCY_EXPONENT, CpuPower
from joulie.domain.units import InvalidQuantityError
from joulie_lab.simulation.job_response import Boundness, IdleStates, activity_factor, cpu_throughput

CURVE_9654_W = [128, 257, 300, 340, 378, 410, 442, 498, 577, 697, 817]


def model(key: str) -> CpuModel:
    match = BUILTIN_CATALOGUE.cpu(key).model
    assert match is not None
    return match


@pytest.fixture
def epyc() -> CpuPower:
    return CpuPower.of(model("AMD EPYC 9654"), 2)


def test_curve_points_are_reproduced_exactly(epyc: CpuPower) -> None:
    np.testing.assert_array_equal(epyc.wall_w(np.arange(11) / 10.0), CURVE_9654_W)


def test_between_points_is_linear(epyc: CpuPower) -> None:
    assert epyc.wall_w(0.95) == pytest.approx((697 + 817) / 2)


def test_uncapped_operation_is_the_curve(epyc: CpuPower) -> None:
    utils = np.linspace(0.0, 1.0, 23)
    state = epyc.operate(utils)
    np.testing.assert_allclose(state.wall_w, epyc.wall_w(utils))
    np.testing.assert_array_equal(state.frequency, 1.0)
    assert not state.saturated.any()


def test_platform_and_package_split(epyc: CpuPower) -> None:
    # max(0.15 * 817, 817 - 720) = 122.55; at idle max(0.05 * 817, 128 - 122.55) = 40.85
    assert epyc.platform_w == pytest.approx(122.55)
    assert epyc.package_idle_w == pytest.approx(40.85)
    assert epyc.operate(1.0).package_w == pytest.approx(817 - 122.55)


def test_platform_of_a_curve_far_above_tdp() -> None:
    power = CpuPower.of(model("AMD EPYC 9654"), 2)
    hot = CpuPower(power.curve_w, np.asarray(400.0), power.util_exponent, power.frequency_floor)
    assert hot.platform_w == pytest.approx(417.0)


def test_sixty_percent_cap_is_met_by_the_clock(epyc: CpuPower) -> None:
    cap_w = 0.6 * 2 * 360.0
    state = epyc.operate(1.0, cap_w)
    assert state.package_w == pytest.approx(cap_w)
    assert state.wall_w == pytest.approx(cap_w + 122.55)
    expected = ((cap_w - 40.85) / (817 - 122.55 - 40.85)) ** (1 / FREQUENCY_EXPONENT)
    assert state.frequency == pytest.approx(expected)
    assert not state.saturated


def test_trap_cap_above_the_draw_throttles(epyc: CpuPower) -> None:
    assert epyc.operate(0.3, 0.6 * 720.0) == epyc.operate(0.3)


def test_cap_below_the_floor_saturates(epyc: CpuPower) -> None:
    state = epyc.operate(1.0, 100.0)
    assert state.saturated
    assert state.frequency == 0.4
    assert state.package_w > 100.0


def test_parametric_curve_is_the_formula() -> None:
    import dataclasses

    two_points = dataclasses.replace(model("AMD EPYC 9654"), curve_w=(100.0, 600.0))
    power = CpuPower.of(two_points, 2)
    utils = np.linspace(0.0, 1.0, 37)
    np.testing.assert_allclose(power.wall_w(utils), 100.0 + 500.0 * utils**1.15)


def test_sockets_scale_the_curve() -> None:
    one = CpuPower.of(model("AMD EPYC 9654"), 1)
    assert one.wall_w(1.0) == 817 / 2
    assert one.tdp_w == 360.0


def test_fleet_gives_each_node_its_model(epyc: CpuPower) -> None:
    xeon = CpuPower.of(model("Xeon Gold 6530"), 2)
    fleet = CpuPower.fleet([epyc, xeon], np.array([1, 0, 1]))
    state = fleet.operate(np.array([0.5, 0.5, 1.0]), np.array([np.inf, 200.0, 250.0]))
    alone = [xeon.operate(0.5), epyc.operate(0.5, 200.0), xeon.operate(1.0, 250.0)]
    np.testing.assert_array_equal(state.wall_w, [float(single.wall_w) for single in alone])
    np.testing.assert_array_equal(state.frequency, [float(single.frequency) for single in alone])


def test_deep_idle_saves_half_of_idle_at_most_down_to_the_floor(epyc: CpuPower) -> None:
    assert epyc.operate(0.0, deep_idle=True).package_w == pytest.approx(40.85 / 2)
    assert epyc.operate(0.1, deep_idle=True).wall_w == pytest.approx(257 - 40.85 / 4)
    assert epyc.operate(0.2, deep_idle=True) == epyc.operate(0.2)
    small = CpuPower.of(model("Xeon Gold 6530"), 1)
    assert small.package_idle_w < 20.0
    assert small.operate(0.0, deep_idle=True) == small.operate(0.0)


@pytest.mark.parametrize(
    ("switch", "expected"),
    [(IdleStates.ALL, [True, True]), (IdleStates.MANAGED, [True, False]), (IdleStates.NONE, [False, False])],
)
def test_idle_states_switch(switch: IdleStates, expected: list[bool]) -> None:
    np.testing.assert_array_equal(switch.allowed([True, False]), expected)


def test_activity_factor() -> None:
    assert activity_factor(0.0, 0.0) == 1.0
    assert activity_factor(0.5, 0.2, Boundness.COMPUTE) == pytest.approx(1 - 0.15 - 0.09 + 0.08)
    assert activity_factor(1.0, 1.0, Boundness.IO) == 0.35
    assert activity_factor(0.0, 0.0, Boundness.COMPUTE) == 1.0
    assert activity_factor(0.1, 0.1, Boundness.IO) == pytest.approx(1 - 0.03 - 0.045 - 0.12)


def test_activity_lowers_the_dynamic_part_only(epyc: CpuPower) -> None:
    assert epyc.operate(1.0, activity=0.5).package_w == pytest.approx(40.85 + 0.5 * (817 - 122.55 - 40.85))


def test_throughput_of_pure_workloads() -> None:
    assert cpu_throughput(0.6) == pytest.approx(0.6)
    assert cpu_throughput(0.8, 1.0, 0.0, Boundness.MEMORY) == pytest.approx(1 - 0.12 * 0.2)
    assert cpu_throughput(0.5, 1.0, 0.0, Boundness.MEMORY) == pytest.approx(1 - 0.12 * 0.3 - 0.45 * 0.2)
    assert cpu_throughput(0.5, 0.0, 1.0, Boundness.IO) == pytest.approx(0.975)
    assert cpu_throughput(0.5, 0.5, 0.0) == pytest.approx(0.5 * 0.5 + 0.5 * (1 - 0.036 - 0.09))
    assert cpu_throughput(0.5, 1.0, 1.0) == pytest.approx((0.975 + 0.874) / 2)


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.1])
def test_bad_utilisation_is_refused(epyc: CpuPower, bad: float) -> None:
    with pytest.raises(InvalidQuantityError, match="util"):
        epyc.operate([0.5, bad])


@pytest.mark.parametrize("bad", [float("nan"), -1.0])
def test_bad_cap_is_refused(epyc: CpuPower, bad: float) -> None:
    with pytest.raises(InvalidQuantityError, match="cap_w"):
        epyc.operate(0.5, bad)
