"""The mark of a node that sleeps: a taint that keeps pods off, and the annotation that keeps its state.

Both are written and removed by one JSON patch. It changes nothing if the node has changed since it was read, and leaves
every field of other taints as it is, `timeAdded` among them, which this program does not decode.
"""

from __future__ import annotations

from typing import Any

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node

TAINT = {"key": names.ASLEEP_TAINT, "effect": "NoSchedule"}
_ANNOTATIONS = "/metadata/annotations"


def sleep_mark(node: Node) -> str:
    """The annotation that keeps a node's state of sleep; empty without one."""
    return node.metadata.annotations.get(names.SLEEP_STATE_ANNOTATION, "")


def has_asleep_taint(node: Node) -> bool:
    """Whether a node has Joulie's taint of nodes that sleep."""
    return any(taint.key == names.ASLEEP_TAINT for taint in node.spec.taints)


def mark_patch(node: Node, mark: str) -> list[dict[str, Any]]:
    """JSON patch that marks a node, or removes its mark and taint.

    Args:
        node: as just read.
        mark: the annotation; empty to remove it.
    """
    seen = {"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version}
    return [seen, *_annotation(node, mark), *_taint(node, present=bool(mark))]


def removable_patch(node: Node) -> list[dict[str, Any]]:
    """JSON patch that removes the annotation of a node that its autoscaler could remove; empty without one."""
    if names.REMOVABLE_ANNOTATION not in node.metadata.annotations:
        return []
    return [{"op": "remove", "path": _annotation_path(names.REMOVABLE_ANNOTATION)}]


def _annotation_path(key: str) -> str:
    return f"{_ANNOTATIONS}/{key.replace('/', '~1')}"


def _annotation(node: Node, mark: str) -> list[dict[str, Any]]:
    path = _annotation_path(names.SLEEP_STATE_ANNOTATION)
    if not mark:
        return [{"op": "remove", "path": path}] if names.SLEEP_STATE_ANNOTATION in node.metadata.annotations else []
    if not node.metadata.annotations:
        return [{"op": "add", "path": _ANNOTATIONS, "value": {names.SLEEP_STATE_ANNOTATION: mark}}]
    return [{"op": "add", "path": path, "value": mark}]


def _taint(node: Node, *, present: bool) -> list[dict[str, Any]]:
    ours = [index for index, taint in enumerate(node.spec.taints) if taint.key == names.ASLEEP_TAINT]
    if not present:
        return [{"op": "remove", "path": f"/spec/taints/{index}"} for index in reversed(ours)]
    if ours:
        return []
    if not node.spec.taints:
        return [{"op": "add", "path": "/spec/taints", "value": [TAINT]}]
    return [{"op": "add", "path": "/spec/taints/-", "value": TAINT}]
