"""Metrics of power budgets."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, Histogram

from joulie.domain.capping.budgets import Budget, BudgetOutcome

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
        self._gauges = (
            self._limit,
            self._measured,
            self._worst,
            self._missing,
            self._unread,
            self._curtailed,
            self._pods,
        )

    def show(
        self, budgets: Mapping[str, Budget], outcomes: Mapping[str, BudgetOutcome], rooms_w: Mapping[str, float]
    ) -> None:
        """Show the latest decision; budgets that are gone disappear.

        Args:
            budgets: by name.
            outcomes: of the decision, by name.
            rooms_w: what is left for pods under those in force, W, by name.
        """
        self.stood_down()
        for name, outcome in outcomes.items():
            self._limit.labels(name).set(budgets[name].limit_w)
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
