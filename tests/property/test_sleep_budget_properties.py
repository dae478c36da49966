"""Nodes that wake, and pods that move, under power budgets: none is broken, and no node that fits is left off."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.capping.admission import PodRoom
from joulie.domain.capping.budgets import Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.switched import Switched, SwitchState, wake_room, with_switched
from joulie.domain.sleep.commands import Action
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import (
    BoundPod,
    ConsolidationSettings,
    Room,
    SleepNode,
    SleepSettings,
    SleepSnapshot,
    WaitingPod,
)
from joulie.domain.sleep.states import Asleep, Awake, Emptying, Waking

FLOOR_W, FULL_W, STANDBY_W = 300.0, 500.0, 20.0
ROOM = Room(8.0, 8.0, 0.0, 8.0)
SETTINGS = SleepSettings(min_awake=0, empty_s=1e9)
ROUNDS = 8


@st.composite
def racks(draw):
    """Which of up to six nodes sleep and which of the others answer, and budgets over some of them."""
    asleep = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    count = len(asleep)
    answers = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    shares = st.floats(0.3, 1.1)
    covered = st.sets(st.integers(0, count - 1), min_size=1)
    budgets = [
        Budget(f"budget-{index}", share * FULL_W * len(nodes), np.array(sorted(nodes)))
        for index, (share, nodes) in enumerate(draw(st.lists(st.tuples(shares, covered), max_size=3)))
    ]
    return asleep, answers, budgets, draw(st.integers(0, 6))


@given(racks())
def test_no_boot_breaks_a_budget_and_no_node_that_fits_stays_off(rack):
    asleep, answers, budgets, pods = rack
    count = len(asleep)
    names = tuple(f"n{index}" for index in range(count))
    states = [Asleep(0.0) if off else Awake() for off in asleep]
    waiting = [WaitingPod(f"default/p{index}", ROOM) for index in range(pods)]
    in_force_w = np.full(count, FULL_W)
    wanted, memory, room = frozenset(), {}, None
    for looks in range(ROUNDS):
        now_s = 10.0 * looks
        switched = {
            name: Switched(
                SwitchState.WAKING
                if isinstance(state, Waking)
                else SwitchState.WANTED
                if name in wanted
                else SwitchState.OFF,
                STANDBY_W,
            )
            for name, state in zip(names, states, strict=True)
            if not isinstance(state, Awake)
        }
        every = np.ones(count)
        steerable = np.array([answer and name not in switched for name, answer in zip(names, answers, strict=True)])
        as_if_on = BudgetNodes(
            names, np.zeros(count, dtype=bool), FLOOR_W * every, FULL_W * every, in_force_w, in_force_w, steerable,
            np.nan * every, now_s * every,
        )  # fmt: skip
        counted = with_switched(as_if_on, switched)
        budgeted = decide_budgets(now_s, counted, budgets, memory)
        memory = budgeted.memory
        room = wake_room([n for n, s in zip(names, states, strict=True) if isinstance(s, Asleep)], as_if_on, switched,
                         budgets, budgeted)  # fmt: skip
        nodes = [
            SleepNode(
                name, "cpu", state, ready=isinstance(state, Awake), allocatable=ROOM,
                free=ROOM if isinstance(state, Asleep | Waking) else Room(), jobs=int(isinstance(state, Awake)),
            )
            for name, state in zip(names, states, strict=True)
        ]  # fmt: skip
        decision = decide(SleepSnapshot(now_s, nodes, waiting, wake_room=room), SETTINGS)
        for name in (one.node for one in decision.commands if one.action is Action.POWER_ON):
            for budget in budgets:
                if names.index(name) in budget.nodes:
                    assert counted.in_force_w[budget.nodes].sum() <= budget.limit_w + 0.5
        assert set(decision.waits) == {pod.name for pod in waiting}
        states = [decision.states[name] for name in names]
        wanted = decision.wanted
        in_force_w = np.where(steerable, np.minimum(budgeted.limit_w, FULL_W), in_force_w)
    # Once nothing changes any more, whoever still sleeps is not needed or does not fit.
    assert not wanted, "a node is wanted for ever"
    waking = sum(isinstance(state, Waking) for state in states)
    for name, state in zip(names, states, strict=True):
        if isinstance(state, Asleep) and waking < min(pods, SETTINGS.max_waking):
            assert any(room.left_w[budget] < room.extra_w[name] for budget in room.budgets[name])


POD = Room(1.0, 1.0, 0.0, 1.0)
MOVES = SleepSettings(min_awake=0, consolidation=ConsolidationSettings(max_nodes=9, max_moves=99))


def awake(name, state, draws_w):
    pods = tuple(
        BoundPod(f"{name}/{number}", POD, movable=True, age_s=1e6, left_min=60.0, draw_w=draw_w)
        for number, draw_w in enumerate(draws_w)
    )
    return SleepNode(
        name, "cpu", state, jobs=len(pods), allocatable=ROOM, free=Room(3.0, 3.0, 0.0, 3.0), base_w=100.0, pods=pods
    )


draws = st.lists(st.sampled_from([20.0, 50.0]), min_size=1, max_size=3)


@given(
    st.lists(draws, min_size=2, max_size=4),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([30.0, 60.0, 100.0]), st.sets(st.integers(0, 6), min_size=1)), max_size=3),
)
def test_pods_that_move_take_no_more_than_budgets_have_left(leaving, targets, budgets):
    nodes = {f"n{index}": awake(f"n{index}", Emptying(0.0), watts) for index, watts in enumerate(leaving)}
    nodes |= {name: awake(name, Awake(), [50.0]) for name in (f"n{len(nodes) + index}" for index in range(targets))}
    left_w = {f"budget-{index}": room_w for index, (room_w, _) in enumerate(budgets)}
    covering = {
        name: tuple(f"budget-{index}" for index, (_, covered) in enumerate(budgets) if number in covered)
        for number, name in enumerate(nodes)
    }
    decision = decide(SleepSnapshot(100.0, list(nodes.values()), pod_room=PodRoom(left_w, covering)), MOVES)
    for move in decision.moves:
        draw_w = next(pod.draw_w for pod in nodes[move.node].pods if pod.name == move.pod)
        for budget in covering[move.target]:
            left_w[budget] -= draw_w
    assert all(watts >= 0.0 for watts in left_w.values())
    if not budgets and 3 * targets >= sum(map(len, leaving)):
        assert len(decision.moves) == sum(map(len, leaving))
