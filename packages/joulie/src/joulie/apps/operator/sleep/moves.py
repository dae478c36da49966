"""Evictions of pods from nodes that are emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import StrEnum

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError, TooManyRequestsError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.resources import PODS
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.rescheduler.evictor import eviction_of
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.domain.sleep.commands import Move
from joulie.program.leadership import NotLeadingError

_REFUSED_S = 60.0
"""Time after which an eviction that was refused is asked for again, s."""

_log = logging.getLogger(__name__)


class _Result(StrEnum):
    """What came of an eviction: value of the metric's ``result`` label."""

    MOVED = "moved"
    REFUSED = "refused"
    """By a disruption budget, or since the API server has too much to do: a wait, no failure."""
    GONE = "gone"
    ERROR = "error"


class Mover:
    """Evicts pods through the Eviction API, which respects disruption budgets; never deletes one.

    Args:
        client: Kubernetes client.
        view: cached view of the cluster.
        metrics: metrics of sleep.
        events: recorder of events on pods.
        may_write: whether this process still holds the lease; checked before every eviction.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        metrics: SleepMetrics,
        events: EventRecorder,
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._metrics = metrics
        self._events = events
        self._may_write = may_write
        self._now_s = now_s
        self._refused_s: dict[str, float] = {}

    async def refusal(self, pods: Iterable[str]) -> str:
        """Why the API server would not let these pods go now; empty if it would.

        Raises:
            KubernetesError: it does not say.
        """
        for name in pods:
            pod = self._pod(name)
            if pod is None:
                continue
            try:
                await self._evict(pod, dry_run=True)
            except TooManyRequestsError:
                return f"the disruption budget of pod {name} does not let it go"
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
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not evicted")
        result = await self._result(pod)
        self._metrics.moved(result.value)
        if result is _Result.REFUSED:
            self._refused_s[pod.uid] = now_s
        elif result is _Result.MOVED:
            about = ObjectReference(kind="Pod", name=pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid)
            told = f"evicted from {move.node}, which is emptied to sleep; {move.target} has room for it"
            self._events.emit(about, "Normal", "Moved", told)
            _log.info("evicted", extra={"pod": move.pod, "node": move.node, "target": move.target})

    async def _result(self, pod: PodFacts) -> _Result:
        try:
            await self._evict(pod)
        except (NotFoundError, ConflictError):
            return _Result.GONE
        except TooManyRequestsError:
            return _Result.REFUSED
        except KubernetesError as error:
            _log.warning("cannot evict pod", extra={"pod": f"{pod.namespace}/{pod.name}", "error": str(error)})
            return _Result.ERROR
        return _Result.MOVED

    async def _evict(self, pod: PodFacts, *, dry_run: bool = False) -> None:
        body = eviction_of(pod, dry_run=dry_run)
        await self._client.create_subresource(PODS, pod.name, "eviction", body, pod.namespace)

    def _pod(self, name: str) -> PodFacts | None:
        namespace, _, pod_name = name.partition("/")
        return self._view.pods.get(Key(namespace, pod_name))
