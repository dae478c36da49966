"""Structural schemas of custom resources: defaults, pruning and validation (CEL rules are not evaluated)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
Cause = tuple[str, str]

_ROOT = frozenset({"apiVersion", "kind", "metadata"})
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def prune(value: Any, schema: Schema, *, root: bool = True) -> Any:
    """Fill in defaults and remove fields that the schema does not define."""
    if isinstance(value, dict):
        return _prune_map(value, schema, root=root)
    if isinstance(value, list) and "items" in schema:
        return [prune(item, schema["items"], root=False) for item in value]
    return value


def _prune_map(value: dict[str, Any], schema: Schema, *, root: bool) -> dict[str, Any]:
    known: Mapping[str, Schema] = schema.get("properties", {})
    keep_all = schema.get("x-kubernetes-preserve-unknown-fields", False)
    extra = schema.get("additionalProperties", False)
    result = {}
    for key, part in value.items():
        if root and key in _ROOT:
            result[key] = part
        elif key in known:
            result[key] = prune(part, known[key], root=False)
        elif isinstance(extra, dict):
            result[key] = prune(part, extra, root=False)
        elif extra or keep_all:
            result[key] = part
    for key, part in known.items():
        if key not in result and "default" in part:
            result[key] = prune(part["default"], part, root=False)
    return result


def problems(value: Any, schema: Schema, path: str = "") -> Iterator[Cause]:
    """Schema violations as pairs of field and message."""
    if value is None:
        if not schema.get("nullable"):
            yield path, f'Invalid value: "null": {path} in body must be of type {schema.get("type")}: "null"'
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield path, f"Invalid value: {value!r}: must be an integer or a string"
        return
    expected = schema.get("type")
    if expected and not _is_a(value, expected):
        found = next((name for name in _TYPES if _is_a(value, name)), "null")
        yield path, f'Invalid value: "{found}": {path} in body must be of type {expected}: "{found}"'
        return
    yield from _constraints(value, schema, path)
    if isinstance(value, dict):
        yield from _properties(value, schema, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{path}[{index}]")


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _constraints(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{choice}"' for choice in schema["enum"])
        yield path, f'Unsupported value: "{value}": supported values: {allowed}'
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from _bounds(value, schema, path)
    if isinstance(value, str):
        yield from _length(len(value), "Length", schema, path)
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield path, f"Invalid value: \"{value}\": {path} in body should match '{schema['pattern']}'"
    if isinstance(value, list):
        yield from _length(len(value), "Items", schema, path)
    if isinstance(value, dict):
        yield from _length(len(value), "Properties", schema, path)


def _bounds(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    minimum, maximum = schema.get("minimum"), schema.get("maximum")
    open_below, open_above = schema.get("exclusiveMinimum", False), schema.get("exclusiveMaximum", False)
    if minimum is not None and (value <= minimum if open_below else value < minimum):
        relation = "greater than" if open_below else "greater than or equal to"
        yield path, f"Invalid value: {value}: {path} in body should be {relation} {minimum}"
    if maximum is not None and (value >= maximum if open_above else value > maximum):
        relation = "less than" if open_above else "less than or equal to"
        yield path, f"Invalid value: {value}: {path} in body should be {relation} {maximum}"


def _length(count: int, what: str, schema: Schema, path: str) -> Iterator[Cause]:
    if count < schema.get(f"min{what}", 0):
        yield path, f"Invalid value: {path} in body should have at least {schema[f'min{what}']} {what.lower()}"
    if count > schema.get(f"max{what}", count):
        yield path, f"Too many: {count}: must have at most {schema[f'max{what}']} {what.lower()}"


def _properties(value: dict[str, Any], schema: Schema, path: str) -> Iterator[Cause]:
    known: Mapping[str, Schema] = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path}.{key}".lstrip("."), "Required value"
    extra = schema.get("additionalProperties")
    for key, part in value.items():
        below = known.get(key, extra if isinstance(extra, dict) else None)
        if below is not None and not (not path and key in _ROOT):
            yield from problems(part, below, f"{path}.{key}".lstrip("."))
