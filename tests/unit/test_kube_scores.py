"""kube-scheduler's scores: the cases of its own unit tests, Kubernetes 1.36."""

import numpy as np
import pytest

from joulie.domain.scheduling.scores import NodeAmounts, PodAmounts, balanced_allocation, least_allocated, with_extender

POD = PodAmounts(3000, 5000)


def amounts(*nodes: tuple[int, int]) -> NodeAmounts:
    return NodeAmounts(*np.array(nodes, dtype=np.int64).T)


@pytest.mark.parametrize(
    ("pod", "requested", "allocatable", "scores"),
    [
        (POD, [(0, 0), (0, 0)], [(4000, 10000), (6000, 10000)], [68, 75]),
        (POD, [(3000, 0), (3000, 5000)], [(10000, 20000), (10000, 20000)], [73, 74]),
        (POD, [(3000, 0), (3000, 5000)], [(10000, 20000), (10000, 50000)], [73, 70]),
        (PodAmounts(0, 5000), [(3000, 0), (0, 0)], [(3000, 5000), (3000, 5000)], [100, 50]),
        (PodAmounts(3000, 0), [(3000, 0), (3000, 5000)], [(6000, 10000), (6000, 10000)], [62, 62]),
        (PodAmounts(0, 0), [(3000, 0)], [(4000, 10000)], [0]),
    ],
)
def test_balanced_allocation(
    pod: PodAmounts, requested: list[tuple[int, int]], allocatable: list[tuple[int, int]], scores: list[int]
) -> None:
    assert balanced_allocation(pod, amounts(*requested), amounts(*allocatable)).tolist() == scores


@pytest.mark.parametrize(
    ("requested", "allocatable", "scores"),
    [
        ([(3000, 5000), (3000, 5000)], [(4000, 10000), (6000, 10000)], [37, 50]),
        ([(6000, 0), (6000, 5000)], [(10000, 20000), (10000, 20000)], [70, 57]),
        ([(5000, 0)], [(4000, 10000)], [50]),
        ([(1000, 0)], [(4000, 0)], [75]),
    ],
)
def test_least_allocated(
    requested: list[tuple[int, int]], allocatable: list[tuple[int, int]], scores: list[int]
) -> None:
    assert least_allocated(amounts(*requested), amounts(*allocatable)).tolist() == scores


def test_a_pod_that_requests_nothing_counts_for_something() -> None:
    assert PodAmounts(0, 0).nonzero_requests() == (100, 200 * 1024 * 1024)
    assert POD.nonzero_requests() == POD


def test_the_extenders_ten_points_weigh_a_hundred() -> None:
    assert with_extender(np.array([80, 150]), np.array([10, 3])).tolist() == [180, 180]
