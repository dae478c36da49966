"""Nodes that are closed to a pod by its own limits of power, or by those of its namespace."""

from __future__ import annotations

import numpy as np

from joulie.apps.extender.fleet import FULL_W_TYPES, FleetView, slots_of
from joulie.apps.extender.judge import JudgedPod
from joulie.domain.grid import names
from joulie.domain.grid.power_limits import NO_LIMITS, PowerLimits, power_limits
from joulie.domain.grid.request import Cascade, workload_type

MAX_POWER, EFFICIENCY = "max_power", "efficiency"
LIMIT_REFUSALS = {
    MAX_POWER: "the node's power at full load exceeds the pod's max-power-watts",
    EFFICIENCY: "the node has fewer CPUs per watt than the pod's min-efficiency",
}
"""Reason of a refusal by the Gardener's name for it."""
_POLICIES_ENABLED = {names.POLICIES_LABEL: names.POLICIES_ENABLED}


def limits_of(pod: JudgedPod, fleet: FleetView) -> PowerLimits:
    """The limits of a pod. Policies of its namespace keep no DaemonSet's pod off its node."""
    policies = {} if pod.facts.daemon else fleet.policies.get(pod.facts.namespace, {})
    kind = workload_type(pod.meta.labels.get(names.WORKLOAD_TYPE_LABEL), pod.facts.owner.kind)
    return power_limits(Cascade(pod.meta.annotations, kind, _POLICIES_ENABLED, policies))


def over_limits(candidates: list[str], limits: PowerLimits, fleet: FleetView) -> dict[str, str]:
    """The nodes that exceed the limits, with the Gardener's reason."""
    if limits is NO_LIMITS:
        return {}
    slots = slots_of(fleet.roster, candidates)
    full_w, cores = fleet.full_w[0][slots], fleet.load.cores[slots]
    typed_w = fleet.full_w[FULL_W_TYPES.index(limits.gpu_workload_type)][slots]
    inefficient = {candidates[place]: EFFICIENCY for place in np.flatnonzero(limits.inefficient(full_w, cores))}
    return inefficient | {candidates[place]: MAX_POWER for place in np.flatnonzero(limits.too_powerful(typed_w))}
