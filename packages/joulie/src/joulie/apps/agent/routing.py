"""Which backends serve a node: those of the TelemetryProfile that fits it best, else those of the agent's variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from joulie.adapters.kubernetes.api import v1alpha1
from joulie.adapters.kubernetes.targets import specificity
from joulie.apps.agent.settings import AgentSettings

NODE = "{node}"
"""Stands for the node's name in endpoints and queries."""


class Via(StrEnum):
    """How a node is reached."""

    HOST = "host"
    HTTP = "http"
    PROMETHEUS = "prometheus"
    NONE = "none"


class CpuMode(StrEnum):
    """How CPUs are capped over HTTP."""

    AUTO = "auto"
    RAPL = "rapl"
    DVFS = "dvfs"


@dataclass(frozen=True)
class Route:
    """One source of telemetry, or one sink of caps.

    Attributes:
        via: how it is reached.
        endpoint: URL with ``{node}``, for HTTP; address of the server, for Prometheus.
        timeout_s: how long an answer may take, s.
        query: PromQL with ``{node}`` or without, for Prometheus.
    """

    via: Via
    endpoint: str = ""
    timeout_s: float = 3.0
    query: str = ""

    @property
    def tells_power(self) -> bool:
        """Whether an agent without devices of its own can read power here."""
        return self.via is Via.HTTP or (self.via is Via.PROMETHEUS and bool(self.endpoint and self.query))


@dataclass(frozen=True)
class Routing:
    """The backends of one node.

    Attributes:
        cpu_source: where CPU power is read.
        gpu_source: where GPU power is read.
        cpu_control: where CPU caps go.
        gpu_control: where GPU caps go.
        cpu_mode: how CPUs are capped over HTTP.
        report_to: the TelemetryProfile that wants the results: one that names this node. None otherwise.
    """

    cpu_source: Route
    gpu_source: Route
    cpu_control: Route
    gpu_control: Route
    cpu_mode: CpuMode = CpuMode.AUTO
    report_to: str | None = None


def from_settings(settings: AgentSettings) -> Routing:
    """The backends of the agent's variables."""

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
    """The backends of a node.

    The most specific profile counts: one that names the node, else the one with the most labels, else one for the
    cluster; of equals, the first by name. What it leaves out stays as in `fallback`.

    Args:
        node_name: the node.
        labels: its labels.
        profiles: all TelemetryProfiles.
        fallback: the backends where no profile matches.
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


def _route(stated: v1alpha1.Source | v1alpha1.Control | None, fallback: Route) -> Route:
    if stated is None:
        return fallback
    if isinstance(stated, v1alpha1.Source) and stated.prometheus is not None:
        server = stated.prometheus
        return Route(Via(stated.type), server.address, fallback.timeout_s, server.query)
    if stated.http is None:
        return Route(Via(stated.type))
    return Route(Via(stated.type), stated.http.endpoint, float(stated.http.timeout_seconds or fallback.timeout_s))
