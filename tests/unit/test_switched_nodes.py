"""Nodes that are off or waking under power budgets."""

import numpy as np
import pytest

from joulie.domain.capping.budgets import Breaker, Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.switched import Switched, SwitchState, wake_room, with_switched
from joulie.domain.capping.trip import EARLIEST
from joulie.domain.units import InvalidQuantityError

NAMES = ("a", "b", "c")
OFF = Switched(SwitchState.OFF, 10.0, 600.0)
WANTED = OFF._replace(state=SwitchState.WANTED)
WAKING = OFF._replace(state=SwitchState.WAKING)


def three(in_force_w=500.0, power_w=400.0):
    every = np.full(3, 1.0)
    return BudgetNodes(
        NAMES, np.zeros(3, dtype=bool), 300.0 * every, 500.0 * every, in_force_w * every, in_force_w * every,
        np.ones(3, dtype=bool), power_w * every, 7.0 * every,
    )  # fmt: skip


def decided(switched, budget, in_force_w=500.0):
    nodes = with_switched(three(in_force_w), switched)
    return nodes, decide_budgets(8.0, nodes, [budget], {})


@pytest.mark.parametrize(("one", "counts_w"), [(OFF, 10.0), (WANTED, 600.0), (WAKING, 600.0)])
def test_an_off_node_counts_its_standby_and_a_waking_one_its_boot_peak(one, counts_w):
    nodes, decision = decided({"b": one}, Budget("hall", 1600.0, np.arange(3)))
    assert decision.outcomes["hall"].worst_w == 1000.0 + counts_w
    assert decision.outcomes["hall"].unread == 0
    assert not nodes.steerable[1]
    assert decision.limit_w[1] == counts_w


def test_without_switched_nodes_nothing_changes():
    nodes = three()
    assert with_switched(nodes, {}) is nodes


def room(switched, budget, in_force_w=500.0):
    _, decision = decided(switched, budget, in_force_w)
    return wake_room(["b", "c"], three(in_force_w), switched, [budget], decision)


def test_a_boot_peak_that_is_not_stated_is_the_power_without_limits():
    nodes, _ = decided({"b": WAKING._replace(boot_peak_w=None)}, Budget("hall", 1600.0, np.arange(3)))
    assert nodes.in_force_w[1] == 500.0


def test_a_wanted_node_makes_the_others_give_and_wakes_once_they_have():
    budget = Budget("hall", 1400.0, np.arange(3))
    _, decision = decided({"b": WANTED}, budget)
    assert 790.0 <= decision.limit_w[[0, 2]].sum() <= 800.0  # levels are hundredths
    assert not room({"b": WANTED}, budget).may_wake("b")
    assert room({"b": WANTED}, budget, in_force_w=400.0).may_wake("b")
    assert not room({"b": OFF}, budget, in_force_w=100.0).may_wake("b")  # nobody counts its boot peak yet


def test_what_is_left_for_nodes_that_wake_is_what_others_can_give():
    budget = Budget("hall", 1400.0, np.arange(3))
    found = room({"b": OFF}, budget)
    assert found.left_w == {"hall": 1400.0 - 2 * 300.0 - 10.0}
    assert found.extra_w == {"b": 590.0, "c": 200.0}  # c sleeps and is still on
    assert room({"b": WANTED}, budget).left_w == found.left_w
    assert room({"b": WAKING}, budget).left_w == {"hall": 1400.0 - 2 * 300.0 - 600.0}


def test_behind_a_breaker_what_is_measured_must_leave_room():
    breaker = Breaker(1500.0, EARLIEST)
    for limit_w, expected in ((1450.0, True), (1350.0, False)):
        budget = Budget("feed", limit_w, np.arange(3), breaker=breaker)
        assert room({"b": WANTED}, budget).may_wake("b") is expected


def test_a_node_under_no_budget_in_force_needs_no_room():
    observed = Budget("hall", 100.0, np.arange(3), enforced=False)
    assert room({"b": WANTED}, observed).may_wake("b")
    other = Budget("rack", 100.0, np.arange(1))
    assert room({"b": OFF}, other).may_wake("b")


def test_a_power_that_is_no_number_is_refused():
    with pytest.raises(InvalidQuantityError):
        with_switched(three(), {"b": OFF._replace(standby_w=float("nan"))})
