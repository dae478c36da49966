"""The operator's step as one pure function: a frozen snapshot of the cluster in, decisions as values out.

``decide(snapshot, memory, settings)`` plans profiles by policy and overrides, sends each node through the drain guard,
chooses its caps, judges its power and computes its twin. It reads no clock and changes nothing; the caller applies the
decisions and keeps the memory for the next step. Source: spec, control loop, operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    NodeColumns,
    Override,
    Snapshot,
    StoredState,
    Would,
    controlled_node,
)
from joulie.domain.control_nodes import NOT_READY, decide_nodes
from joulie.domain.control_power import PowerChoice, PowerHistory, choose_power
from joulie.domain.control_transitions import transitions_of
from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K, CoolingStressModel, linear_cooling_stress
from joulie.domain.drain import DrainingPerformance
from joulie.domain.policy import ClusterSnapshot, Plan, Policy, Profile
from joulie.domain.twin import FleetReadings, FleetTwin, twin_fleet

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
    columns = memory.columns
    if columns is None or columns.nodes is not snapshot.nodes:
        columns = NodeColumns.of(snapshot.nodes)
    unavailable = _unavailable(snapshot, settings)
    plan = _plan(snapshot, columns, memory, unavailable, policy)
    nodes, kept = decide_nodes(snapshot, memory, settings, plan, unavailable)
    names = columns.names
    power = choose_power(snapshot.power, len(nodes), snapshot.now_s, settings.stale_after_s)
    history = memory.history.extended(names, power)
    twin = _twins(snapshot, columns, nodes, power, history, settings, cooling)
    return Decision(
        snapshot.now_s,
        nodes,
        twin,
        power,
        tuple(transitions_of(nodes, snapshot, memory)),
        Memory(
            {name: decision.guarded.state for name, decision in zip(names, nodes, strict=True)},
            frozenset(decision.node.name for decision in nodes if decision.guarded.timed_out),
            history,
            {
                decision.node.name: Would(would.profile, would.draining)
                for decision in nodes
                if (would := decision.planned)
            },
            _record(plan, memory, snapshot.now_s),
            columns,
            kept,
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


def _plan(
    snapshot: Snapshot, columns: NodeColumns, memory: Memory, unavailable: frozenset[str], policy: Policy
) -> Plan:
    """The policy's plan for the nodes that can run pods.

    Raises:
        IncompletePlanError: it leaves nodes out.
    """
    nodes = columns.planned
    if unavailable:
        nodes = tuple(node for node in nodes if node.name not in unavailable)
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


def _twins(
    snapshot: Snapshot,
    columns: NodeColumns,
    nodes: Sequence[NodeDecision],
    power: PowerChoice,
    history: PowerHistory,
    settings: ControlSettings,
    cooling: CoolingStressModel,
) -> FleetTwin:
    limits, racks, caps = columns.limits, columns.racks, [decision.caps for decision in nodes]
    ambient_k = columns.ambient_k(snapshot.facility)
    readings = FleetReadings(
        cpu_tdp_w=limits[:, 0],
        gpu_tdp_w=limits[:, 1],
        cores=limits[:, 2],
        gpus=limits[:, 3],
        hardware_known=columns.limits_known,
        measured_w=power.power_w,
        power_known=power.known,
        cpu_cap_percent=np.array([one.cpu_percent for one in caps], dtype=np.float64),
        gpu_cap_percent=np.array([one.gpu_percent for one in caps], dtype=np.float64),
        ambient_k=np.where(np.isnan(ambient_k), REFERENCE_AMBIENT_K, ambient_k),
        ambient_known=~np.isnan(ambient_k),
        zones=columns.zones,
        rack=columns.rack,
        rack_capacity_w=np.array([settings.rack_capacity_w.get(name, settings.default_capacity_w) for name in racks]),
        cluster_capacity_w=settings.cluster_capacity_w,
        rack_power_w=np.array([snapshot.facility.rack_power_w.get(name, np.nan) for name in racks]),
        sample_time_s=history.time_s * settings.time_scale,
        sample_power_w=history.power_w,
        sample_valid=history.recent(snapshot.now_s, settings.trend_window_s),
    )
    return twin_fleet(readings, cooling=cooling, facility_pue=snapshot.facility.pue)


def _next_due_s(nodes: Sequence[NodeDecision], plan: Plan, now_s: float, settings: ControlSettings) -> float | None:
    drain = settings.drain
    due_s: list[float] = [] if plan.due_s is None else [plan.due_s]
    for decision in nodes:
        state, not_ready_since_s = decision.guarded.state, decision.node.not_ready_since_s
        if not_ready_since_s is not None:
            due_s.append(not_ready_since_s + settings.not_ready_grace_s)
        if isinstance(state, DrainingPerformance):
            if state.quiet_since_s is not None:
                due_s.append(state.quiet_since_s + drain.settling_s)
            if drain.timeout_s is not None:
                due_s.append(state.since_s + drain.timeout_s)
    return min((moment for moment in due_s if moment > now_s), default=None)
