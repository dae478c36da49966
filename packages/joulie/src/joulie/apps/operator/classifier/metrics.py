"""Metrics of the classifier."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ClassifierMetrics:
    """What the classifier counts.

    Attributes:
        profiles: workloads by what their profile rests on: measured, losing, hints or manual.
        cycle_seconds: a look at all workloads, queries and writes included.
        writes: writes to the API server by kind: create, spec, status or delete.
        write_errors: profiles whose writes failed.
        query_errors: queries for use that failed, by exporter.
        cap_responses: workloads whose throughput was compared before and after a change of caps: measured or unclear.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.profiles = Gauge(
            "joulie_operator_classifier_profiles",
            "Workloads by what their profile rests on: measured, losing (metrics vanished), hints, manual.",
            ["result"],
            registry=registry,
        )
        self.cycle_seconds = Histogram(
            "joulie_operator_classifier_cycle_seconds",
            "A look at all workloads, with its queries and writes.",
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
            "Queries for the use of workloads that failed.",
            ["exporter"],
            registry=registry,
        )
        self.cap_responses = Counter(
            "joulie_operator_classifier_cap_responses",
            "Workloads on a node whose caps changed: their response is measured, or unclear.",
            ["result"],
            registry=registry,
        )

    def stood_down(self) -> None:
        """Show no profiles any more: another replica leads."""
        self.profiles.clear()
