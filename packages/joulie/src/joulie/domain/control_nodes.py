"""The decisions about single nodes in a step: profile, drain guard and caps.

A node at rest is decided once and stays so until one of its inputs changes: in a calm cluster a step costs little more
than the look for changes.
"""

from __future__ import annotations

from joulie.domain.control_caps import (
    UNCAPPED,
    UNREPORTED,
    CapsByProfile,
    CapTable,
    NodeCaps,
    in_force,
    is_unlimited,
    under,
)
from joulie.domain.control_decision import KeptDecisions, Memory, NodeDecision, NodeInputs, Planned, Rules
from joulie.domain.control_inputs import ControlledNode, ControlSettings, Override, Snapshot
from joulie.domain.control_transitions import state_before
from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    GuardDecision,
    NodeState,
    SchedulableClass,
    guard,
)
from joulie.domain.policy import Plan, Profile

NOT_READY = "not-ready"
"""In place of the policy where a node gave up its performance slot because it is not ready."""

_RELEASED = GuardDecision(ActivePerformance(), Profile.PERFORMANCE, SchedulableClass.PERFORMANCE)
"""Of a node on which nothing is applied: full power, open to all pods."""


def decide_nodes(
    snapshot: Snapshot, memory: Memory, settings: ControlSettings, plan: Plan, unavailable: frozenset[str]
) -> tuple[tuple[NodeDecision, ...], KeptDecisions]:
    """Decide every node.

    Args:
        snapshot: the cluster now.
        memory: of the step before.
        settings: fixed settings.
        plan: profiles of the eligible nodes that are not `unavailable`.
        unavailable: eligible nodes that cannot run pods.

    Returns:
        The decisions in the order of the nodes, and those to keep for the next step.
    """
    rules = Rules.of(settings)
    before = memory.kept.by_node if memory.kept.rules == rules else {}
    usual_caps = CapTable(rules.caps, absolute_gpu_caps=rules.absolute_gpu_caps)
    blocking, reported, ceilings, overrides = (
        snapshot.blocking,
        snapshot.reported,
        snapshot.ceilings,
        snapshot.overrides,
    )
    full_power = blocking if snapshot.full_power is None else snapshot.full_power
    kept: dict[str, tuple[NodeInputs, NodeDecision]] = {}
    decisions: list[NodeDecision] = []
    for node in snapshot.nodes:
        name = node.name
        override = overrides.get(name)
        if not node.eligible:
            planned, source = Profile.PERFORMANCE, ""
        elif override is not None:
            planned, source = override.profile, override.name
        elif name in unavailable:
            planned, source = Profile.ECO, NOT_READY
        else:
            planned, source = plan.profiles[name], plan.policy
        inputs = NodeInputs(
            node,
            state_before(name, snapshot, memory),
            planned,
            source,
            override,
            plan.caps.get(name),
            blocking.get(name, 0),
            full_power.get(name, 0),
            None if reported is None else reported.get(name, UNREPORTED),
            ceilings.get(name),
        )
        known = before.get(name)
        if known is None or known[0] != inputs:
            known = inputs, _decide_node(inputs, rules, usual_caps, snapshot.now_s)
        decision = known[1]
        decisions.append(decision)
        if _at_rest(inputs.state, decision.guarded.state):
            kept[name] = known
    return tuple(decisions), KeptDecisions(rules, kept)


def _at_rest(before: NodeState, after: NodeState) -> bool:
    """Whether a node stays where it is whatever the time: only drains begin and end by the clock."""
    return before == after and not isinstance(after, DrainingPerformance)


def _decide_node(inputs: NodeInputs, rules: Rules, usual_caps: CapTable, now_s: float) -> NodeDecision:
    node, source, blocking = inputs.node, inputs.source, inputs.blocking
    if not node.eligible:
        return NodeDecision(node, _RELEASED, UNCAPPED, source, blocking)
    hardware, reported, override, plan_caps = node.hardware, inputs.reported, inputs.override, inputs.plan_caps
    if not node.enforced:
        caps = _caps(node, inputs.planned, override, plan_caps, usual_caps)
        would = Planned(inputs.planned, caps, inputs.planned is Profile.ECO and blocking > 0)
        return NodeDecision(node, _RELEASED, UNCAPPED, source, blocking, would)
    unlimited = False
    if reported is not None and isinstance(inputs.state, ActiveEco):
        eco_caps = _caps(node, Profile.ECO, override, plan_caps, usual_caps)
        unlimited = is_unlimited(under(eco_caps, inputs.ceiling, hardware), reported)
    guarded = guard(
        inputs.state,
        inputs.planned,
        blocking,
        now_s,
        rules.drain,
        full_power_pods=inputs.full_power,
        unlimited=unlimited,
    )
    own = _caps(node, guarded.profile, override, plan_caps, usual_caps)
    caps = wanted = under(own, inputs.ceiling, hardware)
    missing: tuple[str, ...] = ()
    if reported is not None:
        caps, missing = in_force(caps, reported)
    holding = _holding(guarded.state, blocking, inputs.full_power)
    return NodeDecision(node, guarded, caps, source, holding, None, missing, wanted, own.gpu_percent)


def _holding(state: NodeState, blocking: int, full_power: int) -> int:
    """Number of pods that a node waits for, or that are capped on it."""
    match state:
        case ActiveEco() | DrainingPerformance(lifted=True):
            return full_power
        case _:
            return blocking


def _caps(
    node: ControlledNode,
    profile: Profile,
    override: Override | None,
    planned: CapsByProfile | None,
    usual_caps: CapTable,
) -> NodeCaps:
    """Caps of a node under a profile: while a drain holds, not yet those of the planned one or of an override."""
    if override is not None and profile is override.profile:
        return usual_caps.overridden(node.hardware, profile, override.cpu, override.gpu, planned)
    return usual_caps.of(node.hardware, profile, planned)
