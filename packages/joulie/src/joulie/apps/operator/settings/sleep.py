"""Settings of nodes that sleep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from joulie.domain.sleep.demand import ForecastSettings
from joulie.domain.sleep.snapshot import ConsolidationSettings, SleepSettings
from joulie.settings import duration, group, integer, listed, number, path, text


class SleepMode(StrEnum):
    """Whether nodes sleep."""

    OFF = "off"
    OBSERVE = "observe"
    """Only what would be done is reported."""
    ENFORCE = "enforce"


def _mode(value: str) -> SleepMode:
    """The mode; YAML reads an unquoted ``off`` as false.

    Raises:
        ValueError: unknown mode.
    """
    word = value.strip().lower()
    if word == "false":
        return SleepMode.OFF
    try:
        return SleepMode(word)
    except ValueError:
        raise ValueError(f"{', '.join(SleepMode)} is expected, got {value!r}") from None


@dataclass(frozen=True, kw_only=True)
class NodeSleepSettings:
    """Which nodes sleep, and when."""

    sleep: SleepMode = text(
        "SLEEP",
        "off",
        "Whether nodes that nobody needs are closed to pods and left in deep idle: off, observe (only report what "
        "would be done), or enforce, on nodes in mode enforce.",
        to=_mode,
    )
    sleep_interval_s: float = duration(
        "SLEEP_INTERVAL", "10s", "Time between two looks at the nodes that may sleep.", minimum=0.05
    )
    sleeping: SleepSettings = group(
        SleepSettings,
        empty_s=duration(
            "SLEEP_EMPTY",
            "10m",
            "Time for which a node has no pods but those of DaemonSets before it is closed.",
            minimum=0,
        ),
        settle_s=duration(
            "SLEEP_SETTLE",
            "1m",
            "Time for which it is closed without a pod on its way before it counts as asleep.",
            minimum=0,
        ),
        wake_timeout_s=duration(
            "SLEEP_WAKE_TIMEOUT",
            "10m",
            "Time in which a node that is switched on must be ready, and one that is switched off be off.",
            minimum=1,
        ),
        max_waking=integer("SLEEP_MAX_WAKING", "5", "Number of nodes that may boot at the same time.", minimum=1),
        min_awake=integer(
            "SLEEP_MIN_AWAKE", "1", "Minimum number of nodes of each family of hardware that stay open.", minimum=0
        ),
    )
    consolidation: ConsolidationSettings = group(
        ConsolidationSettings,
        max_nodes=integer(
            "SLEEP_CONSOLIDATE_NODES",
            "0",
            "Nodes that may be emptied at the same time, by evicting pods with joulie.io/reschedulable: true, where "
            "that saves more than it costs. 0 moves no pod.",
            minimum=0,
        ),
        lost_s=duration(
            "SLEEP_CONSOLIDATE_LOST",
            "30d",
            "Work that a pod which runs to an end loses at most when it is moved: time between its checkpoints. The "
            "default takes all of it for lost.",
            minimum=0,
        ),
        restart_s=duration(
            "SLEEP_CONSOLIDATE_RESTART", "1m", "Time in which a pod that is moved does no work.", minimum=0
        ),
        horizon_s=duration(
            "SLEEP_CONSOLIDATE_HORIZON",
            "1h",
            "Time for which a node that was emptied is expected to sleep at most. Nodes that the forecast needs within "
            "it are not emptied.",
            minimum=1,
        ),
        gain=number(
            "SLEEP_CONSOLIDATE_GAIN",
            "2",
            "How many times the energy that it costs emptying a node must save.",
            minimum=1,
        ),
        min_age_s=duration(
            "SLEEP_CONSOLIDATE_MIN_POD_AGE",
            "10m",
            "Time for which each pod of a node has run before the node is emptied, so that none is moved around.",
            minimum=0,
        ),
        pause_s=duration(
            "SLEEP_CONSOLIDATE_PAUSE",
            "1h",
            "Time for which a node is left alone whose pods a disruption budget kept, or that was given up.",
            minimum=0,
        ),
    )
    forecast: ForecastSettings = group(
        ForecastSettings,
        quantile=number(
            "SLEEP_FORECAST_QUANTILE",
            "0.5",
            "Demand for which nodes stay awake, and wake before it comes: this quantile of what came at the same time "
            "on earlier days. 0 forecasts nothing.",
            minimum=0,
            maximum=1,
        ),
        ahead_s=duration(
            "SLEEP_FORECAST_AHEAD",
            "5m",
            "Time before demand at which a node is woken for it: what it takes to wake.",
            minimum=1,
        ),
        keep_s=duration(
            "SLEEP_FORECAST_KEEP",
            "10m",
            "Time before demand within which a node is not put to sleep; at least SLEEP_FORECAST_AHEAD.",
            minimum=1,
        ),
    )
    sleep_switches: Path | None = path(
        "SLEEP_SWITCHES",
        None,
        "File with power switches of nodes, from a Secret. Nodes in it are switched off while they sleep if their "
        "annotation joulie.io/power-switch names the kind of the switch: redfish, ipmi, wakeOnLan or command.",
    )
    sleep_standby_w: float = number(
        "SLEEP_STANDBY_WATTS",
        "50",
        "What a node draws at most while it is switched off; PowerBudgets count it instead of its worst case. The "
        "default is assumed, for BMC, power supplies and network cards in standby: measure yours at the PDU.",
        unit="W",
        minimum=0,
    )
    sleep_switches_ca: Path | None = path(
        "SLEEP_SWITCHES_CA", None, "Authorities (PEM) of the power switches' certificates; the system's without."
    )
    sleep_autoscaler_labels: tuple[str, ...] = text(
        "SLEEP_AUTOSCALER_LABELS",
        "karpenter.sh/nodepool",
        "Labels of nodes that an autoscaler adds and removes, separated by commas: when they are empty they get the "
        "annotation joulie.io/removable-since, and the rest is left to it.",
        to=listed,
    )
