"""Creation of the power and usage sources that the settings list."""

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
from joulie.adapters.prometheus.agents import Endpoint
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.power.catalogue import KEPLER, SOURCES, SourceContext
from joulie.apps.operator.power.profiled import ProfiledHttp, ProfiledPrometheus
from joulie.apps.operator.power.sources import DcgmSource, ExporterSource, NodePowerSource
from joulie.apps.operator.power.usage import UsageSource
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.telemetry import Route


@dataclass(frozen=True)
class Clients:
    """Clients of the APIs that the operator reads from.

    Attributes:
        client: client of the Kubernetes API.
        http: client for agents and telemetry endpoints.
        prometheus: client of the Prometheus at PROMETHEUS_ADDRESS; None without one.
    """

    client: KubeClient
    http: httpx2.AsyncClient
    prometheus: Prometheus | None = None

    def server(self, address: str, settings: OperatorSettings) -> Prometheus:
        """The client of a Prometheus; it authenticates only to the one at PROMETHEUS_ADDRESS."""
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

    agents: Cache[Pod, Endpoint] | None
    power: tuple[NodePowerSource, ...]
    usage: tuple[UsageSource, ...]
    dcgm: DcgmSource | None
    kepler: ExporterSource | None
    profiled: tuple[ProfiledHttp, ProfiledPrometheus]


def wire(
    settings: OperatorSettings,
    clients: Clients,
    *,
    index: Callable[[], NodeIndex],
    routes: Callable[[], Mapping[str, Route]],
    rejected: Callable[[str, Mapping[str, int]], None],
    now_s: Callable[[], float],
) -> WiredSources:
    """Make the sources that POWER_SOURCES lists; those without an address are left out.

    Args:
        settings: of the program.
        clients: to measure with.
        index: nodes as exporters may call them.
        routes: the TelemetryProfile that counts, by node.
        rejected: told how many series of a source were left out, by reason.
        now_s: s since the epoch.
    """
    agents = _agent_cache(clients.client, settings)
    server = cache(lambda address: clients.server(address, settings))
    context = SourceContext(
        settings,
        clients.client,
        clients.http,
        clients.prometheus,
        server,
        _endpoints(settings, agents),
        index,
        rejected,
        now_s,
    )
    rows = [SOURCES[name] for name in settings.sources]
    power = tuple(made for row in rows if (made := row.power(context)) is not None)
    usage = tuple(source for row in rows if (source := row.usage(context)) is not None)
    # Where nothing is asked that Prometheus scrapes, DCGM is not, either.
    dcgm = SOURCES["dcgm"].power(context) if any(row.scraped for row in rows) else None
    kepler = next((source for source in power if source.name == KEPLER), None)
    return WiredSources(
        agents,
        power,
        usage,
        dcgm if isinstance(dcgm, DcgmSource) else None,
        kepler if isinstance(kepler, ExporterSource) else None,
        (ProfiledHttp(clients.http, routes, now_s), ProfiledPrometheus(server, routes, index)),
    )


def _endpoints(
    settings: OperatorSettings, agents: Cache[Pod, Endpoint] | None
) -> Callable[[], Iterable[Endpoint]] | None:
    """Where agents are: at the given addresses, else where their pods are now; None where they are not looked for."""
    if settings.agent_urls:
        given = [(url, None) for url in settings.agent_urls]
        return lambda: given
    return None if agents is None else agents.objects.values


def _agent_cache(client: KubeClient, settings: OperatorSettings) -> Cache[Pod, Endpoint] | None:
    """Addresses of the agents' /metrics by pod; None where agents are not looked for."""
    if settings.agent_urls or not settings.agent_pod_selector or "agents" not in settings.sources:
        return None

    def keep(pod: Pod) -> Endpoint | None:
        address = pod.status.pod_ip
        if not address or pod.status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
            return None
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{settings.agent_metrics_port}/metrics", pod.spec.node_name or None

    return Cache(client, PODS, keep, namespace=settings.namespace, label_selector=settings.agent_pod_selector)
