"""Accounting's view of the cluster: watch caches that keep a few fields of each object, and recently deleted pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.core import Namespace, Node, PodWithContainers
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
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

_log = logging.getLogger(__name__)

_SILENCE_S = 300.0
"""Time without any event after which a watch counts as broken, s: API servers send a bookmark every minute."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """Nodes and namespaces of the cluster at one time.

    Attributes:
        nodes: nodes by name.
        namespaces: namespaces by name.
        reported: hardware reported by the node's agent, by node.
    """

    nodes: Mapping[str, AccountedNode] = field(default_factory=dict)
    namespaces: Mapping[str, AccountedNamespace] = field(default_factory=dict)
    reported: Mapping[str, ReportedHardware] = field(default_factory=dict)


class ClusterView(Watching):
    """Caches of pods, nodes, namespaces and reported hardware.

    Args:
        client: Kubernetes client.
        now_s: current time, s since the epoch.
        label_keys: labels of pods that energy can be summed by.

    Attributes:
        departed: pods deleted from the cluster and when that was observed (s since the epoch), by UID; the caller
            removes a pod once it is accounted for.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float], label_keys: tuple[str, ...] = ()) -> None:
        self._label_keys = label_keys
        self.departed: dict[str, tuple[AccountedPod, float]] = {}
        self._now_s = now_s
        self._pods: Cache[PodWithContainers, AccountedPod] = Cache(client, PODS_WITH_CONTAINERS, self._keep_pod)
        self._labelled: frozenset[str] = frozenset()
        self._client = client
        self._nodes: Cache[Node, AccountedNode] = Cache(client, NODES, keep_node)
        self._namespaces: Cache[Namespace, AccountedNamespace] = Cache(client, NAMESPACES, keep_namespace)
        self._hardware: Cache[NodeHardware, tuple[str, ReportedHardware]] = Cache(client, NODE_HARDWARES, keep_hardware)
        self._reported: dict[str, ReportedHardware] = {}
        self._pods.add_listener(self._pod_changed)
        self._hardware.add_listener(self._hardware_changed)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches required for readiness; NodeHardware is not among them, since Joulie's CRDs are optional."""
        return {PODS_WITH_CONTAINERS.plural: self._pods, NODES.plural: self._nodes, NAMESPACES.plural: self._namespaces}

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._hardware.run())

    def why_not_ready(self) -> str | None:
        """The reason why the view is not ready, for the readiness probe; None if it is."""
        silent = (
            f"the watch of {what} has been silent for {cache.silence_s():.0f} s"
            for what, cache in self.caches.items()
            if cache.silence_s() > _SILENCE_S
        )
        return super().why_not_ready() or next(silent, None)

    @property
    def pods(self) -> list[AccountedPod]:
        """All pods in the cluster that run or have run."""
        return list(self._pods.objects.values())

    @property
    def namespaces(self) -> Mapping[str, AccountedNamespace]:
        """All namespaces by name."""
        return {key.name: kept for key, kept in self._namespaces.objects.items()}

    def snapshot(self) -> ClusterSnapshot:
        """A frozen snapshot of nodes and namespaces, so that a thread can read it while the caches change."""
        nodes = {node.facts.name: node for node in self._nodes.objects.values()}
        return ClusterSnapshot(nodes, self.namespaces, dict(self._reported))

    def node_index(self) -> NodeIndex:
        """Nodes by the names that exporters may use."""
        return NodeIndex.from_aliases({node.facts.name: node.aliases for node in self._nodes.objects.values()})

    async def keep_labels_of(self, namespaces: frozenset[str]) -> None:
        """Keep all labels of the pods of these namespaces; those of pods that are cached already are read again."""
        self._labelled &= namespaces
        for namespace in namespaces - self._labelled:
            self._labelled |= {namespace}
            try:
                found = await self._client.list(PODS_WITH_CONTAINERS, namespace=namespace)
            except KubernetesError as error:
                self._labelled -= {namespace}
                _log.warning("cannot read the labels of pods, will retry", extra={"problem": str(error)})
                continue
            for pod in found.items:
                key = Key(namespace, pod.metadata.name)
                cached = self._pods.objects.get(key)
                if cached is not None and cached.uid == pod.metadata.uid:
                    self._pods.update(key, msgspec.structs.replace(cached, labels=pod.metadata.labels))

    def _keep_pod(self, pod: PodWithContainers) -> AccountedPod | None:
        return keep_pod(pod, self._label_keys, all_labels=pod.metadata.namespace in self._labelled)

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
