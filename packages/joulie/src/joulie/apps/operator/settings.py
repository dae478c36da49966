"""Settings of the operator, and what the domain makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulie.apps.operator.classifier.settings import ClassifierSettings
from joulie.apps.operator.power.settings import PowerSettings
from joulie.apps.operator.rescheduler.settings import ReschedulerSettings
from joulie.domain.control import ControlSettings
from joulie.domain.drain import DrainSettings, Escalation
from joulie.domain.energy_split import EnergyBounds
from joulie.domain.hardware.resolve import GPU_PRODUCT_KEYS
from joulie.domain.policy import Cap, PolicySettings, Profile, ProfileCaps
from joulie.domain.scheduling.labels import LabelSelector
from joulie.domain.twin import DEFAULT_RACK_CAPACITY_W
from joulie.program.leadership import LeaderSettings
from joulie.program.settings import Kind, listed, setting


@dataclass(frozen=True, kw_only=True)
class OperatorSettings(ReschedulerSettings, ClassifierSettings, PowerSettings, LeaderSettings):
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
    time_scale: float = setting(
        "SIM_TIME_SCALE",
        "1",
        kind=Kind.NUMBER,
        minimum=0.01,
        maximum=10_000.0,
        help="Simulated seconds a second, where nodes are simulated faster than in real time: power trends are then "
        "those of simulated time.",
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

    selector: LabelSelector = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            selector = LabelSelector.parse(self.node_selector)
        except ValueError as error:
            raise ValueError(f"NODE_SELECTOR: {error}") from error
        object.__setattr__(self, "selector", selector)
        if self.reconcile_interval_s > self.twin_staleness_s / 2.0:
            raise ValueError(
                f"RECONCILE_INTERVAL ({self.reconcile_interval_s:g} s) must be at most half of "
                f"TWIN_STALENESS_THRESHOLD ({self.twin_staleness_s:g} s), or twins grow old between two steps"
            )
        _ = self.policy, self.control  # refuse what they refuse, at start

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
        return listed(self.gpu_product_label_keys)

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
