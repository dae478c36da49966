"""Operator and agents of a native run: the steps of `joulie.domain.control`, vectorised over nodes.

The decisions are those of `joulie.domain.control.decide`, made by the same functions. A cycle evaluates only nodes
whose state can change, so that a cycle over a thousand settled nodes is cheap. Twins are computed on demand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from joulie.domain.actuation import WantedCap
from joulie.domain.control import ControlledNode, ControlSettings, PlanRecord, controlled_node
from joulie.domain.control_caps import UNCAPPED, CapsByProfile, CapTable, NodeCaps
from joulie.domain.control_power import HISTORY_SAMPLES
from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K, CoolingStressModel, linear_cooling_stress
from joulie.domain.drain import ActiveEco, ActivePerformance, DrainingPerformance, Escalation, NodeState, guard
from joulie.domain.hardware import CapRange
from joulie.domain.policy import Cap, ClusterSnapshot, Plan, Policy, Profile
from joulie.domain.scoring.extender import NodeClass, TwinView, performance_pressure
from joulie.domain.twin import capped_power_w, headroom_score, power_trend_w_per_min
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.experiment.outcome import Drain
from joulie_lab.simulation.experiment.scenario import ControlTimes
from joulie_lab.simulation.native.nodes import SimNode

_CLASS_OF = {
    ActivePerformance: NodeClass.PERFORMANCE,
    DrainingPerformance: NodeClass.DRAINING,
    ActiveEco: NodeClass.ECO,
}
_PERFORMANCE, _ECO, _DRAINING = (int(one) for one in (NodeClass.PERFORMANCE, NodeClass.ECO, NodeClass.DRAINING))
"""Plain integers: NumPy takes six times as long to compare an array to an enum, and this happens in every cycle."""
_MAX_CACHED_PLANS = 4096
"""Maximum number of plans cached by demand: bounds memory for traces whose demand keeps taking new values."""


@dataclass(frozen=True)
class Control:
    """Policy and settings of the operator in a run.

    Attributes:
        policy: chooses which nodes run at full power.
        settings: settings that stay fixed during the run.
        cooling: model of the nodes' cooling stress.
        enforced: names of the nodes on which the plan is applied at a time, s since the start of the run, out of all;
            None for all at all times.
    """

    policy: Policy
    settings: ControlSettings = field(default_factory=ControlSettings)
    cooling: CoolingStressModel = linear_cooling_stress
    enforced: Callable[[float], Collection[str]] | None = None


class NodeCap(NamedTuple):
    """Power limits that an agent applies to its node."""

    node: int
    """Index of the node."""
    cpu_w: float | None
    """Limit of one CPU package, W; None lifts it."""
    gpu_w: float | None
    """Limit of one GPU, W; None restores the default."""


class _Planned(NamedTuple):
    """A plan, and its performance nodes as an array of shape ``(n_nodes,)``."""

    plan: Plan
    performance: BoolArray
    n_performance: int


class NativeControl:
    """Operator and agents of one run; arrays are in the order of the nodes.

    Attributes:
        node_class: schedulable class of each node, a value of `NodeClass`, as the extender's filter and score see it.
    """

    def __init__(self, control: Control, nodes: Sequence[SimNode], times: ControlTimes) -> None:
        """Start with all nodes at full power and uncapped.

        Args:
            control: policy and settings of the operator.
            nodes: nodes of the cluster.
            times: intervals of operator and agents; each acts at whole multiples of its interval.
        """
        self._control = control
        self._settings = control.settings
        self._times = times
        self._nodes: tuple[ControlledNode, ...] = tuple(controlled_node(node.name, node.hardware) for node in nodes)
        self._eligible = tuple(node.planned for node in self._nodes)
        self._uses_time: bool = getattr(control.policy, "uses_time", True)
        self._plans: dict[tuple[int, int | None], _Planned] = {}
        self._by_size: dict[int, _Planned] = {}
        self._plan: Plan | None = None
        self._record: PlanRecord | None = None
        n_nodes = len(self._nodes)
        self._states: list[NodeState] = [ActivePerformance()] * n_nodes
        self._since_s = np.full(n_nodes, np.nan)
        self._quiet_since_s = np.full(n_nodes, np.nan)
        self._lifted: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self._forced: BoolArray = np.zeros(n_nodes, dtype=np.bool_)
        self.node_class: IntArray = np.full(n_nodes, NodeClass.PERFORMANCE, dtype=np.int64)
        self._cap_table = CapTable(self._settings.caps, absolute_gpu_caps=self._settings.absolute_gpu_caps)
        self._caps: list[NodeCaps] = [UNCAPPED] * n_nodes
        self._names = [node.name for node in self._nodes]
        self._asked_caps: list[CapsByProfile | None] = [None] * n_nodes
        self._decided_s: dict[int, float] = {}
        self._applied_w: list[tuple[float | None, float | None]] = [(None, None)] * n_nodes
        self._drains: list[Drain] = []
        self._open_drain: dict[int, int] = {}
        self._samples: deque[tuple[float, FloatArray]] = deque(maxlen=HISTORY_SAMPLES)
        self._view: TwinView | None = None
        limits = np.array([node.limits for node in self._nodes], dtype=np.float64).reshape(-1, 4)
        self._known: BoolArray = np.array([node.limits_known for node in self._nodes], dtype=np.bool_)
        # 1 W where limits are unknown avoids a division by zero: such nodes are never fresh.
        self._cpu_tdp_w = np.where(self._known, limits[:, 0], 1.0)
        self._gpu_tdp_w = np.where(self._known, limits[:, 1], 0.0)
        self._percents = np.full((n_nodes, 2), 100.0)
        ambient_known, zones = np.zeros(n_nodes, dtype=np.bool_), [None] * n_nodes
        self._cooling_inputs = np.full(n_nodes, REFERENCE_AMBIENT_K), ambient_known, zones

    # ---- the operator

    def cycle(
        self,
        now_s: float,
        demand: int,
        blocking: IntArray,
        power_w: FloatArray,
        full_power: IntArray | None = None,
    ) -> list[int]:
        """Run one cycle of the operator. Cycles whose inputs equal those of the last one may be skipped.

        Args:
            now_s: time since the start of the run, s; a multiple of the operator's interval.
            demand: weighted count of performance pods, pending and running.
            blocking: number of pods that block a drain, by node.
            power_w: measured power of each node, W.
            full_power: number of those pods that must not run under caps, by node; None for all.

        Returns:
            Indices of the nodes whose schedulable class changed.
        """
        self._record_power(now_s, power_w)
        planned = self._planned(demand, now_s)
        lifting = blocking if full_power is None else full_power
        moved = self._guard(planned.performance | self._observed(now_s), blocking, lifting, now_s)
        self._decide_caps(planned.plan, moved, now_s)
        self._view = None
        return moved

    def _observed(self, now_s: float) -> BoolArray:
        """Nodes in observe mode, which run at full power whatever is planned."""
        if self._control.enforced is None:
            return np.zeros(len(self._nodes), dtype=np.bool_)
        enforced = self._control.enforced(now_s)
        return np.array([node.name not in enforced for node in self._nodes], dtype=np.bool_)

    def _record_power(self, now_s: float, power_w: FloatArray) -> None:
        if self._samples:
            self._fill_skipped_cycles(now_s - self._times.operator_s)
        self._samples.append((now_s, power_w.copy()))

    def _fill_skipped_cycles(self, until_s: float) -> None:
        """Repeat the last power sample for each cycle skipped up to `until_s`: power did not change in them."""
        last_s, last_w = self._samples[-1]
        skipped = round((until_s - last_s) / self._times.operator_s)
        for back in range(min(skipped, HISTORY_SAMPLES) - 1, -1, -1):
            self._samples.append((until_s - back * self._times.operator_s, last_w))

    def _planned(self, demand: int, now_s: float) -> _Planned:
        before = self._record
        known = self._plans.get((demand, None if before is None else before.performance_nodes))
        planned = self._asked(demand, now_s) if known is None or self._uses_time else known
        count = planned.n_performance
        if before is None or before.performance_nodes != count:
            self._record = PlanRecord(count, now_s)
        return planned

    def _asked(self, demand: int, now_s: float) -> _Planned:
        """The policy's plan; it is cached unless hysteresis has a part in it."""
        before = self._record
        previous = None if before is None else before.at(now_s)
        planned = self._made(ClusterSnapshot(self._eligible, demand, now_s, previous=previous))
        plan = planned.plan
        if plan.due_s is None and (before is None or planned.n_performance >= before.performance_nodes):
            if len(self._plans) >= _MAX_CACHED_PLANS:
                self._plans.clear()
            self._plans[demand, None if before is None else before.performance_nodes] = planned
        return planned

    def _made(self, snapshot: ClusterSnapshot) -> _Planned:
        """The policy's plan for a snapshot; by its number of performance nodes where the policy tells that alone."""
        policy = self._control.policy
        demanded = getattr(policy, "demanded", None)
        if demanded is None:
            return self._with_array(policy.plan(snapshot))
        size, due_s = demanded(snapshot)
        known = self._by_size.get(size)
        if known is None:
            known = self._by_size[size] = self._with_array(policy.plan(snapshot))
        return known if known.plan.due_s == due_s else known._replace(plan=replace(known.plan, due_s=due_s))

    def _with_array(self, plan: Plan) -> _Planned:
        performance = np.array([plan.profiles[name] is Profile.PERFORMANCE for name in self._names], dtype=np.bool_)
        return _Planned(plan, performance, int(performance.sum()))

    def _guard(self, performance: BoolArray, blocking: IntArray, lifting: IntArray, now_s: float) -> list[int]:
        """Pass the nodes whose state can change through the drain guard. Returns those whose class changed."""
        eco = self.node_class == _ECO
        unsettled = np.where(
            eco, performance | (lifting > 0) | self._forced, performance != (self.node_class == _PERFORMANCE)
        )
        if self._open_drain:
            holding = np.where(self._lifted, lifting, blocking)
            unsettled = np.where(self.draining, performance | self._drains_can_change(holding, now_s), unsettled)
        moved = []
        for node in np.flatnonzero(unsettled).tolist():
            planned = Profile.PERFORMANCE if performance[node] else Profile.ECO
            state = guard(
                self._states[node],
                planned,
                int(blocking[node]),
                now_s,
                self._settings.drain,
                full_power_pods=int(lifting[node]),
            ).state
            if self._set_state(node, state, now_s):
                moved.append(node)
        return moved

    def _drains_can_change(self, blocking: IntArray, now_s: float) -> BoolArray:
        """Draining nodes that begin to settle, are disturbed, have settled or are overdue; undefined elsewhere."""
        drain = self._settings.drain
        settled = now_s - self._quiet_since_s >= drain.settling_s
        disturbed_or_quiet = (blocking > 0) != np.isnan(self._quiet_since_s)
        if drain.timeout_s is None or drain.escalation is not Escalation.FORCE:
            return np.asarray(settled | disturbed_or_quiet)
        return np.asarray(settled | disturbed_or_quiet | (now_s - self._since_s >= drain.timeout_s))

    def _set_state(self, node: int, state: NodeState, now_s: float) -> bool:
        """Set a node's state, and record drains that begin or end. Returns whether the node's class changed."""
        before, self._states[node] = self._states[node], state
        if isinstance(state, DrainingPerformance):
            self._since_s[node] = state.since_s
            self._quiet_since_s[node] = np.nan if state.quiet_since_s is None else state.quiet_since_s
            self._lifted[node] = state.lifted
        self._forced[node] = isinstance(state, ActiveEco) and state.forced_pods != 0
        if type(state) is type(before):
            return False
        self.node_class[node] = _CLASS_OF[type(state)]
        if isinstance(state, DrainingPerformance):
            self._open_drain[node] = len(self._drains)
            self._drains.append(Drain(self._nodes[node].name, state.since_s, None))
        elif node in self._open_drain:
            place = self._open_drain.pop(node)
            self._drains[place] = Drain(self._nodes[node].name, self._drains[place].start_s, now_s)
        return True

    def _decide_caps(self, plan: Plan, moved: Sequence[int], now_s: float) -> None:
        first = self._plan is None
        everywhere = first or (plan is not self._plan and bool(plan.caps))
        self._plan = plan
        asked, planned = self._asked_caps, plan.caps
        concerned: Collection[int] = moved
        if everywhere:
            # Plans ask for the same caps of most nodes again and again, by the same objects.
            concerned = set(moved)
            for node, name in enumerate(self._names):
                wanted = planned.get(name)
                if first or wanted is not asked[node]:
                    concerned.add(node)
                    asked[node] = wanted
        for node in concerned:
            profile = Profile.ECO if self.node_class[node] == _ECO else Profile.PERFORMANCE
            caps = self._cap_table.of(self._nodes[node].hardware, profile, planned.get(self._names[node]))
            if caps != self._caps[node]:
                self._caps[node] = caps
                self._percents[node] = caps[2:]
                self._decided_s[node] = now_s

    # ---- the agents

    def caps_due(self, now_s: float) -> tuple[NodeCap, ...]:
        """Caps that agents apply now: those decided earlier that differ from the caps last applied.

        Args:
            now_s: time since the start of the run, s; a multiple of the agents' interval.
        """
        due = sorted(node for node, decided_s in self._decided_s.items() if decided_s < now_s)
        found = []
        for node in due:
            del self._decided_s[node]
            wanted = self._wanted_w(node)
            if wanted != self._applied_w[node]:
                self._applied_w[node] = wanted
                found.append(NodeCap(node, *wanted))
        return tuple(found)

    def _wanted_w(self, node: int) -> tuple[float | None, float | None]:
        hardware, caps = self._nodes[node].hardware, self._caps[node]
        gpu_w = None if hardware.gpu is None else _device_w(caps.gpu, hardware.gpu.cap_range)
        return _device_w(caps.cpu, hardware.cpu.cap_range), gpu_w

    # ---- outputs

    @property
    def draining(self) -> BoolArray:
        """Nodes that drain before they become eco nodes."""
        return np.asarray(self.node_class == _DRAINING)

    @property
    def eco(self) -> BoolArray:
        """Nodes under eco caps."""
        return np.asarray(self.node_class == _ECO)

    def drains(self) -> tuple[Drain, ...]:
        """Drains so far, ordered by start; a cancelled drain ends when it is cancelled."""
        return tuple(self._drains)

    def next_change_s(self, now_s: float) -> float:
        """Next time at which a decision can change if demand, blocking pods and power stay the same; inf if none."""
        plan_due_s = None if self._plan is None else self._plan.due_s
        due_s = [now_s if self._uses_time else math.inf if plan_due_s is None else plan_due_s]
        if self._open_drain:
            due_s += self._drains_due_s()
        cycle_s = _next_multiple_s(min(due_s), self._times.operator_s, now_s)
        if not self._decided_s:
            return cycle_s
        return min(cycle_s, _next_multiple_s(now_s, self._times.agent_s, now_s))

    def _drains_due_s(self) -> list[float]:
        """Times at which drains will have settled or be overdue if nothing disturbs them, s."""
        drain, draining = self._settings.drain, self.draining
        quiet_since_s = self._quiet_since_s[draining]
        due_s: list[float] = (quiet_since_s[~np.isnan(quiet_since_s)] + drain.settling_s).tolist()
        if drain.timeout_s is not None and drain.escalation is Escalation.FORCE:
            due_s += (self._since_s[draining] + drain.timeout_s).tolist()
        return due_s

    def twin_view(self, now_s: float) -> TwinView:
        """Twins as of the last cycle, whether it ran or was skipped.

        The operator keeps all twins fresh, so none is stale by age.

        Args:
            now_s: time since the start of the run, s.
        """
        cycle_s = math.floor(now_s / self._times.operator_s + 1e-9) * self._times.operator_s
        if cycle_s > self._samples[-1][0] + 1e-6:
            self._fill_skipped_cycles(cycle_s)
            self._view = None
        if self._view is None:
            self._view = self._build_view()
        return self._view

    def _build_view(self) -> TwinView:
        """Compute `joulie.domain.twin.twin_fleet` for these nodes, limited to what filter and score use."""
        known, measured_w = self._known, self._samples[-1][1]
        capped_w = capped_power_w(self._cpu_tdp_w, self._percents[:, 0])
        capped_w = capped_w + capped_power_w(self._gpu_tdp_w, self._percents[:, 1])
        headroom = headroom_score(capped_w, measured_w)
        stress = self._control.cooling(measured_w, self._cpu_tdp_w + self._gpu_tdp_w, *self._cooling_inputs)
        trend_w_per_min = self._trend_w_per_min()
        return TwinView(
            node_class=self.node_class.copy(),
            fresh=known,
            capped_w=capped_w,
            measured_w=measured_w,
            cooling_stress_pct=stress,
            headroom_score=headroom,
            trend_w_per_min=trend_w_per_min,
            cpu_cap_fraction=self._percents[:, 0] / 100.0,
            gpu_cap_fraction=self._percents[:, 1] / 100.0,
            cluster_trend_w_per_min=float(np.where(known, trend_w_per_min, 0.0).sum()),
            perf_pressure=performance_pressure(headroom, self.node_class, known),
        )

    def _trend_w_per_min(self) -> FloatArray:
        """Slope of each node's recent power, W/min; fitted only for the few nodes whose power changed."""
        first_s = self._samples[-1][0] - self._settings.trend_window_s
        recent = [(at_s, w) for at_s, w in self._samples if at_s >= first_s]
        power_w = np.stack([w for _, w in recent])
        changing = np.flatnonzero((power_w != power_w[-1]).any(axis=0))
        trend_w_per_min = np.zeros(len(self._nodes))
        if len(changing):
            times_s = np.array([at_s for at_s, _ in recent])
            changing_w = np.ascontiguousarray(power_w[:, changing].T)
            trend_w_per_min[changing] = power_trend_w_per_min(times_s, changing_w)
        return trend_w_per_min


def _device_w(cap: Cap | None, limits: CapRange | None) -> float | None:
    """Limit of one device as its agent computes it, W; None without a cap, or if the limit cannot be computed."""
    if cap is None:
        return None
    wanted = WantedCap(percent=cap.percent) if cap.watts is None else WantedCap(cap_w=cap.watts)
    return None if wanted.lifted else wanted.in_watts(limits)


def _next_multiple_s(moment_s: float, interval_s: float, now_s: float) -> float:
    """First multiple of the interval that is at or after the moment, and after now."""
    if math.isinf(moment_s):
        return math.inf
    after_now = math.floor(now_s / interval_s + 1e-9) + 1
    return max(math.ceil(moment_s / interval_s - 1e-9), after_now) * interval_s
