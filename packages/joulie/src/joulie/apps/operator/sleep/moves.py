"""Moves pods from nodes that are emptied."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.apps.operator.evictions import Evictions, Result
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.domain.sleep.commands import Move

_REFUSED_S = 60.0
"""Time after which an eviction that was refused is asked for again, s."""
_COUNTED = {
    Result.EVICTED: "moved",
    Result.GONE: "gone",
    Result.REFUSED: "refused",
    Result.BUSY: "refused",
    Result.ERROR: "error",
}
"""Value of the metric's ``result`` label; a busy API server is a wait, no failure."""

_log = logging.getLogger(__name__)


class Mover:
    """Evicts pods, unless a disruption budget refuses; never deletes one.

    Args:
        leader: this replica while it leads.
        metrics: metrics of sleep.
    """

    def __init__(self, leader: Leader, metrics: SleepMetrics) -> None:
        self._view, self._events, self._now_s = leader.view, leader.events, leader.now_s
        self._evictions = Evictions(leader.client, leader.may_write)
        self._metrics = metrics
        self._refused_s: dict[str, float] = {}

    async def refusal(self, pods: Iterable[str]) -> str:
        """Why the API server would not let these pods go now; empty if it would.

        Raises:
            KubernetesError: it does not say.
            NotLeadingError: the lease was lost.
        """
        for name in pods:
            pod = self._pod(name)
            if pod is None:
                continue
            answer = await self._evictions.evict(pod, dry_run=True)
            if answer.result is Result.REFUSED:
                return f"the disruption budget of pod {name} does not let it go"
            if answer.error is not None:
                raise answer.error
        return ""

    async def move(self, move: Move) -> None:
        """Evict a pod, unless that was refused a moment ago.

        Raises:
            NotLeadingError: the lease was lost.
        """
        now_s, pod = self._now_s(), self._pod(move.pod)
        self._refused_s = {uid: at_s for uid, at_s in self._refused_s.items() if abs(now_s - at_s) < _REFUSED_S}
        if pod is None or pod.node_name != move.node or pod.terminating or pod.uid in self._refused_s:
            return
        answer = await self._evictions.evict(pod)
        self._metrics.moved(_COUNTED[answer.result])
        if answer.result in (Result.REFUSED, Result.BUSY):
            self._refused_s[pod.uid] = now_s
        elif answer.result is Result.EVICTED:
            told = f"evicted from {move.node}, which is emptied to sleep; {move.target} has room for it"
            self._events.emit(pod.reference, "Normal", "Moved", told)
            _log.info("evicted", extra={"pod": move.pod, "node": move.node, "target": move.target})

    def _pod(self, name: str) -> PodFacts | None:
        namespace, _, pod_name = name.partition("/")
        return self._view.pods.get(Key(namespace, pod_name))
