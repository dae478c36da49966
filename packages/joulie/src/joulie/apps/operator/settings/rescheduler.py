"""Settings of the rescheduler."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.profiles.reschedule import RescheduleSettings
from joulie.settings import boolean, duration, group, integer, percentage


@dataclass(frozen=True, kw_only=True)
class ReschedulerSettings:
    """Which pods are evicted, when, and how many."""

    active_rescheduling: bool = boolean(
        "ENABLE_ACTIVE_RESCHEDULING",
        False,
        "Evict pods that say that they may be restarted, from nodes that drain or are under stress.",
    )
    reschedule_interval_s: float = duration(
        "RESCHEDULE_INTERVAL",
        "60s",
        "How often the rescheduler looks at the cluster; recommendations follow it even where it evicts nothing.",
        minimum=1.0,
    )
    reschedule_dry_run: bool = boolean("RESCHEDULE_DRY_RUN", False, "Log and count evictions without asking for them.")
    reschedule_cooldown_s: float = duration(
        "RESCHEDULE_COOLDOWN",
        "10m",
        "Time after an eviction in which no other pod of the same workload is evicted.",
        minimum=0.0,
    )
    rescheduling: RescheduleSettings = group(
        RescheduleSettings,
        max_per_node=integer(
            "RESCHEDULE_MAX_EVICTIONS_PER_NODE", "1", "Pods to evict from one node in one interval.", minimum=1
        ),
        max_per_cycle=integer("RESCHEDULE_MAX_EVICTIONS", "10", "Pods to evict in one interval in all.", minimum=1),
        min_age_s=duration("RESCHEDULE_MIN_POD_AGE", "10m", "Age below which pods stay.", minimum=0.0),
        cooling_stress_pct=percentage(
            "RESCHEDULE_COOLING_STRESS_PCT", "90", "Cooling stress above which a node is under stress."
        ),
        psu_stress_pct=percentage(
            "RESCHEDULE_PSU_STRESS_PCT", "90", "PSU stress of a node's rack above which it is under stress."
        ),
        headroom_pct=percentage(
            "RESCHEDULE_HEADROOM_PCT",
            "0",
            "Power left below the caps under which a node is under stress; 0 for never, since a busy eco node has none "
            "by design.",
        ),
        margin_pct=percentage(
            "RESCHEDULE_MARGIN_PCT", "10", "How far from stress a node must stay that gets a pod, in points."
        ),
    )
