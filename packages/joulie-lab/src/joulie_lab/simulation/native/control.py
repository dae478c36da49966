"""The operator's and the agents' side of a native run: the steps of `joulie.domain.control`, in arrays.

What is decided is what `joulie.domain.control.decide` decides, by the same functions; only the nodes at which something
can change are looked at, so that a cycle on a thousand settled nodes costs next to nothing. Twins are worked out when
somebody asks for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joulie.domain.actuation import WantedCap
from joulie.domain.control import ControlledNode, ControlSettings, controlled_node
from joulie.domain.control_caps import UNCAPPED, CapTable, NodeCaps
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
"""Plain integers: arrays are compared to them many times a second, which takes NumPy six times as long with an enum."""
_KNOWN_PLANS = 4096
"""Plans kept by demand; a bound for traces whose demand takes ever new values."""


@dataclass(frozen=True)
class Control:
    """What the operator of a run decides with.

    Attributes:
        policy: which nodes run at full power.
        settings: fixed settings.
        cooling: cooling stress of nodes.
    """

    policy: Policy
    settings: ControlSettings = field(default_factory=ControlSettings)
    cooling: CoolingStressModel = linear_cooling_stress


class NodeCap(NamedTuple):
    """What an agent tells its node."""

    node: int
    """Index of the node."""
    cpu_w: float | None
    """Limit of one CPU package, W; None lifts it."""
    gpu_w: float | None
    """Limit of one GPU, W; None restores the default."""


class _Planned(NamedTuple):
    """A plan in arrays."""

    plan: Plan
    performance: BoolArray


class NativeControl:
    """Operator and agents of one run; arrays are in the order of the nodes.

    Attributes:
        node_class: values of `NodeClass`, as filter and score see them.
    """

    def __init__(self, control: Control, nodes: Sequence[SimNode], times: ControlTimes) -> None:
        """Start with all nodes at full power and uncapped.

        Args:
            control: what to decide with.
            nodes: the nodes.
            times: how often operator and agents act, both at whole multiples.
        """
        self._control = control
        self._settings = control.settings
        self._times = times
        self._nodes: tuple[ControlledNode, ...] = tuple(controlled_node(node.name, node.hardware) for node in nodes)
        self._eligible = tuple(node.planned for node in self._nodes)
        self._by_time: bool = getattr(control.policy, "uses_time", True)
        self._plans: dict[int, _Planned] = {}
        self._plan: Plan | None = None
        n_nodes = len(self._nodes)
        self._states: list[NodeState] = [ActivePerformance()] * n_nodes
        self._since_s = np.full(n_nodes, np.nan)
        self._quiet_s = np.full(n_nodes, np.nan)
        self.node_class: IntArray = np.full(n_nodes, NodeClass.PERFORMANCE, dtype=np.int64)
        self._usual = CapTable(self._settings.caps, absolute_gpu_caps=self._settings.absolute_gpu_caps)
        self._caps: list[NodeCaps] = [UNCAPPED] * n_nodes
        self._decided_s: dict[int, float] = {}
        self._told: list[tuple[float | None, float | None]] = [(None, None)] * n_nodes
        self._drains: list[Drain] = []
        self._open_drain: dict[int, int] = {}
        self._samples: deque[tuple[float, FloatArray]] = deque(maxlen=HISTORY_SAMPLES)
        self._view: TwinView | None = None
        limits = np.array([node.limits for node in self._nodes], dtype=np.float64).reshape(-1, 4)
        self._known: BoolArray = np.array([node.limits_known for node in self._nodes], dtype=np.bool_)
        # A harmless watt where nothing is known, to be divided by: such nodes are never fresh.
        self._cpu_tdp_w = np.where(self._known, limits[:, 0], 1.0)
        self._gpu_tdp_w = np.where(self._known, limits[:, 1], 0.0)
        self._percents = np.full((n_nodes, 2), 100.0)
        self._anywhere = np.full(n_nodes, REFERENCE_AMBIENT_K), np.zeros(n_nodes, dtype=np.bool_), [None] * n_nodes

    # ---- the operator

    def cycle(self, now_s: float, demand: int, blocking: IntArray, power_w: FloatArray) -> list[int]:
        """One step of the operator. Cycles may be left out where they would find what the last one found.

        Args:
            now_s: s after the start of the run, a multiple of the operator's interval.
            demand: weighted count of performance pods, pending and running.
            blocking: pods that hold up a drain, by node.
            power_w: measured power of each node, W.

        Returns:
            The nodes whose schedulable class changed.
        """
        self._remember(now_s, power_w)
        planned = self._planned(demand, now_s)
        moved = self._guard(planned.performance, blocking, now_s)
        self._decide_caps(planned.plan, moved, now_s)
        self._view = None
        return moved

    def _remember(self, now_s: float, power_w: FloatArray) -> None:
        if self._samples:
            self._repeat(now_s - self._times.operator_s)
        self._samples.append((now_s, power_w.copy()))

    def _repeat(self, until_s: float) -> None:
        """Cycles that were left out, up to this one, found the power of the last one."""
        last_s, last_w = self._samples[-1]
        left_out = round((until_s - last_s) / self._times.operator_s)
        for back in range(min(left_out, HISTORY_SAMPLES) - 1, -1, -1):
            self._samples.append((until_s - back * self._times.operator_s, last_w))

    def _planned(self, demand: int, now_s: float) -> _Planned:
        known = self._plans.get(demand)
        if known is not None and not self._by_time:
            return known
        plan = self._control.policy.plan(ClusterSnapshot(self._eligible, demand, now_s))
        performance = np.array(
            [plan.profiles[node.name] is Profile.PERFORMANCE for node in self._nodes], dtype=np.bool_
        )
        if len(self._plans) >= _KNOWN_PLANS:
            self._plans.clear()
        self._plans[demand] = _Planned(plan, performance)
        return self._plans[demand]

    def _guard(self, performance: BoolArray, blocking: IntArray, now_s: float) -> list[int]:
        """Send the nodes whose state can change through the drain guard. Returns those whose class changed."""
        unsettled = performance != (self.node_class == _PERFORMANCE)
        if self._open_drain:
            unsettled = np.where(self.draining, performance | self._drains_move_on(blocking, now_s), unsettled)
        moved = []
        for node in np.flatnonzero(unsettled).tolist():
            planned = Profile.PERFORMANCE if performance[node] else Profile.ECO
            state = guard(self._states[node], planned, int(blocking[node]), now_s, self._settings.drain).state
            if self._enter(node, state, now_s):
                moved.append(node)
        return moved

    def _drains_move_on(self, blocking: IntArray, now_s: float) -> BoolArray:
        """Nodes whose drain begins to settle, is disturbed, has settled or is overdue; no meaning for other nodes."""
        drain = self._settings.drain
        settled = now_s - self._quiet_s >= drain.settling_s
        disturbed_or_quiet = (blocking > 0) != np.isnan(self._quiet_s)
        if drain.timeout_s is None or drain.escalation is not Escalation.FORCE:
            return np.asarray(settled | disturbed_or_quiet)
        return np.asarray(settled | disturbed_or_quiet | (now_s - self._since_s >= drain.timeout_s))

    def _enter(self, node: int, state: NodeState, now_s: float) -> bool:
        """Take note of a node's state. Returns whether its class changed."""
        before, self._states[node] = self._states[node], state
        if isinstance(state, DrainingPerformance):
            self._since_s[node] = state.since_s
            self._quiet_s[node] = np.nan if state.quiet_since_s is None else state.quiet_since_s
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
        for node in range(len(self._nodes)) if everywhere else moved:
            profile = Profile.ECO if self.node_class[node] == _ECO else Profile.PERFORMANCE
            known = self._nodes[node]
            caps = self._usual.of(known.hardware, profile, plan.caps.get(known.name))
            if caps != self._caps[node]:
                self._caps[node] = caps
                self._percents[node] = caps[2:]
                self._decided_s[node] = now_s

    # ---- the agents

    def caps_due(self, now_s: float) -> tuple[NodeCap, ...]:
        """The caps that agents bring to their nodes at this moment: those decided before it that differ from the last.

        Args:
            now_s: s after the start of the run, a multiple of the agents' interval.
        """
        due = sorted(node for node, decided_s in self._decided_s.items() if decided_s < now_s)
        found = []
        for node in due:
            del self._decided_s[node]
            wanted = self._wanted_w(node)
            if wanted != self._told[node]:
                self._told[node] = wanted
                found.append(NodeCap(node, *wanted))
        return tuple(found)

    def _wanted_w(self, node: int) -> tuple[float | None, float | None]:
        hardware, caps = self._nodes[node].hardware, self._caps[node]
        gpu_w = None if hardware.gpu is None else _device_w(caps.gpu, hardware.gpu.cap_range)
        return _device_w(caps.cpu, hardware.cpu.cap_range), gpu_w

    # ---- what others see

    @property
    def draining(self) -> BoolArray:
        """Nodes on their way to eco."""
        return np.asarray(self.node_class == _DRAINING)

    @property
    def eco(self) -> BoolArray:
        """Nodes under eco caps."""
        return np.asarray(self.node_class == _ECO)

    def drains(self) -> tuple[Drain, ...]:
        """The drains so far, in order of their beginnings; one that was called off ended then."""
        return tuple(self._drains)

    def quiet_until_s(self, now_s: float) -> float:
        """The next moment at which something changes though demand, blocking pods and power stay; inf if never."""
        due_s = [now_s if self._by_time else math.inf]
        if self._open_drain:
            due_s += self._drains_due_s()
        cycle_s = _next_multiple_s(min(due_s), self._times.operator_s, now_s)
        if not self._decided_s:
            return cycle_s
        return min(cycle_s, _next_multiple_s(now_s, self._times.agent_s, now_s))

    def _drains_due_s(self) -> list[float]:
        """When drains will have settled or be overdue if nothing disturbs them."""
        drain, draining = self._settings.drain, self.draining
        quiet_s = self._quiet_s[draining]
        due_s: list[float] = (quiet_s[~np.isnan(quiet_s)] + drain.settling_s).tolist()
        if drain.timeout_s is not None and drain.escalation is Escalation.FORCE:
            due_s += (self._since_s[draining] + drain.timeout_s).tolist()
        return due_s

    def twin_view(self, now_s: float) -> TwinView:
        """What the twins said at the last cycle, made or left out.

        The operator keeps all of them fresh, so age takes nothing away.

        Args:
            now_s: s after the start of the run.
        """
        cycle_s = math.floor(now_s / self._times.operator_s + 1e-9) * self._times.operator_s
        if cycle_s > self._samples[-1][0] + 1e-6:
            self._repeat(cycle_s)
            self._view = None
        if self._view is None:
            self._view = self._made_view()
        return self._view

    def _made_view(self) -> TwinView:
        """`joulie.domain.twin.twin_fleet` on these nodes, without what neither filter nor score looks at."""
        known, measured_w = self._known, self._samples[-1][1]
        capped_w = capped_power_w(self._cpu_tdp_w, self._percents[:, 0])
        capped_w = capped_w + capped_power_w(self._gpu_tdp_w, self._percents[:, 1])
        headroom = headroom_score(capped_w, measured_w)
        stress = self._control.cooling(measured_w, self._cpu_tdp_w + self._gpu_tdp_w, *self._anywhere)
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
        """Slope of each node's recent power: most nodes have drawn the same all the time, and need no line drawn."""
        first_s = self._samples[-1][0] - self._settings.trend_window_s
        recent = [(at_s, w) for at_s, w in self._samples if at_s >= first_s]
        power_w = np.stack([w for _, w in recent])
        changing = np.flatnonzero((power_w != power_w[-1]).any(axis=0))
        trend_w_per_min = np.zeros(len(self._nodes))
        if len(changing):
            times_s = np.array([at_s for at_s, _ in recent])
            of_node_w = np.ascontiguousarray(power_w[:, changing].T)
            trend_w_per_min[changing] = power_trend_w_per_min(times_s, of_node_w)
        return trend_w_per_min


def _device_w(cap: Cap | None, limits: CapRange | None) -> float | None:
    """The limit of one device as its agent works it out, W; None where there is none, or it cannot be worked out."""
    if cap is None:
        return None
    wanted = WantedCap(percent=cap.percent) if cap.watts is None else WantedCap(cap_w=cap.watts)
    return None if wanted.lifted else wanted.in_watts(limits)


def _next_multiple_s(moment_s: float, interval_s: float, now_s: float) -> float:
    """The first multiple of the interval that is not before the moment, and after now."""
    if math.isinf(moment_s):
        return math.inf
    after_now = math.floor(now_s / interval_s + 1e-9) + 1
    return max(math.ceil(moment_s / interval_s - 1e-9), after_now) * interval_s
