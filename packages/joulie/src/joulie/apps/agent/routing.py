"""Selects the telemetry and control backends of a node: from its TelemetryProfile, else from the agent's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from joulie.adapters.kubernetes.api import v1alpha1
from joulie.adapters.kubernetes.targets import specificity
from joulie.apps.agent.settings import AgentSettings

NODE = "{node}"
"""Placeholder of the node name in endpoints and queries."""


class Via(StrEnum):
    """Kind of a telemetry or control backend."""

    HOST = "host"
    HTTP = "http"
    PROMETHEUS = "prometheus"
    NONE = "none"


class CpuMode(StrEnum):
    """Method of capping CPUs over HTTP: power limit, frequency, or (auto) power limit with frequency as fallback."""

    AUTO = "auto"
    RAPL = "rapl"
    DVFS = "dvfs"


@dataclass(frozen=True)
class Route:
    """One telemetry source or control backend.

    Attributes:
        via: kind of the backend.
        endpoint: URL with ``{node}`` for HTTP; server address for Prometheus.
        timeout_s: request timeout, s.
        query: PromQL for Prometheus, with or without ``{node}``.
    """

    via: Via
    endpoint: str = ""
    timeout_s: float = 3.0
    query: str = ""

    @property
    def provides_power(self) -> bool:
        """Whether power of a remote node can be read from this source."""
        return self.via is Via.HTTP or (self.via is Via.PROMETHEUS and bool(self.endpoint and self.query))


@dataclass(frozen=True)
class Routing:
    """Backends of one node.

    Attributes:
        cpu_source: source of CPU power.
        gpu_source: source of GPU power.
        cpu_control: backend of CPU caps.
        gpu_control: backend of GPU caps.
        cpu_mode: method of capping CPUs over HTTP.
        report_to: name of the TelemetryProfile that receives control results: one that targets this node by name;
            None without one.
    """

    cpu_source: Route
    gpu_source: Route
    cpu_control: Route
    gpu_control: Route
    cpu_mode: CpuMode = CpuMode.AUTO
    report_to: str | None = None


def from_settings(settings: AgentSettings) -> Routing:
    """Backends configured by the agent's settings."""

    def route(kind: str, endpoint: str) -> Route:
        return Route(Via(kind), endpoint, settings.http_timeout_s)

    cpu_source = route(settings.cpu_source, settings.cpu_source_endpoint)
    if cpu_source.via is Via.PROMETHEUS:
        cpu_source = replace(cpu_source, endpoint=settings.prometheus_address, query=settings.cpu_prometheus_query)
    return Routing(
        cpu_source=cpu_source,
        gpu_source=route(settings.gpu_source, settings.gpu_source_endpoint),
        cpu_control=route(settings.cpu_control, settings.cpu_control_endpoint),
        gpu_control=route(settings.gpu_control, settings.gpu_control_endpoint),
        cpu_mode=CpuMode(settings.cpu_control_mode),
    )


def choose(
    node_name: str,
    labels: Mapping[str, str],
    profiles: Iterable[v1alpha1.TelemetryProfile],
    fallback: Routing,
) -> Routing:
    """Backends of a node.

    The most specific matching profile is used: one that names the node, else the one with the most labels, else one
    for the cluster; ties are broken by name. Backends that it does not set are taken from `fallback`.

    Args:
        node_name: node name.
        labels: labels of the node.
        profiles: all TelemetryProfiles.
        fallback: backends if no profile matches.
    """
    ranked = []
    for profile in profiles:
        rank = specificity(profile.spec.target, node_name, labels)
        if rank is not None:
            ranked.append((-rank, profile.metadata.name, profile))
    if not ranked:
        return fallback
    profile = min(ranked, key=lambda entry: entry[:2])[2]
    return _routing(profile, fallback)


def _routing(profile: v1alpha1.TelemetryProfile, fallback: Routing) -> Routing:
    sources = profile.spec.sources or v1alpha1.Sources()
    controls = profile.spec.controls or v1alpha1.Controls()
    http = controls.cpu.http if controls.cpu else None
    return Routing(
        cpu_source=_route(sources.cpu, fallback.cpu_source),
        gpu_source=_route(sources.gpu, fallback.gpu_source),
        cpu_control=_route(controls.cpu, fallback.cpu_control),
        gpu_control=_route(controls.gpu, fallback.gpu_control),
        cpu_mode=CpuMode(http.mode) if http and http.mode in set(CpuMode) else fallback.cpu_mode,
        report_to=profile.metadata.name if profile.spec.target.node_name is not None else None,
    )


def _route(spec: v1alpha1.Source | v1alpha1.Control | None, fallback: Route) -> Route:
    if spec is None:
        return fallback
    if isinstance(spec, v1alpha1.Source) and spec.prometheus is not None:
        server = spec.prometheus
        return Route(Via(spec.type), server.address, fallback.timeout_s, server.query)
    if spec.http is None:
        return Route(Via(spec.type))
    return Route(Via(spec.type), spec.http.endpoint, float(spec.http.timeout_seconds or fallback.timeout_s))
