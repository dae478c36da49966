"""Settings of the search for power limits of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from joulie.domain.capping.held_out import Holdout
from joulie.domain.capping.live import Pace
from joulie.settings import boolean, duration, group, listed, number, text

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


def _switch(text: str) -> bool | None:
    """A boolean as other settings spell it; None for ``auto``."""
    word = text.strip().lower()
    if word == "auto":
        return None
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"auto, true or false is expected, got {text!r}")


@dataclass(frozen=True, kw_only=True)
class GpuLimitSettings:
    """Whose GPUs are limited, by how much, and how their progress is measured."""

    gpu_limits: bool | None = text(
        "GPU_LIMITS",
        "auto",
        "Search for each workload the power limit of its GPUs that saves the most energy within a slowdown, on "
        "enforced nodes at full power: true, false, or auto, which is true with POLICY_TYPE full_power and a "
        "PROMETHEUS_ADDRESS, which it needs.",
        to=_switch,
    )
    gpu_limits_standard_slowdown: float = number(
        "GPU_LIMITS_SLOWDOWN_STANDARD",
        "1.05",
        "Maximum time for the same work over that without a limit, of pods that are not of class performance.",
        minimum=1,
        maximum=2,
    )
    gpu_limits_performance_slowdown: float = number(
        "GPU_LIMITS_SLOWDOWN_PERFORMANCE",
        "1.02",
        "The same of performance pods that take part.",
        minimum=1,
        maximum=2,
    )
    gpu_limits_performance: bool = boolean(
        "GPU_LIMITS_PERFORMANCE", False, "All performance pods take part, not only those that ask for it."
    )
    gpu_limits_performance_namespaces: tuple[str, ...] = text(
        "GPU_LIMITS_PERFORMANCE_NAMESPACES",
        "",
        "Namespaces whose performance pods take part, separated by commas.",
        to=listed,
    )
    gpu_limits_progress_query: str = text(
        "GPU_LIMITS_PROGRESS_QUERY",
        "",
        "PromQL of the work that pods do in a second, by namespace and pod, in any unit, of pods without the "
        "annotation joulie.io/progress-metric; {window} is the range, such as 180s. Without it, activity times clock "
        "of their GPUs counts (DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_DEV_SM_CLOCK).",
    )
    gpu_limits_pace: Pace = group(
        Pace,
        settling_s=duration(
            "GPU_LIMITS_SETTLING", "30s", "Time after a limit came into force that does not count.", minimum=0
        ),
        window_s=duration(
            "GPU_LIMITS_WINDOW", "3m", "Time over which power and progress are averaged; several scrapes.", minimum=1
        ),
    )
    gpu_limits_interval_s: float = duration(
        "GPU_LIMITS_INTERVAL", "15s", "Time between two looks at the jobs.", minimum=0.05
    )
    gpu_limits_holdout: Holdout = group(
        Holdout,
        share=number(
            "GPU_LIMITS_HOLDOUT",
            "0",
            "Share of the time of each job with a held limit that is spent without it, in windows drawn at random, so "
            "that its saving goes on being measured; 0.05 is 5 %, 0 is off.",
            minimum=0,
            maximum=0.5,
        ),
        least_saving=number(
            "GPU_LIMITS_HOLDOUT_LEAST_SAVING",
            "0.01",
            "Saving of energy per unit of work, as a share, that a held limit must still be able to have: one whose "
            "interval lies below it has stopped paying, which is reported.",
            minimum=0,
            maximum=1,
        ),
        withdraws=boolean(
            "GPU_LIMITS_HOLDOUT_WITHDRAW",
            False,
            "Withdraw a limit that has stopped paying; its workload has none until its GPUs change.",
        ),
    )
    gpu_range_labels: bool = boolean(
        "GPU_RANGE_LABELS",
        False,
        "Publish the range of the power limits of a node's NVIDIA GPUs as the labels nvidia.com/gpu.power.limit.min "
        "and .max (mW), on enforced nodes where nobody else sets them.",
    )
