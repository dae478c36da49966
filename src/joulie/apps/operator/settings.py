"""Settings of the operator, and what the domain makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulie.apps.program.leading import LeaderSettings
from joulie.apps.program.prometheus_settings import PrometheusSettings
from joulie.apps.program.settings import Kind, setting
from joulie.domain.control import ControlSettings
from joulie.domain.drain import DrainSettings, Escalation
from joulie.domain.energy_split import EnergyBounds
from joulie.domain.hardware.resolve import GPU_PRODUCT_KEYS
from joulie.domain.label_selector import LabelSelector
from joulie.domain.policy import Cap, PolicySettings, Profile, ProfileCaps
from joulie.domain.profiles.reschedule import RescheduleSettings
from joulie.domain.twin import DEFAULT_RACK_CAPACITY_W

POWER_SOURCES = (
    "agents",
    "prometheus",
    "kepler",
    "node-exporter",
    "http",
    "cadvisor",
    "metrics-server",
    "requests",
)


@dataclass(frozen=True, kw_only=True)
class OperatorSettings(PrometheusSettings, LeaderSettings):
    """Settings of `joulie operator`.

    Raises:
        ValueError: a setting that cannot be, or settings that contradict each other.
    """

    reconcile_interval_s: float = setting(
        "RECONCILE_INTERVAL", "1m", kind=Kind.DURATION, minimum=0.1, help="Longest time between two reconciles."
    )
    metrics_addr: str = setting("METRICS_ADDR", ":8081", kind=Kind.TEXT, help="Address of /metrics and probes.")
    node_selector: str = setting(
        "NODE_SELECTOR", "joulie.io/managed=true", kind=Kind.TEXT, help="Label selector of the nodes in scope."
    )
    reserved_label_key: str = setting(
        "RESERVED_LABEL_KEY", "joulie.io/reserved", kind=Kind.TEXT, help="Label of nodes that are never planned."
    )
    power_profile_label: str = setting(
        "POWER_PROFILE_LABEL", "joulie.io/power-profile", kind=Kind.TEXT, help="Label that says a node's profile."
    )
    hardware_catalog: Path | None = setting(
        "HARDWARE_CATALOG_PATH", None, kind=Kind.PATH, help="YAML file of hardware models beside the built-in ones."
    )
    gpu_product_label_keys: str = setting(
        "GPU_PRODUCT_LABEL_KEYS",
        ",".join(GPU_PRODUCT_KEYS),
        kind=Kind.TEXT,
        help="Node labels that may name the GPU, best first, separated by commas.",
    )
    twin_staleness_s: float = setting(
        "TWIN_STALENESS_THRESHOLD",
        "5m",
        kind=Kind.DURATION,
        minimum=10.0,
        help="Age from which others disregard a NodeTwin; lastUpdated is refreshed at half of it.",
    )

    policy_type: str = setting(
        "POLICY_TYPE",
        "static_partition",
        kind=Kind.TEXT,
        help="Policy: static_partition, queue_aware_v1, energy_per_work, rule_swap_v1, or one that a plug-in brings.",
    )
    static_hp_frac: float = setting(
        "STATIC_HP_FRAC", "0.50", kind=Kind.NUMBER, minimum=0, maximum=1, help="Share of performance nodes."
    )
    queue_hp_base_frac: float = setting(
        "QUEUE_HP_BASE_FRAC", "0.60", kind=Kind.NUMBER, minimum=0, maximum=1, help="Least share of performance nodes."
    )
    queue_hp_min: int = setting("QUEUE_HP_MIN", "1", kind=Kind.INTEGER, minimum=0, help="Least performance nodes.")
    queue_hp_max: int = setting("QUEUE_HP_MAX", "1000000", kind=Kind.INTEGER, minimum=0, help="Most performance nodes.")
    queue_perf_per_hp_node: int = setting(
        "QUEUE_PERF_PER_HP_NODE", "10", kind=Kind.INTEGER, minimum=1, help="Performance pods that one node serves."
    )
    energy_performance_slowdown: float = setting(
        "ENERGY_SLOWDOWN_BOUND_PERFORMANCE",
        "1.02",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=10,
        help="energy_per_work: run time of performance work under caps over that without, at most, for 95 % of it.",
    )
    energy_standard_slowdown: float = setting(
        "ENERGY_SLOWDOWN_BOUND_STANDARD",
        "1.15",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=10,
        help="energy_per_work: the same of standard work.",
    )
    energy_gpu_util_low_pct: float = setting(
        "ENERGY_GPU_UTILIZATION_LOW_PCT",
        "20",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=100,
        unit="%",
        help="energy_per_work: least utilisation of the cluster's GPUs while they work.",
    )
    energy_gpu_util_high_pct: float = setting(
        "ENERGY_GPU_UTILIZATION_HIGH_PCT",
        "100",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=100,
        unit="%",
        help="energy_per_work: highest; a GPU above it may be slowed beyond the bound, at 100 none is.",
    )
    energy_count_spread: bool = setting(
        "ENERGY_COUNT_JOB_SPREAD",
        "true",
        kind=Kind.BOOLEAN,
        help="energy_per_work: hold the bounds for jobs that bear caps as badly as measured ones did, not for the "
        "median job.",
    )

    drain_settling_s: float = setting(
        "DRAIN_SETTLING", "30s", kind=Kind.DURATION, minimum=0, help="Time without a blocking pod before caps are set."
    )
    drain_timeout_s: float = setting(
        "DRAIN_TIMEOUT", "30m", kind=Kind.DURATION, minimum=0, help="Drain that counts as too long; 0 for never."
    )
    drain_escalation: str = setting(
        "DRAIN_ESCALATION",
        "hold",
        kind=Kind.CHOICE,
        choices=tuple(Escalation),
        help="What then happens: hold says so, force sets the caps under running pods.",
    )

    performance_cap_w: float = setting(
        "PERFORMANCE_CAP_WATTS", "5000", kind=Kind.NUMBER, minimum=1, unit="W", help="CPU package cap, performance."
    )
    eco_cap_w: float = setting(
        "ECO_CAP_WATTS", "120", kind=Kind.NUMBER, minimum=1, unit="W", help="CPU package cap, eco."
    )
    cpu_performance_cap_pct: float = setting(
        "CPU_PERFORMANCE_CAP_PCT_OF_MAX",
        "100",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=100,
        unit="%",
        help="CPU cap, performance.",
    )
    cpu_eco_cap_pct: float = setting(
        "CPU_ECO_CAP_PCT_OF_MAX", "60", kind=Kind.NUMBER, minimum=1, maximum=100, unit="%", help="CPU cap, eco."
    )
    cpu_absolute_caps: bool = setting(
        "CPU_WRITE_ABSOLUTE_CAPS", "false", kind=Kind.BOOLEAN, help="Write CPU caps in watts instead of percent."
    )
    gpu_performance_cap_pct: float = setting(
        "GPU_PERFORMANCE_CAP_PCT_OF_MAX",
        "100",
        kind=Kind.NUMBER,
        minimum=1,
        maximum=100,
        unit="%",
        help="GPU cap, performance.",
    )
    gpu_eco_cap_pct: float = setting(
        "GPU_ECO_CAP_PCT_OF_MAX", "60", kind=Kind.NUMBER, minimum=1, maximum=100, unit="%", help="GPU cap, eco."
    )
    gpu_absolute_caps: bool = setting(
        "GPU_WRITE_ABSOLUTE_CAPS", "false", kind=Kind.BOOLEAN, help="Write GPU caps in watts where the range is known."
    )
    gpu_model_caps: Mapping[str, Any] = setting(
        "GPU_MODEL_CAPS_JSON",
        "{}",
        kind=Kind.JSON,
        help='Cap range by GPU model, {"model": {"minCapWatts": W, "maxCapWatts": W}}: percentages then are of it.',
    )

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
    time_scale: float = setting(
        "SIM_TIME_SCALE",
        "1",
        kind=Kind.NUMBER,
        minimum=0.01,
        maximum=10_000.0,
        help="Simulated seconds a second, where nodes are simulated faster than in real time: power trends are then "
        "those of simulated time.",
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

    cooling_model: str = setting(
        "COOLING_MODEL", "linear", kind=Kind.TEXT, help="Cooling model: linear, or one that a plug-in brings."
    )
    rack_capacity_w: float = setting(
        "RACK_CAPACITY_WATTS",
        f"{DEFAULT_RACK_CAPACITY_W:g}",
        kind=Kind.NUMBER,
        minimum=1,
        unit="W",
        help="Power capacity of a rack, and of the cluster for nodes without one.",
    )
    rack_capacities_w: Mapping[str, Any] = setting(
        "RACK_CAPACITY_WATTS_JSON", "{}", kind=Kind.JSON, unit="W", help="Power capacity by rack, where it differs."
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

    enable_classifier: bool = setting(
        "ENABLE_CLASSIFIER", "true", kind=Kind.BOOLEAN, help="Keep a WorkloadProfile of each workload."
    )
    classify_interval_s: float = setting(
        "CLASSIFY_INTERVAL",
        "30s",
        kind=Kind.DURATION,
        minimum=1.0,
        help="How often the classifier looks whether a workload is due; it asks for metrics only then.",
    )
    reclassify_interval_s: float = setting(
        "RECLASSIFY_INTERVAL",
        "15m",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Time between two classifications of a workload, each workload at its own moment; also the time after "
        "which confidence falls by a step where its metrics have vanished.",
    )
    classify_window_s: float = setting(
        "CLASSIFY_METRICS_WINDOW",
        "10m",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Time that use is averaged over, and that a pod must have run before it counts.",
    )
    kepler_available: bool = setting(
        "KEPLER_AVAILABLE", "true", kind=Kind.BOOLEAN, help="Ask Prometheus for Kepler's energy of pods."
    )
    min_confidence: float = setting(
        "CLASSIFY_MIN_CONFIDENCE",
        "0.5",
        kind=Kind.NUMBER,
        minimum=0.0,
        maximum=1.0,
        help="Confidence that a WorkloadProfile needs to weigh in the demand for performance nodes.",
    )
    classify_learned: bool = setting(
        "CLASSIFY_LEARNED",
        "false",
        kind=Kind.BOOLEAN,
        help="Let learned trees refine intensities and the GPUs' cap sensitivity from the course of use over the "
        "window; three range queries more a cycle. They were trained on windows of ten minutes.",
    )
    cap_response_query: str = setting(
        "CAP_RESPONSE_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL of the work that pods do in a second, by namespace and pod, in any unit: measures cap sensitivity "
        "where the caps of a node change. Empty for none.",
    )
    classify_simulated: bool = setting(
        "CLASSIFY_SIMULATED",
        "false",
        kind=Kind.BOOLEAN,
        help="Take the utilisation that pods' sim.joulie.io annotations ask for as if it had been measured.",
    )
    classify_simulated_noise_pct: float = setting(
        "CLASSIFY_SIMULATED_NOISE_PCT",
        "0",
        kind=Kind.NUMBER,
        minimum=0.0,
        maximum=100.0,
        unit="%",
        help="Standard deviation of Gaussian noise on that, in points.",
    )

    active_rescheduling: bool = setting(
        "ENABLE_ACTIVE_RESCHEDULING",
        "false",
        kind=Kind.BOOLEAN,
        help="Evict pods that say that they may be restarted, from nodes that drain or are under stress.",
    )
    reschedule_interval_s: float = setting(
        "RESCHEDULE_INTERVAL",
        "60s",
        kind=Kind.DURATION,
        minimum=1.0,
        help="How often the rescheduler looks at the cluster; recommendations follow it even where it evicts nothing.",
    )
    reschedule_dry_run: bool = setting(
        "RESCHEDULE_DRY_RUN", "false", kind=Kind.BOOLEAN, help="Log and count evictions without asking for them."
    )
    reschedule_max_per_node: int = setting(
        "RESCHEDULE_MAX_EVICTIONS_PER_NODE",
        "1",
        kind=Kind.INTEGER,
        minimum=1,
        help="Pods to evict from one node in one interval.",
    )
    reschedule_max_per_cycle: int = setting(
        "RESCHEDULE_MAX_EVICTIONS", "10", kind=Kind.INTEGER, minimum=1, help="Pods to evict in one interval in all."
    )
    reschedule_cooldown_s: float = setting(
        "RESCHEDULE_COOLDOWN",
        "10m",
        kind=Kind.DURATION,
        minimum=0.0,
        help="Time after an eviction in which no other pod of the same workload is evicted.",
    )
    reschedule_min_age_s: float = setting(
        "RESCHEDULE_MIN_POD_AGE", "10m", kind=Kind.DURATION, minimum=0.0, help="Age below which pods stay."
    )
    reschedule_cooling_stress_pct: float = setting(
        "RESCHEDULE_COOLING_STRESS_PCT",
        "90",
        kind=Kind.NUMBER,
        minimum=0,
        maximum=100,
        unit="%",
        help="Cooling stress above which a node is under stress.",
    )
    reschedule_psu_stress_pct: float = setting(
        "RESCHEDULE_PSU_STRESS_PCT",
        "90",
        kind=Kind.NUMBER,
        minimum=0,
        maximum=100,
        unit="%",
        help="PSU stress of a node's rack above which it is under stress.",
    )
    reschedule_headroom_pct: float = setting(
        "RESCHEDULE_HEADROOM_PCT",
        "0",
        kind=Kind.NUMBER,
        minimum=0,
        maximum=100,
        unit="%",
        help="Power left below the caps under which a node is under stress; 0 for never, since a busy eco node has "
        "none by design.",
    )
    reschedule_margin_pct: float = setting(
        "RESCHEDULE_MARGIN_PCT",
        "10",
        kind=Kind.NUMBER,
        minimum=0,
        maximum=100,
        unit="%",
        help="How far from stress a node must stay that gets a pod, in points.",
    )

    selector: LabelSelector = field(init=False)
    sources: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            selector = LabelSelector.parse(self.node_selector)
        except ValueError as error:
            raise ValueError(f"NODE_SELECTOR: {error}") from error
        object.__setattr__(self, "selector", selector)
        object.__setattr__(self, "sources", _sources(self.power_sources))
        if self.reconcile_interval_s > self.twin_staleness_s / 2.0:
            raise ValueError(
                f"RECONCILE_INTERVAL ({self.reconcile_interval_s:g} s) must be at most half of "
                f"TWIN_STALENESS_THRESHOLD ({self.twin_staleness_s:g} s), or twins grow old between two steps"
            )
        if self.power_poll_interval_s >= self.power_stale_s:
            raise ValueError(
                f"POWER_POLL_INTERVAL ({self.power_poll_interval_s:g} s) must be below POWER_STALE_AFTER "
                f"({self.power_stale_s:g} s), or samples grow stale between two readings"
            )
        _ = self.policy, self.control  # refuse what they refuse, at start

    @property
    def rescheduling(self) -> RescheduleSettings:
        """Settings of the rescheduler's decision."""
        return RescheduleSettings(
            cooling_stress_pct=self.reschedule_cooling_stress_pct,
            psu_stress_pct=self.reschedule_psu_stress_pct,
            headroom_pct=self.reschedule_headroom_pct,
            margin_pct=self.reschedule_margin_pct,
            max_per_node=self.reschedule_max_per_node,
            max_per_cycle=self.reschedule_max_per_cycle,
            min_age_s=self.reschedule_min_age_s,
        )

    @property
    def policy(self) -> PolicySettings:
        """Settings of the policies."""
        return PolicySettings(
            self.static_hp_frac,
            self.queue_hp_base_frac,
            self.queue_hp_min,
            self.queue_hp_max,
            self.queue_perf_per_hp_node,
            self.reconcile_interval_s,
            self._energy_bounds,
        )

    @property
    def control(self) -> ControlSettings:
        """Settings of the step."""
        return ControlSettings(
            drain=DrainSettings(self.drain_settling_s, self.drain_timeout_s or None, Escalation(self.drain_escalation)),
            caps=self.caps,
            absolute_gpu_caps=self.gpu_absolute_caps,
            stale_after_s=self.power_stale_s,
            trend_window_s=self.trend_window_s,
            rack_capacity_w={
                rack: _watts("RACK_CAPACITY_WATTS_JSON", rack, watts) for rack, watts in self.rack_capacities_w.items()
            },
            default_capacity_w=self.rack_capacity_w,
            time_scale=self.time_scale,
        )

    @property
    def _energy_bounds(self) -> EnergyBounds:
        if self.energy_gpu_util_low_pct > self.energy_gpu_util_high_pct:
            raise ValueError(
                f"ENERGY_GPU_UTILIZATION_LOW_PCT ({self.energy_gpu_util_low_pct:g}) must be at most "
                f"ENERGY_GPU_UTILIZATION_HIGH_PCT ({self.energy_gpu_util_high_pct:g})"
            )
        return EnergyBounds(
            self.energy_performance_slowdown,
            self.energy_standard_slowdown,
            self.energy_gpu_util_low_pct / 100.0,
            self.energy_gpu_util_high_pct / 100.0,
            self.energy_count_spread,
        )

    @property
    def caps(self) -> Mapping[Profile, ProfileCaps]:
        """Caps by profile."""
        return {
            Profile.PERFORMANCE: self._profile_caps(
                self.cpu_performance_cap_pct, self.performance_cap_w, self.gpu_performance_cap_pct
            ),
            Profile.ECO: self._profile_caps(self.cpu_eco_cap_pct, self.eco_cap_w, self.gpu_eco_cap_pct),
        }

    @property
    def gpu_product_keys(self) -> tuple[str, ...]:
        """Node labels that may name the GPU."""
        return _listed(self.gpu_product_label_keys)

    @property
    def agent_urls(self) -> tuple[str, ...]:
        """Addresses of agents' /metrics, where they are given."""
        return _listed(self.agent_metrics_urls)

    def _profile_caps(self, cpu_pct: float, cpu_w: float, gpu_pct: float) -> ProfileCaps:
        by_model = {model: _model_cap_w(model, limits, gpu_pct) for model, limits in self.gpu_model_caps.items()}
        return ProfileCaps(Cap(cpu_pct, cpu_w if self.cpu_absolute_caps else None), Cap(gpu_pct), by_model)


def _model_cap_w(model: str, limits: Any, percent: float) -> float:
    """A profile's cap on GPUs of one model, W: percent of its largest cap, not below its smallest."""
    if (
        not isinstance(limits, Mapping)
        or not {"minCapWatts", "maxCapWatts"} >= set(limits)
        or "maxCapWatts" not in limits
    ):
        raise ValueError(
            f'GPU_MODEL_CAPS_JSON: {model}: expected {{"minCapWatts": W, "maxCapWatts": W}}, got {limits!r}'
        )
    largest_w = _watts("GPU_MODEL_CAPS_JSON", f"{model}.maxCapWatts", limits["maxCapWatts"])
    smallest_w = _watts("GPU_MODEL_CAPS_JSON", f"{model}.minCapWatts", limits.get("minCapWatts", 1.0))
    if smallest_w > largest_w:
        raise ValueError(f"GPU_MODEL_CAPS_JSON: {model}: minCapWatts {smallest_w:g} is above maxCapWatts {largest_w:g}")
    return max(smallest_w, largest_w * percent / 100.0)


def _watts(variable: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 1.0:
        raise ValueError(f"{variable}: {key}: a number of watts, at least 1, is expected, got {value!r}")
    return float(value)


def _sources(text: str) -> tuple[str, ...]:
    names = _listed(text)
    for name in names:
        if name not in POWER_SOURCES:
            raise ValueError(f"POWER_SOURCES: unknown source {name!r}; known: {', '.join(POWER_SOURCES)}")
    return tuple(dict.fromkeys(names))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in (item.strip() for item in text.split(",")) if part)
