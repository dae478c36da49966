"""Which sources the settings ask for, made and wired to the outside world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import httpx2

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import PODS
from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.power.profiled import ProfiledHttp, ProfiledPrometheus
from joulie.apps.operator.power.sources import (
    AgentEndpoint,
    AgentSource,
    DcgmSource,
    ExporterSource,
    HttpSource,
    NodePowerSource,
    QuerySource,
)
from joulie.apps.operator.power.usage import CadvisorUsage, KeplerUsage, MetricsServerUsage, UsageSource
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.telemetry import Route

_OVER_PROMETHEUS = {"kepler", "node-exporter", "cadvisor"}
"""Sources that need PROMETHEUS_ADDRESS. Where none of them is asked for, DCGM is not, either."""


@dataclass(frozen=True)
class World:
    """How everything is reached that is measured with.

    Attributes:
        client: the Kubernetes API.
        http: agents and telemetry endpoints.
        prometheus: the server of PROMETHEUS_ADDRESS; None where there is none.
    """

    client: KubeClient
    http: httpx2.AsyncClient
    prometheus: Prometheus | None = None

    def server(self, address: str, settings: OperatorSettings) -> Prometheus:
        """The client of a Prometheus: with authentication where it is the one of PROMETHEUS_ADDRESS."""
        if self.prometheus is not None and address.rstrip("/") == settings.prometheus_address.rstrip("/"):
            return self.prometheus
        return Prometheus(address, self.http, timeout_s=settings.prometheus_timeout_s)


@dataclass(frozen=True)
class WiredSources:
    """The sources.

    Attributes:
        agents: addresses of the agents' /metrics by pod; None where agents are not looked for.
        power: of nodes, as POWER_SOURCES lists them.
        usage: of pods and nodes, as POWER_SOURCES lists them.
        dcgm: GPUs and who holds them; None where it is not asked.
        kepler: the one of `power` that knows how much of a node's power is work; None where it is not asked.
        profiled: of the nodes whose TelemetryProfile says where to read.
    """

    agents: Cache[Pod, AgentEndpoint] | None
    power: tuple[NodePowerSource, ...]
    usage: tuple[UsageSource, ...]
    dcgm: DcgmSource | None
    kepler: ExporterSource | None
    profiled: tuple[ProfiledHttp, ProfiledPrometheus]


def wire(
    settings: OperatorSettings,
    world: World,
    *,
    index: Callable[[], NodeIndex],
    routes: Callable[[], Mapping[str, Route]],
    rejected: Callable[[str, Mapping[str, int]], None],
    now_s: Callable[[], float],
) -> WiredSources:
    """Make the sources that POWER_SOURCES lists; those without an address are left out.

    Args:
        settings: of the program.
        world: to measure with.
        index: nodes as exporters may call them.
        routes: the TelemetryProfile that counts, by node.
        rejected: told how many series of a source were left out, by reason.
        now_s: s since the epoch.
    """
    agents = _agent_cache(world.client, settings)
    power: dict[str, NodePowerSource] = {}
    usage: dict[str, UsageSource] = {"metrics-server": MetricsServerUsage(world.client, now_s)}
    kepler = dcgm = None
    prometheus, window_s = world.prometheus, settings.prometheus_window_s
    if settings.agent_urls or agents is not None:
        endpoints = _endpoints(settings, agents)
        power["agents"] = AgentSource(
            world.http, endpoints, now_s, prometheus=prometheus, index=index, window_s=window_s
        )
    address = settings.power_prometheus_address or settings.prometheus_address
    if address and settings.power_prometheus_query:
        power["prometheus"] = QuerySource(world.server(address, settings), settings.power_prometheus_query)
    if settings.telemetry_http_endpoint:
        power["http"] = HttpSource(world.http, settings.telemetry_http_endpoint, now_s)
    if prometheus is not None and _OVER_PROMETHEUS & set(settings.sources):
        nodes_and_pods = Kepler(prometheus, window_s)
        kepler = ExporterSource("kepler", nodes_and_pods.nodes, index, rejected)
        node_exporter = ExporterSource("node-exporter", NodeExporter(prometheus, window_s).nodes, index, rejected)
        power |= {"kepler": kepler, "node-exporter": node_exporter}
        usage |= {
            "kepler": KeplerUsage(nodes_and_pods),
            "cadvisor": CadvisorUsage(Cadvisor(prometheus), index, window_s),
        }
        dcgm = DcgmSource(Dcgm(prometheus, window_s), index)
    return WiredSources(
        agents,
        tuple(power[name] for name in settings.sources if name in power),
        tuple(usage[name] for name in settings.sources if name in usage),
        dcgm,
        kepler if "kepler" in settings.sources else None,
        (
            ProfiledHttp(world.http, routes, now_s),
            ProfiledPrometheus(cache(lambda address: world.server(address, settings)), routes, index),
        ),
    )


def _endpoints(
    settings: OperatorSettings, agents: Cache[Pod, AgentEndpoint] | None
) -> Callable[[], Iterable[AgentEndpoint]]:
    """Where agents are: at the given addresses, else where their pods are now."""
    if settings.agent_urls or agents is None:
        given = [AgentEndpoint(url) for url in settings.agent_urls]
        return lambda: given
    return agents.objects.values


def _agent_cache(client: KubeClient, settings: OperatorSettings) -> Cache[Pod, AgentEndpoint] | None:
    """Addresses of the agents' /metrics by pod; None where agents are not looked for."""
    if settings.agent_urls or not settings.agent_pod_selector or "agents" not in settings.sources:
        return None

    def keep(pod: Pod) -> AgentEndpoint | None:
        address = pod.status.pod_ip
        if not address or pod.status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
            return None
        host = f"[{address}]" if ":" in address else address
        return AgentEndpoint(f"http://{host}:{settings.agent_metrics_port}/metrics", pod.spec.node_name or None)

    return Cache(client, PODS, keep, namespace=settings.namespace, label_selector=settings.agent_pod_selector)
