"""Metrics of the search for power limits."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from joulie.domain.capping.choice import Hold
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.capping.live import MAX_FAILURES, NO_PROGRESS

_STATES = ("full-power", "trial", "held", "given-up")


class GpuLimitMetrics:
    """Prometheus metrics of the search for power limits.

    Attributes:
        workloads: number of workloads by state.
        withdrawn: number of limits that were withdrawn, by reason.
        query_errors: number of failed queries.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.workloads = Gauge(
            "joulie_operator_gpu_limits_workloads",
            "Workloads in the search for power limits by state: full-power, trial, held, given-up (after failures).",
            ["state"],
            registry=registry,
        )
        self.withdrawn = Counter(
            "joulie_operator_gpu_limits_withdrawn",
            "Limits withdrawn because progress could not be measured (progress), or the limit did not come into force.",
            ["reason"],
            registry=registry,
        )
        self.query_errors = Counter(
            "joulie_operator_gpu_limits_query_errors", "Failed queries for power and progress.", registry=registry
        )

    def show(self, jobs: Iterable[TunedJob]) -> None:
        """Show the states of all workloads."""
        counts = Count(map(_state, jobs))
        for state in _STATES:
            self.workloads.labels(state).set(counts[state])

    def count_withdrawn(self, before: TunedJob | None, after: TunedJob) -> None:
        """Count a limit that was withdrawn between two looks."""
        problem = after.active.problem
        if before is not None and before.limited and problem and problem != before.active.problem:
            self.withdrawn.labels("progress" if problem == NO_PROGRESS else "not-in-force").inc()

    def stood_down(self) -> None:
        """Stop exporting the number of workloads, since this replica no longer leads."""
        self.workloads.clear()


def _state(job: TunedJob) -> str:
    if job.active.failures >= MAX_FAILURES:
        return "given-up"
    if not job.limited:
        return "full-power"
    return "held" if isinstance(job.active.step, Hold) else "trial"
