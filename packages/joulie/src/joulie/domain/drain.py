"""The drain guard: a node is capped only once no pod on it needs full power.

The states are types, and each has only the transitions that are legal: there is no way from `ActivePerformance` to
`ActiveEco` but through `DrainingPerformance`. Source: spec, control loop, state machine.

    ActivePerformance --eco planned--> DrainingPerformance --settled--> ActiveEco
            ^                            ^  | re-planned         | |  performance planned
            |                            +--+- pods that need ---+ |
            |                               |  full power came     |
            +-------------------------------+----------------------+

What is published of a capped node is its state in force: where nothing can cap it, it stays open to all pods, while the
caps go on being asked for.

Pods that need full power can reach a capped node although it is closed to them: bound by name, by another scheduler, or
while the extender does not answer. The caps are then lifted as in a drain, until these pods have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from joulie.domain.policy import PowerConstraint, Profile, WorkloadClass
from joulie.domain.quantities import finite_number
from joulie.domain.units import non_negative, positive


class SchedulableClass(StrEnum):
    """NodeTwin's `schedulableClass`: what the scheduler may put on a node."""

    PERFORMANCE = "performance"
    ECO = "eco"
    DRAINING = "draining"


class Escalation(StrEnum):
    """What happens when a drain takes longer than its timeout."""

    HOLD = "hold"
    """The timeout is reported; running pods keep their power."""
    FORCE = "force"
    """The node is capped under the pods that still run."""


@dataclass(frozen=True)
class DrainSettings:
    """Settings of the guard.

    Attributes:
        settling_s: time without a blocking pod before caps are written, since a pod may be on its way to the node, s.
        timeout_s: DRAIN_TIMEOUT, s; None never.
        escalation: DRAIN_ESCALATION.
    """

    settling_s: float = 30.0
    timeout_s: float | None = 1800.0
    escalation: Escalation = Escalation.HOLD

    def __post_init__(self) -> None:
        non_negative("settling_s", self.settling_s)
        if self.timeout_s is not None:
            positive("timeout_s", self.timeout_s)


@dataclass(frozen=True)
class GuardedPod:
    """A pod bound to the node and not finished, as the guard sees it.

    Attributes:
        workload_class: from the annotation; None where there is none, and the constraint decides.
        constraint: what its scheduling constraints admit.
        reschedulable: from annotation or profile; None where neither says, which never blocks.
        bound_to_node: whether it cannot leave the node (DaemonSet and static pods), so that waiting for it is vain.
    """

    workload_class: WorkloadClass | None = None
    constraint: PowerConstraint = PowerConstraint.GENERAL
    reschedulable: bool | None = None
    bound_to_node: bool = False

    @property
    def blocks(self) -> bool:
        """Whether the node must keep its power for this pod."""
        if self.bound_to_node:
            return False
        if self.reschedulable is not None:
            return not self.reschedulable
        return self._wants_performance

    @property
    def lifts_caps(self) -> bool:
        """Whether it must not run under caps; standard pods may, also those that must not be restarted."""
        return self.blocks and self._wants_performance

    @property
    def _wants_performance(self) -> bool:
        if self.workload_class is not None:
            return self.workload_class is WorkloadClass.PERFORMANCE
        return self.constraint in {PowerConstraint.PERFORMANCE_ONLY, PowerConstraint.UNKNOWN}


@dataclass(frozen=True)
class ActivePerformance:
    """At full power, open to all pods."""

    def drained(self, now_s: float) -> DrainingPerformance:
        """Eco is planned: stop new performance pods first."""
        return DrainingPerformance(since_s=now_s, quiet_since_s=None)


@dataclass(frozen=True)
class DrainingPerformance:
    """At full power, closed to performance pods, on the way to eco.

    Attributes:
        since_s: when the drain began, s since the epoch.
        quiet_since_s: since when no blocking pod was seen; None while one is there.
        lifted: whether it was capped before, and pods that need full power came: it waits for such pods only.
    """

    since_s: float
    quiet_since_s: float | None
    lifted: bool = False

    def observed(self, blocking_pods: int, now_s: float) -> DrainingPerformance:
        """The same drain after another look at the node's pods; it begins anew where the clock was set back."""
        quiet_since_s = None
        if blocking_pods == 0:
            quiet_since_s = now_s if self.quiet_since_s is None else min(self.quiet_since_s, now_s)
        return replace(self, since_s=min(self.since_s, now_s), quiet_since_s=quiet_since_s)

    def closed(self, now_s: float) -> DrainingPerformance:
        """The same drain, whose closing was written only now: it has not been quiet since earlier."""
        return self if self.quiet_since_s is None else replace(self, quiet_since_s=max(self.quiet_since_s, now_s))

    def settled(self, now_s: float, settling_s: float) -> bool:
        """Whether the node was quiet for long enough."""
        return self.quiet_since_s is not None and now_s - self.quiet_since_s >= settling_s

    def timed_out(self, now_s: float, timeout_s: float | None) -> bool:
        """Whether the drain takes longer than its timeout."""
        return timeout_s is not None and now_s - self.since_s >= timeout_s

    def finished(self, full_power_pods: int = 0) -> ActiveEco:
        """Nothing blocks any more, or the escalation says so: cap the node, under the pods that need full power."""
        return ActiveEco(full_power_pods)

    def cancelled(self) -> ActivePerformance:
        """Performance is planned again."""
        return ActivePerformance()


@dataclass(frozen=True)
class ActiveEco:
    """Under caps, closed to performance pods.

    Attributes:
        forced_pods: number of pods that need full power, under which the drain timeout capped it; as many do not lift
            the caps. None where only that it was forced is known, after a restart of the operator.
    """

    forced_pods: int | None = 0

    def observed(self, full_power_pods: int, now_s: float) -> ActiveEco | DrainingPerformance:
        """The state after another look at the node's pods: those that need full power and came since lift the caps."""
        if full_power_pods == self.forced_pods:
            return self
        if self.forced_pods is None or full_power_pods < self.forced_pods:
            return ActiveEco(full_power_pods)
        return DrainingPerformance(since_s=now_s, quiet_since_s=None, lifted=True)

    def promoted(self) -> ActivePerformance:
        """Performance is planned: effective at once, since more power is always safe."""
        return ActivePerformance()


NodeState = ActivePerformance | DrainingPerformance | ActiveEco


@dataclass(frozen=True)
class GuardDecision:
    """What is published for a node.

    Attributes:
        state: the state to go on with.
        profile: of caps and node label.
        schedulable: what the scheduler may put on the node.
        timed_out: the drain takes longer than its timeout and holds.
        forced: the drain timeout has set the caps, under pods that still block.
    """

    state: NodeState
    profile: Profile
    schedulable: SchedulableClass
    timed_out: bool = False
    forced: bool = False


def guard(
    state: NodeState,
    planned: Profile,
    blocking_pods: int,
    now_s: float,
    settings: DrainSettings,
    *,
    full_power_pods: int | None = None,
    unlimited: bool = False,
) -> GuardDecision:
    """One step of the state machine for one node.

    Args:
        state: where the node is; `ActivePerformance` for one that is new.
        planned: what the policy, or the administrator, wants.
        blocking_pods: number of pods that hold up the drain, see `GuardedPod.blocks`.
        now_s: time, s since the epoch.
        settings: settling, timeout, escalation.
        full_power_pods: number of those that lift the caps of a capped node, see `GuardedPod.lifts_caps`; None for all.
        unlimited: whether nothing can cap the node: then it is open to all pods, and none has anything to lift.

    Raises:
        InvalidQuantityError: a count or time that is NaN, or a negative count.
    """
    finite_number("blocking_pods", blocking_pods, minimum=0.0)
    finite_number("now_s", now_s)
    lifting_pods = blocking_pods if full_power_pods is None else full_power_pods
    finite_number("full_power_pods", lifting_pods, minimum=0.0)
    if planned is Profile.PERFORMANCE:
        return _published(_to_performance(state))
    match state:
        case ActivePerformance():
            state = state.drained(now_s)
        case ActiveEco():
            state = state if unlimited else state.observed(lifting_pods, now_s)
        case DrainingPerformance():
            pass
    if isinstance(state, ActiveEco):
        capped = _published(state)
        return replace(capped, schedulable=SchedulableClass.PERFORMANCE) if unlimited else capped
    holding_pods = lifting_pods if state.lifted else blocking_pods
    draining = state.observed(holding_pods, now_s)
    if draining.settled(now_s, settings.settling_s):
        return _published(draining.finished())
    if not draining.timed_out(now_s, settings.timeout_s):
        return _published(draining)
    if settings.escalation is Escalation.FORCE:
        return replace(_published(draining.finished(lifting_pods)), forced=holding_pods > 0)
    return replace(_published(draining), timed_out=True)


def _to_performance(state: NodeState) -> ActivePerformance:
    match state:
        case ActivePerformance():
            return state
        case DrainingPerformance():
            return state.cancelled()
        case ActiveEco():
            return state.promoted()


def _published(state: NodeState) -> GuardDecision:
    match state:
        case ActivePerformance():
            return GuardDecision(state, Profile.PERFORMANCE, SchedulableClass.PERFORMANCE)
        case DrainingPerformance():
            return GuardDecision(state, Profile.PERFORMANCE, SchedulableClass.DRAINING)
        case ActiveEco():
            return GuardDecision(state, Profile.ECO, SchedulableClass.ECO, forced=bool(state.forced_pods))


def restored(
    profile: Profile | None,
    draining: bool,
    draining_since_s: float | None,
    now_s: float,
    *,
    lifted: bool = False,
    forced: bool = False,
) -> NodeState:
    """The state of a node after a restart of the operator, from what its NodeTwin stores.

    How long the node was quiet is not stored: settling starts anew, which costs half a minute and no pod its power. A
    drain counts as a drain whatever the profile beside it says: that is the state with full power and no new pods.

    Args:
        profile: ``spec.profile``; None where there is no NodeTwin.
        draining: ``spec.scheduling.draining``.
        draining_since_s: last transition of the condition that says so, s since the epoch; None where unknown.
        now_s: time, s since the epoch.
        lifted: whether that condition says that the node's caps were lifted for pods that need full power.
        forced: whether it says that the drain timeout capped the node under such pods.

    Raises:
        InvalidQuantityError: a time that is NaN.
    """
    finite_number("now_s", now_s)
    if draining:
        since_s = now_s if draining_since_s is None else finite_number("draining_since_s", draining_since_s)
        # A clock that went backwards must not make a drain wait for the future.
        return DrainingPerformance(since_s=min(since_s, now_s), quiet_since_s=None, lifted=lifted)
    return ActiveEco(None if forced else 0) if profile is Profile.ECO else ActivePerformance()
