"""How much faster than the clock a run on a control plane may be, and what that makes of the programs' times.

A scenario's times are simulated; the programs know nothing of that and follow the clock. So their times are divided by
the time scale. What only guards against dead programs keeps a floor: it is no part of the control.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.durations import duration_s
from joulie.program.settings import all_settings
from joulie_lab.simulation.experiment.outcome import Pace
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant

DEFAULT_TIME_SCALE = 20.0
LEAST_OPERATOR_S = 0.3
"""Shortest interval of the operator that two busy cores keep up with, s of the clock."""
LEAST_AGENT_S = 0.15
"""Shortest interval of the agent that they keep up with, s of the clock."""
MOST_NODE_CYCLES_PER_S = 200.0
"""Nodes that a pool agent reads and caps in a second of the clock."""

_SCALED: Mapping[str, float] = {
    "DRAIN_SETTLING": 0.0,
    "DRAIN_TIMEOUT": 0.0,
    "POWER_TREND_WINDOW": 3.0,
    "POWER_POLL_INTERVAL": 1.0,
    "POWER_STALE_AFTER": 10.0,
    "TWIN_STALENESS_THRESHOLD": 30.0,
    "CLASSIFY_INTERVAL": 1.0,
    "RECLASSIFY_INTERVAL": 1.0,
    "CLASSIFY_METRICS_WINDOW": 1.0,
    "RESCHEDULE_INTERVAL": 1.0,
    "RESCHEDULE_COOLDOWN": 0.0,
    "RESCHEDULE_MIN_POD_AGE": 0.0,
}
"""Times of the operator that are simulated time in a scenario, and the least that each becomes, s of the clock."""


def why_too_fast(nodes: int, times: ControlTimes, time_scale: float) -> str | None:
    """Why a run cannot be this fast without the programs falling behind; None where it can.

    Args:
        nodes: of the cluster.
        times: how often operator and agents act, in simulated time.
        time_scale: simulated seconds a second.
    """
    most = fastest(nodes, times)
    if time_scale <= most:
        return None
    return (
        f"a time scale of {time_scale:g} is too fast: an operator every {times.operator_s:g} s and agents of"
        f" {nodes} nodes every {times.agent_s:g} s of simulated time keep up with {math.floor(most)} at most"
    )


def why_too_slow(pace: Pace | None, times: ControlTimes, time_scale: float) -> str | None:
    """Why a run does not count since the machine could not keep up with it; None for one that does.

    Jobs start and end when the simulator looks at the cluster. In the mean that must not be later than agents act, or
    it prolongs jobs by more than the control that is measured; and but for one look in a hundred not later than the
    operator acts, or it decides on a cluster that has been another one for a round.

    Args:
        pace: of the simulator service; None where it never looked while time passed.
        times: how often operator and agents act, in simulated time.
        time_scale: simulated seconds a second.
    """
    if pace is None:
        return "the simulator never looked at the cluster while time passed; lower --time-scale"
    for what, late_s, most_s, who in (
        ("in the mean", pace.mean_s * time_scale, times.agent_s, "agents act"),
        ("at the 99th percentile", pace.p99_s * time_scale, times.operator_s, "the operator acts"),
    ):
        if late_s > most_s:
            return (
                f"the machine could not keep up: {what} the simulator looked at the cluster every {late_s:.1f} s of"
                f" simulated time, and {who} every {most_s:g} s; lower --time-scale, or leave it more of the machine"
            )
    return None


def fastest(nodes: int, times: ControlTimes) -> float:
    """Largest time scale that the programs keep up with, by the intervals that they then have."""
    agent_s = max(LEAST_AGENT_S, nodes / MOST_NODE_CYCLES_PER_S)
    return min(times.operator_s / LEAST_OPERATOR_S, times.agent_s / agent_s)


def operator_variables(variant: Variant, times: ControlTimes, time_scale: float) -> dict[str, str]:
    """A variant's settings of the operator with its times as the clock has them."""
    said = {name: text for name, text in variant.operator.items() if name not in _SCALED}
    defaults = {name: str(spec.default) for name, spec in all_settings(OperatorSettings).items()}
    scaled = {
        name: seconds(max(duration_s(variant.operator.get(name, defaults[name])) / time_scale, floor_s))
        for name, floor_s in _SCALED.items()
    }
    return said | scaled | {"RECONCILE_INTERVAL": seconds(times.operator_s / time_scale)}


def seconds(value_s: float) -> str:
    """A duration as settings are written."""
    return f"{value_s:.6f}".rstrip("0").rstrip(".") + "s"
