"""Metrics of nodes that sleep."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from joulie.apps.operator.sleep.keep import RULES, Keep
from joulie.domain.mode import Mode
from joulie.domain.sleep.commands import Command
from joulie.domain.sleep.snapshot import ExpectedPods
from joulie.domain.sleep.states import Asleep, Awake, Cordoned, Emptying, Failed, SleepState, Waking

_STATES = tuple(kind.__name__.lower() for kind in (Awake, Emptying, Cordoned, Asleep, Waking, Failed))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SleepMetrics:
    """Prometheus metrics of sleep; no series names a node.

    Attributes:
        decide_seconds: duration of a decision, s.
        errors: commands that could not be carried out.
        switch_errors: calls to power switches that failed.
        switched_off: nodes that sleep and whose power switch says that they are off.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decide_seconds = Histogram(
            "joulie_operator_sleep_decide_duration_seconds",
            "Duration of a decision which nodes sleep, seconds.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.errors = Counter(
            "joulie_operator_sleep_errors", "Commands to nodes that could not be carried out.", registry=registry
        )
        self.switch_errors = Counter(
            "joulie_operator_sleep_switch_errors", "Calls to power switches that failed.", registry=registry
        )
        self.switched_off = Gauge(
            "joulie_operator_sleep_switched_off_nodes",
            "Nodes that sleep and whose power switch says that they are off.",
            registry=registry,
        )
        self._commands = Counter(
            "joulie_operator_sleep_commands",
            "What was done with nodes (mode enforce), or would have been (mode observe).",
            ["action", "mode"],
            registry=registry,
        )
        self._nodes = Gauge(
            "joulie_operator_sleep_nodes",
            "Nodes by their state of sleep: as they are (mode enforce), or would be (mode observe).",
            ["state", "mode"],
            registry=registry,
        )
        self._kept = Gauge(
            "joulie_operator_sleep_kept_nodes", "Nodes that must not sleep, by reason.", ["reason"], registry=registry
        )
        self._moves = Counter(
            "joulie_operator_sleep_moves",
            "Pods that were to leave nodes that are emptied, by result: moved, refused, gone or error.",
            ["result"],
            registry=registry,
        )
        self._removable = Gauge(
            "joulie_operator_sleep_removable_nodes",
            "Empty nodes that are left to the autoscaler that owns them.",
            registry=registry,
        )
        self._held = Gauge(
            "joulie_operator_sleep_waiting_pods", "Pods that wait because nodes sleep.", registry=registry
        )

        self._expected = Gauge(
            "joulie_operator_sleep_expected_pods",
            "Pods that the forecast of demand expects: those for which nodes wake (wake) or are kept awake (keep).",
            ["within"],
            registry=registry,
        )
        self._ahead = Gauge(
            "joulie_operator_sleep_ahead_nodes",
            "Nodes without pods that are awake or wake, or would be, for pods that are only expected.",
            ["mode"],
            registry=registry,
        )
        self._days = Gauge(
            "joulie_operator_sleep_forecast_history_days",
            "Time of the last four weeks that the forecast of demand has watched, days.",
            registry=registry,
        )

    def show(self, kept: Iterable[Keep | None], removable: int, held: int) -> None:
        """Show what keeps nodes awake, and who waits."""
        counts = Counts(kept)
        for reason in RULES:
            self._kept.labels(reason.value).set(counts[reason])
        self._removable.set(removable)
        self._held.set(held)

    def show_forecast(self, days: float, expected: Iterable[ExpectedPods]) -> None:
        """Show what the forecast of demand knows and expects."""
        self._days.set(days)
        soon, later = 0, 0
        for pods in expected:
            soon, later = soon + pods.soon, later + pods.later
        self._expected.labels("wake").set(soon)
        self._expected.labels("keep").set(later)

    def show_states(self, mode: Mode, states: Iterable[SleepState], ahead: int) -> None:
        """Show the states of the nodes that are acted on, or observed, and how many are awake for expected pods."""
        self._ahead.labels(mode.value).set(ahead)
        counts = Counts(type(state).__name__.lower() for state in states)
        for state in _STATES:
            self._nodes.labels(state, mode.value).set(counts[state])

    def done(self, command: Command, mode: Mode) -> None:
        """Count a command that was carried out, or would have been."""
        self._commands.labels(command.action.value, mode.value).inc()

    def moved(self, result: str) -> None:
        """Count a pod that was to leave a node that is emptied."""
        self._moves.labels(result).inc()

    def stood_down(self) -> None:
        """Show no node: sleep is off, or this replica no longer leads."""
        self._nodes.clear()
        self._kept.clear()
        self._ahead.clear()
        self._expected.clear()
        self.switched_off.set(0)
        self._removable.set(0)
        self._held.set(0)
