"""Records Kubernetes Events in the background: aggregated when repeated, rate limited, and without blocking callers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from joulie.adapters.kubernetes.api.core import Event, EventSource
from joulie.adapters.kubernetes.api.meta import ObjectMeta, ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import (
    ApiError,
    ConflictError,
    ConnectionLostError,
    KubernetesError,
    NotFoundError,
)
from joulie.adapters.kubernetes.resources import EVENTS
from joulie.adapters.kubernetes.times import rfc3339

_log = logging.getLogger(__name__)

Severity = Literal["Normal", "Warning"]

_MAX_PENDING = 1000
_MAX_KNOWN = 4096
_FORGET_S = 600.0
"""A repetition later than this creates a new Event; the API server deletes Events after an hour by default."""
_RETRY_S = 10.0
"""Wait before another try while the API server does not answer, s; client-go's."""
_MAX_TRIES = 60
_BURST = 25.0
_REFILL_PER_S = 1.0 / 300.0
_MAX_NAME = 253
_MAX_MESSAGE = 1024
_CLUSTER_NAMESPACE = "default"


class _Source(NamedTuple):
    kind: str
    namespace: str
    name: str
    uid: str


class _Identity(NamedTuple):
    """Aggregation key: occurrences with the same key are counted on one Event."""

    source: _Source
    severity: Severity
    reason: str
    message: str


@dataclass
class _Occurrences:
    regarding: ObjectReference
    first_s: float
    last_s: float
    count: int
    name: str = ""
    """Name of the Event object; empty until it is tried."""
    tries: int = 0


class TokenBucket:
    """Rate limiter: allows `burst` actions at once and `refill_per_s` actions per second in the long run.

    Args:
        burst: capacity of the bucket, which starts full.
        refill_per_s: tokens added per second.
        now_s: start time, s.
    """

    def __init__(self, burst: float, refill_per_s: float, now_s: float) -> None:
        self._burst = burst
        self._refill_per_s = refill_per_s
        self._tokens = burst
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        """Take a token if one is available. A clock that runs backwards refills nothing."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._refill_per_s)
        self._at_s = max(self._at_s, now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class EventRecorder:
    """Writes core/v1 Events in the background.

    A repeated event increments the count of the existing Event. Events are rate limited per object with client-go's
    limits (a burst of 25, then one every five minutes). While the API server is away or overloaded, events wait for up
    to ten minutes of tries; of more than a thousand, the newest are dropped.

    Args:
        client: Kubernetes client.
        component: reporting component, such as ``joulie-operator``.
        instance: reporting instance: the pod's or node's name.
        clock: wall clock, s since the epoch.

    Attributes:
        written: number of Events created or updated.
        dropped: number of events not written: rate limited, queue full, or rejected by the API server.
    """

    def __init__(
        self, client: KubeClient, component: str, *, instance: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.written = 0
        self.dropped = 0
        self._client = client
        self._source = EventSource(component=component, host=instance)
        self._clock = clock
        self._pending: OrderedDict[_Identity, _Occurrences] = OrderedDict()
        self._known: OrderedDict[_Identity, _Occurrences] = OrderedDict()
        self._buckets: OrderedDict[_Source, TokenBucket] = OrderedDict()
        self._wake = asyncio.Event()
        self._last_suffix = 0

    def emit(self, regarding: ObjectReference, kind: Severity, reason: str, message: str) -> None:
        """Queue an event about an object. Never blocks and never fails.

        Args:
            regarding: the object: kind, name and, if known, apiVersion, namespace and uid.
            kind: event type, Normal or Warning.
            reason: reason in CamelCase, from a small fixed set.
            message: human-readable description.
        """
        now = self._clock()
        source = _Source(regarding.kind, regarding.namespace, regarding.name, regarding.uid)
        identity = _Identity(source, kind, reason, _shorten(message))
        pending = self._pending.get(identity)
        if pending is not None:
            pending.count += 1
            pending.last_s = now
            return
        if len(self._pending) >= _MAX_PENDING or not self._bucket(source, now).take(now):
            self.dropped += 1
            return
        self._pending[identity] = _Occurrences(regarding, now, now, 1)
        self._wake.set()

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()
            if self._pending:
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def flush(self) -> None:
        """Write queued events, until the API server does not answer; call it at shutdown, within a time limit."""
        while self._pending:
            identity, news = self._pending.popitem(last=False)
            news.tries += 1
            try:
                await self._write(identity, news)
                self.written += 1
            except KubernetesError as error:
                if _may_pass(error) and news.tries < _MAX_TRIES:
                    self._keep(identity, news)
                    return
                self.dropped += 1
                _log.warning("event not written", extra={"reason": identity.reason, "problem": str(error)})

    def _keep(self, identity: _Identity, news: _Occurrences) -> None:
        """Queue an event again, behind all others: it may be the only one that fails."""
        since = self._pending.pop(identity, None)
        if since is not None:
            news.count += since.count
            news.last_s = since.last_s
        self._pending[identity] = news

    async def _write(self, identity: _Identity, news: _Occurrences) -> None:
        known = self._known.get(identity)
        if known is not None and news.first_s - known.last_s <= _FORGET_S:
            total = _Occurrences(news.regarding, known.first_s, news.last_s, known.count + news.count, known.name)
            try:
                await self._count_up(total)
            except NotFoundError:  # expired or deleted: create a new Event
                await self._create(identity, news)
            else:
                news = total
        else:
            await self._create(identity, news)
        self._known[identity] = news
        self._known.move_to_end(identity)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    async def _count_up(self, total: _Occurrences) -> None:
        change = {"count": total.count, "lastTimestamp": rfc3339(total.last_s)}
        await self._client.patch(EVENTS, total.name, change, namespace=_namespace(total.regarding))

    async def _create(self, identity: _Identity, news: _Occurrences) -> None:
        news.name = news.name or self._name(news.regarding.name)
        namespace = _namespace(news.regarding)
        event = Event(
            metadata=ObjectMeta(name=news.name, namespace=namespace),
            involved_object=news.regarding,
            type=identity.severity,
            reason=identity.reason,
            message=identity.message,
            count=news.count,
            first_timestamp=rfc3339(news.first_s),
            last_timestamp=rfc3339(news.last_s),
            source=self._source,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )
        try:
            await self._client.create(EVENTS, event, namespace)
        except ConflictError:  # created by a try whose answer was lost
            await self._count_up(news)

    def _name(self, object_name: str) -> str:
        """A unique Event name: the object's name and the time in nanoseconds, incremented on a collision."""
        self._last_suffix = max(self._last_suffix + 1, int(self._clock() * 1e9))
        suffix = f".{self._last_suffix:016x}"
        return object_name[: _MAX_NAME - len(suffix)].rstrip("-.") + suffix

    def _bucket(self, source: _Source, now_s: float) -> TokenBucket:
        bucket = self._buckets.pop(source, None) or TokenBucket(_BURST, _REFILL_PER_S, now_s)
        self._buckets[source] = bucket  # most recently used last
        if len(self._buckets) > _MAX_KNOWN:
            self._buckets.popitem(last=False)
        return bucket


def _may_pass(error: KubernetesError) -> bool:
    """Whether another try may succeed: no answer, or one that is no verdict on the event."""
    if isinstance(error, ConnectionLostError):
        return not error.permanent
    return isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)


def _namespace(regarding: ObjectReference) -> str:
    return regarding.namespace or _CLUSTER_NAMESPACE


def _shorten(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
