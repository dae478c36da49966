"""Nodes that are closed to a pod by its own limits of power, or by those of its namespace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulie.apps.extender.fleet import FleetView
from joulie.apps.extender.judge import JudgedPod
from joulie.apps.extender.node_facts import FULL_W_TYPES
from joulie.domain.grid import names
from joulie.domain.grid.power_limits import NO_LIMITS, PowerLimits, power_limits
from joulie.domain.grid.request import Cascade, workload_type

MAX_POWER, EFFICIENCY = "max_power", "efficiency"
GPU_ROOM = "gpu_room"
LIMIT_REFUSALS = {
    MAX_POWER: "the node's power at full load exceeds the pod's max-power-watts",
    EFFICIENCY: "the node has fewer CPUs per watt than the pod's min-efficiency",
    GPU_ROOM: "no GPU of the node has as much left as the pod's gpu-milli",
}
"""Reason of a refusal by the Gardener's name for it, and by ours where it has none."""
_REMEMBERED = 16
"""Number of limits of which a view remembers the nodes."""
_POLICIES_ENABLED = {names.POLICIES_LABEL: names.POLICIES_ENABLED}


def limits_of(pod: JudgedPod, fleet: FleetView) -> PowerLimits:
    """The limits of a pod. Policies of its namespace keep no DaemonSet's pod off its node."""
    policies = {} if pod.facts.daemon else fleet.policies.get(pod.facts.namespace, {})
    kind = workload_type(pod.meta.labels.get(names.WORKLOAD_TYPE_LABEL), pod.facts.owner.kind)
    return power_limits(Cascade(pod.meta.annotations, kind, _POLICIES_ENABLED, policies))


def over_limits(candidates: list[str], limits: PowerLimits, fleet: FleetView) -> dict[str, str]:
    """The nodes that exceed the limits, with the Gardener's reason."""
    refused = {} if limits is NO_LIMITS else _beyond(limits, fleet)
    return {name: refused[name] for name in candidates if name in refused} if refused else {}


def _beyond(limits: PowerLimits, fleet: FleetView) -> Mapping[str, str]:
    """All nodes of the fleet that exceed the limits: looking the candidates up takes longer than all the rest."""
    found = fleet.beyond_limits.get(limits)
    if found is not None:
        return found
    full_w, cores = fleet.full_w[0], fleet.load.cores
    typed_w = fleet.full_w[FULL_W_TYPES.index(limits.gpu_workload_type)]
    node_names = fleet.roster.names
    refused = {node_names[slot]: EFFICIENCY for slot in np.flatnonzero(limits.inefficient(full_w, cores))}
    refused |= {node_names[slot]: MAX_POWER for slot in np.flatnonzero(limits.too_powerful(typed_w))}
    if len(fleet.beyond_limits) < _REMEMBERED:
        fleet.beyond_limits[limits] = refused
    return refused
