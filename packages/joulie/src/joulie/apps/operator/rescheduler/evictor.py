"""Evicts the pods that the rescheduler chose, with a cooldown and back-off per workload."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.apps.operator.evictions import Evictions, Result
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.rescheduler.metrics import ReschedulerMetrics, Skip
from joulie.domain.profiles.reschedule import Eviction, Workload

MAX_BACKOFF_S = 1800.0
"""Maximum back-off, s, between two attempts for a workload whose disruption budget does not allow an eviction."""
RETURN_WINDOW_S = 86_400.0
"""How long an eviction of a workload from a node is remembered, s."""

_log = logging.getLogger(__name__)


class _Cooldown(NamedTuple):
    """Cooldown of a workload.

    Attributes:
        since_s: start, s since the epoch.
        length_s: length, s.
        refusals: consecutive failed evictions.
    """

    since_s: float
    length_s: float
    refusals: int = 0

    @property
    def until_s(self) -> float:
        """End, s since the epoch."""
        return self.since_s + self.length_s


class _Departure(NamedTuple):
    """The last eviction of a workload from a node.

    Attributes:
        time_s: when it was, s since the epoch.
        pods: UIDs of the workload's pods that were on the node before it.
    """

    time_s: float
    pods: frozenset[str]


class Evictor:
    """Evicts pods, one after the other.

    Args:
        leader: this replica while it leads.
        metrics: rescheduler metrics.
    """

    def __init__(self, leader: Leader, metrics: ReschedulerMetrics) -> None:
        self._view, self._settings = leader.view, leader.settings
        self._events, self._now_s = leader.events, leader.now_s
        self._evictions = Evictions(leader.client, leader.may_write)
        self._metrics = metrics
        self._cooldowns: dict[Workload, _Cooldown] = {}
        self._departures: dict[tuple[Workload, str], _Departure] = {}

    def cooling_down(self) -> frozenset[Workload]:
        """Workloads in cooldown. Cooldowns that ended long ago are dropped, and with them their back-off.

        Where the clock was set back, a cooldown begins anew, and an eviction counts as one of now.
        """
        now_s = self._now_s()
        self._departures = {
            key: departure._replace(time_s=min(departure.time_s, now_s))
            for key, departure in self._departures.items()
            if now_s - departure.time_s < RETURN_WINDOW_S
        }
        self._cooldowns = {
            workload: cooldown._replace(since_s=min(cooldown.since_s, now_s))
            for workload, cooldown in self._cooldowns.items()
            if now_s < cooldown.until_s + MAX_BACKOFF_S
        }
        return frozenset(workload for workload, cooldown in self._cooldowns.items() if now_s < cooldown.until_s)

    async def evict(self, evictions: Iterable[Eviction]) -> None:
        """Evict these pods, as far as cooldowns and the API server allow.

        Raises:
            NotLeadingError: the lease was lost.
        """
        for eviction in evictions:
            refusal = await self._evict_if_allowed(eviction)
            if refusal is not None:
                self._metrics.skipped(eviction.node, refusal)

    async def _evict_if_allowed(self, eviction: Eviction) -> Skip | None:
        """Evict a pod. Returns why it was skipped; None if it was evicted."""
        pod = self._view.pods.get(Key(eviction.namespace, eviction.pod))
        if pod is None or pod.terminating or pod.node_name != eviction.node:
            return Skip.GONE
        if eviction.workload in self.cooling_down():
            return Skip.COOLDOWN
        if self._returned(eviction):
            return Skip.RETURNED
        if self._settings.reschedule_dry_run:
            self._log_eviction("would evict", eviction)
            self._start_cooldown(eviction.workload, self._settings.reschedule_cooldown_s)
            return Skip.DRY_RUN
        return await self._evict(eviction, pod)

    async def _evict(self, eviction: Eviction, pod: PodFacts) -> Skip | None:
        # Its replacement may run before the API server has answered.
        departure = _Departure(self._now_s(), frozenset(self._on_node(eviction)))
        answer = await self._evictions.evict(pod)
        if answer.result is Result.GONE:
            return Skip.GONE
        if answer.result is not Result.EVICTED:
            self._back_off(eviction.workload, answer.retry_after_s)
            if answer.result is not Result.REFUSED:
                return Skip.ERROR
            message = f"not evicted from {eviction.node} ({eviction.reason}): its disruption budget does not allow it"
            self._events.emit(pod.reference, "Normal", "RescheduleRefused", message)
            return Skip.DISRUPTION_BUDGET
        self._start_cooldown(eviction.workload, self._settings.reschedule_cooldown_s)
        self._departures[eviction.workload, eviction.node] = departure
        self._metrics.evicted(eviction.node, eviction.namespace, eviction.cause)
        message = f"evicted from {eviction.node}: {eviction.reason}; {eviction.target} has capacity for it"
        self._events.emit(pod.reference, "Normal", "Rescheduled", message)
        self._log_eviction("evicted", eviction)
        return None

    def _returned(self, eviction: Eviction) -> bool:
        """Whether a pod of the workload came to the node after the last eviction from it.

        kube-scheduler then placed it there by its own rules, such as topology spread, and would do so again: further
        evictions would be restarts without effect. Pods are told by UID: their start times are of the node's clock.
        """
        departure = self._departures.get((eviction.workload, eviction.node))
        return departure is not None and not departure.pods.issuperset(self._on_node(eviction))

    def _on_node(self, eviction: Eviction) -> Iterator[str]:
        """UIDs of the workload's pods on the node."""
        workload = eviction.workload
        pods = self._view.ledger.workloads.get((workload.namespace, Owner(workload.kind, workload.name)), {})
        return (pod.uid for pod in pods.values() if pod.node_name == eviction.node)

    def _start_cooldown(self, workload: Workload, duration_s: float) -> None:
        self._cooldowns[workload] = _Cooldown(self._now_s(), duration_s)

    def _back_off(self, workload: Workload, minimum_s: float) -> None:
        """Start a cooldown that doubles with each consecutive failure."""
        before = self._cooldowns.get(workload)
        refusals = 1 + (0 if before is None else before.refusals)
        wait_s = min(self._settings.reschedule_interval_s * 2.0**refusals, MAX_BACKOFF_S)
        self._cooldowns[workload] = _Cooldown(self._now_s(), max(wait_s, minimum_s), refusals)

    def _log_eviction(self, what: str, eviction: Eviction) -> None:
        _log.info(
            what,
            extra={
                "pod": f"{eviction.namespace}/{eviction.pod}",
                "node": eviction.node,
                "reason": eviction.reason,
                "target": eviction.target,
            },
        )
