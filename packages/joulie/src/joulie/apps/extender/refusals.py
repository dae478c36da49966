"""Nodes that are closed to a pod by power: by its own limits, by its share of a GPU, and by power budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from joulie.apps.extender.fleet import FleetView, slots_of
from joulie.apps.extender.judge import JudgedPod
from joulie.apps.extender.limits import LIMIT_REFUSALS, limits_of, over_limits
from joulie.apps.extender.parts import without_room
from joulie.apps.extender.power_room import PowerView
from joulie.domain.scoring.extender import may_run
from joulie.domain.units import FloatArray, IntArray

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


class Checked(NamedTuple):
    """What power says of candidates.

    Attributes:
        refused: those that it closes to the pod, by name.
        slots: of all of them in their order; None where no budget holds pods back.
    """

    refused: Mapping[str, Refusal]
    slots: IntArray | None


def refused_by_power(candidates: list[str], pod: JudgedPod, fleet: FleetView) -> Checked:
    """The candidates that power closes to a pod."""
    closed = over_limits(candidates, limits_of(pod, fleet), fleet) | without_room(candidates, pod, fleet)
    by_limit = {name: Refusal(reason, LIMIT_REFUSALS[reason]) for name, reason in closed.items()}
    power = _power_for(pod, fleet)
    if power is None:
        return Checked(by_limit, None)
    slots = slots_of(fleet.roster, candidates)
    refused = power.refused(pod.facts.uid, _added_w(pod, fleet), slots, full_power=pod.full_power)
    refusals = {text: Refusal(POWER_BUDGET, text) for text in set(refused.values())}
    return Checked({candidates[place]: refusals[text] for place, text in refused.items()} | by_limit, slots)


def count_placing(candidates: list[str], checked: Checked, pod: JudgedPod, fleet: FleetView) -> None:
    """Count a pod under the budgets of the nodes that it may be placed on now: those that pass the filter."""
    power, slots = _power_for(pod, fleet), checked.slots
    if power is None or slots is None:
        return
    passed = may_run(pod.view, fleet.twins.node_class[slots])
    if checked.refused:
        passed &= np.fromiter((name not in checked.refused for name in candidates), np.bool_, len(candidates))
    power.place(pod.facts.uid, _added_w(pod, fleet), slots[passed], full_power=pod.full_power)


def _power_for(pod: JudgedPod, fleet: FleetView) -> PowerView | None:
    """The budgets that may hold a pod back; pods that belong to their node are never held back."""
    return None if pod.facts.daemon or pod.facts.static else fleet.power


def _added_w(pod: JudgedPod, fleet: FleetView) -> FloatArray:
    return fleet.load.marginal_w(pod.requests, performance=pod.full_power)
