"""The API server's verbs on objects, without HTTP: validation, writes, and their effects on other objects."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from joulie_lab.fakes.kubernetes import errors, ownership, strategy
from joulie_lab.fakes.kubernetes.kinds import (
    BUILT_IN,
    CRD,
    EVENT,
    JOULIE,
    NAMESPACE,
    POD,
    Json,
    Kind,
    kinds_of_definition,
)
from joulie_lab.fakes.kubernetes.ownership import Manager, Managers
from joulie_lab.fakes.kubernetes.store import ObjectKey, Store, Stored

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names: no vowels and none that resembles one, as in apimachinery."""
_SERVER_SET = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")

Clock = Callable[[], datetime]
Entropy = Callable[[int], bytes]


@dataclass(frozen=True)
class Writer:
    """The author and options of a write.

    Attributes:
        manager: field manager.
        subresource: subresource to write; empty for the object itself.
        dry_run: whether to do everything except the write itself.
    """

    manager: str
    subresource: str = ""
    dry_run: bool = False


@dataclass(frozen=True)
class Deletion:
    """Options of a deletion.

    Attributes:
        grace_s: termination grace period, s; None for the pod's own.
        uid: UID precondition; None for none.
        revision: resource version precondition; None for none.
        orphan: whether dependents are kept.
        dry_run: whether to check only and delete nothing.
    """

    grace_s: int | None = None
    uid: str = ""
    revision: str = ""
    orphan: bool = False
    dry_run: bool = False


class Api:
    """The API server's verbs over a store.

    Args:
        store: store of the objects.
        definitions: initial CustomResourceDefinitions; without any, Joulie's resources are served without schemas.
        now: current time in UTC, for timestamps.
        entropy: source of random bytes, for UIDs and generated names.
        max_events: maximum number of Event objects; the oldest are deleted first.
    """

    def __init__(
        self, store: Store, definitions: Iterable[Json], *, now: Clock, entropy: Entropy, max_events: int
    ) -> None:
        self.store = store
        self._now = now
        self._entropy = entropy
        self._max_events = max_events
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
        for name in NAMESPACES:
            self.create(NAMESPACE, "", {"metadata": {"name": name}}, Writer("kube-apiserver"))
        definitions = list(definitions)
        for definition in definitions:
            self.create(CRD, "", definition, Writer("kube-apiserver"))
        if not definitions:
            self._kinds |= {(kind.group, kind.version, kind.plural): kind for kind in JOULIE}

    # ---- resources

    @property
    def kinds(self) -> list[Kind]:
        """All resources served."""
        return list(self._kinds.values())

    def kind(self, group: str, version: str, plural: str) -> Kind:
        """The resource of a path.

        Raises:
            StatusError: 404 if there is no such resource.
        """
        try:
            return self._kinds[group, version, plural]
        except KeyError:
            raise errors.no_such_resource() from None

    # ---- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        """Find an object; None if it does not exist."""
        return self.store.table(kind).objects.get(ObjectKey(namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Get an object.

        Raises:
            StatusError: 404 if it does not exist.
        """
        found = self.find(kind, namespace, name)
        if found is None:
            raise errors.not_found(kind, name)
        return found

    # ---- writing

    def create(self, kind: Kind, namespace: str, body: Json, writer: Writer) -> Stored:
        """Create an object (POST).

        Raises:
            StatusError: 409 if it exists, 404 if its namespace does not, 400 or 422 if it is invalid.
        """
        metadata = dict(body.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + self._suffix()
        if not metadata.get("name"):
            raise errors.invalid(kind, "", [("metadata.name", "Required value: name or generateName is required")])
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        strategy.check_identity(kind, body, "", namespace)
        new = strategy.prepare_create(kind, {**body, "metadata": metadata})
        owners = ownership.after_update(
            (), {}, ownership.owned_fields(new, kind.shape), self._manager(kind, writer, "Update")
        )
        return self._create(kind, ObjectKey(namespace, metadata["name"]), new, owners, writer)

    def replace(self, kind: Kind, namespace: str, name: str, body: Json, writer: Writer) -> tuple[Stored, bool]:
        """Replace an object (PUT); returns it and whether it was created.

        Raises:
            StatusError: 409 if the object changed since the body's resource version; 404, 400 or 422 as in `create`.
        """
        strategy.check_identity(kind, body, name, namespace)
        version = (body.get("metadata") or {}).get("resourceVersion")
        old = self.find(kind, namespace, name)
        if old is None and kind.created_by_replace and not writer.subresource and not version:
            return self.create(kind, namespace, body, writer), True
        if old is None:
            raise errors.not_found(kind, name)
        if not version and not kind.replace_without_version:
            cause = ("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise errors.invalid(kind, name, [cause])
        return self._update(kind, old, body, writer), False

    def patch(self, kind: Kind, namespace: str, name: str, change: Callable[[Json], Json], writer: Writer) -> Stored:
        """Patch an object (other than by apply): `change` computes the new object from the old one.

        Raises:
            StatusError: as in `replace`.
        """
        old = self.get(kind, namespace, name)
        body = change(old.obj)
        strategy.check_identity(kind, body, name, namespace)
        return self._update(kind, old, body, writer)

    def apply(
        self, kind: Kind, namespace: str, name: str, config: Json, writer: Writer, *, force: bool
    ) -> tuple[Stored, bool]:
        """Server-side apply; returns the object and whether it was created.

        Raises:
            StatusError: 409 on a conflict without force, 404 for the status of a missing object, 400 or 422 if invalid.
        """
        strategy.check_identity(kind, config, name, namespace)
        if not writer.manager:
            cause = ("fieldManager", "Required value: is required for apply patch")
            raise errors.invalid(_PATCH_OPTIONS, "", [cause])
        if (config.get("metadata") or {}).get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        old = self.find(kind, namespace, name)
        if old is None and writer.subresource:
            raise errors.not_found(kind, name)
        wanted = _applied_part(kind, config, writer.subresource)
        manager = self._manager(kind, writer, "Apply")
        live, managers = (old.obj, old.managers) if old else ({}, ())
        merged, managers = ownership.apply(live, wanted, managers, manager, kind.shape, force=force)
        if old is None:
            if uid := (config.get("metadata") or {}).get("uid"):
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise errors.conflict(kind, name, why)
            merged = {**merged, "metadata": {**merged.get("metadata", {}), "name": name}}
            new = strategy.prepare_create(kind, merged)
            return self._create(kind, ObjectKey(namespace, name), new, managers, writer), True
        self._check_preconditions(kind, old, config.get("metadata") or {})
        new = strategy.prepare_update(kind, old.obj, self._as_stored(old, merged), writer.subresource)
        return self._commit(kind, old, new, managers, dry_run=writer.dry_run), False

    def delete(self, kind: Kind, namespace: str, name: str, deletion: Deletion | None = None) -> Stored:
        """Delete an object; returns its last state, which may be terminating rather than removed.

        Raises:
            StatusError: 404 if it does not exist, 409 if a precondition fails.
        """
        deletion = deletion or Deletion()
        old = self.get(kind, namespace, name)
        if deletion.uid and deletion.uid != old.uid:
            raise errors.another_uid(kind, name, deletion.uid, old.uid)
        self._check_preconditions(kind, old, {"resourceVersion": deletion.revision})
        if deletion.dry_run:
            return old
        if deletion.orphan:
            for dependent_kind, dependent in self._dependents(old.uid):
                self._disown(dependent_kind, dependent, old.uid)
        grace_s = _grace_s(kind, old.obj, deletion.grace_s)
        if grace_s or old.obj["metadata"].get("finalizers"):
            return self._mark_deleted(kind, old, grace_s)
        return self._remove(kind, old)

    # ---- inside

    def timestamp(self, after_s: float = 0.0) -> str:
        """The time `after_s` seconds from now, RFC 3339."""
        return (self._now() + timedelta(seconds=after_s)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new_uid(self) -> str:
        """A random UID."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))

    def _suffix(self) -> str:
        return "".join(_SUFFIX_ALPHABET[byte % len(_SUFFIX_ALPHABET)] for byte in self._entropy(5))

    def _manager(self, kind: Kind, writer: Writer, operation: str) -> Manager:
        subresource = writer.subresource
        return Manager(writer.manager, operation, subresource, kind.api_version, frozenset(), self.timestamp())

    def _check_preconditions(self, kind: Kind, old: Stored, metadata: Json) -> None:
        uid, revision = metadata.get("uid"), metadata.get("resourceVersion")
        if uid and uid != old.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.uid}"
            raise errors.conflict(kind, old.key.name, why)
        if revision and revision != "0" and revision != str(old.revision):
            raise errors.stale(kind, old.key.name)

    def _create(self, kind: Kind, key: ObjectKey, new: Json, managers: Managers, writer: Writer) -> Stored:
        if kind.namespaced and self.find(NAMESPACE, "", key.namespace) is None:
            raise errors.not_found(NAMESPACE, key.namespace)
        if self.find(kind, *key) is not None:
            raise errors.already_exists(kind, key.name)
        metadata = {name: value for name, value in new["metadata"].items() if name not in _SERVER_SET}
        metadata |= {"uid": self.new_uid(), "creationTimestamp": self.timestamp()}
        if kind.namespaced:
            metadata["namespace"] = key.namespace
        if kind.generation:
            metadata["generation"] = 1
        obj = _complete(kind, new, metadata, managers)
        strategy.check(kind, None, obj)
        if writer.dry_run:
            return Stored(key, 0, obj, msgspec.json.encode(obj), managers)
        stored = self.store.put(kind, key, obj, managers)
        if kind.key == EVENT.key:
            self._drop_old_events()
        elif kind.key == CRD.key:
            self._serve(stored.obj)
        return stored

    def _update(self, kind: Kind, old: Stored, body: Json, writer: Writer) -> Stored:
        self._check_preconditions(kind, old, body.get("metadata") or {})
        new = strategy.prepare_update(kind, old.obj, self._as_stored(old, body), writer.subresource)
        before, after = ownership.owned_fields(old.obj, kind.shape), ownership.owned_fields(new, kind.shape)
        managers = ownership.after_update(old.managers, before, after, self._manager(kind, writer, "Update"))
        return self._commit(kind, old, new, managers, dry_run=writer.dry_run)

    def _as_stored(self, old: Stored, body: Json) -> Json:
        """The body with the metadata that only the server sets."""
        metadata = {name: value for name, value in (body.get("metadata") or {}).items() if name not in _SERVER_SET}
        kept = {name: old.obj["metadata"][name] for name in _SERVER_SET if name in old.obj["metadata"]}
        named = {name: old.obj["metadata"][name] for name in ("name", "namespace") if name in old.obj["metadata"]}
        return {**body, "metadata": {**metadata, **kept, **named}}

    def _commit(self, kind: Kind, old: Stored, new: Json, managers: Managers, *, dry_run: bool = False) -> Stored:
        """Write a changed object; a write that changes nothing is skipped and causes no watch event."""
        strategy.check(kind, old.obj, new)
        metadata = dict(new["metadata"])
        if kind.generation and _specified(new) != _specified(old.obj):
            metadata["generation"] = old.obj["metadata"].get("generation", 0) + 1
        same_owners = {m.identity: m.fields for m in managers} == {m.identity: m.fields for m in old.managers}
        if same_owners and _content({**new, "metadata": metadata}) == _content(old.obj):
            return old
        obj = _complete(kind, new, metadata, managers)
        if dry_run:
            return Stored(old.key, old.revision, obj, msgspec.json.encode(obj), managers)
        stored = self.store.put(kind, old.key, obj, managers)
        if kind.key == CRD.key:
            self._serve(stored.obj)
        ending = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        if ending and not metadata.get("deletionGracePeriodSeconds"):
            return self._remove(kind, stored)
        return stored

    def _mark_deleted(self, kind: Kind, old: Stored, grace_s: int) -> Stored:
        metadata = old.obj["metadata"]
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds", 0) <= grace_s:
            return old
        marked = {"deletionTimestamp": self.timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
        return self._commit(kind, old, {**old.obj, "metadata": {**metadata, **marked}}, old.managers)

    def _remove(self, kind: Kind, old: Stored) -> Stored:
        last = self.store.remove(kind, old.key)
        if kind.key == CRD.key:
            self._stop_serving(old.obj)
        elif kind.key == NAMESPACE.key:
            for inner, table in self.store.namespaced_tables(self.kinds):
                for stored in list(table.in_order(old.key.name)):
                    self._remove(inner, stored)
        for dependent_kind, dependent in self._dependents(old.uid):
            owners = dependent.obj["metadata"]["ownerReferences"]
            if all(owner["uid"] == old.uid for owner in owners):
                self.delete(dependent_kind, *dependent.key)
            else:
                self._disown(dependent_kind, dependent, old.uid)
        return last

    def _dependents(self, uid: str) -> Iterable[tuple[Kind, Stored]]:
        """Objects that the garbage collector considers when an owner is deleted."""
        by_key = {kind.key: kind for kind in self.kinds}
        for kind_key, key in self.store.dependents(uid):
            found = self.find(by_key[kind_key], *key)
            if found is not None:
                yield by_key[kind_key], found

    def _disown(self, kind: Kind, dependent: Stored, uid: str) -> None:
        metadata = dict(dependent.obj["metadata"])
        metadata["ownerReferences"] = [owner for owner in metadata["ownerReferences"] if owner["uid"] != uid]
        self._commit(kind, dependent, {**dependent.obj, "metadata": metadata}, dependent.managers)

    def _drop_old_events(self) -> None:
        events = self.store.table(EVENT).objects
        while len(events) > self._max_events:
            self.store.remove(EVENT, next(iter(events)))

    def _serve(self, definition: Json) -> None:
        for kind in kinds_of_definition(definition):
            self._kinds[kind.group, kind.version, kind.plural] = kind

    def _stop_serving(self, definition: Json) -> None:
        for kind in list(kinds_of_definition(definition)):
            for stored in list(self.store.table(kind).in_order("")):
                self._remove(kind, stored)
        for kind in kinds_of_definition(definition):
            self._kinds.pop((kind.group, kind.version, kind.plural), None)


_PATCH_OPTIONS = Kind("meta.k8s.io", "v1", "patchoptions", "PatchOptions")


def _applied_part(kind: Kind, config: Json, subresource: str) -> Json:
    """The effective part of an applied configuration: status only by its subresource, and nothing else by that."""
    if subresource == "status":
        return {"status": config["status"]} if "status" in config else {}
    config = strategy.without_nulls(config) if not kind.custom else config
    if kind.status and "status" in config:
        return {key: value for key, value in config.items() if key != "status"}
    return config


def _complete(kind: Kind, new: Json, metadata: Json, managers: Managers) -> Json:
    """The object as it is stored, with apiVersion, kind and metadata first."""
    metadata = {**metadata, "managedFields": ownership.managed_fields(managers)}
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return head | {key: value for key, value in new.items() if key not in head}


def _specified(obj: Json) -> dict[str, Any]:
    """The part of an object whose changes metadata.generation counts."""
    return {key: value for key, value in obj.items() if key not in {"apiVersion", "kind", "metadata", "status"}}


def _content(obj: Json) -> tuple[Json, Json]:
    """An object without the fields that every write changes."""
    metadata = {k: v for k, v in obj["metadata"].items() if k not in {"managedFields", "resourceVersion"}}
    return {key: value for key, value in obj.items() if key not in {"apiVersion", "kind", "metadata"}}, metadata


def _grace_s(kind: Kind, obj: Json, asked_s: int | None) -> int:
    """Grace period of a deletion, s: 0 except for pods that run or may be running."""
    if kind.key != POD.key:
        return 0
    ended = obj.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    if ended or not obj["spec"].get("nodeName"):
        return 0
    own: int = obj["spec"].get("terminationGracePeriodSeconds", 30)
    return own if asked_s is None else max(0, asked_s)
