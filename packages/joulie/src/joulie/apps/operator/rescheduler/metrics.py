"""Prometheus metrics of the rescheduler. Series of deleted nodes and namespaces are removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.domain.profiles.reschedule import Cause


class Skip(StrEnum):
    """Why a planned eviction was skipped: value of the metric's ``reason`` label."""

    DISRUPTION_BUDGET = "disruption-budget"
    COOLDOWN = "cooldown"
    """Another pod of its workload was evicted recently."""
    GONE = "gone"
    """The pod ended, or was replaced, in the meantime."""
    RETURNED = "returned"
    """After the last eviction, a pod of its workload was placed on the same node again."""
    DRY_RUN = "dry-run"
    ERROR = "error"


class ReschedulerMetrics(Collector):
    """Counts evictions and skipped evictions while this replica leads."""

    def __init__(self) -> None:
        self._evictions: Counter[tuple[str, str, str]] = Counter()
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._recommended: int | None = None

    def evicted(self, node: str, namespace: str, cause: Cause) -> None:
        """Count an eviction."""
        self._evictions[node, namespace, cause.value] += 1

    def skipped(self, node: str, why: Skip) -> None:
        """Count a planned eviction that was skipped."""
        self._skipped[node, why.value] += 1

    def update(self, recommended: int, nodes: Iterable[str], namespaces: Iterable[str]) -> None:
        """Export the number of recommendations, and drop the series of deleted nodes and namespaces."""
        self._recommended = recommended
        known, used = set(nodes), set(namespaces)
        for node, namespace, cause in [*self._evictions]:
            if node not in known or namespace not in used:
                del self._evictions[node, namespace, cause]
        for node, why in [*self._skipped]:
            if node not in known:
                del self._skipped[node, why]

    def stood_down(self) -> None:
        """Stop exporting, since this replica no longer leads."""
        self._evictions.clear()
        self._skipped.clear()
        self._recommended = None

    def describe(self) -> Iterable[Metric]:
        """The same metric families as `collect`."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """All metric families; those without a count have no samples."""
        evictions = CounterMetricFamily(
            "joulie_rescheduler_evictions",
            "Pods evicted, by the node's condition: draining, cooling-stress, psu-stress or headroom.",
            labels=["node", "namespace", "reason"],
        )
        for key, count in self._evictions.items():
            evictions.add_metric(list(key), count)
        yield evictions
        skipped = CounterMetricFamily(
            "joulie_rescheduler_skipped",
            "Planned evictions that were skipped, by reason: disruption-budget, cooldown, gone, returned, dry-run or "
            "error.",
            labels=["node", "reason"],
        )
        for skip, count in self._skipped.items():
            skipped.add_metric(list(skip), count)
        yield skipped
        recommended = GaugeMetricFamily(
            "joulie_rescheduler_recommendations", "Workloads recommended to move to another node."
        )
        if self._recommended is not None:
            recommended.add_metric([], self._recommended)
        yield recommended
