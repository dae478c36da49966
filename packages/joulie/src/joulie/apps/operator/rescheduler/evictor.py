"""Evictions through the Eviction API: within disruption budgets, and never a workload again before it has rested."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError, TooManyRequestsError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.adapters.kubernetes.resources import PODS
from joulie.apps.operator.apply import NotLeadingError
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.rescheduler.metrics import ReschedulerMetrics, Skip
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.profiles.reschedule import Eviction, Workload

LONGEST_BACKOFF_S = 1800.0
"""Between two tries at a workload whose disruption budget refuses."""
RETURN_MEMORY_S = 86_400.0
"""How long it is remembered that a workload was evicted from a node."""

_log = logging.getLogger(__name__)


class _Rest(NamedTuple):
    """A workload that is left alone for a while.

    Attributes:
        until_s: s since the epoch.
        refusals: evictions refused in a row.
    """

    until_s: float
    refusals: int = 0


class Evictor:
    """Evicts pods, one after the other.

    Args:
        client: to write with.
        view: of the cluster.
        settings: interval, cooldown, dry run.
        metrics: to count in.
        events: to tell of evictions on pods.
        may_write: whether this process still leads; asked before every eviction.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        metrics: ReschedulerMetrics,
        events: EventRecorder,
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._events = events
        self._may_write = may_write
        self._now_s = now_s
        self._rests: dict[Workload, _Rest] = {}
        self._evicted_s: dict[tuple[Workload, str], float] = {}

    def resting(self) -> frozenset[Workload]:
        """Workloads of which nothing is evicted now. Those that have rested for long are forgotten."""
        now_s = self._now_s()
        self._rests = {
            workload: rest for workload, rest in self._rests.items() if now_s < rest.until_s + LONGEST_BACKOFF_S
        }
        return frozenset(workload for workload, rest in self._rests.items() if now_s < rest.until_s)

    async def evict(self, evictions: Iterable[Eviction]) -> None:
        """Evict these pods, as far as the cluster allows.

        Raises:
            NotLeadingError: the lease was lost.
        """
        for eviction in evictions:
            refusal = await self._try(eviction)
            if refusal is not None:
                self._metrics.skipped(eviction.node, refusal)

    async def _try(self, eviction: Eviction) -> Skip | None:
        """Evict a pod, or say why not."""
        pod = self._view.pods.get(Key(eviction.namespace, eviction.pod))
        if pod is None or pod.terminating or pod.node_name != eviction.node:
            return Skip.GONE
        if eviction.workload in self.resting():
            return Skip.COOLDOWN
        if self._came_back(eviction):
            return Skip.RETURNED
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not evicted")
        if self._settings.reschedule_dry_run:
            self._tell("would evict", eviction)
            self._rest(eviction.workload, self._settings.reschedule_cooldown_s)
            return Skip.DRY_RUN
        return await self._ask(eviction, pod)

    async def _ask(self, eviction: Eviction, pod: PodFacts) -> Skip | None:
        try:
            await self._client.create_subresource(PODS, pod.name, "eviction", _body(pod), pod.namespace)
        except (NotFoundError, ConflictError):
            return Skip.GONE
        except TooManyRequestsError as error:
            self._back_off(eviction.workload, error.retry_after_s or 0.0)
            if not error.disruption_budget:
                return self._failed(eviction, error)
            message = f"not evicted from {eviction.node} ({eviction.reason}): its disruption budget does not allow it"
            self._events.emit(_reference(pod), "Normal", "RescheduleRefused", message)
            return Skip.DISRUPTION_BUDGET
        except KubernetesError as error:
            self._back_off(eviction.workload, 0.0)
            return self._failed(eviction, error)
        self._rest(eviction.workload, self._settings.reschedule_cooldown_s)
        # Pods say in whole seconds since when they run.
        self._evicted_s[eviction.workload, eviction.node] = math.floor(self._now_s())
        self._metrics.evicted(eviction.node, eviction.namespace, eviction.cause)
        message = f"evicted from {eviction.node}: {eviction.reason}; {eviction.target} has room for it"
        self._events.emit(_reference(pod), "Normal", "Rescheduled", message)
        self._tell("evicted", eviction)
        return None

    def _came_back(self, eviction: Eviction) -> bool:
        """Whether a pod of the workload was started on the node after the last eviction from there.

        kube-scheduler has reasons of its own, topology spread among them: it would decide the same again, and every
        further eviction would be a restart for nothing.
        """
        now_s, workload = self._now_s(), eviction.workload
        self._evicted_s = {key: time_s for key, time_s in self._evicted_s.items() if now_s - time_s < RETURN_MEMORY_S}
        evicted_s = self._evicted_s.get((workload, eviction.node))
        if evicted_s is None:
            return False
        pods = self._view.ledger.workloads.get((workload.namespace, Owner(workload.kind, workload.name)), {})
        return any(
            pod.node_name == eviction.node and pod.running_since_s is not None and pod.running_since_s >= evicted_s
            for pod in pods.values()
        )

    def _rest(self, workload: Workload, rest_s: float) -> None:
        self._rests[workload] = _Rest(self._now_s() + rest_s)

    def _back_off(self, workload: Workload, least_s: float) -> None:
        """Wait twice as long after each refusal in a row."""
        before = self._rests.get(workload)
        refusals = 1 + (0 if before is None else before.refusals)
        wait_s = min(self._settings.reschedule_interval_s * 2.0**refusals, LONGEST_BACKOFF_S)
        self._rests[workload] = _Rest(self._now_s() + max(wait_s, least_s), refusals)

    def _failed(self, eviction: Eviction, error: KubernetesError) -> Skip:
        _log.warning(
            "pod not evicted",
            extra={"pod": f"{eviction.namespace}/{eviction.pod}", "node": eviction.node, "error": str(error)},
        )
        return Skip.ERROR

    def _tell(self, what: str, eviction: Eviction) -> None:
        _log.info(
            what,
            extra={
                "pod": f"{eviction.namespace}/{eviction.pod}",
                "node": eviction.node,
                "reason": eviction.reason,
                "target": eviction.target,
            },
        )


def _body(pod: PodFacts) -> dict[str, Any]:
    """The Eviction of this very pod, with its own grace period."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }


def _reference(pod: PodFacts) -> ObjectReference:
    return ObjectReference(kind="Pod", name=pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
