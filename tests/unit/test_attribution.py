"""Power of nodes and GPUs, shared among the pods that draw it."""

import numpy as np
import pytest

from joulie.domain.attribution import (
    GpuDevices,
    GpuHolds,
    NodePowerParts,
    PodLoads,
    attribute_by_work,
    attribute_gpu,
    gpu_power_of_pods_w,
)

NAN = float("nan")


def cpu(nodes, pods):
    """Rows of (cpu_w, idle_w, work), and of (node, weight)."""
    node, weight = zip(*pods, strict=True) if pods else ((), ())
    return attribute_by_work(
        NodePowerParts(*np.array(nodes, float).T), PodLoads(np.array(node, np.int64), np.array(weight, float))
    )


def gpu(devices, holds):
    """Rows of (power_w, idle_w), and of (pod, device, share, activity)."""
    pod, device, share, activity = zip(*holds, strict=True) if holds else ((), (), (), ())
    entries = GpuHolds(
        np.array(pod, np.int64), np.array(device, np.int64), np.array(share, float), np.array(activity, float)
    )
    attribution = attribute_gpu(GpuDevices(*np.array(devices, float).T), entries)
    n_pods = max(pod, default=-1) + 1
    return attribution, gpu_power_of_pods_w(entries, attribution, n_pods).tolist()


def test_pods_share_what_is_above_idle_by_their_cores():
    result = cpu([(200.0, 80.0, 12.0)], [(0, 6.0), (0, 3.0)])
    assert result.pods_w == pytest.approx([60.0, 30.0])
    assert result.system_w == pytest.approx([30.0]), "three busy cores that are no pod's"
    assert result.idle_w == pytest.approx([80.0])


def test_trap_the_idle_power_of_the_node_is_charged_to_no_pod():
    result = cpu([(100.0, 80.0, 2.0)], [(0, 1.0), (0, 1.0), (0, 0.0)])
    assert result.pods_w == pytest.approx([10.0, 10.0, 0.0])
    idle = cpu([(80.0, 80.0, 0.0)], [(0, 0.0)])
    assert (idle.pods_w[0], idle.idle_w[0]) == (0.0, 80.0)


def test_a_node_below_its_idle_model_is_all_idle():
    result = cpu([(60.0, 80.0, 4.0)], [(0, 4.0)])
    assert (result.pods_w[0], result.system_w[0], result.idle_w[0]) == (0.0, 0.0, 60.0)


def test_pods_that_sum_up_to_more_than_the_node_share_what_there_is():
    # The two figures are of different moments: cores of the pods by now, of the node a scrape ago.
    result = cpu([(180.0, 80.0, 4.0)], [(0, 6.0), (0, 2.0)])
    assert result.pods_w == pytest.approx([75.0, 25.0])
    assert result.system_w == pytest.approx([0.0])


@pytest.mark.parametrize("work", [NAN, -1.0, float("inf")])
def test_without_the_work_of_the_node_its_pods_are_all_of_it(work):
    assert cpu([(180.0, 80.0, work)], [(0, 6.0), (0, 2.0)]).pods_w == pytest.approx([75.0, 25.0])


def test_weights_in_watts_come_with_work_in_watts():
    # Kepler's dynamic watts of two pods, on a node whose dynamic watts are 100.
    result = cpu([(180.0, 80.0, 100.0)], [(0, 40.0), (0, 35.0)])
    assert result.pods_w == pytest.approx([40.0, 35.0])
    assert result.system_w == pytest.approx([25.0])


@pytest.mark.parametrize("weight", [NAN, float("inf"), -2.0, 1e300])
def test_trap_a_pod_that_was_not_measured_draws_not_zero(weight):
    result = cpu([(180.0, 80.0, 10.0)], [(0, 5.0), (0, weight)])
    assert result.pods_w == pytest.approx([50.0, NAN], nan_ok=True)
    assert result.system_w == pytest.approx([50.0]), "its power is not lost, nor its neighbour's"


def test_trap_a_node_without_power_gives_its_pods_no_zero():
    result = cpu([(NAN, 80.0, 10.0), (-1.0, 80.0, 10.0), (100.0, 80.0, 10.0)], [(0, 5.0), (1, 5.0), (2, 5.0)])
    assert result.pods_w == pytest.approx([NAN, NAN, 10.0], nan_ok=True)
    assert result.system_w == pytest.approx([NAN, NAN, 10.0], nan_ok=True)
    assert result.idle_w == pytest.approx([NAN, NAN, 80.0], nan_ok=True)


def test_without_idle_power_all_stays_the_systems():
    result = cpu([(180.0, NAN, 10.0)], [(0, 5.0)])
    assert np.isnan(result.pods_w[0])
    assert (result.system_w[0], result.idle_w[0]) == (180.0, 0.0)


@pytest.mark.parametrize("node", [-1, 2, 9])
def test_pods_of_nodes_that_are_not_in_the_cluster_cost_nobody_anything(node):
    result = cpu([(180.0, 80.0, 5.0), (100.0, 80.0, 5.0)], [(node, 5.0), (0, 5.0)])
    assert result.pods_w == pytest.approx([NAN, 100.0], nan_ok=True)
    assert result.system_w == pytest.approx([0.0, 20.0])


def test_a_cluster_without_pods_or_nodes():
    assert cpu([(180.0, 80.0, 5.0)], []).system_w == pytest.approx([100.0])
    empty = attribute_by_work(NodePowerParts(*np.empty((3, 0))), PodLoads(np.array([0]), np.array([1.0])))
    assert np.isnan(empty.pods_w).all()


def test_a_whole_gpu_is_its_pods_with_the_idle_part():
    result, pods_w = gpu([(300.0, 60.0), (70.0, 60.0)], [(0, 0, 1.0, 0.8)])
    assert pods_w == pytest.approx([300.0])
    assert result.idle_w == pytest.approx([0.0, 70.0]), "nobody holds the second"


def test_trap_a_gpu_pod_is_charged_its_own_gpus_only():
    _, pods_w = gpu(
        [(300.0, 60.0), (400.0, 60.0), (500.0, 60.0)], [(0, 0, 1.0, NAN), (0, 1, 1.0, NAN), (1, 2, 1.0, 0.9)]
    )
    assert pods_w == pytest.approx([700.0, 500.0])


def test_mig_slices_pay_for_what_they_hold_and_do():
    # Seven slices: three held and busy, one held and half busy, three free.
    result, pods_w = gpu([(310.0, 70.0)], [(0, 0, 3 / 7, 1.0), (1, 0, 1 / 7, 0.5)])
    assert pods_w == pytest.approx([30.0 + 240.0 * 3.0 / 3.5, 10.0 + 240.0 * 0.5 / 3.5])
    assert result.idle_w == pytest.approx([30.0])


def test_where_not_all_activities_are_measured_slices_decide():
    _, pods_w = gpu([(310.0, 70.0)], [(0, 0, 3 / 7, 1.0), (1, 0, 1 / 7, NAN)])
    assert pods_w == pytest.approx([30.0 + 180.0, 10.0 + 60.0])
    _, pods_w = gpu([(310.0, 70.0)], [(0, 0, 3 / 7, 0.0), (1, 0, 1 / 7, 0.0)])
    assert pods_w == pytest.approx([30.0 + 180.0, 10.0 + 60.0])


def test_trap_pods_of_a_time_sliced_gpu_are_not_each_charged_all_of_it():
    result, pods_w = gpu([(300.0, 60.0)], [(pod, 0, 0.25, NAN) for pod in range(3)])
    assert pods_w == pytest.approx([15.0 + 80.0] * 3)
    assert result.idle_w == pytest.approx([15.0]), "the fourth replica"
    _, pods_w = gpu([(300.0, 60.0)], [(0, 0, 0.5, 0.2), (1, 0, 0.5, 0.6)])
    assert pods_w == pytest.approx([30.0 + 60.0, 30.0 + 180.0])


def test_two_pods_that_both_claim_a_whole_gpu_share_it():
    result, pods_w = gpu([(300.0, 60.0)], [(0, 0, 1.0, NAN), (1, 0, 1.0, NAN)])
    assert pods_w == pytest.approx([150.0, 150.0])
    assert result.idle_w == pytest.approx([0.0])


def test_without_idle_power_of_the_device_all_is_shared_by_what_is_held():
    result, pods_w = gpu([(280.0, NAN)], [(0, 0, 0.5, 1.0), (1, 0, 0.25, 0.1)])
    assert pods_w == pytest.approx([140.0, 70.0])
    assert result.idle_w == pytest.approx([70.0])


def test_the_power_of_a_pod_with_one_gpu_unknown_is_unknown():
    result, pods_w = gpu([(300.0, 60.0), (NAN, 60.0)], [(0, 0, 1.0, 1.0), (0, 1, 1.0, 1.0), (2, 7, 1.0, 1.0)])
    assert pods_w == pytest.approx([NAN, 0.0, NAN], nan_ok=True)
    assert result.idle_w == pytest.approx([0.0, NAN], nan_ok=True)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, NAN])
def test_a_share_that_is_none_is_not_charged(share):
    result, pods_w = gpu([(300.0, 60.0)], [(0, 0, share, 1.0)])
    assert np.isnan(pods_w[0])
    assert result.idle_w == pytest.approx([300.0])


def test_pods_that_are_not_known_pay_for_their_gpus_all_the_same():
    result, pods_w = gpu([(300.0, 60.0)], [(-1, 0, 0.5, NAN), (0, 0, 0.5, NAN)])
    assert pods_w == pytest.approx([150.0])
    assert result.holds_w == pytest.approx([150.0, 150.0])
