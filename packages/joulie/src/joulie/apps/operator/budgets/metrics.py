"""Metrics of power budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, Histogram

from joulie.apps.operator.budgets.stored import StoredBudget
from joulie.domain.capping.budgets import Budget, BudgetNodes, BudgetOutcome
from joulie.domain.capping.watts_in_force import INVALID, SCHEDULE, SIGNAL, SPEC

_REDUCTION = "reduction"
_CLASSES = ("standard", "performance")
_PRIORITIES = ("negative", "zero", "positive")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.3, 0.5, 1.0, 2.5)


class PowerBudgetMetrics:
    """Prometheus metrics of power budgets; one series a budget, as many as there are objects.

    Attributes:
        decide_seconds: duration of a decision about all budgets, s.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"joulie_operator_power_budget_{name}", text, ["budget"], registry=registry)

        self.decide_seconds = Histogram(
            "joulie_operator_power_budget_decide_duration_seconds",
            "Duration of a decision about all PowerBudgets, seconds.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._limit = gauge("limit_watts", "Limit of a PowerBudget, W.")
        self._measured = gauge(
            "measured_watts", "Power of its nodes, W; a node without a fresh reading counts with its worst case."
        )
        self._worst = gauge("worst_case_watts", "What its nodes could draw under the limits in force, W.")
        self._missing = gauge("missing_watts", "By how much the lowest limits of its nodes exceed the limit, W.")
        self._unread = gauge("unread_nodes", "Nodes without a fresh reading.")
        self._curtailed = gauge("curtailed_nodes", "Nodes that may draw less than they could.")
        self._pods = gauge(
            "pod_headroom_watts", "What is left for pods that need full power, W; negative where limits are not enough."
        )
        self._spec = gauge("spec_watts", "Watts of a PowerBudget, which schedule, signal and events may lower, W.")
        self._signal = gauge("signal", "Value of the signal that a PowerBudget follows; absent while it is unknown.")
        self._enforced = gauge("enforced", "1 for a PowerBudget that is enforced, 0 for one in observe mode.")
        self._reductions = gauge("active_reductions", "Events that reduce a PowerBudget now.")
        self._cause = Gauge(
            "joulie_operator_power_budget_limit_cause",
            "1 for what decides the limit of a PowerBudget: spec, schedule, signal, reduction, or invalid where a part "
            "of it cannot be read.",
            ["budget", "cause"],
            registry=registry,
        )
        self._given = Gauge(
            "joulie_operator_power_budget_given_watts",
            "By how much limits lower what nodes could draw, W, by the class of the nodes' pods and by the highest "
            "priority among them.",
            ["budget", "class", "priority"],
            registry=registry,
        )
        self._gauges = (
            self._spec,
            self._signal,
            self._enforced,
            self._reductions,
            self._cause,
            self._given,
            self._limit,
            self._measured,
            self._worst,
            self._missing,
            self._unread,
            self._curtailed,
            self._pods,
        )

    def show(
        self,
        stored: Mapping[str, StoredBudget],
        nodes: BudgetNodes,
        outcomes: Mapping[str, BudgetOutcome],
        rooms_w: Mapping[str, float],
        now_s: float,
    ) -> None:
        """Show the latest decision; budgets that are gone disappear.

        Args:
            stored: budgets by name.
            nodes: all nodes.
            outcomes: of the decision, by name.
            rooms_w: what is left for pods under those in force, W, by name.
            now_s: time of the decision, s since the epoch.
        """
        self.stood_down()
        for name, outcome in outcomes.items():
            one = stored[name]
            reason = one.limit.reason
            cause = reason if reason in {SPEC, SCHEDULE, SIGNAL, INVALID} else _REDUCTION
            self._limit.labels(name).set(one.budget.limit_w)
            self._spec.labels(name).set(one.spec_w)
            self._enforced.labels(name).set(one.budget.enforced)
            self._cause.labels(name, cause).set(1)
            self._reductions.labels(name).set(sum(event.active(now_s) for event in one.reductions))
            if one.signal is not None:
                self._signal.labels(name).set(one.signal)
            for who, priority, given_w in given_by(nodes, one.budget, outcome):
                self._given.labels(name, who, priority).set(given_w)
            self._measured.labels(name).set(outcome.measured_w)
            self._worst.labels(name).set(outcome.worst_w)
            self._missing.labels(name).set(outcome.missing_w)
            self._unread.labels(name).set(outcome.unread)
            self._curtailed.labels(name).set(int(outcome.curtailed.sum()))
            if name in rooms_w:
                self._pods.labels(name).set(rooms_w[name])

    def stood_down(self) -> None:
        """Show no budget: this replica no longer leads."""
        for one in self._gauges:
            one.clear()


def given_by(nodes: BudgetNodes, budget: Budget, outcome: BudgetOutcome) -> Iterator[tuple[str, str, float]]:
    """Class, sign of the priority, and by how much limits lower what these nodes could draw, W; nobody without.

    Args:
        nodes: all nodes.
        budget: a budget.
        outcome: of the decision about it.
    """
    index = budget.nodes[outcome.curtailed]
    if not index.size:
        return
    given_w = nodes.full_w[index] - outcome.limit_w[outcome.curtailed]
    signs = np.zeros(index.size) if nodes.priority is None else np.sign(nodes.priority[index])
    group = nodes.critical[index] * len(_PRIORITIES) + signs.astype(np.int64) + 1
    sums_w = np.bincount(group, weights=given_w, minlength=len(_CLASSES) * len(_PRIORITIES))
    for number in np.unique(group).tolist():
        who, priority = divmod(number, len(_PRIORITIES))
        yield _CLASSES[who], _PRIORITIES[priority], float(sums_w[number])
