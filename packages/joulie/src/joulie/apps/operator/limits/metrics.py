"""Metrics of the search for power limits."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from joulie.domain.capping.choice import Hold, Reason
from joulie.domain.capping.held_out import NOT_PAYING, Holdout
from joulie.domain.capping.knobs import TunedJob
from joulie.domain.capping.live import MAX_FAILURES, NO_PROGRESS, NOT_IN_FORCE
from joulie.domain.trial.holdout import Evidence

_STATES = ("full-power", "trial", "held", "left-alone", "given-up")
_REASONS = {
    NO_PROGRESS: "progress",
    Reason.CONTRADICTED: "contradicted",
    NOT_IN_FORCE: "not-in-force",
    NOT_PAYING: "not-paying",
}
"""Label of what withdrew a limit; a clock that cannot be locked any more is not in force either."""


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
            "Workloads in the search for power limits by state: full-power, trial, held, left-alone (for a window, by"
            " chance), given-up (after failures).",
            ["state"],
            registry=registry,
        )
        self.withdrawn = Counter(
            "joulie_operator_gpu_limits_withdrawn",
            "Limits withdrawn because progress could not be measured (progress), or contradicts the counters or power "
            "of the GPUs (contradicted), the limit did not come into force (not-in-force), or has stopped paying "
            "(not-paying).",
            ["reason"],
            registry=registry,
        )
        self.query_errors = Counter(
            "joulie_operator_gpu_limits_query_errors", "Failed queries for power and progress.", registry=registry
        )

        self.stopped_paying = Gauge(
            "joulie_operator_holdout_stopped_paying_workloads",
            "Workloads whose held limit surely saves less than GPU_LIMITS_HOLDOUT_LEAST_SAVING.",
            registry=registry,
        )
        self.holdout_windows = Gauge(
            "joulie_operator_holdout_windows",
            "Windows of workloads with a held limit behind joulie_operator_holdout_saved_ratio, by whether they had it"
            " (limited) or were left alone by chance (left-alone): of the latest months that say enough, over"
            " restarts.",
            ["arm"],
            registry=registry,
        )
        self.holdout_saved = Gauge(
            "joulie_operator_holdout_saved_ratio",
            "Energy per unit of work that held limits save, as a share, by the holdout: saved, and the bounds low and"
            " high of an interval that holds at all looks together. Without too few windows left alone.",
            ["bound"],
            registry=registry,
        )

    def show(self, jobs: Iterable[TunedJob], holdout: Holdout) -> None:
        """Show the states of all workloads."""
        known = list(jobs)
        held = (job.active for job in known if job.active.problem != NOT_PAYING)
        self.stopped_paying.set(sum(job.held_out.stopped_paying(holdout) for job in held))
        counts = Count(map(_state, known))
        for state in _STATES:
            self.workloads.labels(state).set(counts[state])

    def show_holdout(self, evidence: Evidence) -> None:
        """Show what the windows of all workloads say."""
        self.holdout_windows.labels("limited").set(evidence.units - evidence.left_out)
        self.holdout_windows.labels("left-alone").set(evidence.left_out)
        interval = evidence.interval
        if interval is not None:
            for bound, value in interval._asdict().items():
                self.holdout_saved.labels(bound).set(value)

    def count_withdrawn(self, before: TunedJob | None, after: TunedJob) -> None:
        """Count a limit that was withdrawn between two looks."""
        problem = after.active.problem
        was_held = before is not None and (before.limited or before.active.left_alone)
        if before is not None and was_held and problem and problem != before.active.problem:
            self.withdrawn.labels(_REASONS.get(problem, "not-in-force")).inc()

    def stood_down(self) -> None:
        """Stop exporting the number of workloads, since this replica no longer leads."""
        self.workloads.clear()
        self.holdout_windows.clear()
        self.holdout_saved.clear()
        self.stopped_paying.set(0)


def _state(job: TunedJob) -> str:
    if job.active.failures >= MAX_FAILURES:
        return "given-up"
    if job.active.left_alone:
        return "left-alone"
    if not job.limited:
        return "full-power"
    return "held" if isinstance(job.active.step, Hold) else "trial"
