"""The operator's step as one pure function: a frozen snapshot of the cluster in, decisions as values out.

``decide(snapshot, memory, settings)`` plans profiles by policy and overrides, sends each node through the drain guard,
chooses its caps, judges its power and computes its twin. It reads no clock and changes nothing; the caller applies the
decisions and keeps the memory for the next step. Source: spec, control loop, operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulie.domain.control_caps import UNCAPPED, UNREPORTED, CapTable, NodeCaps, in_force, is_unlimited, under
from joulie.domain.control_decision import (
    Decision,
    Memory,
    NodeDecision,
    Planned,
    PlanRecord,
    Transition,
    TransitionResult,
)
from joulie.domain.control_inputs import (
    ControlledNode,
    ControlSettings,
    Facility,
    Override,
    Snapshot,
    StoredState,
    Would,
    controlled_node,
)
from joulie.domain.control_power import PowerChoice, PowerHistory, choose_power
from joulie.domain.control_transitions import state_before, transitions_of
from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K, CoolingStressModel, linear_cooling_stress
from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    GuardDecision,
    NodeState,
    SchedulableClass,
    guard,
)
from joulie.domain.policy import ClusterSnapshot, Plan, Policy, Profile
from joulie.domain.twin import FleetReadings, FleetTwin, twin_fleet
from joulie.domain.units import FloatArray

__all__ = [
    "NOT_READY",
    "ControlSettings",
    "ControlledNode",
    "Decision",
    "Facility",
    "IncompletePlanError",
    "Memory",
    "NodeDecision",
    "Override",
    "PlanRecord",
    "Planned",
    "Snapshot",
    "StoredState",
    "Transition",
    "TransitionResult",
    "Would",
    "complete",
    "controlled_node",
    "decide",
]

NOT_READY = "not-ready"
"""In place of the policy where a node gave up its performance slot because it is not ready."""


class IncompletePlanError(ValueError):
    """A policy's plan lacks a profile for some nodes, against its contract."""

    def __init__(self, policy: str, nodes: Sequence[str]) -> None:
        shown = ", ".join(nodes[:5])
        super().__init__(f"policy {policy!r} has no profile for {len(nodes)} nodes, {shown} among them")


def complete(plan: Plan, cluster: ClusterSnapshot) -> Plan:
    """The plan, if it has a profile for every node.

    Raises:
        IncompletePlanError: it leaves nodes out.
    """
    forgotten = [node.name for node in cluster.nodes if node.name not in plan.profiles]
    if forgotten:
        raise IncompletePlanError(plan.policy, forgotten)
    return plan


_RELEASED = GuardDecision(ActivePerformance(), Profile.PERFORMANCE, SchedulableClass.PERFORMANCE)
"""Of a node on which nothing is applied: full power, open to all pods."""


def decide(
    snapshot: Snapshot,
    memory: Memory,
    settings: ControlSettings,
    policy: Policy,
    cooling: CoolingStressModel = linear_cooling_stress,
) -> Decision:
    """One step of the operator.

    Args:
        snapshot: the cluster now.
        memory: of the step before; an empty one after a start.
        settings: fixed settings.
        policy: which nodes run at full power.
        cooling: cooling stress of nodes.

    Raises:
        InvalidQuantityError: a quantity is NaN or out of range.
    """
    unavailable = _unavailable(snapshot, settings)
    plan = _plan(snapshot, memory, unavailable, policy)
    nodes = _decide_nodes(snapshot, memory, settings, plan, unavailable)
    names = tuple(decision.node.name for decision in nodes)
    power = choose_power(snapshot.power, len(nodes), snapshot.now_s, settings.stale_after_s)
    history = memory.history.extended(names, power)
    twin = _twins(snapshot, nodes, power, history, settings, cooling)
    timed_out = frozenset(decision.node.name for decision in nodes if decision.guarded.timed_out)
    return Decision(
        snapshot.now_s,
        nodes,
        twin,
        power,
        tuple(transitions_of(nodes, snapshot, memory)),
        Memory(
            {decision.node.name: decision.state for decision in nodes},
            timed_out,
            history,
            {
                decision.node.name: Would(would.profile, would.draining)
                for decision in nodes
                if (would := decision.planned)
            },
            _record(plan, memory, snapshot.now_s),
        ),
        _next_due_s(nodes, plan, snapshot.now_s, settings),
    )


def _unavailable(snapshot: Snapshot, settings: ControlSettings) -> frozenset[str]:
    """Eligible nodes that have not been ready for longer than the grace; none if no other node could take over."""
    eligible = [node for node in snapshot.nodes if node.eligible]
    lost = frozenset(
        node.name
        for node in eligible
        if node.not_ready_since_s is not None and snapshot.now_s - node.not_ready_since_s >= settings.not_ready_grace_s
    )
    return lost if len(lost) < len(eligible) else frozenset()


def _plan(snapshot: Snapshot, memory: Memory, unavailable: frozenset[str], policy: Policy) -> Plan:
    """The policy's plan for the nodes that can run pods.

    Raises:
        IncompletePlanError: it leaves nodes out.
    """
    nodes = tuple(node.planned for node in snapshot.nodes if node.eligible and node.name not in unavailable)
    record = memory.planned or _stored_plan(snapshot)
    previous = None if record is None else record.at(snapshot.now_s)
    cluster = ClusterSnapshot(nodes, snapshot.performance_demand, snapshot.now_s, len(unavailable), previous)
    return complete(policy.plan(cluster), cluster)


def _stored_plan(snapshot: Snapshot) -> PlanRecord | None:
    """The plan before a restart of the operator, as far as NodeTwins tell: a restart alone must not cap nodes."""
    stored = [snapshot.stored[node.name] for node in snapshot.nodes if node.eligible and node.name in snapshot.stored]
    if not stored:
        return None
    count = sum(one.profile is Profile.PERFORMANCE and not one.draining for one in stored)
    return PlanRecord(count, snapshot.now_s)


def _record(plan: Plan, memory: Memory, now_s: float) -> PlanRecord:
    before, count = memory.planned, plan.performance_nodes
    return before if before is not None and before.performance_nodes == count else PlanRecord(count, now_s)


def _decide_nodes(
    snapshot: Snapshot, memory: Memory, settings: ControlSettings, plan: Plan, unavailable: frozenset[str]
) -> tuple[NodeDecision, ...]:
    usual_caps = CapTable(settings.caps, absolute_gpu_caps=settings.absolute_gpu_caps)
    full_power = snapshot.blocking if snapshot.full_power is None else snapshot.full_power
    decisions: list[NodeDecision] = []
    for node in snapshot.nodes:
        name = node.name
        blocking = snapshot.blocking.get(name, 0)
        if not node.eligible:
            decisions.append(NodeDecision(node, _RELEASED, UNCAPPED, "", blocking))
            continue
        override = snapshot.overrides.get(name)
        if override is not None:
            planned, source = override.profile, override.name
        elif name in unavailable:
            planned, source = Profile.ECO, NOT_READY
        else:
            planned, source = plan.profiles[name], plan.policy
        if not node.enforced:
            caps = _caps(node, planned, override, plan, usual_caps)
            would = Planned(planned, caps, planned is Profile.ECO and blocking > 0)
            decisions.append(NodeDecision(node, _RELEASED, UNCAPPED, source, blocking, would))
            continue
        state = state_before(name, snapshot, memory)
        lifting = full_power.get(name, 0)
        reported = None if snapshot.reported is None else snapshot.reported.get(name, UNREPORTED)
        ceiling = snapshot.ceilings.get(name)
        unlimited = False
        if reported is not None and isinstance(state, ActiveEco):
            eco_caps = _caps(node, Profile.ECO, override, plan, usual_caps)
            unlimited = is_unlimited(under(eco_caps, ceiling, node.hardware), reported)
        guarded = guard(
            state, planned, blocking, snapshot.now_s, settings.drain, full_power_pods=lifting, unlimited=unlimited
        )
        own = _caps(node, guarded.profile, override, plan, usual_caps)
        caps = wanted = under(own, ceiling, node.hardware)
        missing: tuple[str, ...] = ()
        if reported is not None:
            caps, missing = in_force(caps, reported)
        holding = _holding(guarded.state, blocking, lifting)
        decisions.append(NodeDecision(node, guarded, caps, source, holding, None, missing, wanted, own.gpu_percent))
    return tuple(decisions)


def _holding(state: NodeState, blocking: int, full_power: int) -> int:
    """Number of pods that a node waits for, or that are capped on it."""
    match state:
        case ActiveEco() | DrainingPerformance(lifted=True):
            return full_power
        case _:
            return blocking


def _caps(
    node: ControlledNode, profile: Profile, override: Override | None, plan: Plan, usual_caps: CapTable
) -> NodeCaps:
    """Caps of a node under a profile: while a drain holds, not yet those of the planned one or of an override."""
    planned = plan.caps.get(node.name)
    if override is not None and profile is override.profile:
        return usual_caps.overridden(node.hardware, profile, override.cpu, override.gpu, planned)
    return usual_caps.of(node.hardware, profile, planned)


def _twins(
    snapshot: Snapshot,
    nodes: Sequence[NodeDecision],
    power: PowerChoice,
    history: PowerHistory,
    settings: ControlSettings,
    cooling: CoolingStressModel,
) -> FleetTwin:
    now_s = snapshot.now_s
    controlled = [decision.node for decision in nodes]
    limits = np.array([node.limits for node in controlled], dtype=np.float64).reshape(-1, 4)
    percents = np.array([decision.caps[2:] for decision in nodes], dtype=np.float64).reshape(-1, 2)
    racks = sorted({node.rack for node in controlled if node.rack is not None})
    index: dict[str | None, int] = {rack: position for position, rack in enumerate(racks)}
    rack = np.array([index.get(node.rack, -1) for node in controlled], dtype=np.int64)
    zones = [node.zone for node in controlled]
    ambient_k = _ambient_k(controlled, snapshot.facility)
    readings = FleetReadings(
        cpu_tdp_w=limits[:, 0],
        gpu_tdp_w=limits[:, 1],
        cores=limits[:, 2],
        gpus=limits[:, 3],
        hardware_known=np.array([node.limits_known for node in controlled], dtype=np.bool_),
        measured_w=power.power_w,
        power_known=power.known,
        cpu_cap_percent=percents[:, 0],
        gpu_cap_percent=percents[:, 1],
        ambient_k=np.where(np.isnan(ambient_k), REFERENCE_AMBIENT_K, ambient_k),
        ambient_known=~np.isnan(ambient_k),
        zones=zones,
        rack=rack,
        rack_capacity_w=np.array([settings.rack_capacity_w.get(name, settings.default_capacity_w) for name in racks]),
        cluster_capacity_w=settings.cluster_capacity_w,
        rack_power_w=np.array([snapshot.facility.rack_power_w.get(name, np.nan) for name in racks]),
        sample_time_s=history.time_s * settings.time_scale,
        sample_power_w=history.power_w,
        sample_valid=history.recent(now_s, settings.trend_window_s),
    )
    return twin_fleet(readings, cooling=cooling, facility_pue=snapshot.facility.pue)


def _ambient_k(nodes: Sequence[ControlledNode], facility: Facility) -> FloatArray:
    """Air temperature of each node, K: its own, else its zone's, else the building's, else NaN."""
    everywhere_k = np.nan if facility.ambient_k is None else facility.ambient_k
    by_zone_k = [facility.zone_ambient_k.get(node.zone or "", everywhere_k) for node in nodes]
    by_node_k = facility.node_ambient_k
    return np.array(
        [by_node_k.get(node.name, zone_k) for node, zone_k in zip(nodes, by_zone_k, strict=True)], dtype=np.float64
    )


def _next_due_s(nodes: Sequence[NodeDecision], plan: Plan, now_s: float, settings: ControlSettings) -> float | None:
    drain = settings.drain
    due_s: list[float] = [] if plan.due_s is None else [plan.due_s]
    for decision in nodes:
        state, not_ready_since_s = decision.state, decision.node.not_ready_since_s
        if not_ready_since_s is not None:
            due_s.append(not_ready_since_s + settings.not_ready_grace_s)
        if isinstance(state, DrainingPerformance):
            if state.quiet_since_s is not None:
                due_s.append(state.quiet_since_s + drain.settling_s)
            if drain.timeout_s is not None:
                due_s.append(state.since_s + drain.timeout_s)
    return min((moment for moment in due_s if moment > now_s), default=None)
