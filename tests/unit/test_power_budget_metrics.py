"""Metrics of power budgets: what decides a limit, and who gives."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from joulie.apps.operator.budgets.metrics import PowerBudgetMetrics, given_by
from joulie.apps.operator.budgets.stored import StoredBudget
from joulie.domain.capping.budgets import Budget, BudgetNodes, BudgetOutcome
from joulie.domain.capping.watts_in_force import Reduction, WattsInForce

NOW_S = 1000.0
EVENTS = (Reduction("evening", 900.0, 1100.0, 800.0), Reduction("tomorrow", 9000.0, 9900.0, 800.0))
FULL_W = np.array([500.0, 400.0, 300.0, 200.0])
NODES = BudgetNodes(
    names=("a", "b", "c", "d"),
    critical=np.array([True, False, False, False]),
    floor_w=FULL_W / 2,
    full_w=FULL_W,
    in_force_w=FULL_W,
    asked_w=FULL_W,
    steerable=np.ones(4, dtype=np.bool_),
    power_w=FULL_W,
    read_s=np.full(4, NOW_S),
    priority=np.array([1000, -5, 0, -7]),
)
BUDGET = Budget("hall", 800.0, np.array([0, 1, 3]), enforced=False)
OUTCOME = BudgetOutcome(np.array([450.0, 300.0, 150.0]), 1100.0, 1100.0, 0.0, 0, 0, np.array([True, True, True]))


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("spec", "spec"),
        ("schedule", "schedule"),
        ("signal", "signal"),
        ("invalid", "invalid"),
        ("evening", "reduction"),
    ],
)
def test_the_cause_of_a_limit_is_one_of_five_whatever_events_are_called(reason, cause):
    registry = CollectorRegistry()
    metrics = PowerBudgetMetrics(registry)
    stored = StoredBudget(BUDGET, WattsInForce(800.0, reason), EVENTS, 1200.0, 312.0)

    def sample(name, **labels):
        return registry.get_sample_value(f"joulie_operator_power_budget_{name}", {"budget": "hall"} | labels)

    metrics.show({"hall": stored}, NODES, {"hall": OUTCOME}, {}, NOW_S)
    causes = ("spec", "schedule", "signal", "invalid", "reduction")
    assert {one: sample("limit_cause", cause=one) for one in causes} == {**dict.fromkeys(causes), cause: 1.0}
    assert (sample("spec_watts"), sample("signal"), sample("active_reductions")) == (1200.0, 312.0, 1.0)
    assert sample("enforced") == 0.0
    assert sample("given_watts", **{"class": "performance", "priority": "positive"}) == 50.0
    metrics.show({"hall": stored._replace(signal=None)}, NODES, {"hall": OUTCOME}, {}, NOW_S)
    assert sample("signal") is None
    metrics.stood_down()
    assert (sample("spec_watts"), sample("limit_cause", cause=cause)) == (None, None)


def test_who_gives_adds_up_to_what_limits_take():
    given = list(given_by(NODES, BUDGET, OUTCOME))
    assert given == [("standard", "negative", 150.0), ("performance", "positive", 50.0)]
    nobody = BudgetOutcome(FULL_W[:3], 1.0, 1.0, 0.0, 0, 0, np.zeros(3, dtype=np.bool_))
    assert list(given_by(NODES, BUDGET, nobody)) == []
