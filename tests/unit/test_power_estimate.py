"""Estimates of nodes that nobody measures, and the intervals around them."""

import numpy as np
import pytest

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.estimates import GPU_LIMITS_W
from joulie.domain.hardware.models import CURVE_POINTS
from joulie.domain.hardware.resolve import ReportedHardware, resolve
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power_estimate import (
    CALIBRATION,
    SHAPES,
    Basis,
    estimate_cpu_power,
    estimate_gpu_power,
    estimate_server_power,
)
from joulie.domain.units import InvalidQuantityError


def node(cpu=None, sockets=None, cores=0.0, *, tdp_w=None, gpu=None, gpus=0):
    """A node as its labels, its allocatable resources and perhaps an agent describe it."""
    labels = {
        "joulie.io/hw.cpu-model": cpu,
        "joulie.io/hw.cpu-sockets": sockets and str(sockets),
        "joulie.io/hw.gpu-model": gpu,
    }
    found = None if tdp_w is None else ReportedHardware(sockets=sockets, cpu_max_w=tdp_w)
    allocatable = {"cpu": cores, "nvidia.com/gpu": float(gpus)}
    return resolve(found, {key: text for key, text in labels.items() if text}, allocatable, BUILTIN_CATALOGUE)


EPYC = node("AMD EPYC 9654", 2, 384.0)
SCALED = node("AMD EPYC 9534", 2, 256.0)
BY_TDP = node(sockets=2, cores=384.0, tdp_w=360.0)
BY_CORES = node(cores=384.0)
UNKNOWN = node()
MODEL = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model


def of(estimate):
    """The only node's low end, power and high end."""
    return float(estimate.low_w[0]), float(estimate.power_w[0]), float(estimate.high_w[0])


def server(kind, util):
    return of(estimate_server_power([kind], [util], BUILTIN_CATALOGUE))


def packages(kind, util, cap_percent=100.0):
    return of(estimate_cpu_power([kind], [util], BUILTIN_CATALOGUE, cap_percent=cap_percent))


def gpus(kind, util, cap_percent=100.0):
    return of(estimate_gpu_power([kind], [util], BUILTIN_CATALOGUE, cap_percent=cap_percent))


@pytest.mark.parametrize(("util", "load"), [(0.0, "idle"), (1.0, "full")])
def test_a_measured_curve_is_what_is_expected_and_its_factors_bound_it(util, load):
    end, measured_w = getattr(CALIBRATION[Basis.CURVE], load), MODEL.curve_w[-1 if util else 0]
    assert server(EPYC, util) == pytest.approx((end.low * measured_w, measured_w, end.high * measured_w))


@pytest.mark.parametrize(("util", "load"), [(0.0, "idle"), (1.0, "full")])
def test_what_is_known_of_the_size_alone_gives_its_power(util, load):
    for kind, basis, size in ((BY_TDP, Basis.TDP, 720.0), (BY_CORES, Basis.CORES, 192.0)):
        end = getattr(CALIBRATION[basis], load)
        expected_w = end.scale_w * size**end.exponent
        assert server(kind, util) == pytest.approx((end.low * expected_w, expected_w, end.high * expected_w))


def test_between_the_ends_lie_the_shapes_of_whole_curves():
    ends = CALIBRATION[Basis.TDP]
    idle_w, full_w = ends.idle.expected_w(720.0), ends.full.expected_w(720.0)
    assert server(BY_TDP, 0.3)[1] == pytest.approx(idle_w + SHAPES.expected[3] * (full_w - idle_w))
    assert server(BY_TDP, 0.3)[0] < server(BY_TDP, 0.35)[0] < server(BY_TDP, 0.4)[0]


def test_knowing_less_makes_the_interval_wider():
    for util in (0.1, 0.5, 1.0):
        spans = [high / low for low, _, high in (server(kind, util) for kind in (EPYC, BY_TDP, BY_CORES))]
        assert spans == sorted(spans)


def test_a_curve_that_is_only_scaled_has_the_interval_of_its_tdp():
    model = BUILTIN_CATALOGUE.cpu("AMD EPYC 9534").model
    end = CALIBRATION[Basis.TDP].full
    low_w, power_w, high_w = server(SCALED, 1.0)
    assert power_w == pytest.approx(model.curve_w[-1])
    assert (low_w, high_w) == pytest.approx((end.low * end.scale_w * 560.0, end.high * end.scale_w * 560.0))


def test_packages_draw_what_the_twin_says_and_their_upper_end_takes_all_of_the_servers_surprise():
    state = CpuPower.of(MODEL, 2).operate(0.1, 720.0)
    low_w, power_w, high_w = packages(EPYC, 0.1)
    server_low_w, server_w, server_high_w = server(EPYC, 0.1)
    assert power_w == pytest.approx(state.package_w)
    assert high_w - power_w == pytest.approx(server_high_w - server_w)
    assert low_w / power_w == pytest.approx(server_low_w / server_w)


def test_a_cap_binds_the_packages_however_wrong_the_estimate_is():
    for kind, tdp_w in ((EPYC, 720.0), (SCALED, 560.0), (BY_TDP, 720.0)):
        low_w, power_w, high_w = packages(kind, 1.0, 60.0)
        assert low_w <= power_w <= high_w <= 0.6 * tdp_w * (1.0 + 1e-9)
        assert packages(kind, 1.0)[1] > power_w


def test_trap_a_cap_that_cannot_be_met_is_not_reported_as_met():
    _, power_w, high_w = packages(EPYC, 1.0, 1.0)
    assert high_w == power_w > 7.2


def test_cores_alone_know_of_no_cap():
    assert packages(BY_CORES, 1.0, 10.0) == packages(BY_CORES, 1.0)


def test_trap_a_node_that_nobody_knows_is_unknown_and_draws_not_zero():
    for estimate in (server, packages):
        assert np.isnan(estimate(UNKNOWN, 0.5)).all()
    both = estimate_cpu_power([UNKNOWN, EPYC], [0.5, 0.5], BUILTIN_CATALOGUE)
    assert np.isnan(both.power_w).tolist() == [True, False]


def test_a_virtual_machine_gets_its_share_of_the_server_by_threads():
    machine = node("AMD EPYC 9654", 1, 8.0)
    whole = node("AMD EPYC 9654", 1, 192.0)
    for estimate in (server, packages):
        low_w, power_w, high_w = estimate(machine, 0.5)
        assert (low_w, power_w) == pytest.approx(np.multiply(estimate(whole, 0.5), 8.0 / 192.0)[:2])
        assert high_w == pytest.approx(estimate(whole, 0.5)[2] * 8.0 / 96.0)


def test_a_server_without_threads_is_a_whole_one():
    assert server(node("AMD EPYC 9654", 2, 192.0), 0.5) == server(EPYC, 0.5)


def test_a_node_without_gpus_draws_nothing_by_them_whatever_is_said_of_their_use():
    assert gpus(EPYC, np.nan) == (0.0, 0.0, 0.0)


def test_gpus_draw_between_idle_and_their_limit():
    kind = node("AMD EPYC 9654", 2, 384.0, gpu="NVIDIA H100 NVL", gpus=4)
    low_w, idle_w, high_w = gpus(kind, 0.0)
    assert (low_w, idle_w, high_w) == pytest.approx((4 * 30.0, 4 * 60.0, 4 * 120.0))
    low_w, busy_w, high_w = gpus(kind, 1.0)
    assert low_w < busy_w == high_w == pytest.approx(4 * 400.0)
    assert gpus(kind, 1.0, 50.0)[1:] == pytest.approx((4 * 200.0, 4 * 200.0))


def test_a_gpu_of_unknown_model_may_be_any():
    low_w, power_w, high_w = gpus(node(gpus=2), 1.0)
    assert low_w < 2 * GPU_LIMITS_W[0] < power_w < high_w == 2 * GPU_LIMITS_W[1]


def test_nodes_are_estimated_each_for_itself():
    kinds = [EPYC, BY_TDP, UNKNOWN, BY_CORES, EPYC]
    together = estimate_cpu_power(
        kinds, [0.1, 0.2, 0.3, 0.4, 0.9], BUILTIN_CATALOGUE, cap_percent=[100, 90, 80, 70, 60]
    )
    alone = zip(kinds, (0.1, 0.2, 0.3, 0.4, 0.9), (100.0, 90.0, 80.0, 70.0, 60.0), strict=True)
    np.testing.assert_equal(
        np.stack([together.low_w, together.power_w, together.high_w], axis=1), [packages(*one) for one in alone]
    )


def test_no_nodes_have_no_power():
    assert estimate_cpu_power([], [], BUILTIN_CATALOGUE).power_w.shape == (0,)
    assert estimate_gpu_power([], [], BUILTIN_CATALOGUE).power_w.shape == (0,)


@pytest.mark.parametrize(
    ("estimate", "util", "cap_percent", "quantity"),
    [
        (estimate_cpu_power, np.nan, 100.0, "cpu_util"),
        (estimate_cpu_power, 1.01, 100.0, "cpu_util"),
        (estimate_cpu_power, 0.5, 0.0, "cpu_cap_percent"),
        (estimate_cpu_power, 0.5, 101.0, "cpu_cap_percent"),
        (estimate_gpu_power, -0.1, 100.0, "gpu_util"),
        (estimate_gpu_power, 0.5, np.nan, "gpu_cap_percent"),
    ],
)
def test_what_cannot_be_is_refused_by_name(estimate, util, cap_percent, quantity):
    kind = node("AMD EPYC 9654", 2, 384.0, gpu="NVIDIA H100 NVL", gpus=4)
    with pytest.raises(InvalidQuantityError, match=quantity):
        estimate([kind], [util], BUILTIN_CATALOGUE, cap_percent=cap_percent)


def test_shapes_rise_and_enclose_the_expected_one():
    assert {len(shape) for shape in SHAPES} == {CURVE_POINTS}
    for shape in SHAPES:
        assert (shape[0], shape[-1]) == (0.0, 1.0)
        assert np.all(np.diff(shape) > 0.0)
    assert np.all((SHAPES.low <= SHAPES.expected) & (SHAPES.expected <= SHAPES.high))
