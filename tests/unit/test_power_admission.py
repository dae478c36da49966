"""Pods that wait for power: what budgets have left, and what the extender makes of it."""

import json

import numpy as np
import pytest

from joulie.adapters.kubernetes.pods import ProfileFacts
from joulie.apps.extender import answers
from joulie.apps.extender.explain import explanation
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.in_flight import MAX_PLACING, PLACING_S
from joulie.apps.extender.judge import judge
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.power_room import LAG_S, STATUS_STALE_S, BoundPod, BudgetRoom, PowerRoom
from joulie.apps.extender.server import _POD
from joulie.apps.extender.wire import decoded
from joulie.domain.capping.admission import SETTLING_S, counted_w, needed_w, room_for_pods
from joulie.domain.capping.budgets import Budget, BudgetNodes
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass

NOW_S = 10_000.0
NODES = ("a", "b", "c")
"""a and b in the rack; all three in the hall. Each has CPUs of 100 to 400 W, and draws 250 W."""
POD_W = 70.0
"""Of a pod with a quarter of the CPUs: 400 W * 0.7 / 4."""


class Site:
    """A fleet under two nested budgets."""

    def __init__(self, rack_w: float = 1000.0, hall_w: float = 1000.0, mode: Mode = Mode.ENFORCE) -> None:
        self.power = PowerRoom(ready=True)
        self.fleet = Fleet(300.0, mode=mode, power=self.power)
        numbers = TwinNumbers(600.0, 250.0, 20.0, 60.0, 0.0, 1.0, 1.0)
        for name in NODES:
            budgets = ("hall",) if name == "c" else ("hall", "rack")
            self.fleet.set_twin(name, TwinFacts(NodeClass.PERFORMANCE, numbers, NOW_S, budgets=budgets))
            self.fleet.set_label_class(name, None)
            self.fleet.set_load(name, LoadFacts(cores=4.0, cpu_max_w=400.0, floor_w=100.0))
        self.tell(rack=rack_w, hall=hall_w)

    def tell(self, at_s: float = NOW_S, **room_w: float) -> None:
        for name, watts in room_w.items():
            self.power.set_budget(name, BudgetRoom(watts, at_s))

    def bind(self, name: str, node: str, *, full_power: bool = True, since_s: float | None = None, now_s=NOW_S) -> None:
        self.power.set_pod(name, BoundPod(node, name, int(POD_W), full_power, since_s), now_s)

    def ask(self, name: str = "p", *, performance: bool = True, owner: str = "Job", now_s: float = NOW_S):
        """Nodes that pass, and the reasons of the others."""
        body = json.dumps({"Pod": pod(name, performance, owner), "NodeNames": list(NODES)}).encode()
        found = answers.filter_nodes(body, self.fleet.view(now_s), lambda _pod: ProfileFacts())
        result = json.loads(found.answer)
        assert found.by_power.total() == len(result["FailedAndUnresolvableNodes"])
        return result["NodeNames"], result["FailedAndUnresolvableNodes"]


def pod(name: str, performance: bool, owner: str = "Job"):
    reference = {"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o", "controller": True}
    annotations = {"joulie.io/workload-class": "performance" if performance else "standard"}
    meta = {"name": name, "namespace": "d", "uid": name, "annotations": annotations, "ownerReferences": [reference]}
    return {"metadata": meta, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}


def test_the_room_is_what_is_left_when_all_that_may_give_has_given() -> None:
    """A node that needs full power counts with what it draws, one that takes no limit with its worst case."""
    nodes = BudgetNodes(
        ("critical", "standard", "silent", "unread"),
        np.array([True, False, False, True]),
        np.full(4, 100.0),
        np.full(4, 400.0),
        np.array([400.0, 400.0, 350.0, 300.0]),
        np.full(4, 400.0),
        np.array([True, True, False, True]),
        np.array([220.0, 390.0, 200.0, np.nan]),
        np.zeros(4),
    )
    hall = Budget("hall", 1000.0, np.arange(4))
    watched = Budget("watched", 10.0, np.arange(4), enforced=False)
    assert room_for_pods(nodes, [hall, watched]) == {"hall": 1000.0 - 220.0 - 100.0 - 350.0 - 300.0}


def test_a_pod_needs_its_watts_where_full_power_is_needed_and_what_the_node_then_no_longer_gives() -> None:
    critical, drawn_w, floor_w = np.array([True, False, False]), np.array([300.0, 300.0, 50.0]), np.full(3, 100.0)
    assert needed_w(70.0, True, critical, drawn_w, floor_w).tolist() == [70.0, 270.0, 20.0]
    assert counted_w(70.0, True, critical, drawn_w, floor_w).tolist() == [70.0, 270.0, 70.0]
    assert needed_w(70.0, False, critical, drawn_w, floor_w).tolist() == [70.0, 0.0, 0.0]


def test_a_pod_that_does_not_fit_is_told_budget_watts_left_and_watts_needed() -> None:
    site = Site(rack_w=200.0, hall_w=500.0)
    passed, refused = site.ask()
    assert passed == ["c"]
    # 70 W, and the 150 W that a node at 250 W could no longer give down to its 100 W.
    reason = "power budget rack has 200 W left for pods, and the pod needs 220 W"
    assert refused == {"a": reason, "b": reason}


def test_of_nested_budgets_the_tightest_holds() -> None:
    site = Site(rack_w=1000.0, hall_w=219.0)
    passed, refused = site.ask()
    assert passed == []
    assert set(refused.values()) == {"power budget hall has 219 W left for pods, and the pod needs 220 W"}
    site.tell(hall=220.0)
    assert site.ask()[0] == list(NODES), "a pod that just fits is not refused"


def test_a_standard_pod_waits_only_where_limits_are_not_enough_already() -> None:
    site = Site(rack_w=0.0, hall_w=0.0)
    assert site.ask(performance=False)[0] == list(NODES)
    site.tell(rack=-30.0)
    passed, refused = site.ask(performance=False)
    assert passed == ["c"]
    assert set(refused.values()) == {"power budget rack is short of 30 W for pods that need full power"}


def test_pods_of_daemonsets_and_nodes_in_observe_mode_wait_for_nothing() -> None:
    assert Site(rack_w=-1.0, hall_w=-1.0).ask(owner="DaemonSet")[0] == list(NODES)
    assert Site(rack_w=-1.0, hall_w=-1.0, mode=Mode.OBSERVE).ask()[0] == list(NODES)


def test_old_statuses_and_missing_pods_hold_nobody_back() -> None:
    site = Site(rack_w=-1.0, hall_w=-1.0)
    assert site.ask(now_s=NOW_S + STATUS_STALE_S)[0] == []
    assert site.ask(now_s=NOW_S + STATUS_STALE_S + 1.0)[0] == list(NODES)
    assert site.ask(now_s=NOW_S - STATUS_STALE_S - 1.0)[0] == list(NODES), "clocks differ"
    assert site.power.tally(NOW_S + 181.0) == (0, 2)
    site.power.ready = False
    assert site.ask()[0] == list(NODES)


def test_a_pod_that_is_being_placed_counts_wherever_it_may_end_up_and_once_bound_where_it_is() -> None:
    site = Site(rack_w=300.0, hall_w=300.0)
    assert site.ask("first")[0] == list(NODES)
    assert site.ask("second")[0] == []
    assert site.ask("first")[0] == list(NODES), "its own watts do not count against it"
    site.bind("first", "c")
    # Bound to c it needs 220 W of the hall and none of the rack.
    assert site.ask("second")[1]["a"].startswith("power budget hall has 80 W left")
    site.tell(NOW_S + LAG_S + 1.0, hall=500.0)
    assert site.ask("second", now_s=NOW_S + LAG_S + 1.0)[0] == list(NODES), "a status that knows c draws full power"


@pytest.mark.slow
def test_a_pod_that_is_never_bound_is_forgotten_and_so_are_too_many() -> None:
    site = Site(rack_w=300.0, hall_w=300.0)
    site.ask("first")
    assert site.ask("second", now_s=NOW_S + PLACING_S - 1.0)[0] == []
    assert site.ask("second", now_s=NOW_S + PLACING_S)[0] == list(NODES)
    site.tell(rack=1e9, hall=1e9)
    for index in range(MAX_PLACING + 10):
        site.ask(f"p{index}")
    assert len(site.power.in_flight.pods) == MAX_PLACING


def test_a_bound_pod_counts_until_it_has_run_for_a_while_and_a_pod_that_ends_is_gone() -> None:
    site = Site(rack_w=1000.0, hall_w=80.0)
    site.bind("old", "a", since_s=0.0)
    site.bind("young", "a", since_s=NOW_S)
    assert site.ask(now_s=NOW_S)[1]["a"] == "power budget hall has 10 W left for pods, and the pod needs 70 W"
    site.tell(NOW_S + SETTLING_S, hall=80.0, rack=1000.0)
    assert site.ask(now_s=NOW_S + SETTLING_S)[0] == ["a"]
    site.power.set_pod("old", None, NOW_S)
    assert site.ask(now_s=NOW_S + SETTLING_S)[0] == ["a"], "young still needs full power there"
    site.power.set_pod("young", None, NOW_S)
    assert site.ask(now_s=NOW_S + SETTLING_S)[0] == []
    assert not site.power._nodes, "no memory of nodes without pods"


def test_standard_pods_count_on_nodes_that_need_full_power() -> None:
    site = Site(rack_w=1000.0, hall_w=140.0)
    site.bind("critical", "a", since_s=0.0)
    assert site.ask("s", performance=False)[0] == list(NODES)
    site.bind("s", "a", full_power=False)
    assert site.ask("t")[0] == ["a"]
    site.bind("u", "b", full_power=False)
    # Should b have to run at full power, what u will draw counts too: 70 + (250 + 70 - 100) W.
    assert site.ask("t")[1]["b"].endswith("the pod needs 290 W")


def test_a_pod_that_needs_full_power_counts_what_may_be_placed_beside_it() -> None:
    site = Site(rack_w=1000.0, hall_w=289.0)
    assert site.ask("s", performance=False)[0] == list(NODES)
    # 70 + (250 - 100) W, and the 70 W of s, which may be on its way to the same node.
    assert set(site.ask("f")[1].values()) == {"power budget hall has 289 W left for pods, and the pod needs 290 W"}
    site.bind("s", "c", full_power=False)
    assert site.ask("f")[0] == ["a", "b"], "s is on c"


def test_a_standard_pod_counts_where_one_may_be_placed_that_needs_full_power() -> None:
    site = Site(rack_w=1000.0, hall_w=289.0)
    assert site.ask("f")[0] == list(NODES)
    passed, refused = site.ask("s", performance=False)
    assert passed == []
    assert refused["a"] == "power budget hall has 69 W left for pods, and the pod needs 70 W"
    site.bind("f", "a")
    assert site.ask("s", performance=False)[0] == ["b", "c"], "f is on a"


def test_a_pod_in_flight_follows_what_becomes_of_the_nodes_where_it_may_go() -> None:
    """Of two that were placed together one is seen: what the other counted with is no longer true."""
    site = Site(rack_w=1000.0, hall_w=1000.0)
    site.ask("s", performance=False)
    site.bind("f", "a", since_s=0.0)
    assert site.power.in_flight.pods["s"].needed_w.max() == 0
    site.fleet.view(NOW_S)
    assert site.power.in_flight.pods["s"].needed_w.max() == 70, "a has to run at full power, and s may go there"
    site = Site(rack_w=1000.0, hall_w=1000.0)
    site.ask("f")
    site.bind("s", "a", full_power=False)
    site.fleet.view(NOW_S)
    assert site.power.in_flight.pods["f"].needed_w.max() == 290, "s is on a, and f may go there"


def test_pods_in_flight_are_counted_on_when_nodes_and_budgets_change() -> None:
    site = Site(rack_w=1000.0, hall_w=300.0)
    site.ask("f")
    site.fleet.set_twin("d", TwinFacts(NodeClass.PERFORMANCE, None, NOW_S, budgets=("hall",)))
    site.tell(other=5.0)
    assert site.ask("g")[1]["a"].startswith("power budget hall has 80 W left")


def test_preemption_evicts_nobody_for_a_pod_without_watts() -> None:
    site = Site(rack_w=0.0, hall_w=500.0)
    victims = {name: {"Pods": [{"UID": "v"}], "NumPDBViolations": 0} for name in NODES}
    body = json.dumps({"Pod": pod("p", True), "NodeNameToMetaVictims": victims}).encode()
    answer, _ = answers.preempt(body, site.fleet.view(NOW_S), lambda _pod: ProfileFacts())
    assert list(json.loads(answer)["NodeNameToMetaVictims"]) == ["c"]


def test_an_explanation_names_the_budget() -> None:
    site = Site(rack_w=0.0, hall_w=500.0)
    judged = judge(decoded(_POD, json.dumps(pod("p", True)).encode()), lambda _pod: ProfileFacts())
    shown = {one.node: one for one in explanation(judged, site.fleet, site.fleet.view(NOW_S), NOW_S).nodes}
    assert shown["c"].allowed
    assert shown["a"].refusal == "power budget rack has 0 W left for pods, and the pod needs 220 W"


@pytest.mark.parametrize("budgets", [("hall",), (), ("hall", "rack", "gone")])
def test_the_budgets_of_a_node_follow_its_twin(budgets: tuple[str, ...]) -> None:
    site = Site(rack_w=0.0, hall_w=500.0)
    numbers = TwinNumbers(600.0, 250.0, 20.0, 60.0, 0.0, 1.0, 1.0)
    site.fleet.set_twin("a", TwinFacts(NodeClass.PERFORMANCE, numbers, NOW_S, budgets=budgets))
    assert ("a" in site.ask()[0]) == ("rack" not in budgets)
    site.power.set_budget("rack", None)
    assert site.ask()[0] == list(NODES)
