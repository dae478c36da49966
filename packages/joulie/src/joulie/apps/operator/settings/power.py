"""Settings of where power comes from: that of nodes and pods, and that of the building."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.apps.operator.sources.catalogue import POWER_SOURCES
from joulie.settings import boolean, duration, integer, listed, number, text

POWER_STALE_AFTER = duration("POWER_STALE_AFTER", "2m", "Age from which a power sample is stale.", minimum=1.0)
POWER_TREND_WINDOW = duration("POWER_TREND_WINDOW", "5m", "How far back the power trend looks.", minimum=1.0)


def _sources(names: str) -> tuple[str, ...]:
    sources = listed(names)
    for name in sources:
        if name not in POWER_SOURCES:
            raise ValueError(f"unknown source {name!r}; known: {', '.join(POWER_SOURCES)}")
    return sources


@dataclass(frozen=True, kw_only=True)
class PowerSettings(PrometheusSettings):
    """Which sources are asked, how often, and from when a sample is too old."""

    sources: tuple[str, ...] = text(
        "POWER_SOURCES",
        ",".join(POWER_SOURCES),
        "Sources of power, most trusted first; those without an address are skipped, the estimate from requests is "
        "always the last.",
        to=_sources,
    )
    power_poll_interval_s: float = duration("POWER_POLL_INTERVAL", "30s", "How often sources are read.", minimum=1.0)
    power_stale_s: float = POWER_STALE_AFTER
    trend_window_s: float = POWER_TREND_WINDOW
    agent_urls: tuple[str, ...] = text(
        "AGENT_METRICS_URLS",
        "",
        "Addresses of agents' /metrics, separated by commas; without, agents are found by AGENT_POD_SELECTOR.",
        to=listed,
    )
    agent_pod_selector: str = text(
        "AGENT_POD_SELECTOR",
        "app.kubernetes.io/name=joulie,app.kubernetes.io/component=agent",
        "Label selector of the agents' pods; empty to ask none.",
    )
    agent_metrics_port: int = integer(
        "AGENT_METRICS_PORT", "8080", "Port of the agents' /metrics.", minimum=1, maximum=65535
    )
    power_prometheus_address: str = text(
        "POWER_PROMETHEUS_ADDRESS",
        "",
        "Prometheus that POWER_PROMETHEUS_QUERY is sent to, without authentication; empty for PROMETHEUS_ADDRESS.",
    )
    power_prometheus_query: str = text(
        "POWER_PROMETHEUS_QUERY",
        "",
        "PromQL whose result has the power (W) of whole nodes, with the label node; several series are summed.",
    )
    telemetry_http_endpoint: str = text(
        "TELEMETRY_HTTP_ENDPOINT",
        "",
        "URL of telemetry: of one node where it contains {node}, else of all. Empty for none.",
    )
    static_power_w: float = number(
        "STATIC_POWER_WATTS",
        "0",
        "Power to assume for nodes that nothing else is known of; 0 to assume none.",
        minimum=0,
        unit="W",
    )

    facility_metrics: bool = boolean("ENABLE_FACILITY_METRICS", False, "Read metrics of the building from Prometheus.")
    facility_prometheus_address: str = text(
        "FACILITY_PROMETHEUS_ADDRESS", "http://prometheus-operated.monitoring:9090", "Prometheus that has them."
    )
    facility_poll_interval_s: float = duration("FACILITY_POLL_INTERVAL", "30s", "How often they are read.", minimum=1.0)
    facility_ambient_query: str = text(
        "FACILITY_AMBIENT_TEMP_METRIC",
        "datacenter_ambient_temperature_celsius",
        "PromQL of the ambient temperature; several series are averaged.",
        unit="C",
    )
    facility_it_power_query: str = text(
        "FACILITY_IT_POWER_METRIC",
        "datacenter_total_it_power_watts",
        "PromQL of the IT power; several series are summed.",
        unit="W",
    )
    facility_cooling_power_query: str = text(
        "FACILITY_COOLING_POWER_METRIC",
        "datacenter_cooling_power_watts",
        "PromQL of the power of cooling; several series are summed.",
        unit="W",
    )
    facility_zone_ambient_template: str = text(
        "FACILITY_ZONE_AMBIENT_METRIC_TEMPLATE",
        "",
        "PromQL of a cooling zone's temperature; %s stands for the zone. Empty for none.",
        unit="C",
    )
    facility_rack_power_template: str = text(
        "FACILITY_RACK_POWER_METRIC_TEMPLATE",
        "",
        "PromQL of a rack's power; %s stands for the rack. Empty for none.",
        unit="W",
    )

    def __post_init__(self) -> None:
        if self.power_poll_interval_s >= self.power_stale_s:
            raise ValueError(
                f"POWER_POLL_INTERVAL ({self.power_poll_interval_s:g} s) must be below POWER_STALE_AFTER "
                f"({self.power_stale_s:g} s), or samples grow stale between two readings"
            )
