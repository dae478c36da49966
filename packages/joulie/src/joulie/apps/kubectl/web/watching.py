"""Watch caches of the cluster, and its state as one reader may see it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, PowerTrial
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
    POWER_BUDGETS,
    POWER_TRIALS,
    WORKLOAD_PROFILES,
    Resource,
)
from joulie.apps.kubectl.agents import agent_nodes
from joulie.apps.kubectl.budget import BudgetRow, budget_row
from joulie.apps.kubectl.holdout import LimitsSaving, limits_saving
from joulie.apps.kubectl.limits import LimitRow, limit_rows
from joulie.apps.kubectl.overview import node_rows
from joulie.apps.kubectl.power_budget import PowerBudgetRow, power_budget_row
from joulie.apps.kubectl.web.answers import FleetNode, FleetSummary
from joulie.apps.kubectl.web.fleet import family_of, fleet_node, fleet_summary
from joulie.apps.kubectl.web.workloads import Limits, WatchedPod, by_state, limits_of, pod_key, watched_pod
from joulie.domain.usage import PodKey

KEPT: Mapping[Resource[Any], Callable[[Any], Any]] = {
    NODES: lambda node: node,
    NODE_TWINS: lambda twin: twin,
    NODE_HARDWARES: lambda hardware: hardware,
    PODS: watched_pod,
    WORKLOAD_PROFILES: lambda profile: profile,
    ENERGY_BUDGETS: lambda budget: budget,
    POWER_TRIALS: lambda trial: trial,
    POWER_BUDGETS: lambda budget: budget,
}
"""What is watched, and what is kept of each object."""
_NAMESPACED = (PODS, WORKLOAD_PROFILES, ENERGY_BUDGETS)
_REFRESH_S = 5.0
"""Minimum time between two assemblies of the state, s."""
_MAX_STATES = 64
"""Maximum number of readers' states that are kept until the next assembly."""


@dataclass(frozen=True)
class Visibility:
    """What a reader may list; equal for readers that see the same.

    Attributes:
        kinds: plural names of what they may list in the whole cluster.
        namespaces: namespaces of the others, by plural name; without those that they may list nowhere.
        problems: what they may not list, in words.
    """

    kinds: frozenset[str]
    namespaces: frozenset[tuple[str, frozenset[str]]] = frozenset()
    problems: tuple[str, ...] = ()

    def of(self, resource: Resource[Any]) -> frozenset[str] | None:
        """Namespaces in which the resource may be listed; None for all."""
        if resource.plural in self.kinds:
            return None
        return next((where for plural, where in self.namespaces if plural == resource.plural), frozenset())


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


class _Fleet(NamedTuple):
    nodes: Mapping[str, FleetNode]
    agents_known: bool


class Cluster:
    """Caches of nodes, twins, hardware, pods, profiles and budgets.

    Args:
        client: Kubernetes client.
        namespace: namespace to fall back to where the client may not list all of them.
        now_s: current time, s since the epoch.
    """

    def __init__(self, client: KubeClient, namespace: str, now_s: Callable[[], float] = time.time) -> None:
        self._client = client
        self._namespace = namespace
        self._now_s = now_s
        self._caches: dict[Resource[Any], Cache[Any, Any]] = {}
        self._at_s = -_REFRESH_S
        self._states: dict[Visibility, ClusterState] = {}
        self._fleets: dict[frozenset[str], _Fleet] = {}
        self._pods: dict[str, list[WatchedPod]] = {}

    async def find_scopes(self) -> Visibility:
        """Watch what the client may list, and return what that is; before `start`.

        Raises:
            KubernetesError: the API server cannot be asked.
        """
        kinds: set[str] = set()
        namespaces: set[tuple[str, frozenset[str]]] = set()
        problems = []
        for resource in KEPT:
            scope, problem = await self._scope(resource)
            problems += [problem] if problem else []
            if scope is None:
                continue
            self._watch(resource, scope or None)
            if scope:
                namespaces.add((resource.plural, frozenset({scope})))
            else:
                kinds.add(resource.plural)
        return Visibility(frozenset(kinds), frozenset(namespaces), tuple(problems))

    def watch_all(self) -> None:
        """Watch everything; before `start`. What the client may not list is retried, and is a problem until then."""
        for resource in KEPT:
            self._watch(resource, None)

    def _watch(self, resource: Resource[Any], namespace: str | None) -> None:
        self._caches[resource] = Cache(self._client, resource, KEPT[resource], namespace=namespace)

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

    def why_not_ready(self) -> str | None:
        """What has not been listed yet; None if everything has."""
        missing = [
            f"{resource.plural}{f' ({cache.problem})' if cache.problem else ''}"
            for resource, cache in self._caches.items()
            if not cache.synced
        ]
        return f"not listed yet: {', '.join(missing)}" if missing else None

    def namespaces(self) -> frozenset[str]:
        """Namespaces with unfinished pods or budgets."""
        return frozenset(
            namespace
            for resource in (PODS, ENERGY_BUDGETS)
            if resource in self._caches
            for namespace, _name in self._caches[resource].objects
        )

    def objects(self, resource: Resource[Any], visibility: Visibility) -> Iterable[Any]:
        """Cached objects of a kind that a reader may see."""
        cache = self._caches.get(resource)
        where = visibility.of(resource)
        if cache is None:
            return ()
        if where is None:
            return list(cache.objects.values())
        return [value for (namespace, _), value in cache.objects.items() if namespace in where]

    def state(self, visibility: Visibility) -> ClusterState:
        """The state as a reader may see it; assembled again when it is older than a moment."""
        now_s = self._now_s()
        if not 0.0 <= now_s - self._at_s < _REFRESH_S or len(self._states) > _MAX_STATES:
            self._at_s = now_s
            self._states.clear()
            self._fleets.clear()
            self._pods = self._pods_by_namespace()
        if visibility not in self._states:
            self._states[visibility] = self._assembled(visibility)
        return self._states[visibility]

    async def _scope(self, resource: Resource[Any]) -> tuple[str | None, str]:
        """Namespace to list a resource in, empty for all and None if it cannot be listed; what is missing, in words."""
        problem = ""
        for scope in ["", self._namespace] if resource in _NAMESPACED else [""]:
            try:
                await self._client.raw("GET", resource.path(scope or None), params={"limit": "1"})
            except (ForbiddenError, NotFoundError) as error:
                problem = f"{resource.plural} are not shown: {_reason(error)}"
            else:
                return scope, f"only {resource.plural} of namespace {scope} are shown" if scope else ""
        return None, problem

    def _pods_by_namespace(self) -> dict[str, list[WatchedPod]]:
        found: dict[str, list[WatchedPod]] = {}
        cache = self._caches.get(PODS)
        for pod in sorted(cache.objects.values(), key=pod_key) if cache else ():
            found.setdefault(pod.facts.namespace, []).append(pod)
        return found

    def _fleet(self, visibility: Visibility) -> _Fleet:
        """Nodes without their numbers of pods: the same for all readers who may list the same kinds."""
        if visibility.kinds not in self._fleets:
            nodes = list(self.objects(NODES, visibility))
            twins = [shown_twin(twin, visibility) for twin in self.objects(NODE_TWINS, visibility)]
            twin_of = {twin.spec.node_name: twin for twin in twins}
            hardware_of = {one.spec.node_name: one for one in self.objects(NODE_HARDWARES, visibility)}
            families = {node.metadata.name: family_of(node, hardware_of.get(node.metadata.name)) for node in nodes}
            everything = visibility.of(PODS) is None
            agents = agent_nodes(pod.agent for pods in self._pods.values() for pod in pods) if everything else None
            rows = node_rows(nodes, twins, (), self._at_s, agents=agents)
            found = {row.name: fleet_node(row, families[row.name], twin_of.get(row.name)) for row in rows}
            self._fleets[visibility.kinds] = _Fleet(found, agents is not None)
        return self._fleets[visibility.kinds]

    def _assembled(self, visibility: Visibility) -> ClusterState:
        where = visibility.of(PODS)
        namespaces = sorted(self._pods if where is None else where & self._pods.keys())
        pods = [pod for namespace in namespaces for pod in self._pods[namespace]]
        counts = Counter(pod.facts.node_name for pod in pods)
        fleet, agents_known = self._fleet(visibility)
        nodes = {
            name: msgspec.structs.replace(node, pods=counts[name]) if name in counts else node
            for name, node in fleet.items()
        }
        limits = limits_of(nodes.values(), self.objects(NODE_TWINS, visibility))
        return ClusterState(
            at=self._at_s,
            nodes=nodes,
            summary=fleet_summary(list(nodes.values()), agents_known=agents_known),
            pods=by_state(pods, limits),
            namespaces=namespaces,
            limits=limits,
            problems=self._problems(visibility),
        )

    def _problems(self, visibility: Visibility) -> tuple[str, ...]:
        outdated = (
            f"{resource.plural} may be outdated: {cache.problem}"
            for resource, cache in self._caches.items()
            if cache.problem
        )
        return (*visibility.problems, *outdated)


@dataclass(frozen=True)
class ClusterView:
    """The cluster as one reader may see it.

    Attributes:
        cluster: caches.
        visibility: what the reader may list.
    """

    cluster: Cluster
    visibility: Visibility

    @property
    def visible(self) -> frozenset[str] | None:
        """Namespaces whose pods are shown; None for all."""
        return self.visibility.of(PODS)

    def state(self) -> ClusterState:
        """The current state."""
        return self.cluster.state(self.visibility)

    def twin(self, node: str) -> NodeTwin | None:
        """The twin of a node."""
        twins: Iterable[NodeTwin] = self._objects(NODE_TWINS)
        found = next((twin for twin in twins if twin.spec.node_name == node), None)
        return None if found is None else shown_twin(found, self.visibility)

    def limit_rows(self, nodes: frozenset[str]) -> list[LimitRow]:
        """GPUs of some nodes with their limits, as `kubectl joulie limits` has them."""
        if not nodes:
            return []
        twins = [twin for twin in self._objects(NODE_TWINS) if twin.spec.node_name in nodes]
        owners: dict[PodKey, Owner] = {
            pod_key(pod): pod.facts.owner
            for pod in self._objects(PODS)
            if pod.facts.requests.gpus > 0.0 and pod.facts.node_name in nodes
        }
        return limit_rows(twins, owners, self._objects(WORKLOAD_PROFILES))

    def budgets(self, namespace: str | None) -> list[BudgetRow]:
        """Rows of `kubectl joulie budget`; None for all namespaces."""
        rows = [budget_row(one) for one in self._objects(ENERGY_BUDGETS)]
        return sorted(
            (row for row in rows if namespace in {None, row.namespace}), key=lambda row: (row.namespace, row.name)
        )

    def limits_saving(self, namespace: str) -> LimitsSaving | None:
        """What power limits of a namespace's GPUs save, measured by the holdout; of all that are visible if empty."""
        profiles = self._objects(WORKLOAD_PROFILES)
        return limits_saving(one for one in profiles if namespace in {"", one.metadata.namespace})

    def trials(self) -> list[PowerTrial]:
        """PowerTrials by name."""
        return sorted(self._objects(POWER_TRIALS), key=lambda trial: str(trial.metadata.name))

    def power_budgets(self) -> list[PowerBudgetRow]:
        """Rows of `kubectl joulie budget power`."""
        return sorted(map(power_budget_row, self._objects(POWER_BUDGETS)), key=lambda row: row.name)

    def _objects(self, resource: Resource[Any]) -> Iterable[Any]:
        return self.cluster.objects(resource, self.visibility)


def shown_twin(twin: NodeTwin, visibility: Visibility) -> NodeTwin:
    """A twin without its messages for readers who may not list all pods: messages may name what is not theirs."""
    if visibility.of(PODS) is None:
        return twin
    status, control = twin.status, twin.status.control_status
    replace = msgspec.structs.replace
    return replace(
        twin,
        status=replace(
            status,
            conditions=tuple(replace(one, message="") for one in status.conditions),
            control_status=None
            if control is None
            else replace(
                control,
                cpu=None if control.cpu is None else replace(control.cpu, message=None),
                gpu=None if control.gpu is None else replace(control.gpu, message=None),
            ),
        ),
    )


def _reason(error: ApiError) -> str:
    return "the cluster does not have this kind" if isinstance(error, NotFoundError) else error.message or str(error)
