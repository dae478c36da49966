"""Nodes whose GPUs have no room for a pod that asks by annotation: kube-scheduler knows at most a sum of the node."""

from __future__ import annotations

import numpy as np

from joulie.apps.extender.fleet import FleetView
from joulie.apps.extender.judge import JudgedPod, gpu_request
from joulie.apps.extender.limits import GPU_ROOM


def without_room(candidates: list[str], pod: JudgedPod, fleet: FleetView) -> dict[str, str]:
    """The nodes, with the reason; a node of which it is not known what is left has room."""
    request = gpu_request(pod)
    if fleet.sharing is None or request is None or pod.demand is None or not pod.demand.stated:
        return {}
    names = fleet.roster.names
    # Costs are known by state, and are needed for the ranking anyway: looking at each candidate takes longer.
    full = {names[slot] for slot in np.flatnonzero(np.isinf(fleet.sharing.costs(request)))}
    return {name: GPU_ROOM for name in candidates if name in full} if full else {}
