"""Nodes that are off or waking under power budgets."""

import numpy as np
import pytest

from joulie.domain.capping.budgets import Breaker, Budget, BudgetNodes, decide_budgets
from joulie.domain.capping.switched import Switched, SwitchState, may_wake, with_switched
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


def test_a_wanted_node_makes_the_others_give_and_wakes_once_they_have():
    budget = Budget("hall", 1400.0, np.arange(3))
    nodes, decision = decided({"b": WANTED}, budget)
    assert 790.0 <= decision.limit_w[[0, 2]].sum() <= 800.0  # levels are hundredths
    assert may_wake(nodes, {"b": WANTED}, [budget], decision, at_once=2) == ()
    nodes, decision = decided({"b": WANTED}, budget, in_force_w=400.0)
    assert may_wake(nodes, {"b": WANTED}, [budget], decision, at_once=2) == ("b",)


def test_no_more_nodes_wake_at_once_than_allowed():
    budget = Budget("hall", 5000.0, np.arange(3))
    switched = {"a": WAKING, "b": WANTED, "c": WANTED}
    nodes, decision = decided(switched, budget)
    assert may_wake(nodes, switched, [budget], decision, at_once=2) == ("b",)
    assert may_wake(nodes, switched, [budget], decision, at_once=1) == ()


def test_behind_a_breaker_what_is_measured_must_leave_room():
    breaker = Breaker(1500.0, EARLIEST)
    switched = {"b": WANTED}
    for limit_w, expected in ((1450.0, ("b",)), (1350.0, ())):
        budget = Budget("feed", limit_w, np.arange(3), breaker=breaker)
        nodes, decision = decided(switched, budget)
        assert may_wake(nodes, switched, [budget], decision, at_once=2) == expected


def test_an_observed_budget_keeps_no_node_asleep():
    budget = Budget("hall", 100.0, np.arange(3), enforced=False)
    nodes, decision = decided({"b": WANTED}, budget)
    assert may_wake(nodes, {"b": WANTED}, [budget], decision, at_once=2) == ("b",)


def test_a_power_that_is_no_number_is_refused():
    with pytest.raises(InvalidQuantityError):
        with_switched(three(), {"b": OFF._replace(standby_w=float("nan"))})
