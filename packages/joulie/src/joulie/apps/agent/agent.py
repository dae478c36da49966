"""The agent's reconcile loop: over one node in daemonset mode, over a shard of many nodes in pool mode.

Watch caches hold the Nodes, NodeTwins, NodeHardwares and TelemetryProfiles of the agent's nodes. Each cycle creates a
`NodeAgent` for every new node, restores the limits of removed ones, and runs the cycle of all nodes concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.cache import Cache, Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.names import MANAGED_LABEL, RESTORE_PENDING_LABEL, object_name
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES, TELEMETRY_PROFILES
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.agent.limits import LIFTED
from joulie.apps.agent.node import NodeAgent, NodeInputs
from joulie.apps.agent.routing import Routing, choose
from joulie.apps.agent.views import HardwareView, NodeView, TwinView, hardware_view, node_view, shard_of, twin_view
from joulie.domain.gpu_maintenance import gpu_hold_reason
from joulie.program.tracing import span

_LEFT = f"{RESTORE_PENDING_LABEL},{MANAGED_LABEL}!=true"
"""Nodes that are not managed any more and whose limits nobody has confirmed to be restored."""
CONCURRENCY = 32
"""Maximum number of nodes of a pool reconciled concurrently."""

RESTORE_ATTEMPTS = 10
"""Maximum number of attempts to restore a node that left, the last after more than 500 cycles; each is reported."""

_MIN_PAUSE_S = 1.0
_MAX_CYCLES_LATE = 5
_MIN_LIVENESS_LIMIT_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scope:
    """The nodes that an agent is responsible for.

    Attributes:
        node_name: the only node, in daemonset mode; None in pool mode.
        selector: label selector of the pool's nodes; empty for all.
        shards: number of shards of the pool.
        shard: index of this agent's shard, from 0.
    """

    node_name: str | None
    selector: str = ""
    shards: int = 1
    shard: int = 0

    def owns(self, node_name: str) -> bool:
        """Whether a node belongs to this agent."""
        if self.node_name is not None:
            return node_name == self.node_name
        return shard_of(node_name, self.shards) == self.shard


@dataclass
class _Leaving:
    """A node that is no longer this agent's, and whose limits are not yet restored.

    Attributes:
        agent: its agent.
        due_s: monotonic time of the next attempt, s.
        attempts: number of attempts so far.
    """

    agent: NodeAgent
    due_s: float
    attempts: int = 0


class Agent:
    """Watches the objects of its nodes and reconciles the nodes periodically.

    A daemonset agent watches single objects by name: if each of N agents listed all N twins, the API server would
    send N squared of them.

    Args:
        client: Kubernetes API client.
        scope: nodes of this agent.
        make_node: creates the `NodeAgent` of a node.
        fallback: backends of nodes without a matching TelemetryProfile.
        interval_s: time between the starts of two cycles, s.
        restore_timeout_s: maximum time for restoring original limits, s.
        clock: monotonic time, s.
    """

    def __init__(
        self,
        client: KubeClient,
        scope: Scope,
        make_node: Callable[[str], NodeAgent],
        fallback: Routing,
        interval_s: float,
        restore_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._scope = scope
        self._make_node = make_node
        self._fallback = fallback
        self._interval_s = interval_s
        self._restore_timeout_s = restore_timeout_s
        self._clock = clock
        self._wake = asyncio.Event()
        self._changed: set[str] = set()
        self._last_cycle_s: float | None = None
        self.nodes: dict[str, NodeAgent] = {}
        self._leaving: dict[str, _Leaving] = {}
        by_node = f"metadata.name={scope.node_name}" if scope.node_name else ""
        by_object = f"metadata.name={object_name(scope.node_name)}" if scope.node_name else ""
        self._node_cache: Cache[Node, NodeView] = Cache(
            client, NODES, self._own_node, label_selector=scope.selector, field_selector=by_node
        )
        # What a pool's agent that was killed has left; the node of a daemonset agent stays its own.
        self._pending: Cache[Node, NodeView] | None = None
        if scope.node_name is None:
            self._pending = Cache(client, NODES, self._own_node, label_selector=_LEFT)
        self._twins: Cache[api.NodeTwin, TwinView] = Cache(client, NODE_TWINS, self._own_twin, field_selector=by_object)
        self._hardwares: Cache[api.NodeHardware, HardwareView] = Cache(
            client, NODE_HARDWARES, self._own_hardware, field_selector=by_object
        )
        self._profiles: Cache[api.TelemetryProfile, api.TelemetryProfile] = Cache(
            client, TELEMETRY_PROFILES, lambda profile: profile
        )
        self._twins.add_listener(self._twin_changed)
        self._node_cache.add_listener(self._node_changed)

    @property
    def _caches(self) -> dict[str, Cache[Any, Any]]:
        pending = {} if self._pending is None else {"nodes to restore": self._pending}
        return {
            "nodes": self._node_cache,
            **pending,
            "nodetwins": self._twins,
            "nodehardwares": self._hardwares,
            "telemetryprofiles": self._profiles,
        }

    def why_not_ready(self) -> str | None:
        """Why the readiness probe fails; None once the caches are synced and the first cycle is complete."""
        waiting = {name: cache.problem for name, cache in self._caches.items() if not cache.synced}
        if waiting:
            return "; ".join(f"{name} not listed yet: {problem or 'in progress'}" for name, problem in waiting.items())
        return "the first cycle is not complete" if self._last_cycle_s is None else None

    def why_not_alive(self) -> str | None:
        """Why the liveness probe fails: a cycle that does not end. An unreachable API server is not one."""
        if self._last_cycle_s is None:
            return None
        age_s = self._clock() - self._last_cycle_s
        limit_s = max(_MIN_LIVENESS_LIMIT_S, _MAX_CYCLES_LATE * self._interval_s)
        return None if age_s <= limit_s else f"no cycle completed for {age_s:.0f} s"

    async def run(self, stop: asyncio.Event, *, restores: Callable[[], Awaitable[bool]]) -> None:
        """Run until `stop` is set.

        Args:
            stop: ends the loop when set.
            restores: asked at the end: whether to restore the original limits.
        """
        self._sync_nodes()  # a daemonset agent's node exists from the start, so that its caps can be lifted
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(cache.run()) for cache in self._caches.values()]
            try:
                await self._until_stopped(stop)
                if await restores():
                    leaving = [one.agent for one in self._leaving.values()]
                    await self._restore([*self.nodes.values(), *leaving])
            finally:
                for watch in watches:
                    watch.cancel()

    async def cycle(self, stop: asyncio.Event) -> None:
        """Reconcile all nodes once; a node that fails does not affect the others.

        Args:
            stop: when set, remaining nodes are skipped, to leave the shutdown period to restoring limits.
        """
        with span("agent.cycle", nodes=len(self.nodes)):
            self._sync_nodes()
            await self._restore_leaving()
            await self._reconcile(list(self.nodes.values()), stop)
        self._last_cycle_s = self._clock()

    async def _reconcile(self, nodes: Sequence[NodeAgent], stop: asyncio.Event) -> None:
        """Reconcile these nodes; see `cycle`."""
        jobs = (partial(self._cycle_of, node) for node in nodes if not stop.is_set())
        for failure in await write_all(jobs, concurrency=CONCURRENCY):
            node = nodes[failure.index]
            node.errors += 1
            expected = isinstance(failure.error, KubernetesError)
            _log.warning(
                "cycle failed",
                extra={"node": node.name, "error": str(failure.error)},
                exc_info=None if expected else failure.error,
            )

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        try:
            for cache in self._caches.values():
                await _first(stopped, cache.wait_synced())
            while not stop.is_set():
                began_s = self._clock()
                self._wake.clear()
                self._changed.clear()
                await self.cycle(stop)
                await self._pause(stopped, began_s)
                while self._changed and not stop.is_set() and self._clock() < began_s + self._interval_s:
                    changed, self._changed = self._changed, set()
                    self._wake.clear()
                    await self._reconcile([self.nodes[name] for name in sorted(changed & self.nodes.keys())], stop)
                    await self._pause(stopped, began_s)
        finally:
            stopped.cancel()

    async def _pause(self, stopped: asyncio.Task[bool], began_s: float) -> None:
        """Wait until the next cycle is due or a twin changes, at least `_MIN_PAUSE_S`."""
        due_s = began_s + self._interval_s
        soonest_s = min(due_s, self._clock() + _MIN_PAUSE_S)
        await _first(stopped, asyncio.sleep(soonest_s - self._clock()))
        await _first(stopped, self._wake.wait(), timeout_s=due_s - self._clock())

    async def _cycle_of(self, node: NodeAgent) -> None:
        await node.cycle(self._inputs(node.name), self._clock())

    def _inputs(self, name: str) -> NodeInputs:
        own = Key("", object_name(name))
        node = self._node_cache.objects.get(Key("", name))
        if node is None and self._pending is not None:
            node = self._pending.objects.get(Key("", name))
        profiles = self._profiles.objects
        labels = node.labels if node else {}
        routing = choose(name, labels, profiles.values(), self._fallback) if profiles else self._fallback
        return NodeInputs(
            node,
            self._twins.objects.get(own),
            self._hardwares.objects.get(own),
            routing,
            profiles.get(Key("", routing.report_to)) if routing.report_to else None,
        )

    def _sync_nodes(self) -> None:
        """Create agents for new nodes; those of removed nodes stay apart until their limits are restored."""
        name = self._scope.node_name
        names = {name} if name is not None else {key.name for key in self._node_cache.objects}
        for node in sorted(self.nodes.keys() - names):
            self._leaving[node] = _Leaving(self.nodes.pop(node), due_s=self._clock())
        for node in sorted(names - self.nodes.keys()):
            returned = self._leaving.pop(node, None)
            self.nodes[node] = returned.agent if returned else self._make_node(node)
        if self._pending is None:
            return
        for node in sorted({key.name for key in self._pending.objects} - names - self._leaving.keys()):
            if not self._was_capped_remotely(node):
                continue
            agent = self._make_node(node)
            agent.inputs = self._inputs(node)
            self._leaving[node] = _Leaving(agent, due_s=self._clock())

    def _was_capped_remotely(self, node: str) -> bool:
        """Whether caps that nobody requests any more were set through an endpoint: others have an agent on the node."""
        twin = self._twins.objects.get(Key("", object_name(node)))
        if twin is None or twin.reported is None or (twin.cpu, twin.gpu) != (LIFTED, LIFTED):
            return False
        return any(one is not None and one.backend == "http" for one in (twin.reported.cpu, twin.reported.gpu))

    async def _restore_leaving(self) -> None:
        """Restore nodes that left, again and again, each time after a longer pause, until an attempt is confirmed."""
        due = [leaving for leaving in self._leaving.values() if self._clock() >= leaving.due_s]
        if not due:
            return
        await self._restore([leaving.agent for leaving in due])
        for leaving in due:
            name = leaving.agent.name
            leaving.attempts += 1
            leaving.due_s = self._clock() + self._interval_s * 2.0**leaving.attempts
            if leaving.agent.is_restored:
                del self._leaving[name]
            elif leaving.attempts >= RESTORE_ATTEMPTS:
                del self._leaving[name]
                outcomes = [f"{one.result}: {one.message}" for one in (leaving.agent.cpu, leaving.agent.gpu) if one]
                _log.error("limits of a node that left are not restored", extra={"node": name, "outcomes": outcomes})

    async def _restore(self, nodes: list[NodeAgent]) -> None:
        jobs: list[Callable[[], Awaitable[None]]] = [partial(node.restore, self._clock()) for node in nodes]
        try:
            async with asyncio.timeout(self._restore_timeout_s):
                failures = await write_all(jobs, concurrency=CONCURRENCY)
        except TimeoutError:
            after_s = self._restore_timeout_s
            _log.error("restoring limits timed out", extra={"nodes": len(nodes), "after_s": after_s})
            return
        for failure in failures:
            name, error = nodes[failure.index].name, str(failure.error)
            _log.warning("limits not restored", extra={"node": name, "error": error})

    def _own_node(self, node: Node) -> NodeView | None:
        return node_view(node) if self._scope.owns(node.metadata.name) else None

    def _own_twin(self, twin: api.NodeTwin) -> TwinView | None:
        return twin_view(twin) if self._belongs(twin.metadata.name, twin.spec.node_name) else None

    def _own_hardware(self, hardware: api.NodeHardware) -> HardwareView | None:
        return hardware_view(hardware) if self._belongs(hardware.metadata.name, hardware.spec.node_name) else None

    def _belongs(self, name: str, node_name: str) -> bool:
        """Whether an object is the canonical one of a node of this agent, by spec and by name."""
        return self._scope.owns(node_name) and name == object_name(node_name)

    def _twin_changed(self, _key: Key, old: TwinView | None, new: TwinView | None) -> None:
        """Look at a node at once when its caps change; a pool, which has many nodes, looks at those nodes only."""
        before, after = ((view.cpu, view.gpu, view.gpu_limits) if view else None for view in (old, new))
        if before == after:
            return
        if self._scope.node_name is None and new is not None:
            self._changed.add(new.node_name)
        self._wake.set()

    def _node_changed(self, _key: Key, old: NodeView | None, new: NodeView | None) -> None:
        """Start a cycle in daemonset mode when GPU drivers must be let go, or may be used again."""
        before, after = (gpu_hold_reason(view.labels) if view else None for view in (old, new))
        if self._scope.node_name is not None and before != after:
            self._wake.set()


async def _first(stopped: asyncio.Task[bool], other: Awaitable[Any], timeout_s: float | None = None) -> None:
    """Wait until `other` completes, the agent is stopped or the timeout expires."""
    task = asyncio.ensure_future(other)
    await asyncio.wait({stopped, task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
