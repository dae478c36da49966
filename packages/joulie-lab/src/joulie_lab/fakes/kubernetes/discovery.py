"""Discovery endpoints of the API server: version, health, groups and resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from joulie_lab.fakes.kubernetes.kinds import Kind

VERSION: dict[str, Any] = {"major": "1", "minor": "36", "gitVersion": "v1.36.0+fake", "platform": "python"}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def document(path: Sequence[str], kinds: Sequence[Kind]) -> bytes | None:
    """Response body of a discovery path; None for all other paths."""
    match tuple(path):
        case ("healthz" | "readyz" | "livez",):
            return b"ok"
        case ("version",):
            found: dict[str, Any] | None = VERSION
        case ("api",):
            found = {"kind": "APIVersions", "versions": ["v1"]}
        case ("apis",):
            found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(kinds)}
        case ("api", version):
            found = _resources("", version, kinds)
        case ("apis", group, version):
            found = _resources(group, version, kinds)
        case _:
            found = None
    return None if found is None else msgspec.json.encode(found)


def _groups(kinds: Sequence[Kind]) -> list[dict[str, Any]]:
    versions = sorted({(kind.group, kind.version) for kind in kinds if kind.group})
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for group, version in versions]
    return [
        {"name": group, "versions": [entry], "preferredVersion": entry}
        for (group, _), entry in zip(versions, listed, strict=True)
    ]


def _resources(group: str, version: str, kinds: Sequence[Kind]) -> dict[str, Any] | None:
    found = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not found:
        return None
    resources = [_resource(kind, kind.plural, _VERBS) for kind in found]
    resources += [_resource(kind, f"{kind.plural}/status", ["get", "patch", "update"]) for kind in found if kind.status]
    head: dict[str, Any] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": found[0].api_version}
    return head | {"resources": resources}


def _resource(kind: Kind, name: str, verbs: list[str]) -> dict[str, Any]:
    singular = kind.kind.lower() if name == kind.plural else ""
    return {"name": name, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}
