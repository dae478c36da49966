"""Power of nodes without sensors."""

import numpy as np

from joulie.apps.operator.ledger import Load
from joulie.apps.operator.power.estimates import Estimator
from joulie.domain.control import controlled_node
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.signal import Reading

LABELS = {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"}
CPU = resolve(None, LABELS, {"cpu": 384.0}, BUILTIN_CATALOGUE)
GPU = resolve(
    None,
    LABELS | {"joulie.io/hw.gpu-model": "NVIDIA-H100-NVL", "joulie.io/hw.gpu-count": "4"},
    {"cpu": 384.0},
    BUILTIN_CATALOGUE,
)
NOTHING = resolve(None, {}, {}, BUILTIN_CATALOGUE)


def estimator(*hardware, cpu_cap=100.0, gpu_cap=100.0):
    nodes = [controlled_node(f"n{number}", one) for number, one in enumerate(hardware)]
    cpus = np.array([0.0 if one is NOTHING else 384.0 for one in hardware])
    caps = (np.full(len(nodes), float(percent)) for percent in (cpu_cap, gpu_cap))
    return Estimator(BUILTIN_CATALOGUE, nodes, cpus, *caps)


def test_power_grows_with_what_is_requested_up_to_the_whole_node():
    loads = {"n1": Load(192_000), "n2": Load(384_000), "n3": Load(10_000_000), "n4": Load(1_000)}
    found = estimator(CPU, CPU, CPU, CPU, NOTHING).cpu_by_requests(loads, 5.0)
    idle_w, half_w, full_w, more_w, unknown_w = found.power_w.tolist()
    assert 0.0 < idle_w < half_w < full_w == more_w < 720.0
    assert np.isnan(unknown_w)
    assert found.time_s.tolist()[:4] == [5.0] * 4
    assert np.isnan(found.time_s[4])


def test_power_grows_with_busy_cores_and_is_as_old_as_they_are():
    busy = {"n0": Reading(7.0, 0.0), "n1": Reading(8.0, 200.0), "n2": Reading(9.0, 1e6)}
    found = estimator(CPU, CPU, CPU, CPU).cpu_by_use(busy)
    assert found.power_w[0] < found.power_w[1] < found.power_w[2]
    assert found.time_s.tolist()[:3] == [7.0, 8.0, 9.0]
    # Nobody said how busy the last one is: that is not idle.
    assert np.isnan(found.power_w[3])
    assert (found.low_w[:3] < found.power_w[:3]).all()
    assert (found.power_w[:3] < found.high_w[:3]).all()


def test_power_of_gpus_grows_with_what_is_requested_and_a_cap_limits_it():
    loads = {"n1": Load(0, 1_000), "n2": Load(0, 4_000)}
    none_w, one_w, all_w = estimator(GPU, GPU, GPU).gpu_by_requests(loads, 5.0).power_w
    assert 0.0 < none_w < one_w < all_w
    capped_w = estimator(GPU, GPU, GPU, gpu_cap=50.0).gpu_by_requests(loads, 5.0).power_w[2]
    assert capped_w < all_w


def test_a_cap_limits_the_estimate():
    busy = {"n0": Reading(7.0, 384.0)}
    capped_w = estimator(CPU, cpu_cap=60.0).cpu_by_use(busy).power_w[0]
    assert capped_w < estimator(CPU).cpu_by_use(busy).power_w[0]


def test_idle_power_hangs_on_hardware_alone():
    cpu_w, gpu_w = estimator(CPU, GPU).idle_w()
    assert cpu_w[0] == cpu_w[1] > 0.0
    assert gpu_w[0] == 0.0 < gpu_w[1]
