"""Time scale of a run on a control plane: its maximum, and the programs' intervals under it.

A scenario's times are simulated, but the programs follow the wall clock. So their times are divided by the time scale.
Times that only guard against failed programs have a minimum, since they are not part of the control.
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
MIN_OPERATOR_S = 0.3
"""Minimum interval of the operator that two busy cores sustain, s of wall time."""
MIN_AGENT_S = 0.15
"""Minimum interval of the agent that they sustain, s of wall time."""
MAX_NODE_CYCLES_PER_S = 200.0
"""Maximum number of nodes that a pool agent reads and caps in a second of wall time."""

_SCALED: Mapping[str, float] = {
    "DRAIN_SETTLING": 0.0,
    "DRAIN_TIMEOUT": 0.0,
    "QUEUE_HOLD": 0.0,
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
"""Operator settings that are simulated time in a scenario, and the minimum of each after scaling, s of wall time."""


def why_too_fast(nodes: int, times: ControlTimes, time_scale: float) -> str | None:
    """Why the programs could not keep up with this time scale; None if they can.

    Args:
        nodes: number of nodes of the cluster.
        times: intervals of operator and agents, in simulated time.
        time_scale: simulated seconds per wall second.
    """
    max_scale = max_time_scale(nodes, times)
    if time_scale <= max_scale:
        return None
    return (
        f"a time scale of {time_scale:g} is too fast: an operator every {times.operator_s:g} s and agents of"
        f" {nodes} nodes every {times.agent_s:g} s of simulated time keep up with at most {math.floor(max_scale)}"
    )


def why_too_slow(pace: Pace | None, times: ControlTimes, time_scale: float) -> str | None:
    """Why a run does not count because the machine could not keep up with it; None if it does.

    Jobs start and end when the simulator updates the cluster. The mean interval of its updates must not exceed that of
    the agents, or it prolongs jobs by more than the control that is measured. Its 99th percentile must not exceed the
    interval of the operator, or the operator decides on a state that is a cycle old.

    Args:
        pace: pace of the simulator service; None if it never updated the cluster while time passed.
        times: intervals of operator and agents, in simulated time.
        time_scale: simulated seconds per wall second.
    """
    if pace is None:
        return "the simulator never updated the cluster while time passed; lower --time-scale"
    for what, interval_s, max_s, who in (
        ("on average", pace.mean_s * time_scale, times.agent_s, "agents act"),
        ("at the 99th percentile", pace.p99_s * time_scale, times.operator_s, "the operator acts"),
    ):
        if interval_s > max_s:
            return (
                f"the machine could not keep up: {what} the simulator updated the cluster every {interval_s:.1f} s of"
                f" simulated time, but {who} every {max_s:g} s; lower --time-scale, or free more of the machine"
            )
    return None


def max_time_scale(nodes: int, times: ControlTimes) -> float:
    """Maximum time scale that the programs keep up with, given the intervals that they then have."""
    agent_s = max(MIN_AGENT_S, nodes / MAX_NODE_CYCLES_PER_S)
    return min(times.operator_s / MIN_OPERATOR_S, times.agent_s / agent_s)


def operator_variables(variant: Variant, times: ControlTimes, time_scale: float) -> dict[str, str]:
    """Operator settings of a variant, with its times converted to wall time."""
    unscaled = {name: text for name, text in variant.operator.items() if name not in _SCALED}
    defaults = {name: str(spec.default) for name, spec in all_settings(OperatorSettings).items()}
    scaled = {
        name: seconds(max(duration_s(variant.operator.get(name, defaults[name])) / time_scale, floor_s))
        for name, floor_s in _SCALED.items()
    }
    return unscaled | scaled | {"RECONCILE_INTERVAL": seconds(times.operator_s / time_scale)}


def seconds(value_s: float) -> str:
    """Format a duration as a setting."""
    return f"{value_s:.6f}".rstrip("0").rstrip(".") + "s"
