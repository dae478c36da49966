"""Attributed power is conserved and never negative, whatever the sources say."""

import math
import sys

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulie.domain.attribution import (
    MAX_WEIGHT,
    GpuDevices,
    GpuHolds,
    NodePowerParts,
    PodLoads,
    attribute_by_work,
    attribute_gpu,
    gpu_power_of_pods_w,
)
from joulie_lab.benchmarks.attribution_clusters import CpuCluster, GpuCluster, Sharing

quick = settings(max_examples=200, deadline=None)
ANYTHING = st.floats(allow_nan=True, allow_infinity=True)
POWER_W = st.floats(0.0, 2000.0) | ANYTHING
CORES = st.floats(0.0, 200.0) | ANYTHING
SHARE = st.sampled_from([1.0, 0.5, 0.25, 1 / 7, 3 / 7]) | ANYTHING
ACTIVITY = st.floats(0.0, 1.0) | ANYTHING


def columns(rows, *dtypes):
    """Rows to arrays, also where there are none."""
    return [np.array([row[index] for row in rows], dtype) for index, dtype in enumerate(dtypes)]


@st.composite
def clusters(draw):
    nodes = draw(st.lists(st.tuples(POWER_W, POWER_W, CORES), max_size=4))
    pods = draw(st.lists(st.tuples(st.integers(-1, len(nodes)), CORES), max_size=12))
    idle_share = draw(st.sampled_from([0.0, 1 / 12]))
    return NodePowerParts(*columns(nodes, float, float, float)), PodLoads(*columns(pods, np.int64, float), idle_share)


@st.composite
def gpus(draw):
    devices = draw(st.lists(st.tuples(POWER_W, POWER_W), max_size=4))
    holds = draw(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, len(devices)), SHARE, ACTIVITY), max_size=12))
    return GpuDevices(*columns(devices, float, float)), GpuHolds(*columns(holds, np.int64, np.int64, float, float))


def known(power_w):
    return math.isfinite(power_w) and power_w >= 0.0


def add_up(parts_w, power_w):
    """Whether parts sum up to a power; half of each, since the largest float's parts, rounded, may sum up to more."""
    return math.isclose(math.fsum(part_w / 2.0 for part_w in parts_w), power_w / 2.0, rel_tol=1e-9, abs_tol=1e-300)


@quick
@given(clusters())
def test_pods_system_and_idle_sum_up_to_the_nodes_power(cluster):
    nodes, pods = cluster
    result = attribute_by_work(nodes, pods)
    for index, power_w in enumerate(nodes.power_w):
        own_w = result.pods_w[pods.node == index]
        if not known(power_w):
            assert np.isnan(own_w).all()
            assert np.isnan([result.system_w[index], result.idle_w[index]]).all()
            continue
        parts_w = [*own_w[~np.isnan(own_w)], result.system_w[index], result.idle_w[index]]
        assert min(parts_w) >= 0.0
        assert add_up(parts_w, power_w)


@quick
@given(clusters())
def test_exactly_the_measured_pods_of_known_nodes_get_a_figure(cluster):
    nodes, pods = cluster
    result = attribute_by_work(nodes, pods)
    for node, weight, power_w in zip(pods.node, pods.weight, result.pods_w, strict=True):
        told = 0 <= node < len(nodes.power_w) and 0.0 <= weight <= MAX_WEIGHT
        told = told and known(nodes.power_w[node]) and known(nodes.idle_w[node])
        assert np.isnan(power_w) != told


@quick
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_pods_and_other_nodes_decide_nothing(cluster, shuffle):
    nodes, pods = cluster
    order = list(range(len(pods.node)))
    shuffle.shuffle(order)
    result = attribute_by_work(nodes, pods)
    shuffled = attribute_by_work(nodes, PodLoads(pods.node[order], pods.weight[order], pods.idle_share))
    np.testing.assert_allclose(shuffled.pods_w, result.pods_w[order], rtol=1e-9)
    for index in range(len(nodes.power_w)):
        own = pods.node == index
        one = slice(index, index + 1)
        alone = attribute_by_work(
            NodePowerParts(nodes.power_w[one], nodes.idle_w[one], nodes.work[one]),
            PodLoads(np.zeros(own.sum(), np.int64), pods.weight[own], pods.idle_share),
        )
        np.testing.assert_allclose(alone.pods_w, result.pods_w[own], rtol=1e-9)
        np.testing.assert_array_equal(alone.idle_w, result.idle_w[one])


@quick
@given(clusters())
def test_a_pod_that_works_more_never_draws_less_than_its_neighbour(cluster):
    nodes, pods = cluster
    result = attribute_by_work(nodes, pods)
    for index in range(len(nodes.power_w)):
        own = (pods.node == index) & ~np.isnan(result.pods_w)
        by_weight = result.pods_w[own][np.argsort(pods.weight[own])]
        assert (np.diff(by_weight) >= 0.0).all()


@quick
@example(
    (
        GpuDevices(np.array([sys.float_info.max]), np.array([5e307])),
        GpuHolds(np.arange(4), np.zeros(4, np.int64), np.array([1 / 7, 1 / 7, 0.5, 1.0]), np.array([0.5, 0, 0.5, 0.5])),
    )
)
@given(gpus())
def test_holders_and_idle_sum_up_to_the_devices_power(cluster):
    devices, holds = cluster
    result = attribute_gpu(devices, holds)
    for index, power_w in enumerate(devices.power_w):
        own_w = result.holds_w[holds.device == index]
        if not known(power_w):
            assert np.isnan(own_w).all()
            assert np.isnan(result.idle_w[index])
            continue
        parts_w = [*own_w[~np.isnan(own_w)], result.idle_w[index]]
        assert min(parts_w) >= 0.0
        assert add_up(parts_w, power_w)


@quick
@given(gpus())
def test_the_gpu_power_of_pods_is_that_of_their_entries_or_unknown(cluster):
    devices, holds = cluster
    result = attribute_gpu(devices, holds)
    pods_w = gpu_power_of_pods_w(holds, result, 6)
    for pod, power_w in enumerate(pods_w):
        own_w = result.holds_w[holds.pod == pod]
        np.testing.assert_allclose(power_w, own_w.sum() if own_w.size else 0.0, rtol=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_every_sample_is_conserved_through_churn_wraps_resets_and_missing_pods(seed, n_nodes):
    cluster = CpuCluster(n_nodes, np.random.default_rng(seed))
    for _ in range(40):
        sample = cluster.sample()
        nodes, pods = sample.nodes, sample.pods
        assert not (nodes.power_w < 0.0).any()
        result = attribute_by_work(nodes, pods)
        told = ~np.isnan(result.pods_w)
        charged_w = np.bincount(pods.node[told], result.pods_w[told], n_nodes)
        np.testing.assert_allclose(charged_w + result.system_w + result.idle_w, nodes.power_w, rtol=1e-9)
        assert (result.pods_w[told] >= 0.0).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(Sharing))
def test_every_sample_of_gpus_is_conserved_through_churn_and_missing_pods(seed, sharing):
    cluster = GpuCluster(2, sharing, np.random.default_rng(seed))
    for _ in range(40):
        sample = cluster.sample()
        devices, holds = sample.devices, sample.holds
        result = attribute_gpu(devices, holds)
        # Of a device with unknown power, the parts are unknown too, and so is their sum.
        charged_w = np.bincount(holds.device, result.holds_w, len(devices.power_w))
        np.testing.assert_allclose(charged_w + result.idle_w, devices.power_w, rtol=1e-9)
