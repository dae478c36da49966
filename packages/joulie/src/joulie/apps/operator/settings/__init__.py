"""Settings of the operator; groups of them are the domain's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.adapters.kubernetes import names
from joulie.apps.operator.settings.budgets import PowerBudgetSettings
from joulie.apps.operator.settings.classifier import ClassifierSettings
from joulie.apps.operator.settings.limits import GpuLimitSettings
from joulie.apps.operator.settings.power import POWER_STALE_AFTER, POWER_TREND_WINDOW, PowerSettings
from joulie.apps.operator.settings.rescheduler import ReschedulerSettings
from joulie.apps.operator.settings.sleep import NodeSleepSettings
from joulie.domain.control import ControlSettings
from joulie.domain.drain import DrainSettings, Escalation
from joulie.domain.energy_split import EnergyBounds
from joulie.domain.hardware.resolve import GPU_PRODUCT_KEYS
from joulie.domain.hysteresis import Hysteresis
from joulie.domain.policies import FULL_POWER, POLICIES
from joulie.domain.policy import Cap, PolicySettings, Profile, ProfileCaps
from joulie.domain.scheduling.labels import LabelSelector
from joulie.domain.twin import DEFAULT_RACK_CAPACITY_W
from joulie.program.leadership import LeaderSettings
from joulie.program.settings import ModeSettings
from joulie.settings import (
    boolean,
    choice,
    duration,
    group,
    integer,
    json_object,
    listed,
    number,
    path,
    percentage,
    text,
)

_RECONCILE_INTERVAL = duration("RECONCILE_INTERVAL", "1m", "Maximum time between two reconciles.", minimum=0.1)


def _energy_bounds(
    performance_slowdown: float,
    standard_slowdown: float,
    gpu_util_low_pct: float,
    gpu_util_high_pct: float,
    count_spread: bool,
) -> EnergyBounds:
    """What caps by energy per work must keep to.

    Raises:
        ValueError: the GPUs' range of utilisation is empty.
    """
    if gpu_util_low_pct > gpu_util_high_pct:
        raise ValueError(
            f"ENERGY_GPU_UTILIZATION_LOW_PCT ({gpu_util_low_pct:g}) must be at most "
            f"ENERGY_GPU_UTILIZATION_HIGH_PCT ({gpu_util_high_pct:g})"
        )
    low, high = gpu_util_low_pct / 100.0, gpu_util_high_pct / 100.0
    return EnergyBounds(performance_slowdown, standard_slowdown, low, high, count_spread)


def _caps(
    cpu_w: Mapping[Profile, float],
    cpu_pct: Mapping[Profile, float],
    cpu_absolute: bool,
    gpu_pct: Mapping[Profile, float],
    gpu_range_w: Mapping[str, tuple[float, float]],
) -> Mapping[Profile, ProfileCaps]:
    """Caps by profile; on a GPU whose range is known, percentages are of its maximum, not below its minimum."""
    return {
        profile: ProfileCaps(
            Cap(cpu_pct[profile], cpu_w[profile] if cpu_absolute else None),
            Cap(gpu_pct[profile]),
            {model: max(min_w, max_w * gpu_pct[profile] / 100.0) for model, (min_w, max_w) in gpu_range_w.items()},
        )
        for profile in Profile
    }


def _by_profile(performance: Any, eco: Any) -> Any:
    """A value for each profile."""
    return group(_profiles, performance=performance, eco=eco)


def _profiles(performance: float, eco: float) -> Mapping[Profile, float]:
    return {Profile.PERFORMANCE: performance, Profile.ECO: eco}


def _cap_ranges(models: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
    """Minimum and maximum cap by GPU model, W."""
    return {model: _cap_range(model, limits) for model, limits in models.items()}


def _cap_range(model: str, limits: Any) -> tuple[float, float]:
    known = {"minCapWatts", "maxCapWatts"}
    if not isinstance(limits, Mapping) or not {"maxCapWatts"} <= set(limits) <= known:
        raise ValueError(f'{model}: expected {{"minCapWatts": W, "maxCapWatts": W}}, got {limits!r}')
    max_w = _watts(f"{model}.maxCapWatts", limits["maxCapWatts"])
    min_w = _watts(f"{model}.minCapWatts", limits.get("minCapWatts", 1.0))
    if min_w > max_w:
        raise ValueError(f"{model}: minCapWatts {min_w:g} is above maxCapWatts {max_w:g}")
    return min_w, max_w


def _rack_capacities_w(racks: Mapping[str, Any]) -> Mapping[str, float]:
    return {rack: _watts(rack, watts) for rack, watts in racks.items()}


def _watts(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 1.0:
        raise ValueError(f"{key}: a number of watts, at least 1, is expected, got {value!r}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class OperatorSettings(
    ModeSettings,
    ReschedulerSettings,
    ClassifierSettings,
    GpuLimitSettings,
    PowerBudgetSettings,
    NodeSleepSettings,
    PowerSettings,
    LeaderSettings,
):
    """Settings of `joulie operator`.

    Raises:
        ValueError: an invalid setting, or settings that contradict each other.
    """

    reconcile_interval_s: float = _RECONCILE_INTERVAL
    metrics_addr: str = text("METRICS_ADDR", ":8081", "Address of /metrics and probes.")
    selector: LabelSelector = text(
        "NODE_SELECTOR", "joulie.io/managed=true", "Label selector of the nodes in scope.", to=LabelSelector.parse
    )
    reserved_label_key: str = text("RESERVED_LABEL_KEY", names.RESERVED_LABEL, "Label of nodes that are never planned.")
    power_profile_label: str = text(
        "POWER_PROFILE_LABEL", "joulie.io/power-profile", "Label that holds a node's power profile."
    )
    hardware_catalog: Path | None = path(
        "HARDWARE_CATALOG_PATH", None, "YAML file of hardware models beside the built-in ones."
    )
    gpu_product_keys: tuple[str, ...] = text(
        "GPU_PRODUCT_LABEL_KEYS",
        ",".join(GPU_PRODUCT_KEYS),
        "Node labels that may name the GPU, best first, separated by commas.",
        to=listed,
    )
    twin_staleness_s: float = duration(
        "TWIN_STALENESS_THRESHOLD",
        "5m",
        "A NodeTwin older than this is treated as stale; lastUpdated is refreshed at half of it.",
        minimum=10.0,
    )

    policy_type: str = text(
        "POLICY_TYPE",
        FULL_POWER,
        f"Policy: {', '.join(POLICIES)}, or one that a plug-in brings; full_power caps no node. "
        "Fixed caps slow standard work; some cost energy: see docs/experiments/owners.md.",
    )
    policy: PolicySettings = group(
        PolicySettings,
        static_hp_frac=number("STATIC_HP_FRAC", "0.50", "Share of performance nodes.", minimum=0, maximum=1),
        queue_hp_base_frac=number(
            "QUEUE_HP_BASE_FRAC", "0.60", "Minimum share of performance nodes.", minimum=0, maximum=1
        ),
        queue_hp_min=integer("QUEUE_HP_MIN", "1", "Minimum number of performance nodes.", minimum=0),
        queue_hp_max=integer("QUEUE_HP_MAX", "1000000", "Maximum number of performance nodes.", minimum=0),
        queue_perf_per_hp_node=integer(
            "QUEUE_PERF_PER_HP_NODE", "10", "Performance pods that one node serves.", minimum=1
        ),
        hysteresis=group(
            Hysteresis,
            hold_s=duration(
                "QUEUE_HOLD",
                "5m",
                "Minimum time between a change of the number of performance nodes and a reduction; 0 disables it.",
                minimum=0,
            ),
            band=number(
                "QUEUE_HYSTERESIS",
                "0.5",
                "How far demand must fall for that, as a share of the pods that one node serves; else the number is "
                "reduced after six times that time.",
                minimum=0,
                maximum=100,
            ),
        ),
        rule_swap_interval_s=_RECONCILE_INTERVAL,
        energy=group(
            _energy_bounds,
            performance_slowdown=number(
                "ENERGY_SLOWDOWN_BOUND_PERFORMANCE",
                "1.02",
                "energy_per_work: maximum run time of performance work under caps over that without, for 95 % of it.",
                minimum=1,
                maximum=10,
            ),
            standard_slowdown=number(
                "ENERGY_SLOWDOWN_BOUND_STANDARD",
                "1.15",
                "energy_per_work: the same for standard work.",
                minimum=1,
                maximum=10,
            ),
            gpu_util_low_pct=percentage(
                "ENERGY_GPU_UTILIZATION_LOW_PCT",
                "20",
                "energy_per_work: minimum utilisation of the cluster's GPUs while they work.",
                minimum=1,
            ),
            gpu_util_high_pct=percentage(
                "ENERGY_GPU_UTILIZATION_HIGH_PCT",
                "100",
                "energy_per_work: maximum utilisation; a GPU above it may be slowed beyond the bound.",
                minimum=1,
            ),
            count_spread=boolean(
                "ENERGY_COUNT_JOB_SPREAD",
                True,
                "energy_per_work: keep the bounds for jobs as sensitive to caps as those measured, not only for the "
                "median job.",
            ),
        ),
    )

    control: ControlSettings = group(
        ControlSettings,
        drain=group(
            DrainSettings,
            settling_s=duration("DRAIN_SETTLING", "30s", "Time without a blocking pod before caps are set.", minimum=0),
            timeout_s=duration(
                "DRAIN_TIMEOUT",
                "30m",
                "Drain timeout; 0 disables it.",
                minimum=0,
                to=lambda timeout_s: timeout_s or None,
            ),
            escalation=choice(
                "DRAIN_ESCALATION",
                "hold",
                "What happens after the timeout: hold only reports it, force sets the caps under running pods.",
                Escalation,
            ),
        ),
        caps=group(
            _caps,
            cpu_w=_by_profile(
                number("PERFORMANCE_CAP_WATTS", "5000", "CPU package cap, performance.", minimum=1, unit="W"),
                number("ECO_CAP_WATTS", "120", "CPU package cap, eco.", minimum=1, unit="W"),
            ),
            cpu_pct=_by_profile(
                percentage("CPU_PERFORMANCE_CAP_PCT_OF_MAX", "100", "CPU cap, performance.", minimum=1),
                percentage("CPU_ECO_CAP_PCT_OF_MAX", "60", "CPU cap, eco.", minimum=1),
            ),
            cpu_absolute=boolean("CPU_WRITE_ABSOLUTE_CAPS", False, "Write CPU caps in watts instead of percent."),
            gpu_pct=_by_profile(
                percentage("GPU_PERFORMANCE_CAP_PCT_OF_MAX", "100", "GPU cap, performance.", minimum=1),
                percentage("GPU_ECO_CAP_PCT_OF_MAX", "60", "GPU cap, eco.", minimum=1),
            ),
            gpu_range_w=json_object(
                "GPU_MODEL_CAPS_JSON",
                'Cap range by GPU model, {"model": {"minCapWatts": W, "maxCapWatts": W}}: percentages then are of it.',
                to=_cap_ranges,
            ),
        ),
        absolute_gpu_caps=boolean(
            "GPU_WRITE_ABSOLUTE_CAPS", False, "Write GPU caps in watts where the range is known."
        ),
        not_ready_grace_s=duration(
            "NOT_READY_GRACE",
            "5m",
            "How long a node that is not ready keeps its performance slot before another node gets it.",
            minimum=0,
        ),
        stale_after_s=POWER_STALE_AFTER,
        trend_window_s=POWER_TREND_WINDOW,
        time_scale=number(
            "SIM_TIME_SCALE",
            "1",
            "Simulated seconds a second, where nodes are simulated faster than in real time: power trends are then "
            "those of simulated time.",
            minimum=0.01,
            maximum=10_000.0,
        ),
        default_capacity_w=number(
            "RACK_CAPACITY_WATTS",
            f"{DEFAULT_RACK_CAPACITY_W:g}",
            "Power capacity of a rack.",
            minimum=1,
            unit="W",
        ),
        cluster_capacity_w=number(
            "CLUSTER_CAPACITY_WATTS",
            None,
            "Power capacity of the cluster, which nodes without a rack share; if empty, they have no such limit.",
            minimum=1,
            unit="W",
        ),
        rack_capacity_w=json_object(
            "RACK_CAPACITY_WATTS_JSON", "Power capacity by rack, where it differs.", unit="W", to=_rack_capacities_w
        ),
    )
    cooling_model: str = text("COOLING_MODEL", "linear", "Cooling model: linear, or one that a plug-in brings.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu_limits and not self.prometheus_address:
            raise ValueError("GPU_LIMITS needs PROMETHEUS_ADDRESS: power and progress of jobs are read there")
        if self.alerts_addr and self.alerts_token_file is None:
            raise ValueError("ALERTS_ADDR needs ALERTS_TOKEN_FILE: nobody else may reduce power budgets")
        if (self.alerts_certificate is None) != (self.alerts_key is None):
            raise ValueError("ALERTS_TLS_CERT_FILE and ALERTS_TLS_KEY_FILE go together: give both or neither")
        if self.reconcile_interval_s > self.twin_staleness_s / 2.0:
            raise ValueError(
                f"RECONCILE_INTERVAL ({self.reconcile_interval_s:g} s) must be at most half of "
                f"TWIN_STALENESS_THRESHOLD ({self.twin_staleness_s:g} s), or twins grow old between two steps"
            )

    @property
    def limits_jobs(self) -> bool:
        """Whether limits of single GPUs are searched for."""
        if self.gpu_limits is None:
            return self.policy_type == FULL_POWER and bool(self.prometheus_address)
        return self.gpu_limits
