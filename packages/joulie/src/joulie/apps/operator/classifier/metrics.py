"""Metrics of the classifier."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ClassifierMetrics:
    """Prometheus metrics of the classifier.

    Attributes:
        profiles: number of workloads by evidence for their profile: measured, losing, hints or manual.
        cycle_seconds: duration of a cycle over all workloads, queries and writes included, s.
        writes: number of writes to the API server by kind: create, spec, status or delete.
        write_errors: number of profiles whose writes failed.
        query_errors: number of failed usage queries, by exporter.
        cap_responses: number of comparisons of throughput before and after a change of caps: measured or unclear.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.profiles = Gauge(
            "joulie_operator_classifier_profiles",
            "Number of workloads by evidence for their profile: measured, losing (metrics vanished), hints, manual.",
            ["result"],
            registry=registry,
        )
        self.cycle_seconds = Histogram(
            "joulie_operator_classifier_cycle_seconds",
            "Duration of a cycle over all workloads, queries and writes included, seconds.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.writes = Counter(
            "joulie_operator_classifier_writes", "Writes of WorkloadProfiles.", ["kind"], registry=registry
        )
        self.write_errors = Counter(
            "joulie_operator_classifier_write_errors", "WorkloadProfiles whose writes failed.", registry=registry
        )
        self.query_errors = Counter(
            "joulie_operator_classifier_query_errors",
            "Failed queries for the use of workloads.",
            ["exporter"],
            registry=registry,
        )
        self.cap_responses = Counter(
            "joulie_operator_classifier_cap_responses",
            "Workloads on a node whose caps changed, by whether their response could be measured or is unclear.",
            ["result"],
            registry=registry,
        )

    def stood_down(self) -> None:
        """Stop exporting the number of profiles, since this replica no longer leads."""
        self.profiles.clear()
