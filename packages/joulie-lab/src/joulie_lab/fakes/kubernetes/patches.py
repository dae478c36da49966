"""The three patch types besides apply: JSON merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from joulie_lab.fakes.kubernetes.errors import StatusError, bad_request
from joulie_lab.fakes.kubernetes.kinds import Json, Shape


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): maps are merged, null deletes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge_patch(target: Any, patch: Any, shape: Shape, name: str = "") -> Any:
    """Apply a strategic merge patch: lists of objects merge by key; supports ``$patch: delete`` and ``replace``."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {key: value for key, value in patch.items() if key != "$patch"}
        result = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = strategic_merge_patch(result.get(key), value, shape, key)
        return result
    keys = shape.keyed.get(name)
    if isinstance(patch, list) and keys:
        return _strategic_items(target or [], patch, shape, keys[0])
    if isinstance(patch, list) and name in shape.sets:
        return [*(target or []), *(item for item in patch if item not in (target or []))]
    return patch


def _strategic_items(target: list[Json], patch: list[Json], shape: Shape, key: str) -> list[Json]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    items = {item.get(key): item for item in target}
    for item in patch:
        identity = item.get(key)
        if item.get("$patch") == "delete":
            items.pop(identity, None)
        else:
            items[identity] = strategic_merge_patch(items.get(identity), item, shape)
    return list(items.values())


def json_patch(target: Json, operations: Sequence[Json]) -> Json:
    """Apply a JSON patch (RFC 6902).

    Raises:
        StatusError: an operation is unknown, fails its test or has a path that does not exist.
    """
    document: Any = deepcopy(target)
    for operation in operations:
        try:
            document = _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {operation!r}: {error}"
            raise StatusError(422, "Invalid", message) from error
    if not isinstance(document, dict):
        raise bad_request("the patch leaves no object")
    return document


def _operate(document: Any, operation: Json) -> Any:
    verb, path = operation["op"], _pointer(operation["path"])
    if verb in {"move", "copy"}:
        source = _pointer(operation["from"])
        value = deepcopy(_find(document, source))
        if verb == "move":
            document = _edit(document, source, "remove", None)
        return _edit(document, path, "add", value)
    if verb == "test":
        if _find(document, path) != operation["value"]:
            raise ValueError("testing value failed")
        return document
    if verb not in {"add", "replace", "remove"}:
        raise ValueError("unknown operation")
    return _edit(document, path, verb, operation["value"] if verb != "remove" else None)


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError("a path begins with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _find(document: Any, path: Sequence[str]) -> Any:
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def _edit(document: Any, path: Sequence[str], verb: str, value: Any) -> Any:
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if verb == "add":
            if index > len(parent):
                raise IndexError("index out of range")
            parent.insert(index, value)
        elif verb == "replace":
            parent[index] = value
        else:
            del parent[index]
    elif verb == "remove":
        del parent[last]
    else:
        if verb == "replace" and last not in parent:
            raise KeyError(last)
        parent[last] = value
    return document
