"""Nodes that are closed to a pod by power: by its own limits, by its share of a GPU, and by power budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from joulie.apps.extender.fleet import FleetView, slots_of
from joulie.apps.extender.judge import JudgedPod
from joulie.apps.extender.limits import LIMIT_REFUSALS, limits_of, over_limits
from joulie.apps.extender.parts import without_room
from joulie.apps.extender.power_room import PowerView
from joulie.domain.units import FloatArray

POWER_BUDGET = "power_budget"
POWER_REASONS = (*LIMIT_REFUSALS, POWER_BUDGET)
"""Reasons of refusals by power."""


class Refusal(NamedTuple):
    """Why a node is closed to a pod.

    Attributes:
        reason: one of `POWER_REASONS`.
        message: for people.
    """

    reason: str
    message: str


def refused_by_power(candidates: list[str], pod: JudgedPod, fleet: FleetView) -> dict[str, Refusal]:
    """The candidates that power closes to a pod, by name."""
    closed = over_limits(candidates, limits_of(pod, fleet), fleet) | without_room(candidates, pod, fleet)
    by_budget = _without_watts(pod, fleet)
    if not closed and not by_budget:
        return {}
    refused = {name: by_budget[name] for name in candidates if name in by_budget} if by_budget else {}
    return refused | {name: Refusal(reason, LIMIT_REFUSALS[reason]) for name, reason in closed.items()}


def count_placing(passed: Iterable[str], pod: JudgedPod, fleet: FleetView) -> None:
    """Count a pod under the budgets of the nodes that it may be placed on now."""
    power = _power_for(pod, fleet)
    if power is not None:
        slots = slots_of(fleet.roster, list(passed))
        power.place(pod.facts.uid, _added_w(pod, fleet), slots, full_power=pod.full_power)


def _without_watts(pod: JudgedPod, fleet: FleetView) -> Mapping[str, Refusal]:
    """All nodes of the fleet whose budgets have no room for a pod."""
    power = _power_for(pod, fleet)
    if power is None:
        return {}
    node_names = fleet.roster.names
    refused = power.refused(pod.facts.uid, _added_w(pod, fleet), full_power=pod.full_power)
    return {node_names[slot]: Refusal(POWER_BUDGET, message) for slot, message in refused.items()}


def _power_for(pod: JudgedPod, fleet: FleetView) -> PowerView | None:
    """The budgets that may hold a pod back; pods that belong to their node are never held back."""
    return None if pod.facts.daemon or pod.facts.static else fleet.power


def _added_w(pod: JudgedPod, fleet: FleetView) -> FloatArray:
    return fleet.load.marginal_w(pod.requests, performance=pod.full_power)
