"""Watch requests: the changes of one resource as a stream of JSON lines."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Self

import msgspec

from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import Kind
from joulie_lab.fakes.kubernetes.selectors import Predicate
from joulie_lab.fakes.kubernetes.store import Change, ObjectKey, Store, Stored, Table

_BATCH = 500
_BEFORE_END_S = 2.0
_ALL = sys.maxsize


@dataclass(frozen=True)
class WatchRequest:
    """Parameters of a watch.

    Attributes:
        kind: resource to watch.
        namespace: namespace; empty for all.
        chosen: predicate of the selectors; None for all objects.
        revision: resource version to start from; None starts with all existing objects.
        timeout_s: duration of the watch, s.
        bookmark_s: interval between bookmarks, s; None for no bookmarks.
    """

    kind: Kind
    namespace: str
    chosen: Predicate | None
    revision: int | None
    timeout_s: float
    bookmark_s: float | None

    def selects(self, stored: Stored | None) -> bool:
        """Whether the watch includes an object."""
        if stored is None or (self.namespace and stored.key.namespace != self.namespace):
            return False
        return self.chosen is None or self.chosen(stored.obj)


async def stream(
    store: Store, request: WatchRequest, over: Callable[[], bool], delay_s: Callable[[], float]
) -> AsyncGenerator[bytes, None]:
    """Yield the stream in chunks of one or more whole lines.

    Args:
        store: store of the objects.
        request: parameters of the watch.
        over: whether to end before the timeout; called whenever the stream wakes.
        delay_s: delay of the events, s.
    """
    table = store.table(request.kind)
    clock = asyncio.get_running_loop().time
    end_s = clock() + request.timeout_s
    next_bookmark_s = _next_bookmark_s(request, clock(), end_s)
    seen = store.revision if request.revision is None else request.revision
    wake = asyncio.Event()
    table.subscribe(wake)
    try:
        if request.revision is None:
            found = [
                _event("ADDED", stored.raw) for stored in table.in_order(request.namespace) if request.selects(stored)
            ]
            yield b"".join(found)
        while not over():
            wake.clear()
            changes = table.since(seen, _BATCH)
            if changes:
                if delay_s():
                    await asyncio.sleep(delay_s())
                seen = changes[-1].revision
                lines = b"".join(filter(None, (line(request, change) for change in changes)))
                if lines:
                    yield lines
                continue
            if clock() >= next_bookmark_s:
                next_bookmark_s = _next_bookmark_s(request, clock(), end_s)
                seen = max(seen, store.revision)
                yield _bookmark(request.kind, seen)
            if clock() >= end_s:
                return
            try:
                async with asyncio.timeout(min(next_bookmark_s, end_s) - clock()):
                    await wake.wait()
            except TimeoutError:
                pass
    except StatusError as error:
        yield _event("ERROR", msgspec.json.encode(error.body()))
    finally:
        table.unsubscribe(wake)


def _next_bookmark_s(request: WatchRequest, now_s: float, end_s: float) -> float:
    """Time of the next bookmark: at intervals, and shortly before the end so that a resumed watch repeats little."""
    if request.bookmark_s is None:
        return math.inf
    regular_s, last_s = now_s + request.bookmark_s, end_s - _BEFORE_END_S
    return min(regular_s, last_s) if last_s > now_s else regular_s


class Follower:
    """Reads the changes of one resource for a loop in this process that waits for `wake`.

    Args:
        store: store of the objects.
        kind: resource to follow.
        wake: event that is set at each change; several followers may share it.
    """

    def __init__(self, store: Store, kind: Kind, wake: asyncio.Event) -> None:
        self._store = store
        self._table: Table = store.table(kind)
        self._wake = wake
        self._seen: int | None = None
        self._known: dict[ObjectKey, Stored] = {}

    def __enter__(self) -> Self:
        self._table.subscribe(self._wake)
        return self

    def __exit__(self, *_: object) -> None:
        self._table.unsubscribe(self._wake)

    def changes(self) -> list[Change]:
        """Changes since the last call; on the first call and after falling too far behind, by comparing all objects."""
        try:
            changes = self._differences() if self._seen is None else self._table.since(self._seen, _ALL)
        except StatusError:
            changes = self._differences()
        self._seen = self._store.revision
        for change in changes:
            if change.new is not None:
                self._known[change.new.key] = change.new
            elif change.old is not None:
                self._known.pop(change.old.key, None)
        return changes

    def _differences(self) -> list[Change]:
        changes = []
        now = self._table.objects
        for key, old in self._known.items():
            if key not in now or now[key].uid != old.uid:
                changes.append(Change(self._store.revision, old, None, old))
        gone = {change.old.key for change in changes if change.old}
        for key, new in now.items():
            known = None if key in gone else self._known.get(key)
            if known is not new:
                changes.append(Change(new.revision, known, new))
        return changes


def line(request: WatchRequest, change: Change) -> bytes | None:
    """Encode a change as a watch event: objects that become selected are ADDED, those that cease to be are DELETED."""
    before, after = request.selects(change.old), request.selects(change.new)
    if after and change.new:
        return _event("MODIFIED" if before else "ADDED", change.new.raw)
    if not before or change.old is None:
        return None
    if change.last is not None:
        return _event("DELETED", change.last.raw)
    metadata = {**change.old.obj["metadata"], "resourceVersion": str(change.revision)}
    return _event("DELETED", msgspec.json.encode({**change.old.obj, "metadata": metadata}))


def _event(kind: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


def _bookmark(kind: Kind, revision: int) -> bytes:
    metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
    obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
    return _event("BOOKMARK", msgspec.json.encode(obj))
