"""SCORING=marginal: the rule of the equal-work benchmark on the nodes of a cluster."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.pods import ProfileFacts
from joulie.apps.extender import answers
from joulie.apps.extender.explain import explanation
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.judge import JudgedPod, judge, placed_pod
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts
from joulie.apps.extender.rankings import Rankings
from joulie.domain.lifetimes import LifeTables, hazard_per_min
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.marginal_placement import (
    Job,
    NodeOccupancy,
    busy_or_idle_min,
    cheapest,
    packing_ranks,
    placement_costs,
    placement_levels,
)
from joulie.domain.scoring.occupancy import LifeClass, Occupancy, PlacedPod
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import QueueSettings
from joulie_lab.simulation.engine.reference_energy import EnergyState, NodeView
from joulie_lab.simulation.placement import Demand
from joulie_lab.simulation.placement import Fleet as SimFleet
from joulie_lab.simulation.schedulers import engine_rules
from joulie_lab.simulation.workload import published_jobs

BATCH = LifeClass("batch", service=False, gpu=False)
NOW_S = 1_000_000.0
POOLS = (
    NodePool("cpu", count=3, cores=96, cpu_max_w=700.0),
    NodePool("gpu", count=3, cores=128, gpus=8, cpu_max_w=500.0, gpu_max_w=700.0, gpu_idle_w=70.0),
)


# ---- the rule


@pytest.mark.slow
@given(
    free=st.lists(st.tuples(st.integers(0, 96), st.integers(0, 8)), min_size=6, max_size=6),
    busy_min=st.lists(st.floats(0.0, 500.0), min_size=6, max_size=6),
    job=st.sampled_from([(1, 0), (8, 0), (8, 1), (16, 8)]),
)
def test_a_cluster_and_the_simulator_price_a_placement_alike(
    free: list[tuple[int, int]], busy_min: list[float], job: tuple[int, int]
) -> None:
    cluster = Cluster(POOLS)
    jobs = published_jobs(1, hours=0.02)
    state = EnergyState(engine_rules("marginal-energy"), cluster, jobs, np.ones(len(jobs)), 60.0, QueueSettings())
    state.observe([[] for _ in range(6)], np.zeros(len(jobs)), np.zeros(6), 0)
    state.busy_min = np.array(busy_min)
    gpus = np.array([0.0] * 3 + [8.0] * 3)
    fleet = SimFleet(
        cores=np.array([96.0] * 3 + [128.0] * 3),
        gpus=gpus,
        free_cores=np.array([float(cores) for cores, _ in free]),
        free_gpus=np.minimum(gpus, [float(count) for _, count in free]),
        **dict.fromkeys(("cpu_max_w", "gpu_max_w", "measured_w", "capped_w", "tdp_w", "trend_w_per_min"), np.ones(6)),
        cluster_trend_w_per_min=0.0,
    )
    idle = np.zeros(6, np.bool_)
    view = NodeView(at_rest=idle, empty=idle, empty_min=np.zeros(6))
    expected = state._cost_w_min(fleet, view, 0, Demand(float(job[0]), float(job[1]), performance=False))
    nodes = NodeOccupancy(state.base_w, np.array(busy_min), fleet.cores, fleet.gpus, fleet.free_cores, fleet.free_gpus)
    assert nodes.surcharge_w_per_core == state.surcharge_w_per_core
    found = placement_costs(nodes, Job(job[0], job[1], state.duration_min(0)), nodes.surcharge_w_per_core)
    assert found.tolist() == expected.tolist()


def occupied(**changes: list[float]) -> NodeOccupancy:
    columns = {
        "base_w": [150.0, 150.0],
        "busy_min": [0.0, 0.0],
        "cores": [64.0, 64.0],
        "gpus": [0.0, 0.0],
        "free_cores": [64.0, 64.0],
        "free_gpus": [0.0, 0.0],
    }
    return NodeOccupancy(**{name: np.array(values) for name, values in (columns | changes).items()})


def test_a_node_that_is_busy_for_longer_costs_nothing() -> None:
    assert placement_costs(occupied(busy_min=[90.0, 20.0]), Job(1.0, 0.0, 60.0), 0.0).tolist() == [0.0, 6000.0]


def test_cpu_work_pays_for_a_gpu_node() -> None:
    nodes = occupied(busy_min=[90.0, 90.0], gpus=[8.0, 0.0], free_gpus=[8.0, 0.0])
    assert nodes.surcharge_w_per_core == 150.0 / 64.0
    assert placement_costs(nodes, Job(2.0, 0.0, 60.0), 1.0).tolist() == [120.0, 0.0]


def test_equal_costs_go_to_the_fullest_node_then_to_the_first() -> None:
    nodes = occupied(free_cores=[64.0, 8.0])
    assert list(cheapest(np.zeros(2), packing_ranks(nodes), 2)) == [1, 0]
    assert list(cheapest(np.zeros(2), np.zeros(2), 1)) == [0]
    assert list(cheapest(np.array([np.nan, 7.0, 3.0]), np.zeros(3), 5)) == [2, 1]
    assert list(cheapest(np.array([np.nan, np.inf]), np.zeros(2), 1)) == []
    assert list(cheapest(np.zeros(0), np.zeros(0), 1)) == []


def test_levels_leave_the_highest_to_the_chosen_node() -> None:
    assert placement_levels(np.array([0.0, 50.0, 100.0, np.nan, np.inf])).tolist() == [9, 4, 0, 5, 0]
    assert placement_levels(np.array([3.0, 3.0])).tolist() == [9, 9]
    assert placement_levels(np.array([np.nan])).tolist() == [5]


def test_an_empty_node_counts_as_up_until_it_would_rest() -> None:
    found = busy_or_idle_min(np.array([30.0, 0.0, 0.0]), np.array([5.0, 5.0, 10.0]), np.array([1, 0, 0]))
    assert found.tolist() == [30.0, -5.0, -100.0]


# ---- durations


def test_durations_are_learned_from_the_ends_of_pods() -> None:
    tables = LifeTables(60.0, 60.0)
    assert tables.expected_min("nightly", 0) == 60.0
    row = tables.started("nightly", 0)
    for _ in range(200):
        tables.ended(row, 5.0)
    tables.update(np.array([], np.int64), np.array([]))
    assert tables.expected_min("nightly", 0) == pytest.approx(5.5, abs=0.6)
    # A workload of which nothing is known is expected to take as long as others of its group.
    assert tables.expected_min("other", 0) == tables.expected_min("unheard of", 0) < 8.0


def test_a_pod_that_outlives_its_like_is_expected_to_go_on() -> None:
    tables = LifeTables(60.0, 60.0)
    row = tables.started("a", 0)
    for _ in range(100):
        tables.ended(row, 5.0)
    tables.ended(row, 600.0)
    tables.update(np.array([], np.int64), np.array([]))
    young, old = tables.remaining_min(np.array([row, row]), np.array([0.0, 100.0]))
    assert old > 5.0 * young


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 60_000.0), max_size=8), st.lists(st.floats(0.0, 60_000.0), max_size=8))
def test_hazards_are_ends_over_minutes_at_risk(ended_min: list[float], running_min: list[float]) -> None:
    tables = LifeTables(60.0, 60.0)
    row = tables.started("a", 0)
    for lifetime_min in ended_min:
        tables.ended(row, lifetime_min)
    tables.update(np.full(len(running_min), row), np.array(running_min))
    edges = tables._edges_min
    for which, (low, high) in enumerate(zip(edges[:-1], [*edges[1:-1], np.inf], strict=True)):
        ends = sum(low <= one < high for one in ended_min)
        at_risk = sum(min(max(one - low, 0.0), high - low) for one in ended_min + running_min)
        group = hazard_per_min(ends, at_risk, 60.0, 60.0)
        assert tables._hazard_per_min[0, which] == pytest.approx(group)
        assert tables._hazard_per_min[row, which] == pytest.approx(hazard_per_min(ends, at_risk, 1.0 / group, 60.0))


def test_of_too_many_workloads_the_oldest_without_pods_is_forgotten() -> None:
    tables = LifeTables(60.0, 60.0, max_classes=2)
    first, second = tables.started("a", 0), tables.started("b", 0)
    assert tables.started("c", 0) == 0  # both have pods: it counts as its group
    tables.ended(second, 1.0)
    assert tables.started("c", 0) == second
    assert tables.started("a", 0) == first


# ---- pods on nodes


def placed(node: str = "n", *, cores: float = 4.0, started_s: float | None = NOW_S, **changes: Any) -> PlacedPod:
    return PlacedPod(node, cores, changes.pop("gpus", 0.0), changes.pop("life", BATCH), started_s, **changes)


def busy_min(occupancy: Occupancy, node: str, now_s: float = NOW_S) -> float:
    return float(occupancy.view(now_s).busy_min[occupancy.index[node]])


def test_a_node_is_busy_until_its_last_pod_is_expected_to_end() -> None:
    occupancy = Occupancy()
    occupancy.set_pod("a", placed(stated_min=30.0), NOW_S)
    occupancy.set_pod("b", placed(started_s=None, stated_min=90.0), NOW_S)
    assert busy_min(occupancy, "n") == 90.0
    occupancy.refresh(NOW_S + 60.0)
    assert busy_min(occupancy, "n", NOW_S + 60.0) == pytest.approx(89.0)
    occupancy.set_pod("b", None, NOW_S + 120.0)
    occupancy.refresh(NOW_S + 120.0)
    assert busy_min(occupancy, "n", NOW_S + 120.0) == pytest.approx(28.0)
    occupancy.set_pod("a", None, NOW_S + 180.0)
    assert busy_min(occupancy, "n", NOW_S + 240.0) == -1.0
    assert busy_min(occupancy, "n", NOW_S + 780.0) == -100.0


def test_a_pod_that_outlives_its_stated_duration_is_no_pod_about_to_end() -> None:
    occupancy = Occupancy()
    occupancy.set_pod("a", placed(started_s=NOW_S - 7200.0, stated_min=30.0), NOW_S)
    occupancy.refresh(NOW_S)
    assert busy_min(occupancy, "n") > 30.0


def test_requests_of_daemons_count_but_keep_no_node_up() -> None:
    occupancy = Occupancy()
    occupancy.set_pod("d", placed(life=None, cores=0.3, gpus=0.5), NOW_S)
    view = occupancy.view(NOW_S)
    at = occupancy.index["n"]
    assert (view.used_cores[at], view.used_gpus[at], view.busy_min[at]) == (0.3, 0.5, -100.0)
    occupancy.set_pod("d", None, NOW_S)
    assert occupancy.view(NOW_S).used_cores[at] == 0.0


def test_a_deleted_node_may_still_have_pods_that_request_nothing() -> None:
    occupancy = Occupancy()
    occupancy.set_pod("d", placed(life=None, cores=0.0), NOW_S)
    occupancy.forget("n")
    occupancy.set_pod("d", None, NOW_S)
    assert occupancy.index == {}


def test_a_pod_that_starts_late_counts_from_its_start() -> None:
    occupancy = Occupancy()
    occupancy.set_pod("a", placed(started_s=None), NOW_S - 60.0)
    occupancy.set_pod("a", placed(started_s=NOW_S), NOW_S)
    occupancy.set_pod("a", None, NOW_S + 600.0)
    assert occupancy.lifetimes._ends.sum() == 2.0  # once, in its class and in its group
    assert occupancy.lifetimes._at_risk_min[0].sum() == 10.0


def test_indices_of_deleted_nodes_are_used_again() -> None:
    occupancy = Occupancy()
    for number in range(400):
        occupancy.set_pod(number, placed(f"n{number}"), NOW_S)
    assert busy_min(occupancy, "n399") == 60.0
    occupancy.forget("n7")
    assert "n7" in occupancy.index  # there is a pod on it
    occupancy.set_pod(7, None, NOW_S)
    assert "n7" not in occupancy.index
    occupancy.set_pod("new", placed("m", stated_min=5.0), NOW_S)
    assert occupancy.index["m"] == 8
    assert busy_min(occupancy, "m") == 5.0


# ---- the extender


def pod(cpu: str = "4", **annotations: str) -> JudgedPod:
    return judge(raw_pod(cpu, **annotations), lambda _pod: ProfileFacts())


def raw_pod(cpu: str = "4", *, node: str = "", owner: str = "Job/train-x7k2v", **annotations: str) -> Pod:
    kind, name = owner.split("/")
    raw = {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "annotations": {f"joulie.io/{key.replace('_', '-')}": text for key, text in annotations.items()},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": "1", "controller": True}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"} if node else {},
    }
    return msgspec.convert(raw, Pod)


@pytest.fixture
def occupancy() -> Occupancy:
    return Occupancy()


@pytest.fixture
def fleet(occupancy: Occupancy) -> Fleet:
    fleet = Fleet(300.0, ScoringAim.MARGINAL, occupancy=occupancy)
    for name in ("a", "b", "c"):
        fleet.set_load(name, LoadFacts(cores=64.0, cpu_max_w=500.0))
    return fleet


def wire_scores(asked: JudgedPod, fleet: Fleet, candidates: list[str], rankings: Rankings | None = None) -> list[int]:
    answer = (rankings or Rankings()).answer(asked, candidates, fleet.view(NOW_S))
    found = json.loads(answer)
    assert [one["Host"] for one in found] == candidates
    return [one["Score"] for one in found]


def test_the_cheapest_candidate_alone_gets_ten(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", stated_min=200.0), NOW_S)
    occupancy.set_pod("y", placed("c", stated_min=30.0), NOW_S)
    rankings = Rankings()
    assert wire_scores(pod(), fleet, ["a", "b", "c", "unknown"], rankings) == [0, 10, 7, 5]
    # Where kube-scheduler leaves it out, the best of the rest does.
    assert wire_scores(pod(), fleet, ["c", "a"], rankings) == [10, 0]
    occupancy.set_pod("x", None, NOW_S)
    assert wire_scores(pod(), fleet, ["a", "b", "c"], rankings) == [0, 7, 10]


def test_of_equal_nodes_the_fullest_is_chosen(fleet: Fleet, occupancy: Occupancy) -> None:
    for index, (node, cores) in enumerate([("a", 4.0), ("b", 60.0), ("c", 8.0)]):
        occupancy.set_pod(index, placed(node, cores=cores, stated_min=600.0), NOW_S)
    assert wire_scores(pod(), fleet, ["a", "b", "c"]) == [9, 10, 9]


def test_a_stated_runtime_beats_what_was_learned(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", cores=2.0, stated_min=90.0), NOW_S)
    occupancy.set_pod("y", placed("c", cores=8.0, stated_min=40.0), NOW_S)
    assert wire_scores(pod(estimated_runtime="30m"), fleet, ["b", "c"]) == [9, 10]
    assert wire_scores(pod(estimated_runtime="80m"), fleet, ["b", "c"])[0] == 10


def test_an_invalid_runtime_is_named_and_not_believed(fleet: Fleet) -> None:
    asked = pod(estimated_runtime="soon")
    assert asked.stated_min is None
    found = explanation(asked, fleet, fleet.view(NOW_S), NOW_S)
    assert any("estimated-runtime" in one for one in found.pod.mistakes)


def test_nodes_in_observe_mode_are_neutral(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", stated_min=200.0), NOW_S)
    fleet.set_label_class("b", NodeClass.UNKNOWN, enforced=False)
    assert wire_scores(pod(), fleet, ["a", "b"]) == [10, 5]
    everywhere = Fleet(300.0, ScoringAim.MARGINAL, Mode.OBSERVE, occupancy=occupancy)
    everywhere.set_load("a", LoadFacts(cores=64.0))
    assert wire_scores(pod(), everywhere, ["a"]) == [5]


def test_a_draining_node_gets_no_pod_that_must_stay(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", stated_min=200.0), NOW_S)
    fleet.set_twin("b", TwinFacts(NodeClass.DRAINING, None, None))
    assert wire_scores(pod(reschedulable="false"), fleet, ["a", "b"]) == [10, 0]


def test_the_reason_is_told(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", stated_min=200.0), NOW_S)
    found = {one.node: one for one in explanation(pod(), fleet, fleet.view(NOW_S), NOW_S).nodes}
    assert found["b"].cost_w_min == 0.0
    assert found["a"].cost_w_min == pytest.approx(0.214 * 500.0 * 160.0)


def test_pods_of_one_job_share_a_ranking_and_other_workloads_do_not() -> None:
    assert pod().kind(ScoringAim.MARGINAL) == pod().kind(ScoringAim.MARGINAL)
    assert pod().kind(ScoringAim.MARGINAL) != pod(estimated_runtime="30m").kind(ScoringAim.MARGINAL)
    assert pod().kind(ScoringAim.HEADROOM) == pod(estimated_runtime="30m").kind(ScoringAim.HEADROOM)


def test_what_is_kept_of_pods() -> None:
    kept = placed_pod(raw_pod(node="n", estimated_runtime="90m"))
    assert kept is not None
    assert (kept.node, kept.cores, kept.stated_min, kept.started_s) == ("n", 4.0, 90.0, 1767225600.0)
    assert kept.life is not None
    assert kept.life.workload == ("team", "Job", "train")
    assert placed_pod(raw_pod()) is None
    daemon = placed_pod(raw_pod(node="n", owner="DaemonSet/agent"))
    assert daemon is not None
    assert daemon.life is None
    service = placed_pod(raw_pod(node="n", owner="StatefulSet/db"))
    assert service is not None
    assert service.life is not None
    assert service.life.service


def test_whole_requests_are_answered(fleet: Fleet, occupancy: Occupancy) -> None:
    occupancy.set_pod("x", placed("b", stated_min=200.0), NOW_S)
    body = json.dumps({"Pod": msgspec.to_builtins(raw_pod()), "Nodes": None, "NodeNames": ["a", "b"]}).encode()
    answer = answers.prioritize(body, fleet.view(NOW_S), lambda _pod: ProfileFacts(), Rankings())
    assert json.loads(answer)[1] == {"Host": "b", "Score": 10}


def test_minutes_are_shorter_where_time_is_simulated_faster() -> None:
    """240 times as fast, a quarter of a second is a minute: of ages, of ends and of what is learned from them."""
    occupancy = Occupancy(minute_s=0.25)
    occupancy.set_pod("a", placed(stated_min=30.0), NOW_S)
    occupancy.refresh(NOW_S + 2.5)
    assert busy_min(occupancy, "n", NOW_S + 2.5) == pytest.approx(20.0)
    for number in range(200):
        occupancy.set_pod(number, placed(), NOW_S)
        occupancy.set_pod(number, None, NOW_S + 3.0)
    occupancy.refresh(NOW_S + 12.5)
    life = placed().life
    assert life is not None
    assert occupancy.duration_min(life, None) == pytest.approx(12.0, rel=0.05)
    occupancy.set_pod("a", None, NOW_S + 5.0)
    assert busy_min(occupancy, "n", NOW_S + 6.0) == -4.0


def test_intervals_of_learning_are_shorter_where_time_is_simulated_faster() -> None:
    life = placed().life
    assert life is not None
    for speed in (1.0, 240.0):
        occupancy = Occupancy(minute_s=60.0 / speed)
        assert occupancy.refresh_s == pytest.approx(5.0 / speed)
        occupancy.refresh(NOW_S)
        before_min = occupancy.duration_min(life, None)
        for number in range(50):
            occupancy.set_pod(number, placed(), NOW_S - 60.0 / speed)
            occupancy.set_pod(number, None, NOW_S)
        occupancy.refresh(NOW_S + 9.0 / speed)
        assert occupancy.duration_min(life, None) == before_min, "not yet"
        occupancy.refresh(NOW_S + 10.5 / speed)
        assert occupancy.duration_min(life, None) < before_min
