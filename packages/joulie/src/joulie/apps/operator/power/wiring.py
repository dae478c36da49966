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
from joulie.apps.operator.power.profiled import ProfiledHttp, ProfiledPrometheus
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sources.catalogue import KEPLER, SOURCES, SourceContext
from joulie.apps.operator.sources.node_power import DcgmSource, ExporterSource, NodePowerSource
from joulie.apps.operator.sources.usage import UsageSource
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
    """The configured sources.

    Attributes:
        agents: addresses of the agents' /metrics by pod; None if agents are not discovered.
        power: sources of node power, in the order of POWER_SOURCES.
        usage: sources of CPU usage, in the order of POWER_SOURCES.
        dcgm: source of GPUs and the pods that hold them; None if not used.
        kepler: the source among `power` that also provides dynamic power; None if not used.
        profiled: sources defined by TelemetryProfiles.
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
    """Create the sources in POWER_SOURCES; those without an address are skipped.

    Args:
        settings: operator settings.
        clients: Kubernetes, HTTP and Prometheus clients.
        index: returns the nodes by the names that exporters may use.
        routes: returns the effective TelemetryProfile by node.
        rejected: called with the number of ignored series of a source, by reason.
        now_s: current time, s since the epoch.
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
    # DCGM is used only if POWER_SOURCES has at least one source scraped by Prometheus.
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
    """Endpoints of agents: the configured addresses, else the current addresses of their pods; None if not used."""
    if settings.agent_urls:
        given = [(url, None) for url in settings.agent_urls]
        return lambda: given
    return None if agents is None else agents.objects.values


def _agent_cache(client: KubeClient, settings: OperatorSettings) -> Cache[Pod, Endpoint] | None:
    """Addresses of the agents' /metrics by pod; None if agents are not discovered."""
    if settings.agent_urls or not settings.agent_pod_selector or "agents" not in settings.sources:
        return None

    def keep(pod: Pod) -> Endpoint | None:
        address = pod.status.pod_ip
        if not address or pod.status.phase != "Running" or pod.metadata.deletion_timestamp is not None:
            return None
        host = f"[{address}]" if ":" in address else address
        return f"http://{host}:{settings.agent_metrics_port}/metrics", pod.spec.node_name or None

    return Cache(client, PODS, keep, namespace=settings.namespace, label_selector=settings.agent_pod_selector)
