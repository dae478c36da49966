"""Nodes simulated by KWOK: the objects that a kubelet would register."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

_DEFAULT_ALLOCATABLE = {"cpu": "32", "memory": "128Gi", "pods": "110"}

# Includes the deprecated labels, which the node controller would otherwise add to each node.
_PLATFORM_LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "beta.kubernetes.io/os": "linux",
    "beta.kubernetes.io/arch": "amd64",
}

_CONDITIONS = {
    "Ready": ("True", "KubeletReady"),
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
}


def kwok_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a Node that is created as Ready, so that thousands of nodes need no second write each.

    Args:
        name: node name; may contain dots.
        labels: labels in addition to host name, operating system and architecture.
        allocatable: Kubernetes quantities, over 32 CPUs, 128Gi and 110 pods; extended resources such as
            {"nvidia.com/gpu": "8"} too. The capacity is the same.
        taints: [{"key": ..., "value": ..., "effect": ...}].
        annotations: of the node.
    """
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    resources = {**_DEFAULT_ALLOCATABLE, **(allocatable or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **_PLATFORM_LABELS, **(labels or {})},
            "annotations": {**(annotations or {})},
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "phase": "Running",  # what KWOK's heartbeat stage looks for
            "allocatable": resources,
            "capacity": resources,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now}
                for kind, (status, reason) in _CONDITIONS.items()
            ],
        },
    }
