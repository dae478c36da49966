"""The reference page of the Kubernetes API, from the generated CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joulie_lab.adapters.crd import custom_resource_definitions

_INTRO = """# Kubernetes API

<!-- Written by scripts/generate_reference.py: change the types, then run it again. -->

Group `joulie.io`, version `v1alpha1`. Unless a description says otherwise, every field is optional, and an absent field
is unknown or unset, never zero. All kinds are in the category `joulie`: `kubectl get joulie` lists them. The API server
rejects objects that violate a bound or a rule, and names it.
"""


def crds_page() -> str:
    """Every kind with its fields, bounds and rules."""
    return "\n".join([_INTRO, *(block for crd in custom_resource_definitions() for block in _kind(crd))])


def _kind(crd: dict[str, Any]) -> Iterator[str]:
    """One kind: its names, description, fields and rules."""
    spec, version = crd["spec"], crd["spec"]["versions"][0]
    schema, names = version["schema"]["openAPIV3Schema"], spec["names"]
    yield f"## {names['kind']}\n"
    scope = "In a namespace" if spec["scope"] == "Namespaced" else "Without a namespace"
    yield f"`{names['plural']}`, short `{names['shortNames'][0]}`. {scope}.\n"
    yield schema["description"].replace("\n", "\n\n") + "\n"
    yield "| field | type | meaning |\n|---|---|---|"
    for part in ("spec", "status"):
        yield from _fields(part, schema["properties"][part], required=part in schema["required"])
    yield ""
    rules = list(_rules("spec", schema["properties"]["spec"]))
    if rules:
        yield "Rules:\n"
        yield from rules
        yield ""


def _fields(path: str, schema: dict[str, Any], *, required: bool) -> Iterator[str]:
    """The rows of a field and of its nested fields."""
    needed = " Required." if required else ""
    yield f"| `{path}` | {_type(schema)} | {schema['description'].replace('|', '/')}{needed} |"
    below = schema["items"] if schema["type"] == "array" else schema
    suffix = "[]" if schema["type"] == "array" else ""
    for name, part in below.get("properties", {}).items():
        yield from _fields(f"{path}{suffix}.{name}", part, required=name in below.get("required", ()))


def _type(schema: dict[str, Any]) -> str:
    """A type with its bounds, in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema["type"]:
        case "array":
            of = {"object": "objects", "string": "texts", "number": "numbers"}[schema["items"]["type"]]
            return f"up to {schema['maxItems']} {of}"
        case "object" if "additionalProperties" in schema:
            return "texts by name"
        case "string":
            return "time (RFC 3339)" if schema.get("format") == "date-time" else "text"
        case "number" | "integer" as kind:
            return {"number": "number", "integer": "whole number"}[kind] + _bounds(schema)
        case other:
            return str(other)


def _bounds(schema: dict[str, Any]) -> str:
    if "minimum" not in schema:
        return ""
    low = f" above {schema['minimum']}" if schema.get("exclusiveMinimum") else f" from {schema['minimum']}"
    return f"{low} to {schema['maximum']}" if "maximum" in schema else low


def _rules(path: str, schema: dict[str, Any]) -> Iterator[str]:
    """The CEL rules of a field and of its nested fields."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"- `{path}`: {rule['message']}"
    for name, part in schema.get("properties", {}).items():
        yield from _rules(f"{path}.{name}", part)
