"""List-and-watch caches: what the cluster looks like now, kept up to date by the API server.

A cache lists once, page by page, and watches from there. A watch that ends is resumed from the last version seen, so
nothing is missed; where that version is too old (410), the cache lists again and tells its listeners the differences.
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
"""After a watch that ends sooner there is a pause: reconnecting at once would spin."""


class Backoff:
    """Growing pauses between attempts, with jitter so that thousands of clients do not come back together.

    Args:
        first_s: length of the first pause, at most.
        longest_s: length of any pause, at most.
        rng: draws the jitter.
    """

    def __init__(self, first_s: float = 0.5, longest_s: float = 30.0, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._failures = 0

    def reset(self) -> None:
        """Start again from the shortest pause."""
        self._failures = 0

    def next_s(self) -> float:
        """The next pause, s: between half and all of the doubled last one."""
        # 2.0**1023 is the largest float; 64 doublings are beyond any pause.
        ceiling = min(self._longest_s, self._first_s * 2.0 ** min(self._failures, 64))
        self._failures += 1
        return ceiling * self._rng.uniform(0.5, 1.0)


@dataclass
class CacheCounters:
    """What a cache has been through; for metrics.

    Attributes:
        lists: complete lists, the first included.
        watches: watches that the server accepted.
        interruptions: watches that broke or fell silent after they were accepted.
        failures: lists and watches that did not come about, and versions that were too old (410).
        events: changes received.
        unreadable: objects that did not fit their type, each time they came.
        listener_errors: listeners that raised.
    """

    lists: int = 0
    watches: int = 0
    interruptions: int = 0
    failures: int = 0
    events: int = 0
    unreadable: int = 0
    listener_errors: int = 0


class Cache(Generic[T, V]):
    """What `keep` keeps of every object of a resource.

    Objects that cannot be read leave what was known of them as it is. Listeners hear only what changed in what is kept.

    Args:
        client: to list and watch with.
        resource: to list and watch.
        keep: what to keep of an object, comparable by ``==``; None for an object that does not matter. An object for
            which it raises counts as unreadable.
        namespace: None for all.
        label_selector: which objects.
        field_selector: which objects.
        page_size: objects a page of a list.
        clock: monotonic time, s.
        idle_s: without a byte from the server, after which the watch is opened anew, which proves that nothing was
            missed. API servers send a bookmark a minute: a smaller value finds a dead connection sooner and costs a
            request each time.
        backoff: pauses after failures.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        keep: Callable[[T], V | None],
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
        """Why the last list or watch failed; None while all is well."""
        self._client = client
        self._scope = Scope(resource, namespace, label_selector, field_selector)
        self._keep = keep
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
        """A live view of what is kept."""
        return self._view

    @property
    def synced(self) -> bool:
        """Whether everything has been listed once."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until everything has been listed once."""
        await self._synced.wait()

    def silence_s(self) -> float:
        """Seconds since the server last said anything: a page, an accepted watch, a change or a bookmark."""
        return self._clock() - self._last_contact

    def add_listener(self, listener: Listener[V]) -> None:
        """Call `listener(key, old, new)` on every change from now on; None stands for absent.

        It runs within the cache's own loop: it must not block. What it raises is logged.
        """
        self._listeners.append(listener)

    async def run(self) -> None:
        """List, watch, resume and list again, until cancelled. Failures are logged, counted and tried again."""
        while True:
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
            except KubernetesError as error:
                self._failed(error)
                if _unusable(error):
                    self._version = ""
            await asyncio.sleep(self._backoff.next_s())

    async def _list(self) -> None:
        for size in page_sizes(self._page_size):
            try:
                self._version = await self._list_pages(size)
                break
            except GoneError:  # compacted between two pages; what has been taken in is newer than what was known
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
                    self._keep_of(key, item)
                for bad in page.unreadable:
                    if bad.key is not None:
                        vanished.discard(bad.key)
                    self._unreadable(bad.key, bad.problem)
                version = page.resource_version
        for key in vanished:
            self._put(key, None)
        return version

    async def _watch(self) -> bool:
        """Follow one watch to its end. Returns whether to open the next one without a pause."""
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
                # Idle or broken after a good start is everyday life, with a pause against stampedes.
                self.counters.interruptions += 1
                _log.info("resuming the watch", extra={"resource": self._scope.resource.plural, "reason": str(error)})
                return False
            ended_well = self._clock() - accepted_at >= _SHORT_S
        if ended_well:
            self._backoff.reset()
        return ended_well

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
            self._keep_of(event.key, event.object)

    def _keep_of(self, key: Key, found: T) -> None:
        try:
            kept = self._keep(found)
        except Exception as error:
            self._unreadable(key, f"{type(error).__name__}: {error}")
        else:
            self._put(key, kept)

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
            "unreadable %s, what was known of it stays",
            self._scope.resource.kind,
            extra={"object": str(key or "without a name"), "problem": problem},
        )

    def _failed(self, error: KubernetesError) -> None:
        self.counters.failures += 1
        self.problem = str(error)
        _log.warning("cannot follow %s, will try again", self._scope.resource.plural, extra={"problem": str(error)})


class Watching(ABC):
    """What reads a cluster by several caches, which run together."""

    @property
    @abstractmethod
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by what they hold."""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for cache in self.caches.values():
                group.create_task(cache.run())

    async def wait_synced(self) -> None:
        """Wait until everything has been listed once."""
        for cache in self.caches.values():
            await cache.wait_synced()

    def why_not_ready(self) -> str | None:
        """What has not been listed yet, None once everything has."""
        waiting = [
            name if cache.problem is None else f"{name} ({cache.problem})"
            for name, cache in self.caches.items()
            if not cache.synced
        ]
        return f"not listed yet: {', '.join(waiting)}" if waiting else None


def _unusable(error: KubernetesError) -> bool:
    """Whether a watch from the same version would fail again, so that only a new list helps.

    The version is too old (410), unknown (400), or newer than the server's own, as after etcd was restored (504); or it
    is followed by a change that cannot be read at all.
    """
    if isinstance(error, ApiError):
        return error.status in (httpx.codes.GONE, httpx.codes.BAD_REQUEST, httpx.codes.GATEWAY_TIMEOUT)
    return isinstance(error, UnreadableAnswerError)
