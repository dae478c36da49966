"""The operator's step as one pure function: a frozen snapshot of the cluster in, decisions as values out.

``decide(snapshot, memory, settings)`` plans profiles by policy and overrides, sends each node through the drain guard,
chooses its caps, judges its power and computes its twin. It reads no clock and changes nothing; the caller applies the
decisions and keeps the memory for the next step. Source: spec, control loop, operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.control_caps import UNCAPPED, UNREPORTED, CapTable, NodeCaps, in_force
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
from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K, CoolingStressModel, linear_cooling_stress
from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    GuardDecision,
    NodeState,
    SchedulableClass,
    guard,
    restored,
)
from joulie.domain.hysteresis import PreviousPlan
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


class PlanRecord(NamedTuple):
    """How many performance nodes the last plan had, and since when."""

    performance_nodes: int
    since_s: float
    """When this number last changed, s since the epoch."""

    def at(self, now_s: float) -> PreviousPlan:
        """The record as a policy's input."""
        return PreviousPlan(self.performance_nodes, max(0.0, now_s - self.since_s))


@dataclass(frozen=True)
class Memory:
    """State that one step hands to the next.

    Attributes:
        states: where each node is.
        timed_out: nodes whose drain has been reported as too long.
        history: recent power.
        would: what was reported of nodes in observe mode.
        planned: what hysteresis needs of the last plan; None before the first.
    """

    states: Mapping[str, NodeState] = field(default_factory=dict)
    timed_out: frozenset[str] = frozenset()
    history: PowerHistory = field(default_factory=PowerHistory)
    would: Mapping[str, Would] = field(default_factory=dict)
    planned: PlanRecord | None = None

    def published(self, before: Memory, failed: frozenset[str], now_s: float) -> Memory:
        """This memory once its decision was written, which may have taken a while.

        A node that could not be written keeps its previous state. One that was just closed counts as quiet from now on
        at the earliest: until its label was written, a performance pod could still be placed on it.

        Args:
            before: memory of the step before.
            failed: nodes that could not be written.
            now_s: when all was written, s since the epoch.
        """
        states = dict(self.states)
        for name in failed & states.keys():
            states.pop(name)
            if name in before.states:
                states[name] = before.states[name]
        for name, state in states.items():
            if isinstance(state, DrainingPerformance) and not isinstance(before.states.get(name), DrainingPerformance):
                states[name] = state.closed(now_s)
        return replace(self, states=states)

    def without(self, nodes: frozenset[str]) -> Memory:
        """This memory without some nodes: other machines may have taken their names."""
        if not nodes & self.states.keys():
            return self
        states = {name: state for name, state in self.states.items() if name not in nodes}
        would = {name: state for name, state in self.would.items() if name not in nodes}
        return Memory(states, self.timed_out - nodes, self.history.without(nodes), would, self.planned)


class Planned(NamedTuple):
    """What would be published for a node in observe mode."""

    profile: Profile
    caps: NodeCaps
    """Caps of that profile, once it is drained."""
    draining: bool
    """Whether pods on it need full power, so that it would have to drain first."""


class NodeDecision(NamedTuple):
    """What is to be published for one node. Its scores and power are in the decision's arrays, at its own index."""

    node: ControlledNode
    guarded: GuardDecision
    caps: NodeCaps
    policy: str
    """The policy or override that this comes from; empty where the node is not planned."""
    blocking: int
    planned: Planned | None = None
    """What would be done; None where it is done, and for a node that is not planned."""
    not_in_force: tuple[str, ...] = ()
    """Planned limits that no report confirms, by subsystem; they count as uncapped."""

    @property
    def state(self) -> NodeState:
        """Where the node is."""
        return self.guarded.state

    @property
    def draining(self) -> bool:
        """Whether the drain guard holds."""
        return self.guarded.schedulable is SchedulableClass.DRAINING

    @property
    def label(self) -> Profile | None:
        """Value of the node's power-profile label; None where it must have none."""
        return self.guarded.profile if self.node.eligible and self.node.enforced else None


class TransitionResult(StrEnum):
    """Outcome of a transition, as the metric names it."""

    APPLIED = "applied"
    DEFERRED = "deferred"
    """Held back by the drain guard."""
    OBSERVED = "observed"
    """Not applied: the node is in observe mode."""


class Transition(NamedTuple):
    """A change of a node's state, or one that was held back."""

    node: str
    from_state: str
    to_state: str
    result: TransitionResult
    reason: str


@dataclass(frozen=True, eq=False)
class Decision:
    """One step's decisions. Arrays are in the order of `nodes`.

    Attributes:
        now_s: time of the snapshot, s since the epoch.
        nodes: what to publish.
        twin: scores; NaN where a node has none.
        power: the measurement behind them.
        transitions: what changed, or was held back.
        memory: for the next step.
        next_due_s: when a state changes by the passing of time alone, s since the epoch; None if never.
    """

    now_s: float
    nodes: tuple[NodeDecision, ...]
    twin: FleetTwin
    power: PowerChoice
    transitions: tuple[Transition, ...]
    memory: Memory
    next_due_s: float | None


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
        tuple(_transitions(nodes, snapshot, memory)),
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
        state = _state_before(name, snapshot, memory)
        lifting = full_power.get(name, 0)
        guarded = guard(state, planned, blocking, snapshot.now_s, settings.drain, full_power_pods=lifting)
        caps = _caps(node, guarded.profile, override, plan, usual_caps)
        missing: tuple[str, ...] = ()
        if snapshot.reported is not None:
            caps, missing = in_force(caps, snapshot.reported.get(name, UNREPORTED))
        holding = _holding(guarded.state, blocking, lifting)
        decisions.append(NodeDecision(node, guarded, caps, source, holding, not_in_force=missing))
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


def _state_before(name: str, snapshot: Snapshot, memory: Memory) -> NodeState:
    """Where the node was: from memory, else from its NodeTwin; a new node is at full power."""
    known = memory.states.get(name)
    if known is not None:
        return known
    stored = snapshot.stored.get(name)
    if stored is None:
        return ActivePerformance()
    return restored(
        stored.profile,
        stored.draining,
        stored.draining_since_s,
        snapshot.now_s,
        lifted=stored.lifted,
        forced=stored.forced,
    )


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


def _transitions(nodes: Sequence[NodeDecision], snapshot: Snapshot, memory: Memory) -> list[Transition]:
    found: list[Transition] = []
    for decision in nodes:
        name, after = decision.node.name, decision.state
        known = memory.states.get(name)
        before = _state_before(name, snapshot, memory) if known is None else known
        if type(before) is not type(after):
            found.append(_applied(decision, before))
            # The first look at what holds up a drain that was planned.
            if isinstance(after, DrainingPerformance) and decision.blocking > 0 and not after.lifted:
                found.append(_deferred(decision, _need_full_power(decision.blocking)))
        elif decision.guarded.timed_out and name not in memory.timed_out:
            found.append(_deferred(decision, f"drain timed out: {decision.blocking} pods still need full power"))
        observed = _observed(decision, snapshot, memory)
        if observed is not None:
            found.append(observed)
    return found


def _observed(decision: NodeDecision, snapshot: Snapshot, memory: Memory) -> Transition | None:
    """A change of what would be done on a node in observe mode; None without one."""
    would, name = decision.planned, decision.node.name
    if would is None:
        return None
    stored = snapshot.stored.get(name)
    before = memory.would.get(name) or (stored.would if stored is not None else None)
    if before == (would.profile, would.draining) or (before is None and would.profile is Profile.PERFORMANCE):
        return None
    after: type[NodeState] = ActivePerformance
    reason = f"{would.profile} planned by {decision.policy}"
    if would.draining:
        after, reason = DrainingPerformance, f"{reason}, {decision.blocking} pods need full power"
    elif would.profile is Profile.ECO:
        after = ActiveEco
    return Transition(name, ActivePerformance.__name__, after.__name__, TransitionResult.OBSERVED, reason)


def _applied(decision: NodeDecision, before: NodeState) -> Transition:
    match decision.state:
        case ActiveEco():
            reason = "forced by the drain timeout" if decision.guarded.forced else "nothing on it needs full power"
        case DrainingPerformance(lifted=True):
            reason = f"{_need_full_power(decision.blocking)}: the caps are lifted until they have ended"
        case DrainingPerformance():
            reason = f"eco planned by {decision.policy}"
        case ActivePerformance():
            reason = _why_performance(decision)
    return Transition(
        decision.node.name, type(before).__name__, type(decision.state).__name__, TransitionResult.APPLIED, reason
    )


def _why_performance(decision: NodeDecision) -> str:
    if not decision.node.eligible:
        return "no longer planned"
    return f"performance planned by {decision.policy}" if decision.node.enforced else "no longer enforced: observe mode"


def _need_full_power(pods: int) -> str:
    return f"{pods} pods need full power"


def _deferred(decision: NodeDecision, reason: str) -> Transition:
    return Transition(
        decision.node.name, DrainingPerformance.__name__, ActiveEco.__name__, TransitionResult.DEFERRED, reason
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
