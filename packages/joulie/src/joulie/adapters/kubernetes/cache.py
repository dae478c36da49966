"""Watch caches: a local copy of a resource, kept up to date by list and watch like client-go's informers.

A cache lists once, page by page, and watches from the listed version. A watch that ends is resumed from the last
version seen, so no change is missed. If that version is too old (410), the cache lists again and notifies its listeners
of the differences.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import httpx2 as httpx

from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import (
    ApiError,
    ConnectionLostError,
    GoneError,
    KubernetesError,
    UnreadableAnswerError,
)
from joulie.adapters.kubernetes.resources import Resource
from joulie.adapters.kubernetes.wire import EventKind, Key, Scope, WatchEvent, page_sizes

__all__ = ["Backoff", "Cache", "CacheCounters", "Key", "Watching"]

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubernetesObject)
V = TypeVar("V")

Listener = Callable[[Key, V | None, V | None], None]

_WATCH_S = 300.0
_SHORT_S = 1.0
"""A watch that ends sooner than this is followed by a pause, to avoid a busy loop of reconnects."""


class Backoff:
    """Exponential backoff with jitter, so that thousands of clients do not reconnect at the same time.

    Args:
        initial_s: maximum length of the first pause, s.
        max_s: maximum length of any pause, s.
        rng: random generator for the jitter.
    """

    def __init__(self, initial_s: float = 0.5, max_s: float = 30.0, rng: random.Random | None = None) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._failures = 0

    def reset(self) -> None:
        """Restart from the shortest pause."""
        self._failures = 0

    def next_s(self) -> float:
        """The next pause, s: uniform between half of the current ceiling and all of it; the ceiling then doubles."""
        # Bounded, since 2.0**1024 overflows; 64 doublings exceed any pause.
        ceiling = min(self._max_s, self._initial_s * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return ceiling * self._rng.uniform(0.5, 1.0)


@dataclass
class CacheCounters:
    """Counters of a cache, for metrics.

    Attributes:
        lists: completed lists, the first included.
        watches: watches accepted by the server.
        interruptions: watches that broke or timed out after they were accepted.
        failures: failed lists and watches, including expired versions (410).
        events: watch events received, without bookmarks.
        unreadable: objects that could not be decoded, counted each time they were received.
        listener_errors: exceptions raised by listeners.
    """

    lists: int = 0
    watches: int = 0
    interruptions: int = 0
    failures: int = 0
    events: int = 0
    unreadable: int = 0
    listener_errors: int = 0


class Cache(Generic[T, V]):
    """A cache of one resource that stores a reduced value per object, computed by `transform`.

    An object that cannot be decoded keeps its last stored value. Listeners are called only when a stored value changes.

    Args:
        client: Kubernetes client.
        resource: resource to list and watch.
        transform: computes the value to store from an object; values are compared by ``==``, None stores nothing. An
            object for which it raises counts as unreadable.
        namespace: namespace to watch; None for all.
        label_selector: label selector; empty for all objects.
        field_selector: field selector; empty for all objects.
        page_size: number of objects per page of a list.
        clock: monotonic clock, s.
        idle_s: time without any data from the server after which the watch is reopened, s. API servers send a bookmark
            every minute: a smaller value detects a dead connection sooner, at the price of a request each time.
        backoff: backoff after failures.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        transform: Callable[[T], V | None],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = 90.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.counters = CacheCounters()
        self.problem: str | None = None
        """Why the last list or watch failed; None if it succeeded."""
        self._client = client
        self._scope = Scope(resource, namespace, label_selector, field_selector)
        self._transform = transform
        self._page_size = page_size
        self._clock = clock
        self._idle_s = idle_s
        self._backoff = backoff or Backoff()
        self._objects: dict[Key, V] = {}
        self._view = MappingProxyType(self._objects)
        self._listeners: list[Listener[V]] = []
        self._synced = asyncio.Event()
        self._version = ""
        self._last_contact = clock()

    @property
    def objects(self) -> Mapping[Key, V]:
        """A live view of the stored values."""
        return self._view

    @property
    def synced(self) -> bool:
        """Whether the first list is complete."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the first list is complete."""
        await self._synced.wait()

    def silence_s(self) -> float:
        """Time since the last data from the server, s: a page, an accepted watch, a change or a bookmark."""
        return self._clock() - self._last_contact

    def add_listener(self, listener: Listener[V]) -> None:
        """Call `listener(key, old, new)` on every change from now on; None means absent.

        The listener runs in the cache's own task and must not block. Its exceptions are logged.
        """
        self._listeners.append(listener)

    def update(self, key: Key, value: V) -> None:
        """Replace the stored value of an object, where it also depends on others, and notify the listeners."""
        if key in self._objects:
            self._put(key, value)

    async def run(self) -> None:
        """List and watch until cancelled. Failures are logged, counted and retried with backoff."""
        while True:
            listed = not self._version
            try:
                if listed:
                    await self._list()
                if await self._watch():
                    continue
            except KubernetesError as error:
                self._failed(error)
                if _unusable(error):
                    self._version = ""
                    if not listed:  # the server is back after an outage; one that refuses its own lists is not
                        self._backoff.reset()
            await asyncio.sleep(self._backoff.next_s())

    async def _list(self) -> None:
        for size in page_sizes(self._page_size):
            try:
                self._version = await self._list_pages(size)
                break
            except GoneError:  # compacted between two pages; the objects stored so far are newer than before
                if not size:
                    raise
        self.counters.lists += 1
        self.problem = None
        self._synced.set()

    async def _list_pages(self, page_size: int) -> str:
        vanished = set(self._objects)
        version = ""
        async with aclosing(self._client.pages(self._scope, page_size)) as pages:
            async for page in pages:
                self._contact()
                for item in page.items:
                    key = Key(item.metadata.namespace, item.metadata.name)
                    vanished.discard(key)
                    self._store(key, item)
                for bad in page.unreadable:
                    if bad.key is not None:
                        vanished.discard(bad.key)
                    self._unreadable(bad.key, bad.problem)
                version = page.resource_version
        for key in vanished:
            self._put(key, None)
        return version

    async def _watch(self) -> bool:
        """Run one watch to its end. Returns whether to open the next one without a pause."""
        timeout_s = _WATCH_S * (1.0 + random.random())  # noqa: S311 - so that clients spread out
        async with self._client.open_watch(
            self._scope, self._version, timeout_s=timeout_s, idle_s=self._idle_s
        ) as events:
            accepted_at = self._clock()
            self._contact()
            self.counters.watches += 1
            self.problem = None
            try:
                async for event in events:
                    self._contact()
                    self._take(event)
                    self._backoff.reset()
            except ConnectionLostError as error:
                # A watch that breaks or goes idle is normal; the pause prevents all clients from reconnecting at once.
                self.counters.interruptions += 1
                self._forgive(accepted_at)
                _log.debug("resuming the watch", extra={"resource": self._scope.resource.plural, "reason": str(error)})
                return False
            return self._forgive(accepted_at)

    def _forgive(self, accepted_at: float) -> bool:
        """Reset the backoff after an accepted watch, unless it ended as it began. Returns whether it was reset."""
        lasted = self._clock() - accepted_at >= _SHORT_S
        if lasted:
            self._backoff.reset()
        return lasted

    def _take(self, event: WatchEvent[T]) -> None:
        self._version = event.resource_version or self._version
        if event.kind is EventKind.BOOKMARK:
            return
        self.counters.events += 1
        if event.kind is EventKind.DELETED:
            self._put(event.key, None)
        elif event.object is None:
            self._unreadable(event.key, event.problem)
        else:
            self._store(event.key, event.object)

    def _store(self, key: Key, found: T) -> None:
        try:
            value = self._transform(found)
        except Exception as error:
            self._unreadable(key, f"{type(error).__name__}: {error}")
        else:
            self._put(key, value)

    def _put(self, key: Key, new: V | None) -> None:
        old = self._objects.get(key)
        if old == new:
            return
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
        for listener in self._listeners:
            try:
                listener(key, old, new)
            except Exception:  # one listener must not stop the cache or the others
                self.counters.listener_errors += 1
                _log.exception("a listener failed", extra={"resource": self._scope.resource.plural, "object": str(key)})

    def _contact(self) -> None:
        self._last_contact = self._clock()

    def _unreadable(self, key: Key | None, problem: str) -> None:
        self.counters.unreadable += 1
        _log.warning(
            "cannot decode %s, keeping its last known state",
            self._scope.resource.kind,
            extra={"object": str(key or "unknown"), "problem": problem},
        )

    def _failed(self, error: KubernetesError) -> None:
        self.counters.failures += 1
        self.problem = str(error)
        _log.warning("cannot list or watch %s, retrying", self._scope.resource.plural, extra={"problem": str(error)})


class Watching(ABC):
    """Base of components that run several caches together."""

    @property
    @abstractmethod
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by the name of their content."""

    async def run(self) -> None:
        """Run all caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            for cache in self.caches.values():
                group.create_task(cache.run())

    async def wait_synced(self) -> None:
        """Wait until the first list is complete."""
        for cache in self.caches.values():
            await cache.wait_synced()

    def why_not_ready(self) -> str | None:
        """The caches that have not completed their first list; None if all have."""
        waiting = [
            name if cache.problem is None else f"{name} ({cache.problem})"
            for name, cache in self.caches.items()
            if not cache.synced
        ]
        return f"not listed yet: {', '.join(waiting)}" if waiting else None


def _unusable(error: KubernetesError) -> bool:
    """Whether a watch from the same resource version would fail again, so that a new list is needed.

    That is the case if the version is too old (410), unknown (400) or newer than the server's own, as after etcd was
    restored from a backup (504), or if the event that follows it cannot be decoded at all.
    """
    if isinstance(error, ApiError):
        return error.status in (httpx.codes.GONE, httpx.codes.BAD_REQUEST, httpx.codes.GATEWAY_TIMEOUT)
    return isinstance(error, UnreadableAnswerError)
