"""The cluster as accounting sees it: caches that keep a little of each object, and the pods that have left it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulie.adapters.kubernetes.api.core import Namespace, Node, PodWithContainers
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NAMESPACES, NODE_HARDWARES, NODES, PODS_WITH_CONTAINERS
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.accounting.facts import (
    AccountedNamespace,
    AccountedNode,
    AccountedPod,
    keep_hardware,
    keep_namespace,
    keep_node,
    keep_pod,
)
from joulie.domain.hardware.resolve import ReportedHardware

_SILENCE_S = 300.0
"""After which a watch counts as broken: API servers send a bookmark a minute."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster beside its pods, at one moment.

    Attributes:
        nodes: by name.
        namespaces: by name.
        reported: what the agent of a node found there, by node.
    """

    nodes: Mapping[str, AccountedNode] = field(default_factory=dict)
    namespaces: Mapping[str, AccountedNamespace] = field(default_factory=dict)
    reported: Mapping[str, ReportedHardware] = field(default_factory=dict)


class ClusterView(Watching):
    """What runs where.

    Args:
        client: to watch with.
        now_s: s since the epoch.

    Attributes:
        departed: pods that are gone from the cluster, by uid, each with when that was seen; whoever has accounted for
            one takes it out.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float]) -> None:
        self.departed: dict[str, tuple[AccountedPod, float]] = {}
        self._now_s = now_s
        self._pods: Cache[PodWithContainers, AccountedPod] = Cache(client, PODS_WITH_CONTAINERS, keep_pod)
        self._nodes: Cache[Node, AccountedNode] = Cache(client, NODES, keep_node)
        self._namespaces: Cache[Namespace, AccountedNamespace] = Cache(client, NAMESPACES, keep_namespace)
        self._hardware: Cache[NodeHardware, tuple[str, ReportedHardware]] = Cache(client, NODE_HARDWARES, keep_hardware)
        self._reported: dict[str, ReportedHardware] = {}
        self._pods.add_listener(self._pod_changed)
        self._hardware.add_listener(self._hardware_changed)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches that must have been listed: not NodeHardware, for a cluster may have none of Joulie's CRDs."""
        return {PODS_WITH_CONTAINERS.plural: self._pods, NODES.plural: self._nodes, NAMESPACES.plural: self._namespaces}

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._hardware.run())

    def why_not_ready(self) -> str | None:
        """What is missing, for the readiness probe."""
        silent = (
            f"nothing was heard of {what} for {cache.silence_s():.0f} s"
            for what, cache in self.caches.items()
            if cache.silence_s() > _SILENCE_S
        )
        return super().why_not_ready() or next(silent, None)

    @property
    def pods(self) -> list[AccountedPod]:
        """All pods that run or have run, and are in the cluster."""
        return list(self._pods.objects.values())

    @property
    def namespaces(self) -> Mapping[str, AccountedNamespace]:
        """All namespaces by name."""
        return {key.name: kept for key, kept in self._namespaces.objects.items()}

    def snapshot(self) -> ClusterSnapshot:
        """The cluster now, frozen, so that a thread can read it while the caches go on."""
        nodes = {node.facts.name: node for node in self._nodes.objects.values()}
        return ClusterSnapshot(nodes, self.namespaces, dict(self._reported))

    def node_index(self) -> NodeIndex:
        """Nodes as exporters may call them."""
        return NodeIndex.of({node.facts.name: node.aliases for node in self._nodes.objects.values()})

    def _pod_changed(self, _key: Key, old: AccountedPod | None, new: AccountedPod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self.departed[old.uid] = old, self._now_s()

    def _hardware_changed(
        self, _key: Key, old: tuple[str, ReportedHardware] | None, new: tuple[str, ReportedHardware] | None
    ) -> None:
        if old is not None:
            self._reported.pop(old[0], None)
        if new is not None:
            self._reported[new[0]] = new[1]
