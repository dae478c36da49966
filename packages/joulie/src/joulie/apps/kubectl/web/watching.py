"""Watch caches of what a reader may list, and the state of the cluster assembled from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, WorkloadProfile
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, ForbiddenError, NotFoundError
from joulie.adapters.kubernetes.pods import Owner
from joulie.adapters.kubernetes.resources import (
    ENERGY_BUDGETS,
    NODE_HARDWARES,
    NODE_TWINS,
    NODES,
    PODS,
    WORKLOAD_PROFILES,
    Resource,
)
from joulie.apps.kubectl.budget import budget_row
from joulie.apps.kubectl.limits import LimitRow, limit_rows
from joulie.apps.kubectl.overview import node_rows
from joulie.apps.kubectl.status import agent_nodes
from joulie.apps.kubectl.web.answers import FleetNode, FleetSummary
from joulie.apps.kubectl.web.fleet import family_of, fleet_node, fleet_summary
from joulie.apps.kubectl.web.workloads import Limits, WatchedPod, by_state, limits_of, watched_pod
from joulie.domain.usage import PodKey

KEPT: Mapping[Resource[Any], Callable[[Any], Any]] = {
    NODES: lambda node: node,
    NODE_TWINS: lambda twin: twin,
    NODE_HARDWARES: lambda hardware: hardware,
    PODS: watched_pod,
    WORKLOAD_PROFILES: lambda profile: profile,
    ENERGY_BUDGETS: lambda budget: budget,
}
"""What is watched, and what is kept of each object."""
_REFRESH_S = 5.0
"""Minimum time between two assemblies of the state, s."""


@dataclass(frozen=True)
class ClusterState:
    """The cluster as one reader may see it.

    Attributes:
        at: time of the assembly, s since the epoch.
        nodes: nodes by name, in its order.
        summary: counts over all nodes.
        pods: unfinished pods by state.
        namespaces: their namespaces.
        limits: power limits that they run under.
        problems: what is missing or outdated, and why.
    """

    at: float
    nodes: Mapping[str, FleetNode]
    summary: FleetSummary
    pods: Mapping[str, Sequence[WatchedPod]]
    namespaces: Sequence[str]
    limits: Limits
    problems: tuple[str, ...]


class Cluster:
    """Caches of nodes, twins, hardware, pods, profiles and budgets, as far as the reader may list them.

    Args:
        client: Kubernetes client with the reader's rights.
        namespace: namespace to fall back to where the reader may not list all of them.
        now_s: current time, s since the epoch.
    """

    def __init__(self, client: KubeClient, namespace: str, now_s: Callable[[], float] = time.time) -> None:
        self._client = client
        self._namespace = namespace
        self._now_s = now_s
        self._caches: dict[Resource[Any], Cache[Any, Any]] = {}
        self._missing: dict[Resource[Any], str] = {}
        self._state: ClusterState | None = None
        self.visible: frozenset[str] | None = None
        """Namespaces whose pods are shown; None for all."""

    async def find_scopes(self) -> None:
        """Find out what the reader may list; before `start`.

        Raises:
            KubernetesError: the API server cannot be asked.
        """
        for resource, transform in KEPT.items():
            scope = await self._scope(resource)
            if scope is None:
                continue
            if resource is PODS and scope:
                self.visible = frozenset({scope})
            self._caches[resource] = Cache(self._client, resource, transform, namespace=scope or None)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the caches in `tasks`, and wait for their first lists."""
        for cache in self._caches.values():
            tasks.create_task(cache.run())
        for cache in self._caches.values():
            await cache.wait_synced()

    @property
    def synced(self) -> bool:
        """Whether all first lists are complete."""
        return all(cache.synced for cache in self._caches.values())

    def state(self) -> ClusterState:
        """The current state; assembled again when it is older than a moment."""
        now_s = self._now_s()
        if self._state is None or not 0.0 <= now_s - self._state.at < _REFRESH_S:
            self._state = self._assembled(now_s)
        return self._state

    def twin(self, node: str) -> NodeTwin | None:
        """The twin of a node."""
        return next((twin for twin in self._objects(NODE_TWINS) if twin.spec.node_name == node), None)

    def limit_rows(self, nodes: frozenset[str]) -> list[LimitRow]:
        """GPUs of some nodes with their limits, as `kubectl joulie limits` has them."""
        if not nodes:
            return []
        twins = [twin for twin in self._objects(NODE_TWINS) if twin.spec.node_name in nodes]
        owners: dict[PodKey, Owner] = {
            (pod.facts.namespace, pod.facts.name): pod.facts.owner
            for pod in self._objects(PODS)
            if pod.facts.requests.gpus > 0.0 and pod.facts.node_name in nodes
        }
        profiles: list[WorkloadProfile] = self._objects(WORKLOAD_PROFILES)
        return limit_rows(twins, owners, profiles)

    def budgets(self, namespace: str | None) -> list[Any]:
        """Rows of `kubectl joulie budget`; None for all namespaces."""
        rows = [budget_row(one) for one in self._objects(ENERGY_BUDGETS)]
        return sorted(
            (row for row in rows if namespace in {None, row.namespace}), key=lambda row: (row.namespace, row.name)
        )

    async def _scope(self, resource: Resource[Any]) -> str | None:
        """Namespace to list a resource in: empty for all, None if the reader may not list it at all."""
        scopes = ["", self._namespace] if resource.namespaced else [""]
        for scope in scopes:
            try:
                await self._client.raw("GET", resource.path(scope or None), params={"limit": "1"})
            except (ForbiddenError, NotFoundError) as error:
                self._missing[resource] = f"{resource.plural} are not shown: {_reason(error)}"
            else:
                if scope:
                    self._missing[resource] = f"only {resource.plural} of namespace {scope} are shown"
                else:
                    self._missing.pop(resource, None)
                return scope
        return None

    def _objects(self, resource: Resource[Any]) -> list[Any]:
        cache = self._caches.get(resource)
        return [] if cache is None else list(cache.objects.values())

    def _problems(self) -> tuple[str, ...]:
        outdated = (
            f"{resource.plural} may be outdated: {cache.problem}"
            for resource, cache in self._caches.items()
            if cache.problem
        )
        return (*self._missing.values(), *outdated)

    def _assembled(self, now_s: float) -> ClusterState:
        nodes, twins = self._objects(NODES), self._objects(NODE_TWINS)
        pods: list[WatchedPod] = self._objects(PODS)
        twin_of = {twin.spec.node_name: twin for twin in twins}
        hardware_of = {one.spec.node_name: one for one in self._objects(NODE_HARDWARES)}
        families = {node.metadata.name: family_of(node, hardware_of.get(node.metadata.name)) for node in nodes}
        agents = agent_nodes(pod.bound for pod in pods) if self.visible is None else None
        rows = node_rows(nodes, twins, (pod.facts for pod in pods), now_s, agents=agents)
        fleet = {row.name: fleet_node(row, families[row.name], twin_of.get(row.name)) for row in rows}
        summary = fleet_summary(list(fleet.values()), agents_known=agents is not None)
        limits = limits_of(fleet.values(), twins)
        namespaces = sorted({pod.facts.namespace for pod in pods})
        return ClusterState(now_s, fleet, summary, by_state(pods, limits), namespaces, limits, self._problems())


def _reason(error: ApiError) -> str:
    return "the cluster does not have this kind" if isinstance(error, NotFoundError) else error.message or str(error)
