"""Why nodes change their states, for events, logs and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from joulie.domain.control_decision import Memory, NodeDecision, Planned, Transition, TransitionResult
from joulie.domain.control_inputs import Snapshot
from joulie.domain.drain import ActiveEco, ActivePerformance, DrainingPerformance, NodeState, restored
from joulie.domain.policy import Profile


def state_before(name: str, snapshot: Snapshot, memory: Memory) -> NodeState:
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


def transitions_of(nodes: Sequence[NodeDecision], snapshot: Snapshot, memory: Memory) -> list[Transition]:
    """Changes of the nodes' states in a step, and those that the drain guard held back."""
    found: list[Transition] = []
    for decision in nodes:
        name, after = decision.node.name, decision.guarded.state
        before = state_before(name, snapshot, memory)
        if type(before) is not type(after):
            found.append(_applied(decision, before))
            # The first look at what holds up a drain that was planned.
            if isinstance(after, DrainingPerformance) and decision.blocking > 0 and not after.lifted:
                found.append(_deferred(decision, _need_full_power(decision.blocking)))
        elif decision.guarded.timed_out and name not in memory.timed_out:
            found.append(_deferred(decision, f"drain timed out: {decision.blocking} pods still need full power"))
        if decision.planned is not None:
            found += _observed(decision, decision.planned, snapshot, memory)
    return found


def _observed(decision: NodeDecision, would: Planned, snapshot: Snapshot, memory: Memory) -> list[Transition]:
    """A change of what would be done on a node in observe mode, if there is one."""
    name = decision.node.name
    stored = snapshot.stored.get(name)
    before = memory.would.get(name) or (stored.would if stored is not None else None)
    if before == (would.profile, would.draining) or (before is None and would.profile is Profile.PERFORMANCE):
        return []
    after: type[NodeState] = ActivePerformance
    reason = f"{would.profile} planned by {decision.policy}"
    if would.draining:
        after, reason = DrainingPerformance, f"{reason}, {decision.blocking} pods need full power"
    elif would.profile is Profile.ECO:
        after = ActiveEco
    return [Transition(name, ActivePerformance.__name__, after.__name__, TransitionResult.OBSERVED, reason)]


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
