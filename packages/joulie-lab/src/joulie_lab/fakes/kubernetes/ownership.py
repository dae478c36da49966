"""Field ownership: the algorithms of server-side apply, without I/O.

A field is a path of FieldsV1 elements (``f:spec``, ``k:{"type":"Ready"}``, ``v:"name"``). Leaves and the items of keyed
lists have owners; atomic lists and maps are leaves. Source: Kubernetes' structured-merge-diff and KEP-555.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from joulie_lab.fakes.kubernetes.errors import apply_conflict
from joulie_lab.fakes.kubernetes.kinds import Json, Shape

Path = tuple[str, ...]
FieldSet = frozenset[Path]

_ITEM = object()
"""Value that represents the presence of a list item."""
_UNOWNED_METADATA = frozenset(
    {
        "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
        "deletionGracePeriodSeconds", "managedFields", "selfLink",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Manager:
    """The fields that one manager owns by one operation on one subresource.

    Attributes:
        name: field manager.
        operation: ``Apply`` or ``Update``.
        subresource: subresource; empty for the object itself.
        api_version: apiVersion of the write.
        fields: owned fields.
        time: time of the last change, RFC 3339.
    """

    name: str
    operation: str
    subresource: str
    api_version: str
    fields: FieldSet
    time: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """The properties that distinguish managers."""
        return self.name, self.operation, self.subresource


Managers = tuple[Manager, ...]


def owned_fields(obj: Json, shape: Shape) -> dict[Path, Any]:
    """The ownable fields of an object with their values; identity and server-set metadata are excluded."""
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key not in _UNOWNED_METADATA}
    rest = {key: value for key, value in obj.items() if key not in {"apiVersion", "kind", "metadata"}}
    return dict(_flatten({**rest, **({"metadata": metadata} if metadata else {})}, shape, "", ()))


def _flatten(value: Any, shape: Shape, name: str, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and name not in shape.atomic:
        for key, below in value.items():
            yield from _flatten(below, shape, key, (*path, f"f:{key}"))
    elif isinstance(value, list) and name in shape.keyed:
        for item in value:
            here = (*path, _item_element(item, shape.keyed[name]))
            yield here, _ITEM
            yield from _flatten(item, shape, "", here)
    elif isinstance(value, list) and name in shape.sets:
        for item in value:
            yield (*path, f"v:{msgspec.json.encode(item).decode()}"), item
    elif path:
        yield path, value


def _item_element(item: Json, keys: Sequence[str]) -> str:
    identity = {key: item[key] for key in sorted(keys) if key in item}
    return f"k:{msgspec.json.encode(identity).decode()}"


def after_update(
    managers: Managers, before: Mapping[Path, Any], after: Mapping[Path, Any], writer: Manager
) -> Managers:
    """Ownership after a write other than apply: the writer becomes the only owner of the changed fields.

    Args:
        managers: current owners.
        before: fields of the object before the write.
        after: fields of the object after the write.
        writer: manager that writes; its fields are ignored.
    """
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    removed = before.keys() - after.keys()
    if not changed and not removed:
        return managers
    kept = _without(managers, changed | removed, but=writer.identity)
    own = next((manager for manager in kept if manager.identity == writer.identity), None)
    fields = frozenset(((own.fields if own else frozenset()) | changed) - removed)
    if own and own.fields == fields and not changed:
        return kept
    others = tuple(manager for manager in kept if manager.identity != writer.identity)
    return (*others, replace(writer, fields=fields)) if fields else others


def apply(
    live: Json, config: Json, managers: Managers, writer: Manager, shape: Shape, *, force: bool
) -> tuple[Json, Managers]:
    """Server-side apply.

    Args:
        live: current object; empty if there is none.
        config: complete configuration of the manager: fields that it applied before and now omits are removed unless
            another manager owns them too.
        managers: current owners.
        writer: manager that applies; its fields are ignored.
        shape: merge rules.
        force: whether to take over conflicting fields instead of failing.

    Returns:
        The new object and its owners.

    Raises:
        StatusError: a conflict, unless forced.
    """
    wanted = frozenset(owned_fields(config, shape))
    before = owned_fields(live, shape)
    merged = merge(live, config, shape)
    after = owned_fields(merged, shape)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    others = tuple(manager for manager in managers if manager.identity != writer.identity)
    conflicts = [(manager.name, field_name(path)) for manager in others for path in sorted(manager.fields & changed)]
    if conflicts and not force:
        raise apply_conflict(conflicts)
    others = _without(others, changed & {path for manager in others for path in manager.fields})
    previous = next((manager.fields for manager in managers if manager.identity == writer.identity), frozenset())
    kept_by_others = frozenset().union(*(manager.fields for manager in others))
    # An empty map is a leaf only as long as it has no content.
    doomed = (previous - wanted - kept_by_others) & after.keys()
    merged = _remove(merged, frozenset(doomed), shape)
    return merged, (*others, replace(writer, fields=wanted)) if wanted else others


def _without(managers: Managers, fields: Iterable[Path], but: tuple[str, str, str] | None = None) -> Managers:
    """The managers without these fields; managers with no fields left are dropped."""
    lost = frozenset(fields)
    if not lost:
        return managers
    left = (
        manager if manager.identity == but or lost.isdisjoint(manager.fields)
        else replace(manager, fields=manager.fields - lost)
        for manager in managers
    )  # fmt: skip
    return tuple(manager for manager in left if manager.fields)


def merge(live: Any, config: Any, shape: Shape, name: str = "") -> Any:
    """Merge an applied value into a live one: maps and keyed lists are merged, everything else is replaced."""
    if isinstance(live, dict) and isinstance(config, dict) and name not in shape.atomic:
        merged = dict(live)
        for key, value in config.items():
            merged[key] = merge(live[key], value, shape, key) if key in live else value
        return merged
    if isinstance(live, list) and isinstance(config, list):
        if name in shape.keyed:
            return _merge_items(live, config, shape, shape.keyed[name])
        if name in shape.sets:
            return [*live, *(item for item in config if item not in live)]
    return config


def _merge_items(live: list[Json], config: list[Json], shape: Shape, keys: Sequence[str]) -> list[Json]:
    items = {_item_element(item, keys): item for item in live}
    for item in config:
        element = _item_element(item, keys)
        items[element] = merge(items[element], item, shape) if element in items else item
    return list(items.values())


def _remove(value: Any, paths: FieldSet, shape: Shape, name: str = "") -> Any:
    """Remove fields from a value; containers that still have other content are kept."""
    if not paths:
        return value
    below: dict[str, set[Path]] = {}
    for head, *rest in paths:
        below.setdefault(head, set()).add(tuple(rest))
    if isinstance(value, dict):
        left = ((key, _remove_part(part, below.get(f"f:{key}"), shape, key)) for key, part in value.items())
        return {key: part for key, part in left if part is not _ITEM}
    if isinstance(value, list) and name in shape.keyed:
        keys = shape.keyed[name]
        items = (_remove_part(item, below.get(_item_element(item, keys)), shape, "") for item in value)
        return [item for item in items if item is not _ITEM]
    if isinstance(value, list) and name in shape.sets:
        return [item for item in value if f"v:{msgspec.json.encode(item).decode()}" not in below]
    return value


def _remove_part(part: Any, paths: set[Path] | None, shape: Shape, name: str) -> Any:
    """Remove fields from an element of a map or list; returns `_ITEM` if nothing is left of it."""
    if paths is None:
        return part
    if () in paths:
        return _ITEM
    left = _remove(part, frozenset(paths), shape, name)
    # A container is removed together with its last element.
    return left if left or left == part else _ITEM


def field_name(path: Path) -> str:
    """A field as shown in messages: ``.spec.cpu.packagePowerCapWatts``, ``.status.conditions[type="Ready"]``."""
    parts = []
    for element in path:
        kind, text = element[:2], element[2:]
        if kind == "f:":
            parts.append(f".{text}")
        elif kind == "k:":
            parts.append("[" + ",".join(f'{k}="{v}"' for k, v in msgspec.json.decode(text).items()) + "]")
        else:
            parts.append(f"[={text}]")
    return "".join(parts)


def managed_fields(managers: Managers) -> list[Json]:
    """Build metadata.managedFields."""
    return [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": manager.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields_v1(manager.fields),
            **({"subresource": manager.subresource} if manager.subresource else {}),
        }
        for manager in managers
    ]


@lru_cache(maxsize=4096)
def _fields_v1(fields: FieldSet) -> Json:
    """FieldsV1 of a set of fields; cached and shared between objects, so it must not be mutated."""
    tree: Json = {}
    for path in sorted(fields):
        here = tree
        for element in path:
            here = here.setdefault(element, {})
        if path[-1].startswith("k:"):
            here["."] = {}
    return tree
