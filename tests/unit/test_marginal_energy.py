from dataclasses import replace

import numpy as np
import pytest

from joulie.domain.marginal import FullLoad, PodRequests
from joulie.domain.scoring.extender import NodeClass, PodView, TwinView, extender_score, wire_score
from joulie.domain.scoring.marginal_energy import RESERVE_POINTS, ScoringAim, energy_score, node_scores

IDLE, BUSY, HUNGRY, CAPPED, STALE = range(5)
LOAD = FullLoad(np.full(5, 720.0), np.full(5, 192.0), np.array([400.0, 400.0, 700.0, 400.0, 400.0]))
TWINS = TwinView(
    node_class=np.full(5, NodeClass.ECO),
    fresh=np.array([True, True, True, True, False]),
    capped_w=np.full(5, 3920.0),
    measured_w=np.array([100.0, 1000.0, 1000.0, 1000.0, np.nan]),
    cooling_stress_pct=np.full(5, 20.0),
    headroom_score=np.full(5, 80.0),
    trend_w_per_min=np.zeros(5),
    cpu_cap_fraction=np.ones(5),
    gpu_cap_fraction=np.array([1.0, 1.0, 1.0, 0.5, 1.0]),
)
STANDARD, PERFORMANCE = PodView(), PodView(performance=True)
GPU_POD, CPU_POD, EMPTY_POD = PodRequests(8.0, 16.0, 1.0), PodRequests(8.0, 16.0), PodRequests()


def test_the_least_added_power_wins():
    score = energy_score(STANDARD, GPU_POD, TWINS, LOAD)
    assert score[CAPPED] == 100.0
    assert score[CAPPED] > score[BUSY] > score[IDLE] > 0.0
    assert score[BUSY] > score[HUNGRY]
    # 1 GPU at 0.65 of 400 W, 8 of 192 cores at 0.7 of 720 W with 1.16 for memory; half a GPU's limit under the cap.
    cores_w = 720.0 * 0.7 * 8.0 / 192.0 * 1.16
    assert score[BUSY] == pytest.approx(100.0 * (200.0 + cores_w) / (260.0 + cores_w))
    assert score[STALE] == 50.0


def test_work_without_gpus_joins_the_nodes_that_work():
    score = energy_score(STANDARD, CPU_POD, TWINS, LOAD)
    assert score[BUSY] == score[HUNGRY] == score[CAPPED] == 100.0
    assert score[IDLE] < 40.0


@pytest.mark.parametrize("requests", [GPU_POD, CPU_POD, EMPTY_POD])
def test_standard_pods_leave_room_on_performance_nodes(requests):
    mixed = replace(TWINS, node_class=np.array([1, NodeClass.PERFORMANCE, 1, 1, 1]))
    standard, performance = (energy_score(pod, requests, mixed, LOAD) for pod in (STANDARD, PERFORMANCE))
    there = energy_score(STANDARD, requests, TWINS, LOAD)
    assert standard[BUSY] == pytest.approx(there[BUSY] - RESERVE_POINTS)
    assert performance[BUSY] == energy_score(PERFORMANCE, requests, TWINS, LOAD)[BUSY]


def test_a_pod_that_must_not_move_avoids_draining_nodes():
    draining = replace(TWINS, node_class=np.array([1, NodeClass.DRAINING, 1, 1, 1]))
    assert energy_score(PodView(reschedulable=False), GPU_POD, draining, LOAD)[BUSY] == 0.0
    assert energy_score(STANDARD, GPU_POD, draining, LOAD)[BUSY] > 0.0


def test_without_any_twin_all_are_neutral():
    blind = replace(TWINS, fresh=np.zeros(5, dtype=bool))
    assert energy_score(STANDARD, GPU_POD, blind, LOAD).tolist() == [50.0] * 5


def test_headroom_stays_the_default_to_the_bit():
    marginal_w = LOAD.marginal_w(GPU_POD, performance=False)
    expected = extender_score(STANDARD, TWINS, marginal_w)
    assert node_scores(ScoringAim.HEADROOM, STANDARD, GPU_POD, TWINS, LOAD).tobytes() == expected.tobytes()
    assert set(wire_score(energy_score(STANDARD, EMPTY_POD, TWINS, LOAD)).tolist()) <= set(range(11))
