"""Signals that budgets follow and what their events achieved, as an operator reads them from Prometheus."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget
from joulie.adapters.kubernetes.api.v1alpha1.power_budget import FollowSpec, PowerBudgetSpec
from joulie.adapters.prometheus import PrometheusError
from joulie.adapters.prometheus.answers import Series
from joulie.apps.operator.budgets.events import SIGNAL_STALE_S, BudgetEvents
from joulie.apps.operator.budgets.stored import StoredBudget
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.budgets import Budget, BudgetOutcome
from joulie.domain.capping.watts_in_force import Reduction, WattsInForce

# A Wednesday.
EVENT = Reduction("evening", 1.8e9, 1.8e9 + 3600.0, 800.0)
HALL = PowerBudget(
    metadata=ObjectMeta(name="hall"),
    spec=PowerBudgetSpec(watts=1000.0, follow=FollowSpec(query="carbon", low=100.0, high=400.0, watts_at_high=500.0)),
)
IN_FORCE = StoredBudget(Budget("hall", 1000.0, np.arange(2)), WattsInForce(1000.0, "spec"), (EVENT,), 1000.0, None)


@dataclasses.dataclass
class Answers:
    """A Prometheus that answers every query alike, and the events that ask it."""

    values: tuple[float, ...] = ()
    error: str = ""
    now_s: float = EVENT.start_s

    def __post_init__(self) -> None:
        self.queries: list[str] = []
        settings = OperatorSettings()
        self.events = BudgetEvents(cast("Any", self), None, settings, lambda: self.now_s)

    async def query(self, promql: str) -> list[Series]:
        self.queries.append(promql)
        if self.error:
            raise PrometheusError(self.error)
        return [Series("", {}, value, None) for value in self.values]

    def poll(self, budgets: Mapping[str, StoredBudget] | None = None) -> None:
        asyncio.run(self.events.poll({"hall": HALL}, budgets or {}))


def test_a_signal_is_kept_until_it_is_stale_and_never_guessed() -> None:
    answers = Answers((250.0,))
    assert answers.events.signal("hall") is None
    answers.poll()
    assert answers.events.signal("hall") == 250.0
    for values, error in (((), ""), ((1.0, 2.0), ""), ((300.0,), "503")):
        answers.values, answers.error = values, error
        answers.poll()
        assert answers.events.signal("hall") == 250.0
    answers.now_s += SIGNAL_STALE_S + 1.0
    assert answers.events.signal("hall") is None


def test_a_budget_that_is_gone_has_no_signal() -> None:
    answers = Answers((250.0,))
    answers.poll()
    asyncio.run(answers.events.poll({}, {}))
    assert answers.events.signal("hall") is None


def _after_the_event(answers: Answers, measured_w: float) -> Any:
    """Let the event pass at a measured power; its status afterwards."""
    outcome = BudgetOutcome(np.zeros(2), measured_w, measured_w, 0.0, 0, 0, np.zeros(2, dtype=np.bool_))
    for answers.now_s in np.linspace(EVENT.start_s + 1.0, EVENT.end_s - 1.0, 20).tolist():
        answers.events.sampled({"hall": IN_FORCE}, {"hall": outcome})
    answers.now_s = EVENT.end_s
    answers.poll({"hall": IN_FORCE})
    (status,) = answers.events.statuses(HALL, IN_FORCE)
    return status


def test_an_event_is_compared_with_ten_similar_days() -> None:
    answers = Answers((1000.0,))
    status = _after_the_event(answers, 750.0)
    assert (status.mean_watts, status.baseline_watts, status.shed_watts) == (750.0, 1000.0, 250.0)
    assert status.message == "mean of 10 similar days, adjusted by 1.00"
    asked = len(answers.queries)
    answers.poll({"hall": IN_FORCE})
    assert [query for query in answers.queries[asked:] if query != "carbon"] == [], "a baseline is worked out once"


@pytest.mark.parametrize(
    ("values", "error", "told"),
    [((), "", "no baseline: fewer than five similar days are known"), ((1.0,), "503", "no baseline: 503")],
)
def test_no_baseline_is_told_and_is_not_zero(values: tuple[float, ...], error: str, told: str) -> None:
    status = _after_the_event(Answers(values, error), 750.0)
    assert (status.mean_watts, status.baseline_watts, status.shed_watts) == (750.0, None, None)
    assert status.message == told
