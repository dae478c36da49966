"""The Eviction API: the only way in which the operator takes a running pod from its node.

The API server evicts a pod unless that would violate a disruption budget, and deletes it with its own grace period. The
precondition is the pod's UID: one of the same name that was made in its place is not evicted for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, KubernetesError, NotFoundError, TooManyRequestsError
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.resources import PODS
from joulie.program.leadership import NotLeadingError

_log = logging.getLogger(__name__)


class Result(Enum):
    """Result of an eviction."""

    EVICTED = auto()
    """Of a dry run: it would be."""
    GONE = auto()
    """The pod ended, or was replaced, in the meantime."""
    REFUSED = auto()
    """A disruption budget does not allow it."""
    BUSY = auto()
    """The API server has too much to do."""
    ERROR = auto()


class Answer(NamedTuple):
    """What the API server answered to an eviction.

    Attributes:
        result: the result.
        retry_after_s: time for which the server asks to be left alone, s; 0 if it gave none.
        error: what it said where the pod was neither evicted nor gone.
    """

    result: Result
    retry_after_s: float = 0.0
    error: KubernetesError | None = None


class Evictions:
    """Asks for evictions while this process leads, and logs those that fail.

    Args:
        client: Kubernetes client.
        may_write: whether this process still holds the lease; checked before every eviction.
    """

    def __init__(self, client: KubeClient, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write

    async def evict(self, pod: PodFacts, *, dry_run: bool = False) -> Answer:
        """Evict a pod, or learn whether the API server would.

        Raises:
            NotLeadingError: the lease was lost.
        """
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not evicted")
        options = {"preconditions": {"uid": pod.uid}, **({"dryRun": ["All"]} if dry_run else {})}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        try:
            await self._client.create_subresource(PODS, pod.name, "eviction", body, pod.namespace)
        except (NotFoundError, ConflictError):
            return Answer(Result.GONE)
        except KubernetesError as error:
            answer = _failure(error)
            if answer.result is not Result.REFUSED:
                about = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node_name, "error": str(error)}
                _log.warning("cannot evict pod", extra=about)
            return answer
        return Answer(Result.EVICTED)


def _failure(error: KubernetesError) -> Answer:
    if isinstance(error, TooManyRequestsError):
        result = Result.REFUSED if error.disruption_budget else Result.BUSY
        return Answer(result, error.retry_after_s or 0.0, error)
    return Answer(Result.ERROR, error=error)
