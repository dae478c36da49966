"""Metrics of trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from joulie.domain.trial.guard import Harm
from joulie.domain.trial.protocol import Arm

_RUNNING = ("InBlock", "Assigning")
REASONS = (*_RUNNING, "Waiting", "Completed", "Stopped", "GuardBroken", "Invalid")
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
        self._blocks = Gauge(
            "joulie_operator_trial_blocks",
            "Number of all blocks of the trial in force; 0 without one.",
            registry=registry,
        )
        self._nodes = Gauge(
            "joulie_operator_trial_nodes",
            "Nodes of the block in force by what is done to them.",
            ["arm"],
            registry=registry,
        )
        self._pods = Gauge(
            "joulie_operator_trial_pods",
            "Pods that ended under one arm alone, by which the guard of the trial in force judges.",
            ["arm"],
            registry=registry,
        )
        self._harm = Gauge(
            "joulie_operator_trial_harm_ratio",
            "Lower end of what the trial in force does to pods over its bound in spec.guard; above 1 it ends. Without"
            " what has no bound, or too few pods.",
            ["harm"],
            registry=registry,
        )

    def show(self, reasons: Iterable[str], block: int, blocks: int, arms: Mapping[str, Arm]) -> None:
        """Show the latest look.

        Args:
            reasons: reason of each trial.
            block: number of the block in force, from 1; 0 without one.
            blocks: number of all blocks of that trial.
            arms: arms of the nodes of that block.
        """
        counts, nodes = Counter(reasons), Counter(arms.values())
        for reason in REASONS:
            self._trials.labels(reason).set(counts[reason])
        for arm in Arm:
            self._nodes.labels(arm.value).set(nodes[arm])
        self._block.set(block)
        self._blocks.set(blocks)
        if not any(counts[reason] for reason in _RUNNING):
            self.forget_guard()

    def show_guard(self, pods: Iterable[Arm], shares: Mapping[Harm, float]) -> None:
        """Show what a guard judges by, and how it judges.

        Args:
            pods: arms of the pods that ended.
            shares: lower end of each harm over its bound.
        """
        counts = Counter(pods)
        for arm in Arm:
            self._pods.labels(arm.value).set(counts[arm])
        self._harm.clear()
        for harm, share in shares.items():
            self._harm.labels(harm.value).set(share)

    def forget_guard(self) -> None:
        """Show no guard."""
        self._pods.clear()
        self._harm.clear()

    def stood_down(self) -> None:
        """Show no trial: this replica no longer leads."""
        self._trials.clear()
        self._nodes.clear()
        self._block.set(0)
        self._blocks.set(0)
        self.forget_guard()
