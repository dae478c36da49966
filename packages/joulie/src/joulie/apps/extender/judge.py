"""The pod to place, with its WorkloadProfile and requests, and its scores of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.gpu_parts import gpu_demand
from joulie.adapters.kubernetes.lifetimes import life_class
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts, pod_facts
from joulie.apps.extender.fleet import FleetView, MarginalView
from joulie.domain.capping.admission import SETTLING_S
from joulie.domain.grid import names
from joulie.domain.grid.place import with_zone_points
from joulie.domain.grid.request import stated_runtime_s
from joulie.domain.marginal import PodRequests
from joulie.domain.policy import PodPhase
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.domain.scoring.extender import NodeClass, PodView, wire_score
from joulie.domain.scoring.fragmentation import GpuRequest
from joulie.domain.scoring.marginal_energy import ScoringAim, node_scores
from joulie.domain.scoring.marginal_placement import Job, placement_costs, placement_levels
from joulie.domain.scoring.occupancy import LifeClass, PlacedPod
from joulie.domain.scoring.shared_gpus import GpuDemand, SharingPod
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
        full_power: whether it must not run under caps.
        requests: resource requests as kube-scheduler counts them.
        chosen_zone: zone that the grid controller has chosen for it; None if it has not.
        life: pods whose durations are like its own.
        stated_min: duration that it states, min; None without one.
        demand: the GPUs that it asks for, for SCORING=frugal; None if they cannot be counted.
        uncounted: a sentence for whatever keeps its GPUs from being counted there.
        mistakes: a sentence for each annotation of the pod that is malformed.
    """

    meta: ObjectMeta
    facts: PodFacts
    view: PodView
    full_power: bool
    requests: PodRequests
    chosen_zone: str | None
    life: LifeClass
    stated_min: float | None
    demand: GpuDemand | None
    uncounted: tuple[str, ...]
    mistakes: tuple[str, ...]

    def kind(self, scoring: ScoringAim) -> Hashable:
        """Everything that scores depend on; equal for the pods of one Job."""
        kind = self.view, self.requests, self.chosen_zone
        if scoring is ScoringAim.FRUGAL:
            return (*kind, self.demand)
        return (*kind, self.life, self.stated_min) if scoring is ScoringAim.MARGINAL else kind


class StartingPod(NamedTuple):
    """A bound pod under power budgets; see `joulie.apps.extender.power_room.BoundPod`."""

    node: str
    uid: str
    requests: PodRequests
    full_power: bool
    running_since_s: float | None


def judge(pod: Pod, profiles: Profiles) -> JudgedPod:
    """Resolve a Pod with its profile and requests."""
    facts = pod_facts(pod)
    asked, annotations = facts.requests, pod.metadata.annotations
    requests = PodRequests(asked.cpu_cores, asked.memory_gib, asked.gpus)
    stated_s, mistakes = stated_runtime_s(annotations)
    demand, uncounted = gpu_demand(facts, annotations)
    profile = profiles(facts)
    return JudgedPod(
        pod.metadata,
        facts,
        facts.view(profile),
        facts.guarded(profile).lifts_caps,
        requests,
        annotations.get(names.CHOSEN_ZONE),
        life_class(facts),
        None if stated_s is None else stated_s / SECONDS_PER_MINUTE,
        demand,
        uncounted,
        facts.mistakes + mistakes,
    )


def placed_pod(pod: Pod) -> PlacedPod | None:
    """What SCORING=marginal keeps of a pod; None for one that is on no node, or has ended."""
    facts = pod_facts(pod)
    if not facts.node_name or facts.phase is PodPhase.FINISHED:
        return None
    stated_s, _ = stated_runtime_s(pod.metadata.annotations)
    return PlacedPod(
        facts.node_name,
        facts.requests.cpu_cores,
        facts.requests.gpus,
        None if facts.daemon or facts.static else life_class(facts),
        facts.running_since_s,
        None if stated_s is None else stated_s / SECONDS_PER_MINUTE,
    )


def sharing_pod(pod: Pod) -> SharingPod | None:
    """What SCORING=frugal keeps of a pod; None for one that is on no node, or has ended."""
    facts = pod_facts(pod)
    if not facts.node_name or facts.phase is PodPhase.FINISHED:
        return None
    demand, _ = gpu_demand(facts, pod.metadata.annotations)
    return SharingPod(facts.node_name, f"{facts.namespace}/{facts.name}", _cpu_milli(facts.requests.cpu_cores), demand)


def starting_pod(pod: Pod, profiles: Profiles, now_s: float) -> StartingPod | None:
    """What power budgets need of a pod; None for one that is on no node, has ended, or draws what is measured."""
    facts = pod_facts(pod)
    if not facts.node_name or facts.phase is PodPhase.FINISHED or facts.daemon or facts.static:
        return None
    full_power, since_s = facts.guarded(profiles(facts)).lifts_caps, facts.running_since_s
    if not full_power and since_s is not None and since_s + SETTLING_S <= now_s:
        return None
    asked = facts.requests
    requests = PodRequests(asked.cpu_cores, asked.memory_gib, asked.gpus)
    return StartingPod(facts.node_name, facts.uid, requests, full_power, since_s)


def gpu_request(pod: JudgedPod) -> GpuRequest | None:
    """What SCORING=frugal judges a pod by; None if its GPUs cannot be counted."""
    demand = pod.demand
    return None if demand is None else GpuRequest(_cpu_milli(pod.requests.cores), demand.gpus, demand.gpu_milli)


def _cpu_milli(cores: float) -> int:
    return round(cores * 1000.0)


@dataclass(frozen=True, eq=False)
class Order:
    """An order of all nodes that ten scores cannot express; arrays have shape ``(n_slots,)``.

    Attributes:
        costs: the lowest is the best; NaN where the node is not judged, infinite where it is unfit.
        ranks: of equal costs the lowest is the best.
    """

    costs: FloatArray
    ranks: FloatArray


def placement_order(pod: JudgedPod, fleet: FleetView) -> Order | None:
    """The order of all nodes for a pod with SCORING marginal or frugal; None with another."""
    if fleet.marginal is not None:
        return Order(costs_w_min(pod, fleet, fleet.marginal), fleet.marginal.ranks)
    if fleet.sharing is None:
        return None
    request, ranks = gpu_request(pod), fleet.sharing.ranks
    costs = np.full(ranks.shape, np.nan) if request is None else fleet.sharing.costs(request)
    return Order(_without_draining(costs, pod, fleet), ranks)


def _without_draining(costs: FloatArray, pod: JudgedPod, fleet: FleetView) -> FloatArray:
    """Costs that keep a pod that may not be moved off draining nodes."""
    if pod.view.reschedulable is False:
        return np.where(fleet.twins.node_class == NodeClass.DRAINING, np.inf, costs)
    return costs


def costs_w_min(pod: JudgedPod, fleet: FleetView, marginal: MarginalView) -> FloatArray:
    """Cost of a pod on all nodes, W min, shape ``(n_slots,)``; NaN where it is not judged, infinite where it is unfit.

    A zone's points are the share by which its intensity is below the mean, and so is what the pod's own energy counts.
    """
    duration_min = marginal.duration_min(pod.life, pod.stated_min)
    job = Job(pod.requests.cores, pod.requests.gpus, duration_min)
    costs = placement_costs(marginal.nodes, job, marginal.surcharge_w_per_core)
    points = fleet.points_for(pod.chosen_zone)
    if points.any():
        added_w = fleet.load.marginal_w(pod.requests, performance=pod.view.performance)
        costs = costs - points / 100.0 * added_w * duration_min
    return _without_draining(costs, pod, fleet)


def node_points(pod: JudgedPod, fleet: FleetView, order: Order | None) -> FloatArray:
    """Scores 0..100 of all nodes for a pod, by power and by the carbon intensity of zones, shape ``(n_slots,)``.

    Args:
        pod: the pod.
        fleet: the nodes.
        order: their `placement_order` for it.
    """
    if order is not None:
        return 10.0 * placement_levels(order.costs).astype(np.float64)
    by_power = node_scores(fleet.scoring, pod.view, pod.requests, fleet.twins, fleet.load)
    return with_zone_points(by_power, fleet.points_for(pod.chosen_zone))


def scored(pod: JudgedPod, fleet: FleetView) -> tuple[IntArray, Order | None]:
    """Scores 0..10 of all nodes for a pod, shape ``(n_slots,)``, and their `placement_order`."""
    order = placement_order(pod, fleet)
    return wire_score(node_points(pod, fleet, order)), order
