"""Settings of the rescheduler, and what the domain makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.profiles.reschedule import RescheduleSettings
from joulie.program.settings import Kind, setting


@dataclass(frozen=True, kw_only=True)
class ReschedulerSettings:
    """Which pods are evicted, when, and how many."""

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
