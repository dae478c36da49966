"""Metrics of the extender. Label values come from fixed sets: never a pod, an annotation or a node."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from joulie.apps.extender.feed import WatchState
from joulie.apps.extender.fleet import FleetView
from joulie.apps.extender.refusals import POWER_REASONS
from joulie.domain.scoring.extender import NodeClass

VERBS = ("filter", "prioritize", "preempt")
_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class ExtenderMetrics:
    """Counters and histograms of the extender's calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "joulie_extender_requests", "Calls by kube-scheduler.", ["verb", "code"], registry=registry
        )
        seconds = Histogram(
            "joulie_extender_request_seconds",
            "Time from the last byte of the request to the response.",
            ["verb"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        refused = Counter(
            "joulie_extender_refused_nodes",
            "Candidates that the class rule refused.",
            ["verb", "node_class"],
            registry=registry,
        )
        self._by_power = [
            Counter(
                f"{prefix}_power_filtered_nodes",
                "Candidates refused by a pod's own limits, its share of a GPU, or a PowerBudget.",
                ["reason"],
                registry=registry,
            )
            for prefix in ("compute_gardener_scheduler", "scheduler_compute_gardener")
        ]
        for counter in self._by_power:
            for reason in POWER_REASONS:
                counter.labels(reason)
        # Label lookups are on the scheduler's critical path: the common ones are done once.
        self._answered = {verb: self._requests.labels(verb, "200") for verb in VERBS}
        self._seconds = {verb: seconds.labels(verb) for verb in VERBS}
        self._refused = {
            (verb, node_class): refused.labels(verb, node_class.name.lower())
            for verb in ("filter", "preempt")
            for node_class in (NodeClass.ECO, NodeClass.DRAINING)
        }

    def served(self, verb: str, code: int, seconds: float) -> None:
        """Count an answered call."""
        (self._answered[verb] if code == 200 else self._requests.labels(verb, str(code))).inc()
        self._seconds[verb].observe(seconds)

    def refused(self, verb: str, by_class: Tally[NodeClass]) -> None:
        """Count refused candidates."""
        for node_class, count in by_class.items():
            self._refused[verb, node_class].inc(count)

    def refused_by_power(self, by_reason: Tally[str]) -> None:
        """Count candidates refused by limits of pods."""
        for counter in self._by_power:
            for reason in POWER_REASONS:
                counter.labels(reason).inc(by_reason[reason])


class StateCollector(Collector):
    """Gauges of the fleet and its watches, computed at each scrape."""

    def __init__(
        self,
        view: Callable[[], FleetView | None],
        watches: Callable[[], Iterable[WatchState]],
        registry: CollectorRegistry,
        budgets: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._view = view
        self._watches = watches
        self._budgets = budgets
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Describe nothing: the metric families are built at collection."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges."""
        silence = GaugeMetricFamily(
            "joulie_extender_watch_silence_seconds",
            "Time since the API server last sent anything on the watch.",
            labels=["resource"],
        )
        objects = GaugeMetricFamily("joulie_extender_watched_objects", "Objects known.", labels=["resource"])
        for state in self._watches():
            silence.add_metric([state.resource], state.silence_s)
            objects.add_metric([state.resource], state.objects)
        yield silence
        yield objects
        budgets = GaugeMetricFamily(
            "joulie_extender_power_budgets",
            "PowerBudgets in force by the age of their status: pods wait for recent ones only.",
            labels=["status"],
        )
        for age, count in zip(("recent", "old"), self._budgets(), strict=True):
            budgets.add_metric([age], count)
        yield budgets
        yield from _fleet_gauges(self._view())


def _fleet_gauges(view: FleetView | None) -> Iterator[GaugeMetricFamily]:
    """Gauges of the fleet; no samples before the first view, since unknown is not zero."""
    nodes = GaugeMetricFamily("joulie_extender_nodes", "Nodes by the state of their twin.", labels=["twin"])
    pressure = GaugeMetricFamily(
        "joulie_extender_performance_pressure", "Mean of 100 - headroom over the performance nodes, points."
    )
    trend = GaugeMetricFamily("joulie_extender_power_trend_watts_per_minute", "Sum of the nodes' power trends, W/min.")
    if view is not None:
        fresh = int(view.twins.fresh.sum())
        scored = int(np.isfinite(view.twins.capped_w).sum())
        nodes.add_metric(["fresh"], fresh)
        nodes.add_metric(["stale"], scored - fresh)
        nodes.add_metric(["missing"], len(view.roster.slots) - scored)
        pressure.add_metric([], view.twins.perf_pressure)
        trend.add_metric([], view.twins.cluster_trend_w_per_min)
    yield from (nodes, pressure, trend)
