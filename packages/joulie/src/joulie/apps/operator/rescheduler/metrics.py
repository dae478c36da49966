"""Metrics of the rescheduler. Nodes and namespaces that go take their series along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.domain.profiles.reschedule import Cause


class Skip(StrEnum):
    """Why a pod that was to be evicted was not, as the metric names it."""

    DISRUPTION_BUDGET = "disruption-budget"
    COOLDOWN = "cooldown"
    """Another pod of its workload was evicted a short while ago."""
    GONE = "gone"
    """It ended, or was replaced, in the meantime."""
    RETURNED = "returned"
    """After the last eviction a pod of its workload was placed on the same node again."""
    DRY_RUN = "dry-run"
    ERROR = "error"


class ReschedulerMetrics(Collector):
    """Counts what the current term of leadership evicted, and what it did not."""

    def __init__(self) -> None:
        self._evictions: Counter[tuple[str, str, str]] = Counter()
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._recommended: int | None = None

    def evicted(self, node: str, namespace: str, cause: Cause) -> None:
        """Count an eviction."""
        self._evictions[node, namespace, cause.value] += 1

    def skipped(self, node: str, why: Skip) -> None:
        """Count a pod that was to be evicted, and was not."""
        self._skipped[node, why.value] += 1

    def looked(self, recommended: int, nodes: Iterable[str], namespaces: Iterable[str]) -> None:
        """Show how many moves are recommended, and forget nodes and namespaces that are gone."""
        self._recommended = recommended
        known, used = set(nodes), set(namespaces)
        for node, namespace, cause in [*self._evictions]:
            if node not in known or namespace not in used:
                del self._evictions[node, namespace, cause]
        for node, why in [*self._skipped]:
            if node not in known:
                del self._skipped[node, why]

    def stood_down(self) -> None:
        """Show nothing any more: another replica leads."""
        self._evictions.clear()
        self._skipped.clear()
        self._recommended = None

    def describe(self) -> Iterable[Metric]:
        """The families of `collect`."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """All families; without samples where nothing was counted."""
        evictions = CounterMetricFamily(
            "joulie_rescheduler_evictions",
            "Pods evicted, by what the node suffered from: draining, cooling-stress, psu-stress or headroom.",
            labels=["node", "namespace", "reason"],
        )
        for key, count in self._evictions.items():
            evictions.add_metric(list(key), count)
        yield evictions
        skipped = CounterMetricFamily(
            "joulie_rescheduler_skipped",
            "Pods that were to be evicted and were not: disruption-budget, cooldown, gone, dry-run or error.",
            labels=["node", "reason"],
        )
        for skip, count in self._skipped.items():
            skipped.add_metric(list(skip), count)
        yield skipped
        recommended = GaugeMetricFamily(
            "joulie_rescheduler_recommendations", "Workloads on a node that would be better off elsewhere."
        )
        if self._recommended is not None:
            recommended.add_metric([], self._recommended)
        yield recommended
