"""One analysis of the cluster for the rescheduler, from frozen inputs, so that it can run in a thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.apps.operator.classifier.decide import classification_of
from joulie.apps.operator.facts import NodeFacts, ProfileEntry
from joulie.domain.control import ControlledNode, ControlSettings, Decision
from joulie.domain.drain import SchedulableClass
from joulie.domain.hardware.resolve import GPU_RESOURCES
from joulie.domain.marginal import (
    GPU_COEFFICIENT_PERFORMANCE,
    GPU_COEFFICIENT_STANDARD,
    cpu_max_or_fallback_w,
    gpu_max_or_fallback_w,
    marginal_w,
)
from joulie.domain.policy import PodPhase
from joulie.domain.profiles.profile import GpuProfile
from joulie.domain.profiles.reschedule import (
    MovablePod,
    NodeLoad,
    NodeState,
    Recommendation,
    ReschedulePlan,
    RescheduleSettings,
    Workload,
    plan_rescheduling,
)
from joulie.domain.profiles.slicing import SlicingRecommendation, recommend_slicing
from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.units import BoolArray
from joulie.domain.workload import Level

_MIRROR = "Node"
"""Kind that controls static pods of a kubelet."""


@dataclass(frozen=True, eq=False)
class ReschedulerInput:
    """Input of a rescheduler cycle.

    Attributes:
        decision: latest decision of the control loop.
        nodes: all nodes by name.
        pods: all pods.
        profiles: effective WorkloadProfile by workload.
        slicing_modes: supported modes of GPU sharing by node.
        pod_power_w: measured power of pods by UID, W; pods without a recent measurement are absent.
        control: control settings, for the power capacities of racks.
        min_confidence: minimum confidence of a profile for its measured values to count, 0..1.
        now_s: current time, s since the epoch.
    """

    decision: Decision
    nodes: Mapping[str, NodeFacts]
    pods: Sequence[PodFacts]
    profiles: Mapping[WorkloadKey, ProfileEntry]
    slicing_modes: Mapping[str, tuple[str, ...]]
    pod_power_w: Mapping[str, float]
    control: ControlSettings
    min_confidence: float
    now_s: float


@dataclass(frozen=True)
class Findings:
    """Result of a rescheduler cycle.

    Attributes:
        recommendations: workloads recommended to move.
        plan: pods to evict now.
        slicing: recommended GPU sharing by node.
    """

    recommendations: tuple[Recommendation, ...]
    plan: ReschedulePlan
    slicing: Mapping[str, SlicingRecommendation]


def analyse(
    inputs: ReschedulerInput, settings: RescheduleSettings, cooling_down: frozenset[Workload], *, active: bool
) -> Findings:
    """Analyse the cluster.

    Args:
        inputs: input of the cycle.
        settings: thresholds and limits.
        cooling_down: workloads in cooldown: they can be recommended, but no pod of theirs is evicted.
        active: whether eviction is enabled.
    """
    states = _node_states(inputs, settings)
    advised = plan_rescheduling(states, replace(settings, max_per_cycle=0))
    plan = ReschedulePlan()
    if active and advised.recommendations:
        plan = plan_rescheduling([_without(state, cooling_down) for state in states], settings)
    return Findings(advised.recommendations, plan, _slicing(inputs))


def _without(state: NodeState, workloads: frozenset[Workload]) -> NodeState:
    if not state.pods or not workloads:
        return state
    return replace(state, pods=tuple(pod for pod in state.pods if pod.workload not in workloads))


# ---- nodes


@dataclass
class _Requested:
    """Sum of the requests of a node's unfinished pods."""

    cpu_cores: float = 0.0
    memory_gib: float = 0.0
    gpus: float = 0.0
    pods: int = 0


def _node_states(inputs: ReschedulerInput, settings: RescheduleSettings) -> list[NodeState]:
    decision = inputs.decision
    needing_relief = set(np.flatnonzero(_needing_relief(decision, settings)).tolist())
    if not needing_relief:
        return []
    requested, on_node = _requested(inputs.pods)
    admission = _Admission({node.node.name: inputs.nodes.get(node.node.name) for node in decision.nodes})
    states: list[NodeState] = []
    for index, decided in enumerate(decision.nodes):
        node = decided.node
        facts = inputs.nodes.get(node.name)
        if facts is None:
            continue
        used = requested.get(node.name, _Requested())
        pods = _movable(inputs, node, on_node[node.name], admission) if index in needing_relief else ()
        gpu = node.hardware.gpu
        states.append(
            NodeState(
                node.name,
                decided.guarded.schedulable,
                _load(inputs, index),
                accepts_pods=node.eligible and facts.ready,
                rack=node.rack,
                free_cpu_cores=facts.offered.get("cpu", 0.0) - used.cpu_cores,
                free_memory_gib=facts.memory_gib - used.memory_gib,
                free_gpus=sum(facts.offered.get(resource, 0.0) for resource in GPU_RESOURCES) - used.gpus,
                gpu_vendor=_vendor(gpu.vendor if gpu else None),
                free_pods=facts.max_pods - used.pods,
                pods=pods,
            )
        )
    return states


def _needing_relief(decision: Decision, settings: RescheduleSettings) -> BoolArray:
    """Which nodes drain or exceed a stress threshold: only their pods are candidates."""
    twin = decision.twin
    draining = [node.guarded.schedulable is SchedulableClass.DRAINING for node in decision.nodes]
    # Nodes without scores have NaN, for which comparisons are false.
    return np.asarray(
        np.array(draining, dtype=np.bool_)
        | (twin.cooling_stress > settings.cooling_stress_pct)
        | (twin.psu_stress > settings.psu_stress_pct)
        | (twin.headroom < settings.headroom_pct)
    )


def _requested(pods: Iterable[PodFacts]) -> tuple[dict[str, _Requested], dict[str, list[PodFacts]]]:
    """Requested resources and unfinished pods by node."""
    requested: dict[str, _Requested] = defaultdict(_Requested)
    on_node: dict[str, list[PodFacts]] = defaultdict(list)
    for pod in pods:
        if not pod.node_name or pod.phase is PodPhase.FINISHED:
            continue
        sums, requests = requested[pod.node_name], pod.requests
        sums.cpu_cores += requests.cpu_cores
        sums.memory_gib += requests.memory_gib
        sums.gpus += requests.gpus
        sums.pods += 1
        on_node[pod.node_name].append(pod)
    return requested, on_node


def _load(inputs: ReschedulerInput, index: int) -> NodeLoad | None:
    twin = inputs.decision.twin
    if not twin.scored[index]:
        return None
    rack = inputs.decision.nodes[index].node.rack
    control = inputs.control
    of_cluster_w = control.cluster_capacity_w
    capacity_w = of_cluster_w if rack is None else control.rack_capacity_w.get(rack, control.default_capacity_w)
    return NodeLoad(
        capped_w=float(twin.cpu_capped_w[index] + twin.gpu_capped_w[index]),
        measured_w=float(twin.measured_w[index]),
        cooling_stress_pct=float(twin.cooling_stress[index]),
        psu_stress_pct=float(twin.psu_stress[index]),
        psu_capacity_w=capacity_w,
    )


# ---- pods


def _movable(
    inputs: ReschedulerInput,
    node: ControlledNode,
    pods: Iterable[PodFacts],
    admission: _Admission,
) -> tuple[MovablePod, ...]:
    """The running pods of a node that are marked as reschedulable.

    Pods without a controller are excluded: an eviction would delete them, not move them.
    """
    limits = limits_of(node, inputs.nodes[node.name])
    found: list[MovablePod] = []
    for pod in pods:
        entry = inputs.profiles.get((pod.namespace, pod.owner))
        facts = ProfileFacts() if entry is None else entry.facts
        if not pod.movable(facts):
            continue
        performance = pod.wants_performance(facts)
        found.append(
            MovablePod(
                pod.namespace,
                pod.name,
                Workload(pod.namespace, pod.owner.kind, pod.owner.name),
                power_of_pod_w(inputs.pod_power_w.get(pod.uid), pod, limits, performance=performance),
                cpu_cores=pod.requests.cpu_cores,
                memory_gib=pod.requests.memory_gib,
                gpus=pod.requests.gpus,
                gpu_vendor=_vendor(pod.requests.gpu_vendor),
                reschedulable=True,
                performance=performance,
                sensitivity=_sensitivity(pod, facts, inputs.min_confidence),
                age_s=0.0 if pod.running_since_s is None else inputs.now_s - pod.running_since_s,
                daemon=pod.daemon,
                mirror=pod.static,
                terminating=pod.terminating,
                admitted=admission.nodes_for(pod.placement),
            )
        )
    return tuple(found)


def _sensitivity(pod: PodFacts, profile: ProfileFacts, min_confidence: float) -> Level | None:
    """The higher of CPU and GPU sensitivity; measured values count only with enough confidence. None if unknown."""
    measured = profile if profile.confidence >= min_confidence else ProfileFacts()
    known = {pod.cpu_sensitivity or measured.cpu_sensitivity, pod.gpu_sensitivity or measured.gpu_sensitivity}
    return next((level for level in Level if level in known), None)


class PodLimits(NamedTuple):
    """Maximum power of a node, to estimate the marginal power of its pods.

    Attributes:
        cores: allocatable cores.
        cpu_max_w: maximum power of all CPUs, W.
        gpu_max_w: maximum power behind one GPU that a pod requests, W.
    """

    cores: float
    cpu_max_w: float
    gpu_max_w: float


def limits_of(node: ControlledNode, facts: NodeFacts) -> PodLimits:
    """The maximum power of a node, for its pods."""
    cpu, gpu = node.hardware.cpu, node.hardware.gpu
    cores = facts.offered.get("cpu") or cpu.cores or 1.0
    return PodLimits(
        cores,
        cpu_max_or_fallback_w(node.hardware.cpu_max_w, cores),
        gpu_max_or_fallback_w(gpu.requested_max_w if gpu else None, gpu.vendor if gpu else None),
    )


def power_of_pod_w(measured_w: float | None, pod: PodFacts, limits: PodLimits, *, performance: bool) -> float:
    """Power of a pod, W: measured, else the marginal power of its requests."""
    if measured_w is not None:
        return max(0.0, measured_w)
    requests = pod.requests
    gpu_share = GPU_COEFFICIENT_PERFORMANCE if performance else GPU_COEFFICIENT_STANDARD
    core_share = requests.cpu_cores / limits.cores
    return float(
        marginal_w(limits.cpu_max_w, core_share, requests.memory_gib, requests.gpus, limits.gpu_max_w, gpu_share)
    )


def _vendor(name: str | None) -> str | None:
    """A vendor name in lower case: agents and resource requests use different cases."""
    return None if name is None else name.casefold()


class _Admission:
    """Nodes that satisfy the placement rules of pods, computed once per distinct set of rules."""

    def __init__(self, nodes: Mapping[str, NodeFacts | None]) -> None:
        self._nodes = {name: facts for name, facts in nodes.items() if facts is not None}
        self._admitted: dict[NodeRules, frozenset[str] | None] = {}

    def nodes_for(self, placement: NodeRules) -> frozenset[str] | None:
        """Names of the admitted nodes; None for all."""
        if placement not in self._admitted:
            admitted = frozenset(
                name for name, facts in self._nodes.items() if placement.admits(facts.labels, name, facts.taints)
            )
            self._admitted[placement] = None if len(admitted) == len(self._nodes) else admitted
        return self._admitted[placement]


# ---- GPUs


def _slicing(inputs: ReschedulerInput) -> dict[str, SlicingRecommendation]:
    """Recommended GPU sharing by node, from the profiles of the workloads that hold its GPUs."""
    holders: dict[str, set[WorkloadKey]] = defaultdict(set)
    for pod in inputs.pods:
        if pod.requests.gpus > 0.0 and pod.node_name and pod.phase is PodPhase.RUNNING:
            holders[pod.node_name].add((pod.namespace, pod.owner))
    found: dict[str, SlicingRecommendation] = {}
    for decided in inputs.decision.nodes:
        name, gpu = decided.node.name, decided.node.hardware.gpu
        modes = inputs.slicing_modes.get(name, ())
        if gpu is None or not modes:
            continue
        held = [_gpu_profile(inputs.profiles.get(key), inputs.min_confidence) for key in holders[name]]
        known = [profile for profile in held if profile is not None and profile.intensity is not None]
        advice = recommend_slicing(known, gpu.count, modes)
        # No advice if GPUs are held but their use was not measured: unmeasured is not idle.
        if advice is not None and (known or not held):
            found[name] = advice
    return found


def _gpu_profile(entry: ProfileEntry | None, min_confidence: float) -> GpuProfile | None:
    """Measured GPU use of a workload; None if unknown or with too little confidence."""
    stored = None if entry is None else classification_of(entry.status)
    return stored.gpu if stored is not None and stored.confidence >= min_confidence else None
