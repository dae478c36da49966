"""The operator's loop while it leads: read, observe, decide, apply, and say what happened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx2
import numpy as np

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.kubernetes.resources import PODS
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.apply import Problem, Publisher
from joulie.apps.operator.ledger import NO_LOAD
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.overrides import OverrideConditions
from joulie.apps.operator.power import (
    AgentSource,
    FacilityFeed,
    HttpSource,
    NodePowerSource,
    PowerFeed,
    PrometheusSource,
)
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.telemetry import TelemetryCounts
from joulie.apps.program.tracing import span
from joulie.domain.control import (
    ControlledNode,
    Decision,
    Facility,
    Memory,
    Transition,
    TransitionResult,
    decide,
)
from joulie.domain.control_estimate import requested_power_w
from joulie.domain.control_power import SourceReadings
from joulie.domain.cooling_stress import CoolingStressModel
from joulie.domain.hardware import Catalogue
from joulie.domain.policy import Policy

DEBOUNCE_S = 1.0
"""Changes are gathered for this long before a step, since they come in flocks."""
_FIRST_READING_S = 5.0
"""How long the first step waits for measurements; later ones wait for nothing."""
_REFRESH_S = 1.0
_SHOWN_PROBLEMS = 3

_log = logging.getLogger(__name__)


class ControlLoop:
    """One term of leadership. It starts without memory: where nodes are is read back from their NodeTwins.

    Args:
        settings: of the program.
        catalogue: known hardware.
        client: to write with.
        http: to read power with.
        view: of the cluster.
        wake: set when something changed that decisions hang on.
        metrics: to count in.
        policy: which nodes run at full power.
        cooling: cooling stress of nodes.
        may_write: whether this process leads.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        catalogue: Catalogue,
        client: KubeClient,
        http: httpx2.AsyncClient,
        view: ClusterView,
        wake: asyncio.Event,
        metrics: OperatorMetrics,
        *,
        policy: Policy,
        cooling: CoolingStressModel,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._control = settings.control
        self._catalogue = catalogue
        self._view = view
        self._wake = wake
        self._metrics = metrics
        self._policy = policy
        self._cooling = cooling
        self._now_s = now_s
        self._memory = Memory()
        self._decision: Decision | None = None
        self._agents: Cache[Pod, str] | None = _agent_cache(client, settings)
        self._power = PowerFeed(self._sources(http), self._source_failed)
        self._facility = self._facility_feed(http)
        self._events = EventRecorder(client, "joulie-operator", instance=settings.identity or "", clock=now_s)
        self._telemetry = TelemetryCounts(client, view)
        self._overrides = OverrideConditions(client, view, settings, may_write=may_write, now_s=now_s)
        self._publisher = Publisher(
            client,
            view,
            settings,
            may_write=may_write,
            wrote=lambda kind: metrics.writes.labels(kind.value).inc(),
            now_s=now_s,
            astray=wake.set,
        )

    async def run(self) -> None:
        """Lead until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run())
                group.create_task(self._refresh_for_ever())
                group.create_task(self._telemetry.run())
                if self._agents is not None:
                    group.create_task(self._agents.run())
                group.create_task(self._reconcile_for_ever(group))
        finally:
            self._publisher.close()

    # ---- the step

    async def _reconcile_for_ever(self, group: asyncio.TaskGroup) -> None:
        await self._first_reading()
        group.create_task(self._poll_for_ever(self._settings.power_poll_interval_s, self._power.read))
        if self._facility is not None:
            group.create_task(self._poll_for_ever(self._settings.facility_poll_interval_s, self._facility.read))
        while True:
            self._wake.clear()
            await self.step()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next step: a change, a state's own moment, or the interval."""
        wait_s = self._settings.reconcile_interval_s
        due_s = None if self._decision is None else self._decision.next_due_s
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - self._now_s()))
        try:
            await asyncio.wait_for(self._wake.wait(), timeout=wait_s)
        except TimeoutError:
            return
        await asyncio.sleep(DEBOUNCE_S)

    async def step(self) -> None:
        """One step. A failure is logged and counted, and the next step tries again."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            with span("reconcile", nodes=len(self._view.nodes)):
                self._memory = before = self._memory.without(self._view.take_replaced())
                decision = self._decide()
                self._metrics.decide_seconds.observe(loop.time() - began_s)
                self._metrics.decided(decision)
                problems = await self._publisher.publish(decision)
                failed = frozenset(problem.node for problem in problems)
                self._memory = decision.memory.published(before, failed, self._now_s())
            problems += await self._overrides.publish()
            self._report(decision, problems)
            await self._telemetry.publish()
            self._metrics.reconciles.labels("error" if problems else "success").inc()
        except Exception:
            self._metrics.reconciles.labels("error").inc()
            _log.exception("step failed")
        self._metrics.reconcile_seconds.observe(loop.time() - began_s)

    def _decide(self) -> Decision:
        now_s = self._now_s()
        facility = Facility() if self._facility is None else self._facility.facility()
        snapshot = self._view.snapshot(self._memory, self._readings(self._view.nodes, now_s), facility, now_s)
        self._decision = decide(snapshot, self._memory, self._control, self._policy, self._cooling)
        return self._decision

    # ---- power

    def _sources(self, http: httpx2.AsyncClient) -> list[NodePowerSource]:
        """The sources that measure, best first; those without an address are left out."""
        settings = self._settings
        found: dict[str, NodePowerSource] = {}
        if settings.agent_urls or self._agents is not None:
            found["agents"] = AgentSource(http, self._agent_urls, self._now_s)
        if settings.power_prometheus_address and settings.power_prometheus_query:
            prometheus = Prometheus(settings.power_prometheus_address, http)
            found["prometheus"] = PrometheusSource(prometheus, settings.power_prometheus_query)
        if settings.telemetry_http_endpoint:
            found["http"] = HttpSource(http, settings.telemetry_http_endpoint, self._now_s)
        return [found[name] for name in settings.sources if name in found]

    def _agent_urls(self) -> Iterable[str]:
        if self._settings.agent_urls or self._agents is None:
            return self._settings.agent_urls
        return self._agents.objects.values()

    def _facility_feed(self, http: httpx2.AsyncClient) -> FacilityFeed | None:
        if not self._settings.facility_metrics:
            return None
        prometheus = Prometheus(self._settings.facility_prometheus_address, http)
        return FacilityFeed(prometheus, self._settings, self._now_s, self._source_failed)

    def _source_failed(self, source: str) -> None:
        self._metrics.source_errors.labels(source).inc()

    async def _first_reading(self) -> None:
        """Give measurements a moment, so that the first step need not call every node unmeasured."""
        try:
            async with asyncio.timeout(_FIRST_READING_S):
                if self._agents is not None:
                    await self._agents.wait_synced()
                await self._power.read(self._view.nodes)
        except TimeoutError:
            _log.info("measurements are slow, the first step goes on without them")

    async def _poll_for_ever(self, interval_s: float, read: Callable[[Sequence[ControlledNode]], Any]) -> None:
        while True:
            try:
                await read(self._view.nodes)
            except Exception:
                _log.exception("reading failed")
            await asyncio.sleep(interval_s)

    def _readings(self, nodes: tuple[ControlledNode, ...], now_s: float) -> list[SourceReadings]:
        """What all sources say of these nodes, best first; an estimate never goes before a measurement."""
        names = [node.name for node in nodes]
        readings = self._power.readings(names)
        if "requests" in self._settings.sources:
            readings.append(self._estimated(nodes, now_s))
        if self._settings.static_power_w > 0.0:
            everywhere = np.ones(len(nodes), dtype=np.bool_)
            readings.append(
                SourceReadings(
                    "static", np.full(len(nodes), now_s), np.full(len(nodes), self._settings.static_power_w), everywhere
                )
            )
        return readings

    def _estimated(self, nodes: tuple[ControlledNode, ...], now_s: float) -> SourceReadings:
        loads = [self._view.ledger.loads.get(node.name, NO_LOAD) for node in nodes]
        caps = {} if self._decision is None else {node.node.name: node.caps for node in self._decision.nodes}
        percents = [caps[node.name][2:] if node.name in caps else (100.0, 100.0) for node in nodes]
        cpu_cap_percent, gpu_cap_percent = np.array(percents).reshape(-1, 2).T
        power_w = requested_power_w(
            [node.hardware for node in nodes],
            np.array([load.cpu_millicores for load in loads]) / 1000.0,
            np.array([load.milli_gpus for load in loads]) / 1000.0,
            self._catalogue,
            cpu_cap_percent=cpu_cap_percent,
            gpu_cap_percent=gpu_cap_percent,
        )
        known = ~np.isnan(power_w)
        return SourceReadings("utilization", np.full(len(nodes), now_s), np.where(known, power_w, 0.0), known)

    # ---- the rest

    async def _refresh_for_ever(self) -> None:
        since_s = self._now_s()
        while True:
            await asyncio.sleep(_REFRESH_S)
            until_s = self._now_s()
            try:
                self._complain(await self._publisher.refresh(since_s, until_s))
            except Exception:
                _log.exception("refresh failed")
            since_s = until_s

    def _report(self, decision: Decision, problems: Sequence[Problem]) -> None:
        """Events, logs and counts of a step."""
        for transition in decision.transitions:
            self._tell(transition)
        mistaken, self._view.ledger.mistaken = self._view.ledger.mistaken, {}
        for pod in mistaken.values():
            regarding = ObjectReference(
                kind="Pod", name=pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid
            )
            for mistake in pod.mistakes:
                self._events.emit(regarding, "Warning", "InvalidAnnotation", mistake)
        self._complain(problems)

    def _tell(self, transition: Transition) -> None:
        severity: Severity = "Normal"
        if transition.result is TransitionResult.DEFERRED:
            reason = "DrainTimedOut" if "timed out" in transition.reason else "DrainBlocked"
            severity = "Warning" if reason == "DrainTimedOut" else "Normal"
        else:
            reason = "PowerStateChanged"
        facts = self._view.node(transition.node)
        regarding = ObjectReference(kind="Node", name=transition.node, api_version="v1", uid=facts.uid if facts else "")
        message = f"{transition.from_state} -> {transition.to_state}: {transition.reason}"
        self._events.emit(regarding, severity, reason, message)
        _log.info(
            "transition",
            extra={
                "node": transition.node,
                "from_state": transition.from_state,
                "to_state": transition.to_state,
                "result": transition.result.value,
                "reason": transition.reason,
            },
        )

    def _complain(self, problems: Sequence[Problem]) -> None:
        if not problems:
            return
        self._metrics.write_errors.inc(len(problems))
        for problem in problems[:_SHOWN_PROBLEMS]:
            _log.warning("node not written", extra={"node": problem.node, "error": str(problem.error)})
        if len(problems) > _SHOWN_PROBLEMS:
            _log.warning("more nodes not written", extra={"nodes": len(problems) - _SHOWN_PROBLEMS})


def _agent_cache(client: KubeClient, settings: OperatorSettings) -> Cache[Pod, str] | None:
    """Addresses of the agents' /metrics by pod; None where agents are not looked for."""
    if settings.agent_urls or not settings.agent_pod_selector or "agents" not in settings.sources:
        return None

    def keep(pod: Pod) -> str | None:
        address = pod.status.pod_ip
        if not address or pod.status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
            return None
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{settings.agent_metrics_port}/metrics"

    return Cache(client, PODS, keep, namespace=settings.namespace, label_selector=settings.agent_pod_selector)
