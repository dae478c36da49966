"""Settings of where power comes from: that of nodes and pods, and that of the building."""

from __future__ import annotations

from dataclasses import dataclass, field

from joulie.apps.operator.power.catalogue import POWER_SOURCES
from joulie.program.prometheus_settings import PrometheusSettings
from joulie.program.settings import Kind, listed, setting


@dataclass(frozen=True, kw_only=True)
class PowerSettings(PrometheusSettings):
    """Which sources are asked, how often, and from when a sample is too old."""

    power_sources: str = setting(
        "POWER_SOURCES",
        ",".join(POWER_SOURCES),
        kind=Kind.TEXT,
        help="Sources of power, most trusted first; those without an address are skipped, the estimate from requests "
        "is always the last.",
    )
    power_poll_interval_s: float = setting(
        "POWER_POLL_INTERVAL", "30s", kind=Kind.DURATION, minimum=1.0, help="How often sources are read."
    )
    power_stale_s: float = setting(
        "POWER_STALE_AFTER", "2m", kind=Kind.DURATION, minimum=1.0, help="Age from which a sample no longer counts."
    )
    trend_window_s: float = setting(
        "POWER_TREND_WINDOW", "5m", kind=Kind.DURATION, minimum=1.0, help="How far back the power trend looks."
    )
    agent_metrics_urls: str = setting(
        "AGENT_METRICS_URLS",
        "",
        kind=Kind.TEXT,
        help="Addresses of agents' /metrics, separated by commas; without, agents are found by AGENT_POD_SELECTOR.",
    )
    agent_pod_selector: str = setting(
        "AGENT_POD_SELECTOR",
        "app.kubernetes.io/name=joulie,app.kubernetes.io/component=agent",
        kind=Kind.TEXT,
        help="Label selector of the agents' pods; empty to ask none.",
    )
    agent_metrics_port: int = setting(
        "AGENT_METRICS_PORT", "8080", kind=Kind.INTEGER, minimum=1, maximum=65535, help="Port of the agents' /metrics."
    )
    power_prometheus_address: str = setting(
        "POWER_PROMETHEUS_ADDRESS",
        "",
        kind=Kind.TEXT,
        help="Prometheus that POWER_PROMETHEUS_QUERY is sent to, without authentication; empty for PROMETHEUS_ADDRESS.",
    )
    power_prometheus_query: str = setting(
        "POWER_PROMETHEUS_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL whose result has the power (W) of whole nodes, with the label node; several series are summed.",
    )
    telemetry_http_endpoint: str = setting(
        "TELEMETRY_HTTP_ENDPOINT",
        "",
        kind=Kind.TEXT,
        help="URL of telemetry: of one node where it contains {node}, else of all. Empty for none.",
    )
    static_power_w: float = setting(
        "STATIC_POWER_WATTS",
        "0",
        kind=Kind.NUMBER,
        minimum=0,
        unit="W",
        help="Power to assume for nodes that nothing else is known of; 0 to assume none.",
    )

    facility_metrics: bool = setting(
        "ENABLE_FACILITY_METRICS", "false", kind=Kind.BOOLEAN, help="Read metrics of the building from Prometheus."
    )
    facility_prometheus_address: str = setting(
        "FACILITY_PROMETHEUS_ADDRESS",
        "http://prometheus-operated.monitoring:9090",
        kind=Kind.TEXT,
        help="Prometheus that has them.",
    )
    facility_poll_interval_s: float = setting(
        "FACILITY_POLL_INTERVAL", "30s", kind=Kind.DURATION, minimum=1.0, help="How often they are read."
    )
    facility_ambient_query: str = setting(
        "FACILITY_AMBIENT_TEMP_METRIC",
        "datacenter_ambient_temperature_celsius",
        kind=Kind.TEXT,
        unit="C",
        help="PromQL of the ambient temperature; several series are averaged.",
    )
    facility_it_power_query: str = setting(
        "FACILITY_IT_POWER_METRIC",
        "datacenter_total_it_power_watts",
        kind=Kind.TEXT,
        unit="W",
        help="PromQL of the IT power; several series are summed.",
    )
    facility_cooling_power_query: str = setting(
        "FACILITY_COOLING_POWER_METRIC",
        "datacenter_cooling_power_watts",
        kind=Kind.TEXT,
        unit="W",
        help="PromQL of the power of cooling; several series are summed.",
    )
    facility_zone_ambient_template: str = setting(
        "FACILITY_ZONE_AMBIENT_METRIC_TEMPLATE",
        "",
        kind=Kind.TEXT,
        unit="C",
        help="PromQL of a cooling zone's temperature; %s stands for the zone. Empty for none.",
    )
    facility_rack_power_template: str = setting(
        "FACILITY_RACK_POWER_METRIC_TEMPLATE",
        "",
        kind=Kind.TEXT,
        unit="W",
        help="PromQL of a rack's power; %s stands for the rack. Empty for none.",
    )

    sources: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sources", _sources(self.power_sources))
        if self.power_poll_interval_s >= self.power_stale_s:
            raise ValueError(
                f"POWER_POLL_INTERVAL ({self.power_poll_interval_s:g} s) must be below POWER_STALE_AFTER "
                f"({self.power_stale_s:g} s), or samples grow stale between two readings"
            )

    @property
    def agent_urls(self) -> tuple[str, ...]:
        """Addresses of agents' /metrics, where they are given."""
        return listed(self.agent_metrics_urls)


def _sources(text: str) -> tuple[str, ...]:
    names = listed(text)
    for name in names:
        if name not in POWER_SOURCES:
            raise ValueError(f"POWER_SOURCES: unknown source {name!r}; known: {', '.join(POWER_SOURCES)}")
    return names
