"""The table of power sources. A row holds everything specific to a source: to add a source, add its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import httpx2

from joulie.adapters.kubernetes.api.v1alpha1 import PowerSource
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.metrics_server import MetricsServer
from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.agents import Agents, Endpoint
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.platform import Platform
from joulie.adapters.prometheus.readings import NodePower
from joulie.apps.operator.sources.node_power import DcgmSource, ExporterSource, HttpSource, NodePowerSource, QuerySource
from joulie.apps.operator.sources.usage import UsageSource
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey

KEPLER = "kepler"
REQUESTS = "requests"
STATIC = "static"
PROFILE_HTTP = "profile-http"
PROFILE_PROMETHEUS = "profile-prometheus"


class SourceSettings(Protocol):
    """The settings that sources read; the operator's settings have them."""

    @property
    def prometheus_address(self) -> str:
        """Address of the Prometheus server; empty without one."""

    @property
    def prometheus_window_s(self) -> float:
        """Averaging time of rates, s."""

    @property
    def power_prometheus_address(self) -> str:
        """Address of another Prometheus server for `power_prometheus_query`; empty for the same."""

    @property
    def power_prometheus_query(self) -> str:
        """Query for the power of nodes, W; empty without one."""

    @property
    def telemetry_http_endpoint(self) -> str:
        """Telemetry endpoint; empty without one."""


@dataclass(frozen=True)
class SourceContext:
    """Everything that sources are created from.

    Attributes:
        settings: operator settings.
        client: client of the Kubernetes API.
        http: client for agents and telemetry endpoints.
        prometheus: client of the Prometheus at PROMETHEUS_ADDRESS; None without one.
        server: returns the client of a Prometheus by address.
        agents: returns the current /metrics endpoints of agents; None if agents are not used.
        index: returns the nodes by the names that exporters may use.
        rejected: called with the number of ignored series of a source, by reason.
        now_s: current time, s since the epoch.
    """

    settings: SourceSettings
    client: KubeClient
    http: httpx2.AsyncClient
    prometheus: Prometheus | None
    server: Callable[[str], Prometheus]
    agents: Callable[[], Iterable[Endpoint]] | None
    index: Callable[[], NodeIndex]
    rejected: Callable[[str, Mapping[str, int]], None]
    now_s: Callable[[], float]


@dataclass(frozen=True)
class SourceRow:
    """A power source.

    Attributes:
        name: name in POWER_SOURCES, metrics and conditions.
        stored: name in powerMeasurement.source of NodeTwins.
        power: creates the reader of node power; None if it is not configured.
        usage: creates the reader of pod usage; None if it is not configured.
        gpus: whether its GPU power can be combined with the CPU power of another source.
        host: whether it is the source Host of a TelemetryProfile.
        scraped: whether it is an exporter scraped by the Prometheus at PROMETHEUS_ADDRESS.
        listed: whether POWER_SOURCES may contain it.
    """

    name: str
    stored: PowerSource
    power: Callable[[SourceContext], NodePowerSource | None] = lambda _context: None
    usage: Callable[[SourceContext], UsageSource | None] = lambda _context: None
    gpus: bool = False
    host: bool = False
    scraped: bool = False
    listed: bool = True


def _agents(context: SourceContext) -> NodePowerSource | None:
    if context.agents is None:
        return None
    window_s = context.settings.prometheus_window_s
    agents = Agents(context.prometheus, window_s, context.http, context.agents, context.now_s)
    return ExporterSource("agents", lambda wanted: agents.nodes(context.index(), wanted))


def _query(context: SourceContext) -> NodePowerSource | None:
    settings = context.settings
    address = settings.power_prometheus_address or settings.prometheus_address
    if not address or not settings.power_prometheus_query:
        return None
    return QuerySource(context.server(address), settings.power_prometheus_query)


def _dcgm(context: SourceContext) -> DcgmSource | None:
    if context.prometheus is None:
        return None
    return DcgmSource(Dcgm(context.prometheus, context.settings.prometheus_window_s), context.index)


class _Exporter(Protocol):
    async def nodes(self, index: NodeIndex) -> NodePower:
        """Power of nodes."""


def _exporter(
    name: str, make: Callable[[Prometheus, float], _Exporter]
) -> Callable[[SourceContext], NodePowerSource | None]:
    """Factory of a source that reads an exporter from Prometheus; `make` gets the averaging window of rates, s."""

    def made(context: SourceContext) -> NodePowerSource | None:
        if context.prometheus is None:
            return None
        exporter = make(context.prometheus, context.settings.prometheus_window_s)
        return ExporterSource(name, lambda _wanted: exporter.nodes(context.index()), context.rejected)

    return made


def _http(context: SourceContext) -> NodePowerSource | None:
    endpoint = context.settings.telemetry_http_endpoint
    return HttpSource(context.http, endpoint, context.now_s) if endpoint else None


def _kepler_usage(context: SourceContext) -> UsageSource | None:
    """Kepler as a source of pod usage: dynamic CPU power of pods, W. Nodes are read by its power source."""
    if context.prometheus is None:
        return None
    kepler = Kepler(context.prometheus, context.settings.prometheus_window_s)

    async def pods() -> Mapping[PodKey, float]:
        return {pod: one.cpu_w for pod, one in (await kepler.pods()).items() if one.cpu_w is not None}

    async def nodes() -> Mapping[str, Reading]:
        return {}

    return UsageSource(KEPLER, pods, nodes)


def _cadvisor(context: SourceContext) -> UsageSource | None:
    if context.prometheus is None:
        return None
    cadvisor, window_s = Cadvisor(context.prometheus), context.settings.prometheus_window_s

    async def pods() -> Mapping[PodKey, float]:
        return (await cadvisor.pods(window_s)).cpu_cores

    return UsageSource("cadvisor", pods, lambda: cadvisor.nodes(context.index(), window_s))


def _metrics_server(context: SourceContext) -> UsageSource:
    server = MetricsServer(context.client, context.now_s)

    async def pods() -> Mapping[PodKey, float]:
        return (await server.pods()).cpu_cores

    return UsageSource("metrics-server", pods, server.nodes)


SOURCES = {
    row.name: row
    for row in (
        SourceRow("platform", PowerSource.PROMETHEUS, _exporter("platform", Platform), scraped=True),
        SourceRow("agents", PowerSource.RAPL, _agents, gpus=True, host=True),
        SourceRow("prometheus", PowerSource.PROMETHEUS, _query),
        SourceRow("dcgm", PowerSource.NVML, _dcgm, gpus=True, listed=False),
        SourceRow(KEPLER, PowerSource.KEPLER, _exporter(KEPLER, Kepler), _kepler_usage, gpus=True, scraped=True),
        SourceRow("node-exporter", PowerSource.PROMETHEUS, _exporter("node-exporter", NodeExporter), scraped=True),
        SourceRow("http", PowerSource.HTTP, _http, gpus=True),
        SourceRow("cadvisor", PowerSource.UTILIZATION, usage=_cadvisor, scraped=True),
        SourceRow("metrics-server", PowerSource.UTILIZATION, usage=_metrics_server),
        SourceRow(REQUESTS, PowerSource.UTILIZATION),
        SourceRow(PROFILE_HTTP, PowerSource.HTTP, listed=False),
        SourceRow(PROFILE_PROMETHEUS, PowerSource.PROMETHEUS, listed=False),
        SourceRow(STATIC, PowerSource.STATIC, listed=False),
    )
}
"""All sources by name, most trusted first."""
POWER_SOURCES = tuple(row.name for row in SOURCES.values() if row.listed)
"""Names that POWER_SOURCES may contain, in default order."""


def estimates(name: str) -> bool:
    """Whether a source only measures utilisation, from which power is estimated."""
    return SOURCES[name].stored is PowerSource.UTILIZATION
