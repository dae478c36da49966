"""Metrics of trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from joulie.domain.trial.protocol import Arm

REASONS = ("InBlock", "Waiting", "Completed", "Stopped", "GuardBroken", "Invalid")
"""Reasons of a trial's condition Running."""


class TrialMetrics:
    """Prometheus metrics of PowerTrials. One runs at a time, so that no label names it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._trials = Gauge(
            "joulie_operator_trials", "PowerTrials by the reason of their condition.", ["reason"], registry=registry
        )
        self._block = Gauge(
            "joulie_operator_trial_block", "Number of the block in force, from 1; 0 without one.", registry=registry
        )
        self._nodes = Gauge(
            "joulie_operator_trial_nodes",
            "Nodes of the block in force by what is done to them.",
            ["arm"],
            registry=registry,
        )

    def show(self, reasons: Iterable[str], block: int, arms: Mapping[str, Arm]) -> None:
        """Show the latest look.

        Args:
            reasons: reason of each trial.
            block: number of the block in force, from 1; 0 without one.
            arms: arms of the nodes of that block.
        """
        counts, nodes = Counter(reasons), Counter(arms.values())
        for reason in REASONS:
            self._trials.labels(reason).set(counts[reason])
        for arm in Arm:
            self._nodes.labels(arm.value).set(nodes[arm])
        self._block.set(block)

    def stood_down(self) -> None:
        """Show no trial: this replica no longer leads."""
        self._trials.clear()
        self._nodes.clear()
        self._block.set(0)
