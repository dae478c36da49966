"""Consolidation: which node is emptied, which of its pods go, and when it is given up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulie.domain.capping.admission import PodRoom
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules
from joulie.domain.scheduling.node_rules import Term as NodeTerm
from joulie.domain.sleep.commands import Action, Command, Move, SleepDecision, still_holds
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import (
    BoundPod,
    ConsolidationSettings,
    ExpectedPods,
    Room,
    SleepNode,
    SleepSettings,
    SleepSnapshot,
    WaitingPod,
)
from joulie.domain.sleep.states import Asleep, Awake, Cordoned, Emptying, SleepState, Waking, mark_of, state_of

NOW_S = 10_000.0
ROOM = Room(16.0, 64.0, 0.0, 110.0)
SMALL = Room(2.0, 4.0, 0.0, 1.0)
SETTINGS = SleepSettings(min_awake=0, consolidation=ConsolidationSettings(max_nodes=1))


def pod(name: str = "team/p", **changes: Any) -> BoundPod:
    base = BoundPod(name, SMALL, movable=True, ends=False, age_s=3600.0, left_min=120.0, draw_w=20.0)
    return replace(base, **changes)


def node(name: str, *pods: BoundPod, state: SleepState | None = None, **changes: Any) -> SleepNode:
    state = Awake() if state is None else state
    free = ROOM
    for one in pods:
        free = free.less(one.requests)
    base = SleepNode(
        name,
        "cpu",
        state,
        mark_of(state),
        ready=not isinstance(state, Asleep | Waking),
        jobs=len(pods),
        allocatable=ROOM,
        free=free,
        base_w=150.0,
        pods=pods,
    )
    return replace(base, **changes)


def decided(*nodes: SleepNode, pods: tuple[WaitingPod, ...] = (), **changes: Any) -> SleepDecision:
    expected, back, room = changes.pop("expected", ()), changes.pop("until_back", ()), changes.pop("room", PodRoom())
    settings = replace(SETTINGS, consolidation=replace(SETTINGS.consolidation, **changes))
    return decide(SleepSnapshot(NOW_S, nodes, pods, expected, until_back=back, pod_room=room), settings)


def left(watts: float, *names: str) -> PodRoom:
    """A budget over these nodes, or over the busy one, that has so much left, W."""
    return PodRoom({"rack": watts}, dict.fromkeys(names or ("busy",), ("rack",)))


def acts(decision: SleepDecision) -> list[tuple[str, str]]:
    return [(command.action.value, command.node) for command in decision.commands]


BUSY = node("busy", *(pod(f"team/b{index}", left_min=300.0, movable=False) for index in range(4)))
EMPTYING = Emptying(NOW_S - 60.0)


# ---- which node


def test_a_node_whose_pods_fit_elsewhere_is_emptied_and_told_why() -> None:
    decision = decided(node("few", pod()), BUSY)
    assert acts(decision) == [("empty", "few")]
    assert decision.states["few"] == Emptying(NOW_S)
    assert decision.moves == (), "the mark first"
    # 150 W for 58 minutes; a boot of 5 minutes, and 20 W for a minute.
    assert decision.commands[0].reason == ("1 pods fit elsewhere; asleep it saves 0.14 kWh, moving them costs 0.01 kWh")


@pytest.mark.parametrize(
    "changes",
    [
        {"movable": False},
        {"terminating": True},
        {"age_s": 599.0},
        {"left_min": 10.0},
        {"ends": True, "draw_w": 200.0},
        {"requests": Room(9.0, 4.0, 0.0, 1.0)},
        {"rules": NodeRules(selector=(Requirement("disk", "In", ("ssd",)),))},
        {"rules": NodeRules(terms=(NodeTerm(fields=(Requirement("metadata.name", "In", ("few",)),)),))},
    ],
    ids=["fixed", "leaving", "young", "ends soon", "loses its work", "no room", "labels", "bound by name"],
)
def test_what_keeps_a_pod_where_it_is(changes: dict[str, Any]) -> None:
    assert acts(decided(node("few", pod(**changes)), BUSY)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"keep": "local volume"},
        {"switchable": False},
        {"ready": False},
        {"jobs": 2},
        {"family": ""},
        {"state": Awake(given_up_s=NOW_S - 3599.0)},
    ],
    ids=["keep", "no switch", "not ready", "unknown pod", "kept for somebody", "tried before"],
)
def test_what_keeps_a_node_from_being_emptied(changes: dict[str, Any]) -> None:
    assert acts(decided(replace(node("few", pod()), **changes), BUSY)) == []


def test_a_node_may_be_tried_again_later_and_whatever_the_clock_did() -> None:
    for given_up_s in (NOW_S - 3600.0, NOW_S + 3600.0):
        few = node("few", pod(), state=Awake(given_up_s=given_up_s))
        assert acts(decided(few, BUSY)) == [("empty", "few")]


def test_nothing_is_emptied_unless_asked_for() -> None:
    assert acts(decided(node("few", pod()), BUSY, max_nodes=0)) == []


def test_no_room_is_found_on_nodes_that_budgets_or_others_keep() -> None:
    for changes in ({"family": ""}, {"ready": False}, {"state": Cordoned(NOW_S)}):
        assert acts(decided(node("few", pod()), replace(BUSY, **changes)))[:1] != [("empty", "few")]
    for room, acted in ((left(19.0), []), (left(20.0), [("empty", "few")]), (PodRoom(known=False), [])):
        assert acts(decided(node("few", pod()), BUSY, room=room)) == acted
    assert acts(decided(node("few", pod()), BUSY, room=left(0.0, "few"))) == [], "it is curtailed"


def test_two_nodes_never_move_to_the_same_room_nor_to_each_other() -> None:
    pair = node("a", pod("team/a")), node("b", pod("team/b"))
    assert acts(decided(*pair, max_nodes=2)) == [("empty", "a")]
    closed = node("a", pod("team/a"), state=EMPTYING)
    decision = decided(closed, pair[1], max_nodes=2)
    assert acts(decision) == [], "b has the room that a needs"
    assert decision.moves == (Move("team/a", "a", "b"),)


def test_the_node_that_saves_most_goes_first() -> None:
    dear = replace(node("dear", pod("team/d")), base_w=700.0)
    assert acts(decided(node("a", pod("team/a")), dear, BUSY)) == [("empty", "dear")]


def test_moving_pods_to_a_node_that_they_keep_awake_does_not_pay() -> None:
    ends_soon = node("ends", pod("team/e", left_min=5.0, movable=False))
    assert acts(decided(node("few", pod()), ends_soon)) == []


def test_a_reserve_is_not_emptied() -> None:
    nodes = SleepSnapshot(NOW_S, (node("few", pod()), BUSY))
    assert acts(decide(nodes, replace(SETTINGS, min_awake=2))) == []


@pytest.mark.parametrize("later", [0, 3, 4, 6])
def test_a_node_that_the_forecast_needs_is_not_emptied(later: int) -> None:
    # busy has 8 cores left: after three pods of 2 cores, 2 are left for the one that moves.
    back = (ExpectedPods(SMALL, ANYWHERE, 0, later),)
    assert acts(decided(node("few", pod()), BUSY, until_back=back)) == ([("empty", "few")] if later < 4 else [])
    # Those that are expected soon have room already.
    soon = (ExpectedPods(SMALL, ANYWHERE, 0, 3),)
    assert acts(decided(node("few", pod()), BUSY, expected=soon, until_back=soon)) == [("empty", "few")]


def test_nothing_is_begun_while_pods_wait_for_nodes() -> None:
    few, waking = node("few", pod()), node("waking", state=Waking(NOW_S, 1))
    assert acts(decided(few, BUSY, waking)) == []
    large = WaitingPod("team/large", Room(12.0, 1.0, 0.0, 1.0))
    assert acts(decided(few, BUSY, pods=(large,))) == [], "few has room for it"


# ---- while it is emptied


def test_its_pods_go_so_many_at_a_time() -> None:
    few = node("few", *(pod(f"team/p{index}") for index in range(4)), state=EMPTYING)
    decision = decided(few, BUSY, max_moves=3)
    assert acts(decision) == []
    assert [move.pod for move in decision.moves] == ["team/p0", "team/p1", "team/p2"]
    leaving = replace(few, pods=(replace(few.pods[0], terminating=True), *few.pods[1:]))
    assert [move.pod for move in decided(leaving, BUSY).moves] == ["team/p1", "team/p2", "team/p3"]


def test_no_pod_follows_until_those_that_went_run() -> None:
    few = node("few", pod(), state=EMPTYING)
    moved = WaitingPod("team/moved", SMALL)
    decision = decided(few, BUSY, pods=(moved,))
    assert decision.states["few"] == replace(EMPTYING, held_looks=1)
    assert (acts(decision), decision.moves) == ([], ())
    held = replace(few, state=replace(EMPTYING, held_looks=11))
    assert decided(held, BUSY, pods=(moved,)).commands == (
        Command(Action.UNCORDON, "few", "a pod waits that it has room for"),
    )
    assert decided(few, pods=(moved,)).commands == (Command(Action.UNCORDON, "few", "pod team/moved needs it"),)


def test_an_empty_node_is_cordoned_once_it_was_quiet_for_some_looks() -> None:
    quiet = node("few", state=replace(EMPTYING, quiet_looks=1))
    assert decided(quiet, BUSY).states["few"] == replace(EMPTYING, quiet_looks=2)
    decision = decided(replace(quiet, state=replace(EMPTYING, quiet_looks=2)), BUSY)
    assert (acts(decision), decision.states["few"]) == ([("cordon", "few")], Cordoned(NOW_S))


@pytest.mark.parametrize(
    ("few", "reason"),
    [
        (node("few", pod(), state=EMPTYING, keep="observe mode"), "observe mode"),
        (node("few", pod(), state=EMPTYING, ready=False), "not ready"),
        (node("few", pod(movable=False), state=EMPTYING), "pod team/p must not be moved"),
        (node("few", pod(age_s=59.0), state=EMPTYING), "pod team/p came"),
        (node("few", pod(requests=Room(9.0, 1.0, 0.0, 1.0)), state=EMPTYING), "its pods find no room elsewhere"),
        (node("few", pod(), state=Emptying(NOW_S - 900.0)), "not empty after 900 s"),
    ],
    ids=["keep", "not ready", "fixed", "came back", "no room", "too long"],
)
def test_it_is_given_up_and_left_alone_for_a_while(few: SleepNode, reason: str) -> None:
    decision = decided(few, BUSY)
    assert decision.commands == (Command(Action.UNCORDON, "few", reason),)
    assert decision.states["few"] == Awake(given_up_s=NOW_S)
    assert decision.moves == ()


def test_it_is_opened_where_a_budget_curtails_it() -> None:
    few = node("few", pod(), state=EMPTYING)
    for room in (left(0.0, "few"), PodRoom(known=False)):
        assert decided(few, BUSY, room=room).commands == (
            Command(Action.UNCORDON, "few", "a power budget curtails it"),
        )


def test_it_is_opened_where_consolidation_was_switched_off() -> None:
    assert acts(decided(node("few", pod(), state=EMPTYING), BUSY, max_nodes=0)) == [("uncordon", "few")]


def test_a_new_leader_goes_on_and_a_clock_that_went_back_begins_anew() -> None:
    mark = mark_of(EMPTYING)
    assert state_of(mark, tainted=True, now_s=NOW_S) == EMPTYING
    assert decided(node("few", pod(), state=Emptying(NOW_S + 60.0)), BUSY).states["few"] == Emptying(NOW_S)


def test_a_command_holds_only_for_the_node_that_was_seen() -> None:
    few = node("few", pod())
    begin = Command(Action.EMPTY, "few", "")
    assert still_holds(begin, few, few)
    for changes in ({"mark": "asleep since 1"}, {"keep": "cordoned"}, {"ready": False}):
        assert not still_holds(begin, few, replace(few, **changes))
    # An old view may show a node as ready; one that was only emptied was never off.
    closed = node("few", pod(), state=EMPTYING)
    assert still_holds(Command(Action.UNCORDON, "few", ""), closed, replace(closed, ready=False))


# ---- whatever the cluster

PODS = st.builds(
    pod,
    st.uuids().map(str),
    requests=st.builds(Room, st.sampled_from([1.0, 4.0, 8.0]), st.just(1.0), st.just(0.0), st.just(1.0)),
    movable=st.sampled_from([True, True, True, False]),
    ends=st.booleans(),
    terminating=st.sampled_from([False, False, True]),
    age_s=st.sampled_from([30.0, 3600.0]),
    left_min=st.sampled_from([5.0, 120.0]),
)
NODES = st.builds(
    lambda pods, state, **changes: node("", *pods, state=state, **changes),
    st.lists(PODS, max_size=3),
    st.sampled_from([Awake(), Awake(), Awake(), EMPTYING, Cordoned(NOW_S), Asleep(0.0)]),
    keep=st.sampled_from(["", "", "", "reserved"]),
)
BUDGETS = st.dictionaries(
    st.sampled_from(["rack", "feed", "hall"]),
    st.tuples(st.sampled_from([0.0, 30.0, 50.0]), st.sets(st.integers(0, 5))),
)
"""What is left of each budget, W, and the numbers of its nodes."""
WAITING = st.builds(WaitingPod, st.uuids().map(str), st.sampled_from([SMALL, Room(12.0, 1.0, 0.0, 1.0)]))


# The first node is opened again, and is one of those that have room for the second one's pod from then on.
@pytest.mark.slow
@example([node("", pod("a", age_s=30.0, movable=False), state=EMPTYING), node("", pod("b"))], [], {}, 1, 1)
@given(
    st.lists(NODES, min_size=1, max_size=6),
    st.lists(WAITING, max_size=2),
    BUDGETS,
    st.integers(1, 2),
    st.integers(1, 4),
)
def test_only_what_may_be_moved_is_moved_and_only_where_there_is_room(
    some: list[SleepNode],
    waiting: list[WaitingPod],
    budgets: dict[str, tuple[float, set[int]]],
    max_nodes: int,
    max_moves: int,
) -> None:
    nodes = {f"n{index}": replace(one, name=f"n{index}") for index, one in enumerate(some)}
    covering = {name: tuple(each for each, (_, under) in budgets.items() if int(name[1:]) in under) for name in nodes}
    room = PodRoom({name: left_w for name, (left_w, _) in budgets.items()}, covering)
    decision = decided(*nodes.values(), pods=tuple(waiting), room=room, max_nodes=max_nodes, max_moves=max_moves)
    before = {name for name, one in nodes.items() if isinstance(one.state, Emptying)}
    after = {name for name, state in decision.states.items() if isinstance(state, Emptying)}
    assert len(after) <= max(len(before), max_nodes)
    assert len(after - before) <= 1
    assert len(decision.moves) == len({move.pod for move in decision.moves}) <= max_moves
    taken: Counter[str] = Counter()
    drawn_w: Counter[str] = Counter()
    for move in decision.moves:
        source = nodes[move.node]
        gone = next(one for one in source.pods if one.name == move.pod)
        assert gone.movable
        assert not gone.terminating
        assert move.node in before & after
        assert not source.keep
        assert isinstance(decision.states[move.target], Awake)
        for budget in covering[move.target]:
            drawn_w[budget] += gone.draw_w
        taken[move.target] += gone.requests.cores
    assert all(taken[name] <= nodes[name].free.cores for name in taken)
    assert all(drawn_w[name] <= room.left_w[name] for name in drawn_w)
    for name in after - before:
        one = nodes[name]
        assert one.pods
        assert all(each.movable and each.age_s >= 600.0 for each in one.pods)
        others = [nodes[each].free.cores for each, state in decision.states.items() if isinstance(state, Awake)]
        assert sum(each.requests.cores for each in one.pods) <= sum(others)
    # Nothing is begun for which a pod would have to wait.
    assert not (decision.held and after - before)
