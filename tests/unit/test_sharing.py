"""Nodes whose GPUs are shared: what fits, the published scores, fragmentation and power."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.scoring import fragmentation, sharing
from joulie.domain.scoring.fragmentation import ANY_MODEL, TypicalPods
from joulie_lab.benchmarks.gpu_sharing import baselines

MILLI = st.integers(0, 1000)
GPUS = st.lists(MILLI, min_size=1, max_size=8).map(np.array)


def typical(*kinds):
    """Kinds (CPU milli, GPUs, milli, models, share)."""
    columns = (np.array(column) for column in zip(*kinds, strict=True))
    return TypicalPods(*columns)


def test_a_part_is_taken_from_its_gpu_and_whole_ones_from_the_first_that_are_whole():
    left = np.array([1000, 300, 1000, 1000])
    sharing.take(left, 1, 200, 1)
    sharing.take(left, 2, 1000, sharing.NO_GPU)
    sharing.take(left, 0, 0, sharing.NO_GPU)
    assert left.tolist() == [0, 100, 0, 1000]


def test_what_fits():
    left = np.array([1000, 300])
    asked = [(8, 8, 1, 1000), (8, 8, 2, 1000), (8, 8, 1, 400), (9, 8, 0, 0), (8, 9, 0, 0), (8, 8, 0, 0)]
    assert [sharing.fits(8, 8, left, *pod) for pod in asked] == [True, False, True, False, False, True]
    assert baselines.tightest_gpu(np.array([900, 400, 500, 400]), 400) == 1
    assert baselines.tightest_gpu(left, 1001) == sharing.NO_GPU


@given(GPUS, st.data())
def test_gpu_packing_counts_the_fullest_gpus_that_fit(gpu_left, data):
    gpus = data.draw(st.integers(1, len(gpu_left)))
    gpu_milli = 1000 if gpus > 1 else data.draw(st.integers(1, 1000))
    taken = [int(left) for left in sorted(gpu_left) if left >= gpu_milli][:gpus]
    if len(taken) < gpus:
        return
    whole = taken.count(1000)
    free_nodes = gpu_left.tolist().count(1000)
    if free_nodes == len(gpu_left):
        expected = 33 - free_nodes
    elif whole:
        expected = 50 - whole
    else:
        expected = 100 - sum(left // 10 for left in taken) // 10
    assert baselines.gpu_packing_score(gpu_left, gpus, gpu_milli) == expected
    assert baselines.gpu_packing_score(gpu_left, 0, 0) == 0


def test_gpu_clustering_prefers_nodes_with_the_same_kind_alone():
    kind, other = baselines.request_kind(1, 400), baselines.request_kind(2, 1000)
    kinds = [kind, kind | other, 0, other]
    assert [baselines.gpu_clustering_score(4000, there, kind) for there in kinds] == [87, 62, 37, 12]
    assert baselines.gpu_clustering_score(4000, kind, baselines.request_kind(0, 0)) == 0


def test_best_fit_and_dot_product_prefer_the_fuller_node():
    assert baselines.best_fit_score(64_000, 2000, 64_000, 2000) == 100
    assert baselines.best_fit_score(128_000, 8000, 64_000, 4000) == 50
    assert baselines.dot_product_score(128_000, 8000, 64_000, 4000) == 50
    assert baselines.dot_product_score(12_000, 800, 64_000, 4000) > 90


@pytest.mark.parametrize(
    ("cpu_left", "gpu_left", "expected_w"),
    [
        (128_000, [1000, 1000], 2 * 10 + 4 * 15),
        (127_000, [999, 1000], 10 + 70 + 120 + 3 * 15),
        (96_000, [0, 0], 2 * 70 + 120 + 3 * 15),
        (95_000, [0, 0], 2 * 70 + 2 * 120 + 2 * 15),
    ],
)
def test_a_gpu_or_socket_in_use_draws_its_limit(cpu_left, gpu_left, expected_w):
    power_w = sharing.shared_node_power_w(cpu_left, 128_000, np.array(gpu_left), 10.0, 70.0)
    assert power_w == pytest.approx(expected_w)


def test_fragmentation_is_what_the_pods_to_come_cannot_use():
    gpu_left = np.array([300, 1000])
    kinds = {
        "fits one": ((4000, 1, 1000, ANY_MODEL), 300),
        "fits both": ((4000, 1, 200, ANY_MODEL), 0),
        "too many": ((4000, 2, 1000, ANY_MODEL), 1300),
        "too much CPU": ((9000, 1, 200, ANY_MODEL), 1300),
        "another model": ((4000, 1, 200, 0b01), 1300),
        "this model": ((4000, 1, 200, 0b10), 0),
        "no GPU": ((4000, 0, 0, ANY_MODEL), 1300),
    }
    for name, (kind, unusable) in kinds.items():
        assert fragmentation.fragmentation_milli(8000, gpu_left, 0b10, typical((*kind, 1.0))) == unusable, name
    both = typical((4000, 1, 1000, ANY_MODEL, 0.25), (4000, 2, 1000, ANY_MODEL, 0.75))
    assert fragmentation.fragmentation_milli(8000, gpu_left, 0b10, both) == 0.25 * 300 + 0.75 * 1300


@given(st.integers(0, 100_000), GPUS)
def test_fragmentation_is_at_most_what_is_free(cpu_left, gpu_left):
    pods = typical((4000, 1, 400, ANY_MODEL, 0.5), (12_000, 1, 1000, ANY_MODEL, 0.3), (8000, 0, 0, ANY_MODEL, 0.2))
    found = fragmentation.fragmentation_milli(cpu_left, gpu_left, 1, pods)
    assert 0.0 <= found <= gpu_left.sum() + 1e-9


def test_shortage_is_the_gpu_that_the_cpu_does_not_last_for():
    gpu_left = np.array([1000, 500])
    assert fragmentation.cpu_shortage_milli(12_000, gpu_left, 8000.0) == 0.0
    assert fragmentation.cpu_shortage_milli(8000, gpu_left, 8000.0) == 500.0


def test_a_few_gpus_with_hardly_any_cpu_do_not_say_what_all_get():
    cpu, gpus = np.array([800_000, 96_000, 1000]), np.array([100, 8, 1])
    assert fragmentation.lean_cpu_milli_per_gpu(cpu, gpus) == 8000.0
    assert fragmentation.lean_cpu_milli_per_gpu(cpu, np.array([0, 8, 0])) == 12_000.0
    for nothing in (np.zeros(3, dtype=int), np.array([0, 0, -0])):
        with pytest.raises(ValueError, match="no node has GPUs"):
            fragmentation.lean_cpu_milli_per_gpu(cpu, nothing)
    with pytest.raises(ValueError, match="have no CPU"):
        fragmentation.lean_cpu_milli_per_gpu(np.array([0]), np.array([1]))


def test_typical_pods_cover_as_much_as_asked():
    cpu = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 4])
    rest = np.ones_like(cpu)
    pods = fragmentation.typical_pods(cpu, rest, 1000 * rest, ANY_MODEL * rest, coverage=0.7)
    assert (pods.cpu_milli.tolist(), pods.gpus.tolist(), pods.gpu_milli.tolist()) == ([1, 2], [1, 1], [1000, 1000])
    assert pods.share.tolist() == [4 / 7, 3 / 7]


def test_scores_fall_with_what_is_added():
    assert [baselines.fgd_score(added) for added in (-1000.0, 0.0, 1000.0)] == [73, 50, 26]
    assert [fragmentation.joulie_steps(added, 0.0, 0.5) for added in (-60.0, 0.0, 59.0, 61.0)] == [1, 0, -1, -2]
    assert fragmentation.joulie_steps(0.0, 240.0, 0.5) == -2
    assert fragmentation.joulie_steps(0.0, 240.0, 0.0) == 0
