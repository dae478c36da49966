"""In-memory store: the objects, their global resource version, and the recent changes that watches read."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import msgspec

from joulie_lab.fakes.kubernetes.errors import expired
from joulie_lab.fakes.kubernetes.kinds import Json, Kind
from joulie_lab.fakes.kubernetes.ownership import Managers

FIRST_REVISION = 1000
"""First resource version: as in a real cluster with a past, version 1 is always too old."""
SNAPSHOTS = 64
"""Maximum number of paged lists that can be in progress at the same time."""

ResourceKey = tuple[str, str]


class ObjectKey(NamedTuple):
    """Namespace, empty for cluster-scoped objects, and name."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Stored:
    """One version of an object; immutable.

    Attributes:
        key: object key.
        revision: resource version.
        obj: object as it is served.
        raw: the object encoded as JSON.
        managers: owners of its fields.
    """

    key: ObjectKey
    revision: int
    obj: Json
    raw: bytes
    managers: Managers

    @property
    def uid(self) -> str:
        """metadata.uid."""
        uid: str = self.obj["metadata"]["uid"]
        return uid


@dataclass(frozen=True)
class Change:
    """A change of an object: created (no old), modified, or deleted (no new).

    Attributes:
        revision: global resource version of the change.
        old: object before the change; None if created.
        new: object after the change; None if deleted.
        last: for a deletion, the last state of the object with the revision of the deletion.
    """

    revision: int
    old: Stored | None
    new: Stored | None
    last: Stored | None = None


@dataclass
class Table:
    """The objects of one resource and their recent changes, oldest first.

    Attributes:
        history: minimum number of changes to retain.
        objects: objects by key.
        floor: oldest revision that a watch can start from; older changes have been discarded.
    """

    history: int
    floor: int
    objects: dict[ObjectKey, Stored] = field(default_factory=dict)
    _ordered: list[ObjectKey] = field(default_factory=list)
    _changes: list[Change] = field(default_factory=list)
    _watchers: set[asyncio.Event] = field(default_factory=set)

    def in_order(self, namespace: str) -> Iterator[Stored]:
        """Objects in order of namespace and name; of all namespaces if `namespace` is empty."""
        start = bisect_left(self._ordered, (namespace, "")) if namespace else 0
        for key in self._ordered[start:]:
            if namespace and key.namespace != namespace:
                return
            yield self.objects[key]

    def record(self, change: Change) -> None:
        """Append a change and wake the watches."""
        if change.new is not None:
            if change.old is None:
                insort(self._ordered, change.new.key)
            self.objects[change.new.key] = change.new
        elif change.old is not None:
            del self.objects[change.old.key]
            del self._ordered[bisect_left(self._ordered, change.old.key)]
        self._changes.append(change)
        if len(self._changes) >= 2 * self.history:
            self._forget(len(self._changes) - self.history)
        self.wake()

    def since(self, revision: int, limit: int) -> list[Change]:
        """At most `limit` changes after a revision.

        Raises:
            StatusError: 410 if some of them have been discarded.
        """
        if revision < self.floor:
            raise expired(f"too old resource version: {revision} ({self.floor})")
        start = bisect_right(self._changes, revision, key=attrgetter("revision"))
        return self._changes[start : start + limit]

    def compact(self, revision: int) -> None:
        """Discard all changes up to now."""
        self._changes.clear()
        self.floor = revision

    def subscribe(self, wake: asyncio.Event) -> None:
        """Set the event at each change, until `unsubscribe`."""
        self._watchers.add(wake)

    def unsubscribe(self, wake: asyncio.Event) -> None:
        """End a subscription."""
        self._watchers.discard(wake)

    def wake(self) -> None:
        """Wake all watches."""
        for watcher in self._watchers:
            watcher.set()

    def _forget(self, count: int) -> None:
        self.floor = self._changes[count - 1].revision
        del self._changes[:count]


class Snapshot(NamedTuple):
    """A list at the resource version of its first page."""

    revision: int
    items: list[Stored]


class Store:
    """All objects of a cluster.

    Args:
        history: minimum number of changes to retain per resource; at most twice as many are kept.
    """

    def __init__(self, history: int) -> None:
        self.revision = FIRST_REVISION
        self._history = history
        self._tables: dict[ResourceKey, Table] = {}
        self._dependents: dict[str, set[tuple[ResourceKey, ObjectKey]]] = {}
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()

    def table(self, kind: Kind) -> Table:
        """The objects of a resource."""
        if kind.key not in self._tables:
            self._tables[kind.key] = Table(self._history, FIRST_REVISION)
        return self._tables[kind.key]

    def namespaced_tables(self, kinds: Iterable[Kind]) -> Iterator[tuple[Kind, Table]]:
        """The tables of namespaced resources."""
        for kind in kinds:
            if kind.namespaced and kind.key in self._tables:
                yield kind, self._tables[kind.key]

    def put(self, kind: Kind, key: ObjectKey, obj: Json, managers: Managers) -> Stored:
        """Write an object at the next resource version; its metadata dictionary is modified and must not be shared."""
        table = self.table(kind)
        old = table.objects.get(key)
        new = self._stamped(key, obj, managers)
        if old is None or old.obj["metadata"].get("ownerReferences") != obj["metadata"].get("ownerReferences"):
            self._index_owners((kind.key, key), old, new)
        table.record(Change(new.revision, old, new))
        return new

    def remove(self, kind: Kind, key: ObjectKey) -> Stored:
        """Delete an object and return its last state."""
        table = self.table(kind)
        old = table.objects[key]
        last = self._stamped(key, {**old.obj, "metadata": dict(old.obj["metadata"])}, old.managers)
        self._index_owners((kind.key, key), old, None)
        table.record(Change(last.revision, old, None, last))
        return last

    def dependents(self, uid: str) -> list[tuple[ResourceKey, ObjectKey]]:
        """Objects that have this one as an owner."""
        return sorted(self._dependents.get(uid, ()))

    def keep_snapshot(self, token: str, snapshot: Snapshot) -> None:
        """Keep a list until it has been read to its end, or until too many others were started."""
        self._snapshots[token] = snapshot
        while len(self._snapshots) > SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def snapshot(self, token: str) -> Snapshot | None:
        """Find a kept list."""
        return self._snapshots.get(token)

    def drop_snapshot(self, token: str) -> None:
        """Discard a list that has been read to its end."""
        self._snapshots.pop(token, None)

    def compact(self) -> None:
        """Discard history: older watches and lists in progress get 410."""
        self._snapshots.clear()
        for table in self._tables.values():
            table.compact(self.revision)

    def wake(self) -> None:
        """Wake all watches, for instance because the server stops."""
        for table in self._tables.values():
            table.wake()

    def _stamped(self, key: ObjectKey, obj: Json, managers: Managers) -> Stored:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        return Stored(key, self.revision, obj, msgspec.json.encode(obj), managers)

    def _index_owners(self, member: tuple[ResourceKey, ObjectKey], old: Stored | None, new: Stored | None) -> None:
        for uid in _owners(old):
            members = self._dependents[uid]
            members.discard(member)
            if not members:
                del self._dependents[uid]
        for uid in _owners(new):
            self._dependents.setdefault(uid, set()).add(member)


def _owners(stored: Stored | None) -> set[str]:
    """UIDs of an object's owners."""
    references = stored.obj["metadata"].get("ownerReferences") or () if stored else ()
    return {reference["uid"] for reference in references}
