"""What holds for every estimate, whatever the hardware and however busy it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.catalogue import Quality
from joulie.domain.hardware.models import CapRange
from joulie.domain.hardware.resolve import CpuDevices, GpuDevices, ResolvedHardware
from joulie.domain.power_estimate import estimate_cpu_power, estimate_gpu_power, estimate_server_power

UTILS = st.floats(0.0, 1.0)
PERCENTS = st.floats(1.0, 100.0)
WATTS = st.floats(5.0, 1500.0)


def limits(watts):
    return None if watts is None else CapRange(0.0, watts, watts)


@st.composite
def nodes(draw):
    model = draw(st.none() | st.sampled_from([model.key for model in BUILTIN_CATALOGUE.cpus]))
    tdp_w = BUILTIN_CATALOGUE.cpu(model).model.tdp_w if model else draw(st.none() | WATTS)
    cores = draw(st.floats(0.25, 2000.0))
    cpu = CpuDevices(model, None, draw(st.integers(1, 8)), cores, limits(tdp_w), Quality.HEURISTIC)
    gpu = None
    if draw(st.booleans()):
        key = draw(st.none() | st.sampled_from([model.key for model in BUILTIN_CATALOGUE.gpus]))
        limit_w = draw(st.none() | WATTS)
        gpu = GpuDevices(key, None, None, draw(st.integers(1, 16)), limits(limit_w), Quality.HEURISTIC)
    return ResolvedHardware(cpu, gpu, "labels")


def ends(estimate):
    return np.stack([estimate.low_w, estimate.power_w, estimate.high_w])


def node_ends(kind, cpu_util, gpu_util, cpu_cap, gpu_cap):
    """Low end, power and high end of a node's CPUs and GPUs together."""
    cpu = estimate_cpu_power([kind], [cpu_util], BUILTIN_CATALOGUE, cap_percent=cpu_cap)
    return ends(cpu) + ends(estimate_gpu_power([kind], [gpu_util], BUILTIN_CATALOGUE, cap_percent=gpu_cap))


@given(nodes(), UTILS, UTILS, PERCENTS, PERCENTS)
def test_the_estimate_lies_within_its_interval_and_is_positive(kind, cpu_util, gpu_util, cpu_cap, gpu_cap):
    server = ends(estimate_server_power([kind], [cpu_util], BUILTIN_CATALOGUE))
    node = node_ends(kind, cpu_util, gpu_util, cpu_cap, gpu_cap)
    for low_w, power_w, high_w in (server[:, 0], node[:, 0]):
        assert 0.0 < low_w <= power_w <= high_w < np.inf


@given(nodes(), st.tuples(UTILS, UTILS), st.tuples(UTILS, UTILS), PERCENTS)
def test_more_use_never_means_less_power(kind, cpu_utils, gpu_utils, cap):
    less, more = (
        node_ends(kind, cpu, gpu, cap, cap) for cpu, gpu in zip(sorted(cpu_utils), sorted(gpu_utils), strict=True)
    )
    assert np.all(less[1:] <= more[1:] * (1.0 + 1e-9))


@given(nodes(), UTILS, UTILS, st.tuples(PERCENTS, PERCENTS))
def test_a_lower_cap_never_means_more_power(kind, cpu_util, gpu_util, caps):
    tight, loose = (node_ends(kind, cpu_util, gpu_util, cap, cap) for cap in sorted(caps))
    assert np.all(tight <= loose * (1.0 + 1e-9))
