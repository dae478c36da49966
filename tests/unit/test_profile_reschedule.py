import math
from dataclasses import replace
from typing import Any

import pytest

from joulie.domain.drain import SchedulableClass
from joulie.domain.profiles import reschedule
from joulie.domain.profiles.reschedule import (
    Cause,
    MovablePod,
    NodeLoad,
    NodeState,
    Recommendation,
    ReschedulePlan,
    RescheduleSettings,
    Workload,
    plan_rescheduling,
)
from joulie.domain.units import InvalidQuantityError
from joulie.domain.workload import Level

SETTINGS = RescheduleSettings(max_per_node=2)
CALM = NodeLoad(capped_w=1000.0, measured_w=300.0, cooling_stress_pct=30.0, psu_stress_pct=40.0, psu_capacity_w=10e3)
HOT = replace(CALM, measured_w=950.0, cooling_stress_pct=95.0)
PERFORMANCE, ECO, DRAINING = SchedulableClass.PERFORMANCE, SchedulableClass.ECO, SchedulableClass.DRAINING


def pod(name: str, **changes: Any) -> MovablePod:
    values: dict[str, Any] = {
        "namespace": "ns",
        "name": name,
        "workload": Workload("ns", "Deployment", name.rstrip("0123456789")),
        "power_w": 100.0,
        "cpu_cores": 4.0,
        "reschedulable": True,
        "age_s": 3600.0,
    }
    return MovablePod(**(values | changes))


def source(*pods: MovablePod, load: NodeLoad | None = HOT, **changes: Any) -> NodeState:
    return NodeState(**({"name": "source", "schedulable": PERFORMANCE, "load": load, "pods": pods} | changes))


def target(name: str = "target", **changes: Any) -> NodeState:
    values: dict[str, Any] = {
        "name": name,
        "schedulable": PERFORMANCE,
        "load": CALM,
        "free_cpu_cores": 64.0,
        "free_memory_gib": 256.0,
        "free_pods": 100,
    }
    return NodeState(**(values | changes))


def evicted(*nodes: NodeState, settings: RescheduleSettings = SETTINGS) -> list[tuple[str, str]]:
    return [(eviction.pod, eviction.target) for eviction in plan_rescheduling(nodes, settings).evictions]


def test_a_stressed_node_sheds_what_says_so() -> None:
    plan = plan_rescheduling([source(pod("web1")), target()], SETTINGS)
    (eviction,) = plan.evictions
    assert (eviction.namespace, eviction.pod, eviction.node, eviction.target) == ("ns", "web1", "source", "target")
    assert eviction.reason == "cooling stress 95%, above 90%"
    assert plan.recommendations == (
        Recommendation(
            "source", Workload("ns", "Deployment", "web"), Cause.COOLING_STRESS, "cooling stress 95%, above 90%"
        ),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"reschedulable": None},
        {"reschedulable": False},
        {"daemon": True},
        {"mirror": True},
        {"terminating": True},
        {"age_s": 599.0},
    ],
)
@pytest.mark.parametrize("schedulable", [PERFORMANCE, DRAINING])
def test_everything_else_stays(changes: dict[str, Any], schedulable: SchedulableClass) -> None:
    nodes = [source(pod("web1", **changes), schedulable=schedulable), target()]
    assert plan_rescheduling(nodes, SETTINGS) == ReschedulePlan()


@pytest.mark.parametrize(
    ("load", "settings", "reason"),
    [
        (replace(CALM, cooling_stress_pct=90.0), SETTINGS, None),
        (replace(CALM, cooling_stress_pct=90.6), SETTINGS, "cooling stress 91%, above 90%"),
        (replace(CALM, psu_stress_pct=96.0), SETTINGS, "PSU stress 96%, above 90%"),
        (replace(CALM, measured_w=1000.0), SETTINGS, None),
        (replace(CALM, measured_w=960.0), replace(SETTINGS, headroom_pct=5.0), "power headroom 4%, below 5%"),
        (None, SETTINGS, None),
    ],
)
def test_what_counts_as_stress(load: NodeLoad | None, settings: RescheduleSettings, reason: str | None) -> None:
    plan = plan_rescheduling([source(pod("web1"), load=load), target(rack="other")], settings)
    assert [eviction.reason for eviction in plan.evictions] == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    "changes",
    [
        {"load": None},
        {"load": replace(CALM, cooling_stress_pct=70.0)},
        {"load": replace(CALM, measured_w=850.0)},
        {"load": replace(CALM, psu_stress_pct=79.5), "rack": "other"},
        {"accepts_pods": False},
        {"schedulable": DRAINING},
        {"free_cpu_cores": 3.9},
        {"free_memory_gib": 15.9},
        {"free_pods": 0},
    ],
)
def test_nothing_is_evicted_without_another_node_that_fits(changes: dict[str, Any]) -> None:
    nodes = [source(pod("web1", memory_gib=16.0)), target(**changes)]
    assert plan_rescheduling(nodes, SETTINGS) == ReschedulePlan()
    assert evicted(*nodes, target("b")) == [("web1", "b")]


def test_gpus_fit_only_those_of_their_vendor() -> None:
    train = pod("train1", gpus=2.0, gpu_vendor="NVIDIA")
    full = target("a", free_gpus=1.0, gpu_vendor="NVIDIA")
    other = target("b", free_gpus=8.0, gpu_vendor="AMD")
    assert evicted(source(train), full, other) == []
    assert evicted(source(train), full, other, target("c", free_gpus=2.0, gpu_vendor="NVIDIA")) == [("train1", "c")]


def test_a_pods_own_constraints_are_kept() -> None:
    zonal = pod("web1", admitted=frozenset({"b", "gone"}))
    assert evicted(source(zonal), target("a"), target("b")) == [("web1", "b")]
    assert evicted(source(zonal), target("a")) == []


def test_capacity_is_booked_as_it_is_given_away() -> None:
    pods = [pod("web1", power_w=10.0), pod("web2", power_w=10.0)]
    assert evicted(source(*pods), target(free_cpu_cores=7.9)) == [("web1", "target")]
    assert evicted(source(*pods), target(free_pods=1)) == [("web1", "target")]
    assert evicted(source(*pods), target(free_cpu_cores=8.0)) == [("web1", "target"), ("web2", "target")]


def test_power_is_booked_as_it_is_given_away() -> None:
    big = [pod("web1", power_w=300.0), pod("web2", power_w=300.0)]
    draining = source(*big, load=None, schedulable=DRAINING)
    roomy = replace(CALM, cooling_stress_pct=0.0)
    # 300 W drawn of 1,000 W: one more of 300 W leaves 40 %, two leave the margin of 10 %.
    assert evicted(draining, target(load=roomy)) == [("web1", "target"), ("web2", "target")]
    tighter = replace(roomy, measured_w=301.0)
    assert evicted(draining, target(load=tighter)) == [("web1", "target")]


def test_cooling_is_booked_as_it_is_given_away() -> None:
    """A target at 60 percent of its cooling with 600 W: 800 W are the most within the margin."""
    draining = source(pod("web1", power_w=150.0), pod("web2", power_w=150.0), load=None, schedulable=DRAINING)
    warm = replace(CALM, capped_w=9e3, measured_w=600.0, cooling_stress_pct=60.0)
    assert evicted(draining, target(load=warm)) == [("web1", "target")]


def test_rack_power_is_booked_as_it_is_given_away() -> None:
    """A rack of 10 kW at 78.5 percent, where 100 W are one percent: one pod leaves the margin, two do not."""
    draining = source(pod("web1"), pod("web2"), load=None, schedulable=DRAINING)
    rack = [target(name, load=replace(CALM, psu_stress_pct=78.5), rack="r1") for name in ("a", "b")]
    assert evicted(draining, *rack) == [("web1", "a")]


def test_a_smaller_pod_goes_where_a_larger_one_does_not_fit() -> None:
    cores = [pod("a1", cpu_cores=70.0, power_w=20.0), pod("b1", cpu_cores=60.0, power_w=10.0)]
    assert evicted(source(*cores), target()) == [("b1", "target")]
    power = [pod("a1", power_w=700.0), pod("b1", power_w=650.0), pod("c1", power_w=100.0)]
    assert evicted(source(*power, load=replace(HOT, measured_w=2000.0)), target()) == [("c1", "target")]


def test_where_a_pod_went_in_vain_another_of_another_class_may_fit() -> None:
    pods = [pod("a1", performance=True), pod("b1")]
    drained = source(*pods, load=None, schedulable=DRAINING)
    assert evicted(drained, target(schedulable=ECO)) == [("b1", "target")]


def test_two_nodes_do_not_get_the_same_place() -> None:
    first, second = source(pod("a1")), replace(source(pod("b1")), name="source2")
    assert evicted(first, second, target(free_pods=1)) == [("a1", "target")]


def test_a_node_that_is_well_again_keeps_the_rest() -> None:
    """The first pod takes the cooling stress from 95 to 85 percent."""
    pods = [pod("web1", power_w=100.0), pod("web2", power_w=90.0)]
    plan = plan_rescheduling([source(*pods), target()], SETTINGS)
    assert [eviction.pod for eviction in plan.evictions] == ["web1"]
    assert len(plan.recommendations) == 1


def test_headroom_that_is_back_keeps_the_rest() -> None:
    pods = [pod("web1", power_w=60.0), pod("web2", power_w=60.0)]
    full = replace(CALM, measured_w=1000.0)
    assert evicted(source(*pods, load=full), target(), settings=replace(SETTINGS, headroom_pct=5.0)) == [
        ("web1", "target")
    ]


def test_what_exceeds_the_limits_is_only_recommended() -> None:
    pods = [pod(f"{name}1", power_w=10.0) for name in "abc"]
    plan = plan_rescheduling([source(*pods), target()], replace(SETTINGS, max_per_node=1))
    assert [eviction.pod for eviction in plan.evictions] == ["a1"]
    assert [recommendation.workload.name for recommendation in plan.recommendations] == ["a", "b", "c"]


def test_a_recommendation_says_how_it_was_before_any_move() -> None:
    pods = [pod("web1", power_w=20.0), pod("web2", power_w=20.0)]
    plan = plan_rescheduling([source(*pods), target()], SETTINGS)
    assert [eviction.reason for eviction in plan.evictions] == [
        "cooling stress 95%, above 90%",
        "cooling stress 93%, above 90%",
    ]
    assert [recommendation.reason for recommendation in plan.recommendations] == ["cooling stress 95%, above 90%"]


def test_evictions_of_a_cycle_are_limited() -> None:
    sources = [replace(source(pod(f"p{i}")), name=f"source{i}") for i in range(4)]
    settings = replace(SETTINGS, max_per_cycle=3)
    plan = plan_rescheduling([*sources, target(load=replace(CALM, cooling_stress_pct=0.0))], settings)
    assert len(plan.evictions) == 3
    assert len(plan.recommendations) == 4


def test_what_is_recommended_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [pod(f"p{i:02}", workload=Workload("ns", "Pod", f"p{i:02}"), power_w=1.0) for i in range(40)]
    idle = replace(CALM, measured_w=1.0, cooling_stress_pct=0.0)
    nodes = [source(*pods, load=None, schedulable=DRAINING), target(load=idle, free_cpu_cores=999.0)]
    assert len(plan_rescheduling(nodes, SETTINGS).recommendations) == reschedule.MAX_PODS
    monkeypatch.setattr(reschedule, "MAX_RECOMMENDED", 5)
    plan = plan_rescheduling(nodes, SETTINGS)
    assert [recommendation.workload.name for recommendation in plan.recommendations] == [f"p{i:02}" for i in range(7)]


def test_recommendations_take_no_room_from_evictions() -> None:
    """Two nodes, one place each on the target: the second node's eviction goes before the first one's second pod."""
    first = source(pod("a1", power_w=1.0), pod("a2", power_w=1.0))
    second = replace(source(pod("b1", power_w=1.0)), name="source2")
    settings = replace(SETTINGS, max_per_node=1)
    assert evicted(first, second, target(free_pods=2), settings=settings) == [("a1", "target"), ("b1", "target")]


def test_the_worst_node_goes_first_and_draining_ones_before() -> None:
    worse = replace(source(pod("worse1"), load=replace(HOT, cooling_stress_pct=99.0)), name="z")
    draining = replace(source(pod("drain1"), load=None, schedulable=DRAINING), name="zz")
    settings = replace(SETTINGS, max_per_cycle=2)
    nodes = (source(pod("mild1")), worse, draining, target(load=replace(CALM, cooling_stress_pct=0.0)))
    assert [name for name, _ in evicted(*nodes, settings=settings)] == ["drain1", "worse1"]


def test_stressed_nodes_keep_performance_pods_longest() -> None:
    pods = [
        pod("a1", performance=True, sensitivity=Level.HIGH, power_w=5.0),
        pod("b1", power_w=4.0),
        pod("c1", sensitivity=Level.MEDIUM, power_w=1.0),
        pod("d1", power_w=3.0),
        pod("e1", power_w=3.0),
    ]
    settings = replace(SETTINGS, max_per_node=9)
    assert [name for name, _ in evicted(source(*pods), target(), settings=settings)] == ["c1", "b1", "d1", "e1", "a1"]


def test_draining_nodes_send_performance_pods_first() -> None:
    pods = [pod("a1"), pod("b1", performance=True)]
    plan = plan_rescheduling([source(*pods, load=None, schedulable=DRAINING), target()], SETTINGS)
    assert [eviction.pod for eviction in plan.evictions] == ["b1", "a1"]
    assert plan.evictions[0].reason == "the node is draining"


def test_standard_pods_go_to_eco_nodes_first() -> None:
    full_eco = target("a", schedulable=ECO, free_pods=0)
    eco = target("b", schedulable=ECO, load=replace(CALM, measured_w=500.0))
    performance = target("c")
    assert evicted(source(pod("web1")), full_eco, eco, performance) == [("web1", "b")]
    assert evicted(source(pod("web1")), full_eco, performance) == [("web1", "c")]


def test_performance_pods_go_to_performance_nodes_only() -> None:
    db = pod("db1", performance=True)
    assert evicted(source(db), target("a", schedulable=ECO)) == []
    assert evicted(source(db), target("a", schedulable=ECO), target("b")) == [("db1", "b")]


def test_the_target_has_the_most_headroom_left() -> None:
    nodes = (target("a", load=replace(CALM, measured_w=500.0)), target("b"), target("c"))
    assert evicted(source(pod("web1")), *nodes) == [("web1", "b")]


def test_moving_within_a_rack_does_not_relieve_it() -> None:
    crowded = replace(CALM, psu_stress_pct=95.0)
    shed = source(pod("web1"), load=crowded, rack="r1")
    assert evicted(shed, target(load=crowded, rack="r1")) == []
    assert evicted(shed, target(load=crowded, rack="r1"), target("z", rack="r2")) == [("web1", "z")]


def test_moving_within_a_rack_does_not_load_it() -> None:
    near = replace(CALM, psu_stress_pct=89.5)
    hot = replace(HOT, psu_stress_pct=89.5)
    assert evicted(source(pod("web1"), load=hot), target(load=near)) == [("web1", "target")]


def test_l11_nodes_without_a_rack_or_a_limit_of_the_cluster_are_targets() -> None:
    hot = source(pod("p"), load=replace(HOT, psu_stress_pct=0.0, psu_capacity_w=None))
    calm = replace(CALM, psu_stress_pct=0.0, psu_capacity_w=None)
    plan = plan_rescheduling([hot, target("calm", load=calm)], SETTINGS)
    assert [eviction.target for eviction in plan.evictions] == ["calm"]


def test_a_rack_is_relieved_by_what_leaves_it() -> None:
    """Two nodes of a rack of 10 kW at 90.5 percent: one pod of 100 W is enough for both."""
    crowded = replace(CALM, psu_stress_pct=90.5)
    first = source(pod("a1"), load=crowded, rack="r1")
    second = replace(source(pod("b1"), load=crowded, rack="r1"), name="source2")
    assert evicted(first, second, target(rack="r2")) == [("a1", "target")]


def test_a_draining_node_without_a_twin_changes_no_rack() -> None:
    """Nobody knows what leaves it, so nothing is given to the rack's other nodes for it."""
    crowded = replace(CALM, psu_stress_pct=85.0)
    draining = source(pod("a1"), load=None, schedulable=DRAINING, rack="r1")
    hot = replace(source(pod("b1", power_w=1.0), load=replace(HOT, psu_stress_pct=85.0), rack="r2"), name="z")
    assert evicted(draining, hot, target(load=crowded, rack="r1")) == [("a1", "target")]


def test_a_cluster_all_under_stress_moves_nothing() -> None:
    nodes = [replace(source(pod(f"p{i}")), name=f"n{i}", free_cpu_cores=64.0, free_pods=10) for i in range(3)]
    assert plan_rescheduling(nodes, SETTINGS) == ReschedulePlan()


def test_an_empty_cluster() -> None:
    assert plan_rescheduling([], SETTINGS) == ReschedulePlan()


def test_numbers_that_cannot_be_are_refused() -> None:
    for name, value in (("power_w", math.nan), ("cpu_cores", -1.0), ("memory_gib", math.inf), ("gpus", math.nan)):
        with pytest.raises(InvalidQuantityError, match=name):
            pod("web1", **{name: value})
    for name, value in (("measured_w", math.nan), ("cooling_stress_pct", 101.0), ("psu_stress_pct", -1.0)):
        with pytest.raises(InvalidQuantityError, match=name):
            replace(CALM, **{name: value})
    for name in ("capped_w", "psu_capacity_w"):
        with pytest.raises(InvalidQuantityError, match=name):
            replace(CALM, **{name: 0.0})
    with pytest.raises(InvalidQuantityError, match="free_cpu_cores"):
        target(free_cpu_cores=math.nan)


@pytest.mark.parametrize("name", ["cooling_stress_pct", "margin_pct", "max_per_node", "max_per_cycle", "min_age_s"])
def test_settings_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(InvalidQuantityError, match=name):
        RescheduleSettings(**{name: -1})
