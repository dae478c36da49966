"""The pod to place, with its WorkloadProfile and requests, and its scores of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts, pod_facts
from joulie.apps.extender.fleet import FleetView
from joulie.domain.grid import names
from joulie.domain.grid.place import with_zone_points
from joulie.domain.marginal import PodRequests
from joulie.domain.scoring.extender import PodView, wire_score
from joulie.domain.scoring.marginal_energy import node_scores
from joulie.domain.units import FloatArray, IntArray

Profiles = Callable[[PodFacts], ProfileFacts]
"""Finds the WorkloadProfile that applies to a pod."""


@dataclass(frozen=True)
class JudgedPod:
    """The pod to place.

    Attributes:
        meta: metadata of the Pod object.
        facts: facts of the Pod object.
        view: its workload class and sensitivities, with its profile applied.
        requests: resource requests as kube-scheduler counts them.
        chosen_zone: zone that the grid controller has chosen for it; None if it has not.
    """

    meta: ObjectMeta
    facts: PodFacts
    view: PodView
    requests: PodRequests
    chosen_zone: str | None = None

    @property
    def kind(self) -> tuple[PodView, PodRequests, str | None]:
        """Everything that scores depend on; equal for the pods of one Job."""
        return self.view, self.requests, self.chosen_zone


def judge(pod: Pod, profiles: Profiles) -> JudgedPod:
    """Resolve a Pod with its profile and requests."""
    facts = pod_facts(pod)
    asked = facts.requests
    requests = PodRequests(asked.cpu_cores, asked.memory_gib, asked.gpus)
    chosen_zone = pod.metadata.annotations.get(names.CHOSEN_ZONE)
    return JudgedPod(pod.metadata, facts, facts.view(profiles(facts)), requests, chosen_zone)


def node_points(pod: JudgedPod, fleet: FleetView) -> FloatArray:
    """Scores 0..100 of all nodes for a pod, by power and by the carbon intensity of zones, shape ``(n_slots,)``."""
    by_power = node_scores(fleet.scoring, pod.view, pod.requests, fleet.twins, fleet.load)
    return with_zone_points(by_power, fleet.points_for(pod.chosen_zone))


def scores(pod: JudgedPod, fleet: FleetView) -> IntArray:
    """Scores 0..10 of all nodes for a pod, shape ``(n_slots,)``."""
    return wire_score(node_points(pod, fleet))
