"""What the operator's step decides and remembers, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control_caps import UNCAPPED, CapsByProfile, NodeCaps, ReportedCaps
from joulie.domain.control_inputs import ControlledNode, ControlSettings, NodeColumns, Override, Would
from joulie.domain.control_power import PowerChoice, PowerHistory
from joulie.domain.drain import DrainingPerformance, DrainSettings, GuardDecision, NodeState, SchedulableClass
from joulie.domain.hysteresis import PreviousPlan
from joulie.domain.policy import Profile
from joulie.domain.twin import FleetTwin


class PlanRecord(NamedTuple):
    """How many performance nodes the last plan had, and since when."""

    performance_nodes: int
    since_s: float
    """When this number last changed, s since the epoch."""

    def at(self, now_s: float) -> PreviousPlan:
        """The record as a policy's input."""
        return PreviousPlan(self.performance_nodes, max(0.0, now_s - self.since_s))


class NodeInputs(NamedTuple):
    """All that the decision about a node depends on, besides `Rules` and, where it drains or begins to, the time."""

    node: ControlledNode
    state: NodeState
    planned: Profile
    source: str
    """The policy or override that the planned profile comes from."""
    override: Override | None
    plan_caps: CapsByProfile | None
    """Caps that the plan has for this node; None for the usual ones."""
    blocking: int
    full_power: int
    reported: ReportedCaps | None
    ceiling: PowerCeiling | None


class Rules(NamedTuple):
    """Settings that decisions about single nodes depend on."""

    drain: DrainSettings
    caps: CapsByProfile
    absolute_gpu_caps: bool

    @classmethod
    def of(cls, settings: ControlSettings) -> Rules:
        """The rules of these settings."""
        return cls(settings.drain, settings.caps, settings.absolute_gpu_caps)


class KeptDecisions(NamedTuple):
    """Decisions about nodes at rest, which stand until one of their inputs changes."""

    rules: Rules | None = None
    by_node: Mapping[str, tuple[NodeInputs, NodeDecision]] = {}


@dataclass(frozen=True)
class Memory:
    """State that one step hands to the next.

    Attributes:
        states: where each node is.
        timed_out: nodes whose drain has been reported as too long.
        history: recent power.
        would: what was reported of nodes in observe mode.
        planned: what hysteresis needs of the last plan; None before the first.
        columns: of the last snapshot's nodes, for the next one if it has the same; None before the first.
        kept: decisions that stand while their inputs do; without them a step decides the same and takes longer.
    """

    states: Mapping[str, NodeState] = field(default_factory=dict)
    timed_out: frozenset[str] = frozenset()
    history: PowerHistory = field(default_factory=PowerHistory)
    would: Mapping[str, Would] = field(default_factory=dict)
    planned: PlanRecord | None = None
    columns: NodeColumns | None = None
    kept: KeptDecisions = field(default_factory=KeptDecisions)

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
    wanted: NodeCaps = UNCAPPED
    """The caps as they are planned, whether they are in force or not."""
    own_gpu_percent: float = 100.0
    """The planned cap of its GPUs without the ceilings of power budgets, percent of the TDP."""

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
        if not (self.node.eligible and self.node.enforced):
            return None
        # That of a node that nothing can cap is its class, not its plan.
        return Profile.ECO if self.guarded.schedulable is SchedulableClass.ECO else Profile.PERFORMANCE


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
