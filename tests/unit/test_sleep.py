"""Nodes that sleep: each step of the decision, and random courses of faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulie.domain.capping.switched import NO_BUDGETS, UNKNOWN_ROOM, WakeRoom
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules
from joulie.domain.sleep.commands import Action, Command, Remembered, SleepDecision, recalled, still_holds
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import ExpectedPods, Room, SleepNode, SleepSettings, SleepSnapshot, WaitingPod
from joulie.domain.sleep.states import ANY_BOOT, Asleep, Awake, Cordoned, Failed, SleepState, Waking, mark_of, state_of
from joulie.domain.units import InvalidQuantityError
from joulie_lab.benchmarks.sleep_courses import operator, play
from joulie_lab.benchmarks.sleep_courses.cluster import Cluster
from joulie_lab.benchmarks.sleep_courses.play import Course, play_courses

NOW_S = 10_000.0
SETTINGS = SleepSettings(min_awake=0)
ROOM = Room(16.0, 64.0, 0.0, 110.0)
POD = WaitingPod("team/p", Room(4.0, 8.0, 0.0, 1.0))


class StubTaint(NamedTuple):
    key: str
    value: str
    effect: str


def node(name: str = "n", state: SleepState | None = None, **changes: Any) -> SleepNode:
    state = Awake() if state is None else state
    ready = isinstance(state, Awake | Cordoned)
    base = SleepNode(name, "cpu", state, mark_of(state), ready=ready, allocatable=ROOM, free=ROOM, base_w=150.0)
    return replace(base, **changes)


def decided(*nodes: SleepNode, pods: tuple[WaitingPod, ...] = (), **changes: Any) -> SleepDecision:
    expected, wake_room = changes.pop("expected", ()), changes.pop("wake_room", NO_BUDGETS)
    return decide(SleepSnapshot(NOW_S, nodes, pods, expected, wake_room), replace(SETTINGS, **changes))


def acts(decision: SleepDecision) -> list[tuple[str, str]]:
    return [(command.action.value, command.node) for command in decision.commands]


IDLE = Awake(NOW_S - 600.0)


# ---- to sleep


def test_a_node_that_is_empty_for_long_enough_is_cordoned() -> None:
    assert acts(decided(node(state=IDLE))) == [("cordon", "n")]
    assert acts(decided(node(state=Awake(NOW_S - 599.0)))) == []
    assert decided(node()).states["n"] == Awake(NOW_S)


@pytest.mark.parametrize(
    "changes", [{"jobs": 1}, {"keep": "control plane"}, {"ready": False}], ids=["pods", "keep", "not ready"]
)
def test_what_keeps_a_node_awake(changes: dict[str, Any]) -> None:
    assert acts(decided(node(state=IDLE, **changes))) == []


def test_a_pod_that_came_starts_the_time_anew() -> None:
    assert decided(node(state=IDLE, jobs=1)).states["n"] == Awake()


def test_a_clock_that_went_back_starts_the_time_anew() -> None:
    assert decided(node(state=Awake(NOW_S + 3600.0))).states["n"] == Awake(NOW_S)


def test_the_dearest_idle_nodes_go_first_and_a_minimum_of_a_family_stays() -> None:
    idle = [node("a", IDLE), node("b", IDLE, base_w=700.0), node("c", IDLE)]
    assert acts(decided(*idle, min_awake=1)) == [("cordon", "b"), ("cordon", "a")]
    assert acts(decided(*idle, min_awake=2)) == [("cordon", "b")]
    # A node that is not ready serves nobody.
    assert acts(decided(idle[0], node("d", Awake(), ready=False), min_awake=1)) == []


def test_a_cordoned_node_is_switched_off_after_quiet_time_and_looks() -> None:
    quiet = Cordoned(NOW_S - 60.0, quiet_looks=2)
    assert acts(decided(node(state=quiet))) == [("powerOff", "n")]
    assert decided(node(state=quiet)).states["n"] == Asleep(NOW_S)
    assert acts(decided(node(state=Cordoned(NOW_S - 60.0, quiet_looks=1)))) == []
    assert acts(decided(node(state=Cordoned(NOW_S - 59.0, quiet_looks=9)))) == []
    assert decided(node(state=Cordoned(NOW_S + 60.0, quiet_looks=9))).states["n"] == Cordoned(NOW_S, 10)


@pytest.mark.parametrize("changes", [{"jobs": 1}, {"keep": "keep-awake"}, {"ready": False}])
def test_a_cordoned_node_is_opened_again(changes: dict[str, Any]) -> None:
    decision = decided(node(state=Cordoned(NOW_S - 90.0, 9), **changes))
    assert acts(decision) == [("uncordon", "n")]
    assert decision.states["n"] == Awake()


# ---- awake again


def test_a_pod_wakes_the_node_on_which_it_costs_least() -> None:
    sleeping = [node("a", Asleep(0.0), base_w=700.0), node("b", Asleep(0.0)), node("c", Asleep(0.0))]
    decision = decided(*sleeping, pods=(POD,))
    assert acts(decision) == [("powerOn", "b")]
    assert decision.states["b"] == Waking(NOW_S, 1)
    assert decision.waits == {"team/p": "b is being woken for it"}


def test_no_node_is_woken_for_pods_that_others_have_room_for() -> None:
    pods = tuple(replace(POD, name=f"p{index}") for index in range(5))
    decision = decided(node("a"), node("b", Waking(NOW_S, 1)), node("c", Asleep(0.0)), pods=pods)
    assert acts(decision) == []
    assert [decision.waits[f"p{index}"] for index in (0, 4)] == ["a has room", "b is waking"]


def test_a_cordoned_node_is_nearer_than_a_sleeping_one() -> None:
    decision = decided(node("a", Asleep(0.0)), node("b", Cordoned(NOW_S - 90.0, 9)), pods=(POD,))
    assert acts(decision) == [("uncordon", "b")]


def test_pods_that_wait_because_nodes_sleep_are_told_from_others() -> None:
    full = node("awake", free=Room(1.0, 64.0, 0.0, 100.0))
    waking, gone = node("waking", Waking(NOW_S, 1), free=POD.requests), node("gone", Failed(NOW_S))
    small, large = replace(POD, name="small", requests=Room(1.0, 1.0, 0.0, 1.0)), Room(64.0, 8.0, 0.0, 1.0)
    pods = (small, POD, replace(POD, name="late"), replace(POD, name="huge", requests=large))
    decision = decided(full, waking, gone, pods=pods)
    assert decision.held == {POD.name, "late"}
    assert decision.waits["small"] == "awake has room"
    assert decision.waits["late"] == "the nodes that have room for it do not wake: gone"


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([1.0, 4.0, 9.0]), st.booleans()), max_size=12), st.integers(1, 6))
def test_a_pod_never_waits_for_less_than_a_decision_about_it_alone_would_give(
    asked: list[tuple[float, bool]], max_waking: int
) -> None:
    """The search goes on where it ended for the pod before: it must not pass a node by."""
    states: tuple[SleepState, ...] = (Awake(), Cordoned(NOW_S), Asleep(0.0), Waking(NOW_S, 1), Asleep(0.0))
    nodes = [node(f"n{index}", state, switchable=index % 2 == 0) for index, state in enumerate(states)]
    pods = [
        WaitingPod(f"p{index}", Room(cores, 1.0, 0.0, 1.0), rules if only else WaitingPod("", Room()).rules)
        for index, (cores, only) in enumerate(asked)
        for rules in [NodeRules(selector=(Requirement("kind", "DoesNotExist", ()),))]
    ]
    decision = decided(*nodes, pods=tuple(pods), max_waking=max_waking)
    # Total room per outcome: whoever was not given any fits on no node with what the others were given.
    free = {one.name: one.free for one in nodes}
    for pod in pods:
        chosen = next((name for name in free if decision.waits[pod.name].split()[0] == name), None)
        if chosen is not None:
            assert free[chosen].holds(pod.requests)
            free[chosen] = free[chosen].less(pod.requests)
        else:
            usable = [n for n, state in decision.states.items() if isinstance(state, Awake | Waking)]
            assert not any(free[name].holds(pod.requests) for name in usable)


def test_so_many_nodes_wake_at_once_and_the_others_wait_for_them() -> None:
    pods = tuple(WaitingPod(f"p{index}", Room(16.0, 8.0, 0.0, 1.0)) for index in range(3))
    decision = decided(*(node(name, Asleep(0.0)) for name in "abc"), pods=pods, max_waking=2)
    assert acts(decision) == [("powerOn", "a"), ("powerOn", "b")]
    assert "waits for power" in decision.waits["p2"]
    waking = node("z", Waking(NOW_S - 10.0, 1), free=Room())
    assert acts(decided(waking, node("a", Asleep(0.0)), pods=pods, max_waking=1)) == []


def room(left_w: float, *names: str, granted: tuple[str, ...] = (), extra_w: float = 900.0) -> WakeRoom:
    """Room under one budget that covers these nodes."""
    return WakeRoom(
        frozenset(granted), dict.fromkeys(names, extra_w), dict.fromkeys(names, ("rack",)), {"rack": left_w}
    )


def test_power_budgets_keep_a_node_off() -> None:
    decision = decided(node(state=Asleep(0.0)), pods=(POD,), wake_room=room(800.0, "n"))
    assert acts(decision) == []
    assert decision.wanted == set()
    assert "waits for power" in decision.waits[POD.name]


def test_a_node_is_wanted_until_power_budgets_have_made_room_for_it() -> None:
    sleeper = node(state=Asleep(0.0))
    decision = decided(sleeper, pods=(POD,), wake_room=room(900.0, "n"))
    assert acts(decision) == []
    assert decision.wanted == {"n"}
    assert decision.states["n"] == sleeper.state
    assert "once power budgets have room" in decision.waits[POD.name]
    assert POD.name in decision.held
    decision = decided(sleeper, pods=(POD,), wake_room=room(900.0, "n", granted=("n",)))
    assert acts(decision) == [("powerOn", "n")]
    assert decision.wanted == set()


def test_no_more_nodes_are_wanted_than_fit_together() -> None:
    pods = tuple(replace(POD, name=f"p{index}", requests=ROOM) for index in range(3))
    sleepers = [node(name, Asleep(0.0)) for name in "abc"]
    decision = decided(*sleepers, pods=pods, wake_room=room(1800.0, "a", "b", "c"))
    assert decision.wanted == {"a", "b"}
    granted = decided(*sleepers, pods=pods, wake_room=room(1800.0, "a", "b", "c", granted=("a",)))
    assert acts(granted) == [("powerOn", "a")]
    assert granted.wanted == {"b"}
    decision = decided(*sleepers, pods=pods, wake_room=room(5000.0, "a", "b", "c"), max_waking=1)
    assert decision.wanted == {"a"}


def test_a_node_of_another_budget_wakes_where_one_has_no_room() -> None:
    decision = decided(node("a", Asleep(0.0)), node("b", Asleep(0.0)), pods=(POD,), wake_room=room(0.0, "a"))
    assert acts(decision) == [("powerOn", "b")]


def test_no_node_wakes_before_power_budgets_are_known() -> None:
    decision = decided(node(state=Asleep(0.0)), pods=(POD,), wake_room=UNKNOWN_ROOM)
    assert acts(decision) == []
    assert decision.wanted == set()


def test_nobody_is_woken_for_a_pod_that_may_not_run_there() -> None:
    picky = replace(POD, rules=NodeRules((Requirement("zone", "In", ("x",)),)))
    assert acts(decided(node(state=Asleep(0.0)), pods=(picky,))) == []
    assert acts(decided(node(state=Asleep(0.0), labels={"zone": "x"}), pods=(picky,))) == [("powerOn", "n")]
    tainted = node(state=Asleep(0.0), taints=(StubTaint("reserved", "", "NoSchedule"),))
    decision = decided(tainted, pods=(POD,))
    assert decision.waits == {POD.name: "no node, awake or asleep, has room for it"}


def test_a_reserve_is_woken_ahead_of_need() -> None:
    nodes = [node("a"), node("b", Asleep(0.0)), node("c", Asleep(0.0))]
    assert acts(decided(*nodes, min_awake=2)) == [("powerOn", "b")]
    assert acts(decided(*nodes, min_awake=3)) == [("powerOn", "b"), ("powerOn", "c")]
    assert acts(decided(node("a"), node("b", Cordoned(NOW_S, 9)), min_awake=2)) == [("uncordon", "b")]


def test_a_node_that_became_ready_is_opened() -> None:
    assert acts(decided(node(state=Waking(NOW_S - 100.0, 1), ready=True))) == [("uncordon", "n")]


def test_a_node_that_does_not_wake_is_told_again_then_given_up_and_another_one_woken() -> None:
    late = node("a", Waking(NOW_S - 600.0, 1))
    assert decided(late).states["a"] == Waking(NOW_S, 2)
    assert acts(decided(late)) == [("powerOn", "a")]
    last = node("a", Waking(NOW_S - 600.0, 3))
    decision = decided(last, node("b", Asleep(0.0)), pods=(POD,))
    assert acts(decision) == [("giveUp", "a"), ("powerOn", "b")]
    assert decision.states["a"] == Failed(NOW_S)


def test_a_pod_is_told_of_nodes_that_were_given_up_and_they_are_tried_again_later() -> None:
    assert decided(node(state=Failed(NOW_S - 100.0)), pods=(POD,)).waits == {
        POD.name: "the nodes that have room for it do not wake: n"
    }
    assert acts(decided(node(state=Failed(NOW_S - 3600.0)), pods=(POD,))) == [("powerOn", "n")]
    assert acts(decided(node(state=Failed(NOW_S - 100.0), ready=True))) == [("uncordon", "n")]


def test_a_node_that_sleeps_with_a_pod_on_it_is_woken() -> None:
    assert acts(decided(node(state=Asleep(NOW_S), jobs=1))) == [("powerOn", "n")]
    assert acts(decided(node(state=Asleep(NOW_S), keep="keep-awake"))) == [("powerOn", "n")]


def test_a_node_that_came_up_by_itself_is_used() -> None:
    assert acts(decided(node(state=Asleep(NOW_S - 600.0, looks=29), ready=True))) == [("uncordon", "n")]
    assert acts(decided(node(state=Asleep(NOW_S - 600.0, looks=28), ready=True))) == [], "the clock may have jumped"
    assert acts(decided(node(state=Asleep(NOW_S - 60.0, looks=99), ready=True))) == [], "it may be shutting down"


@pytest.mark.parametrize("state", [Waking(NOW_S - 60.0, 1, "a", 99), Waking(NOW_S - 600.0, 1, ANY_BOOT, 28)])
def test_a_node_that_is_on_its_way_down_is_not_taken_for_back(state: Waking) -> None:
    down = node(state=state, ready=True, boot="a")
    assert acts(decided(down)) == []
    assert acts(decided(replace(down, switchable=False))) == [("uncordon", "n")]
    assert acts(decided(replace(down, state=replace(state, since_s=NOW_S - 600.0, looks=99)))) == [("uncordon", "n")]
    if state.boot == "a":
        assert acts(decided(replace(down, boot="b"))) == [("uncordon", "n")], "it has booted"


def test_a_clock_that_went_back_makes_no_node_wait_for_ever() -> None:
    ahead = Waking(NOW_S + 3600.0, 2, "a")
    for ready in (True, False):
        decision = decided(node(state=ahead, ready=ready, boot="a"))
        assert decision.states["n"].since_s == NOW_S
        assert decision.states["n"].boot == "a"


def test_a_node_in_deep_idle_is_opened_without_waking() -> None:
    resting = node(state=Asleep(NOW_S - 9000.0), ready=True, switchable=False)
    assert acts(decided(resting)) == []
    assert acts(decided(resting, pods=(POD,))) == [("uncordon", "n")]


# ---- commands and marks


@pytest.mark.parametrize(
    ("action", "state", "changes", "holds"),
    [
        (Action.POWER_OFF, Cordoned(0.0), {}, True),
        (Action.POWER_OFF, Cordoned(0.0), {"jobs": 1}, False),
        (Action.POWER_OFF, Cordoned(0.0), {"keep": "pdb"}, False),
        (Action.POWER_OFF, Cordoned(0.0), {"mark": ""}, False),
        (Action.CORDON, IDLE, {"jobs": 1}, False),
        (Action.UNCORDON, Waking(0.0, 1), {"ready": False}, False),
        (Action.UNCORDON, Cordoned(0.0), {"ready": False}, True),
        (Action.UNCORDON, Asleep(0.0), {"switchable": False}, True),
        (Action.POWER_ON, Asleep(0.0), {}, True),
    ],
)
def test_a_command_is_checked_again(action: Action, state: SleepState, changes: dict[str, Any], holds: bool) -> None:
    seen = node(state=state)
    assert still_holds(Command(action, "n", ""), seen, replace(seen, **changes)) is holds
    assert not still_holds(Command(action, "n", ""), seen, None)


BOOTS = st.sampled_from(["", ANY_BOOT, "6f1c2a0e-9e44-4fa7-8e91-f3527a1ef094"])


@given(
    st.one_of(
        st.builds(Cordoned, st.integers(0, 10**10).map(float)),
        st.builds(Asleep, st.integers(0, 10**10).map(float), BOOTS),
        st.builds(Failed, st.integers(0, 10**10).map(float)),
        st.builds(Waking, st.integers(0, 10**10).map(float), st.integers(1, 9), BOOTS),
    )
)
def test_a_mark_keeps_the_state(state: SleepState) -> None:
    assert state_of(mark_of(state), tainted=True, now_s=5.0) == state


@given(st.text(max_size=40))
def test_a_mark_that_nobody_can_read_is_a_node_to_wake(text: str) -> None:
    state = state_of(text, tainted=True, now_s=5.0)
    assert state == Waking(5.0, 1, ANY_BOOT) or mark_of(state) == " ".join(text.split())


def test_the_mark_is_the_truth_and_memory_adds_to_it() -> None:
    quiet = Cordoned(60.0, 2)
    known = Remembered("cordoned since 60", quiet)
    assert recalled(known, "cordoned since 60", tainted=True, now_s=0.0) == quiet
    assert recalled(known, "asleep since 70", tainted=True, now_s=0.0) == Asleep(70.0)
    assert recalled(None, "", tainted=False, now_s=0.0) == Awake()


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidQuantityError, match="settle_looks"):
        SleepSettings(settle_looks=0)


# ---- courses


@pytest.mark.slow
@given(seed=st.integers(0, 2**40))
@example(seed=84)
@example(seed=472)
@example(seed=174429793)
def test_no_pod_is_lost_none_waits_without_a_reason_and_no_needed_node_stays_off(seed: int) -> None:
    outcome = Course(seed).play()
    assert outcome.holds, outcome


@pytest.mark.slow
def test_courses_notice_a_node_that_is_switched_off_under_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "still_holds", lambda *_args: True)
    hasty = replace(play.SETTINGS, settle_s=0.0, settle_looks=1)
    assert any(Course(seed, hasty).play().lost for seed in (19, 97))


@pytest.mark.slow
def test_courses_notice_a_node_that_is_told_once_only() -> None:
    patient = replace(play.SETTINGS, wake_timeout_s=1e9)
    assert any(Course(seed, patient).play().stranded for seed in range(10))


@pytest.mark.slow
def test_courses_notice_a_node_that_is_opened_on_its_way_down(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Cluster.read
    monkeypatch.setattr(Cluster, "read", lambda *args: replace(read(*args), boot=""))
    assert any(Course(seed).play().stranded for seed in (8, 11, 30))


@pytest.mark.slow
def test_courses_are_summed() -> None:
    result = play_courses(3, first=7)
    assert (result.courses, result.broken) == (3, 0)
    assert result.pods == sum(Course(seed).play().pods for seed in (7, 8, 9))


# ---- expected pods


def expected(soon: int, later: int | None = None, cores: float = 8.0) -> ExpectedPods:
    return ExpectedPods(Room(cores, 1.0, 0.0, 1.0), ANYWHERE, soon, soon if later is None else later)


SLEEPER = Asleep(NOW_S - 3600.0)


def test_nodes_wake_for_pods_that_are_expected_while_one_boots_and_stay_for_those_that_come_later() -> None:
    nodes = [node("a", IDLE), node("b", SLEEPER, ready=False), node("c", SLEEPER, ready=False)]
    per_node = int(nodes[0].free.cores // 8.0)
    assert acts(decided(*nodes, min_awake=0)) == [("cordon", "a")]
    decision = decided(*nodes, min_awake=0, expected=(expected(0, 1),))
    assert acts(decision) == []
    assert decision.ahead == {"a"}
    assert acts(decided(*nodes, min_awake=0, expected=(expected(0, per_node + 1),))) == []
    decision = decided(*nodes, min_awake=0, expected=(expected(per_node + 1),))
    assert acts(decision) == [("powerOn", "b")]
    assert decision.commands[0].reason == f"{per_node + 1} pods with 8 cores are expected"
    assert decision.ahead == {"a", "b"}
    assert decision.waits == {}


def test_a_cordoned_node_opens_for_pods_that_are_expected_later() -> None:
    assert acts(decided(node("a", Cordoned(NOW_S, 9)), min_awake=0, expected=(expected(0, 1),))) == [("uncordon", "a")]


def test_pods_that_wait_come_first_and_keep_a_slot() -> None:
    nodes = [node(name, SLEEPER, ready=False) for name in "abc"]
    rooms = expected(3, cores=nodes[0].free.cores)
    assert len(acts(decided(*nodes, min_awake=0, max_waking=3, expected=(rooms,)))) == 2
    assert acts(decided(*nodes, min_awake=0, max_waking=1, expected=(rooms,))) == []
    pod = WaitingPod("default/p", rooms.requests)
    decision = decided(*nodes, pods=(pod,), min_awake=0, max_waking=2, expected=(rooms,))
    assert acts(decision) == [("powerOn", "a")]
    assert decision.ahead == frozenset()


def test_nobody_is_curtailed_for_pods_that_are_only_expected() -> None:
    room = WakeRoom(budgets={"a": ("rack",)}, extra_w={"a": 100.0}, left_w={"rack": 1000.0})
    nodes = [node("a", SLEEPER, ready=False)]
    pod = WaitingPod("default/p", Room(8.0, 1.0, 0.0, 1.0))
    assert decided(*nodes, pods=(pod,), min_awake=0, wake_room=room).wanted == {"a"}
    decision = decided(*nodes, min_awake=0, wake_room=room, expected=(expected(1),))
    assert decision.wanted == frozenset()
    assert acts(decision) == []
