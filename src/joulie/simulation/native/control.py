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
from joulie.domain.twin import FleetReadings, FleetTwin, twin_fleet
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie.simulation.experiment.outcome import Drain
from joulie.simulation.experiment.scenario import ControlTimes
from joulie.simulation.native.nodes import SimNode

_CLASS_OF = {
    ActivePerformance: NodeClass.PERFORMANCE,
    DrainingPerformance: NodeClass.DRAINING,
    ActiveEco: NodeClass.ECO,
}
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

    def __init__(
        self, control: Control, nodes: Sequence[SimNode], times: ControlTimes, *, start_s: float = 0.0
    ) -> None:
        """Start with all nodes at full power and uncapped.

        Args:
            control: what to decide with.
            nodes: the nodes.
            times: how often operator and agents act, both at whole multiples.
            start_s: time of the first cycle, s.
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
        self._now_s = start_s
        self._view: TwinView | None = None
        self._limits = np.array([node.limits for node in self._nodes], dtype=np.float64).reshape(-1, 4)
        self._percents = np.full((n_nodes, 2), 100.0)

    # ---- the operator

    def cycle(self, now_s: float, demand: int, blocking: IntArray, power_w: FloatArray) -> bool:
        """One step of the operator. Cycles that were left out since the last one found the power of then.

        Args:
            now_s: s after the start of the run, a multiple of the operator's interval.
            demand: weighted count of performance pods, pending and running.
            blocking: pods that hold up a drain, by node.
            power_w: measured power of each node, W.

        Returns:
            Whether the schedulable class of a node changed.
        """
        self._remember(now_s, power_w)
        planned = self._planned(demand, now_s)
        moved = self._guard(planned.performance, blocking, now_s)
        self._decide_caps(planned.plan, moved, now_s)
        self._now_s, self._view = now_s, None
        return bool(moved)

    def _remember(self, now_s: float, power_w: FloatArray) -> None:
        if self._samples:
            last_s, last_w = self._samples[-1]
            left_out = round((now_s - last_s) / self._times.operator_s) - 1
            for back in range(min(left_out, HISTORY_SAMPLES - 1), 0, -1):
                self._samples.append((now_s - back * self._times.operator_s, last_w))
        self._samples.append((now_s, power_w.copy()))

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
        drain = self._settings.drain
        draining = self.node_class == NodeClass.DRAINING
        blocked = blocking > 0
        with np.errstate(invalid="ignore"):
            settled = now_s - self._quiet_s >= drain.settling_s
            late = now_s - self._since_s >= (math.inf if drain.timeout_s is None else drain.timeout_s)
        news = settled | (blocked != np.isnan(self._quiet_s)) | (late & (drain.escalation is Escalation.FORCE))
        astray = performance != (self.node_class == NodeClass.PERFORMANCE)
        moved = []
        for node in np.flatnonzero(np.where(draining, performance | news, astray)).tolist():
            planned = Profile.PERFORMANCE if performance[node] else Profile.ECO
            state = guard(self._states[node], planned, int(blocking[node]), now_s, drain).state
            if self._enter(node, state, now_s):
                moved.append(node)
        return moved

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
            profile = Profile.ECO if self.node_class[node] == NodeClass.ECO else Profile.PERFORMANCE
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
        return np.asarray(self.node_class == NodeClass.DRAINING)

    @property
    def eco(self) -> BoolArray:
        """Nodes under eco caps."""
        return np.asarray(self.node_class == NodeClass.ECO)

    def drains(self) -> tuple[Drain, ...]:
        """The drains so far, in order of their beginnings; one that was called off ended then."""
        return tuple(self._drains)

    def quiet_until_s(self, now_s: float) -> float:
        """The next moment at which something changes though demand, blocking pods and power stay; inf if never."""
        operator_s, drain = self._times.operator_s, self._settings.drain
        due_s = [math.inf]
        if self._by_time:
            due_s.append(now_s)
        draining = self.draining
        quiet_s = self._quiet_s[draining]
        due_s += (quiet_s[~np.isnan(quiet_s)] + drain.settling_s).tolist()
        if drain.timeout_s is not None and drain.escalation is Escalation.FORCE:
            due_s += (self._since_s[draining] + drain.timeout_s).tolist()
        cycle_s = _next_multiple_s(min(due_s), operator_s, now_s)
        if not self._decided_s:
            return cycle_s
        return min(cycle_s, _next_multiple_s(now_s, self._times.agent_s, now_s))

    def twin_view(self, now_s: float) -> TwinView:
        """What the twins said at the last cycle. The operator keeps all of them fresh, so age takes nothing away."""
        if self._view is None:
            self._view = self._made_view()
        return self._view

    def _made_view(self) -> TwinView:
        twin = self._twin()
        trend = np.where(twin.scored, twin.power_trend_w_per_min, 0.0)
        return TwinView(
            node_class=self.node_class.copy(),
            fresh=twin.scored,
            capped_w=twin.cpu_capped_w + twin.gpu_capped_w,
            measured_w=twin.measured_w,
            cooling_stress_pct=twin.cooling_stress,
            headroom_score=twin.headroom,
            trend_w_per_min=twin.power_trend_w_per_min,
            cpu_cap_fraction=self._percents[:, 0] / 100.0,
            gpu_cap_fraction=self._percents[:, 1] / 100.0,
            cluster_trend_w_per_min=float(trend.sum()),
            perf_pressure=performance_pressure(twin.headroom, self.node_class, twin.scored),
        )

    def _twin(self) -> FleetTwin:
        n_nodes = len(self._nodes)
        recent = [(at_s, w) for at_s, w in self._samples if at_s >= self._now_s - self._settings.trend_window_s]
        nowhere = np.zeros(n_nodes, dtype=np.bool_)
        limits = self._limits
        readings = FleetReadings(
            cpu_tdp_w=limits[:, 0],
            gpu_tdp_w=limits[:, 1],
            cores=limits[:, 2],
            gpus=limits[:, 3],
            hardware_known=np.array([node.limits_known for node in self._nodes], dtype=np.bool_),
            measured_w=self._samples[-1][1],
            power_known=~nowhere,
            cpu_cap_percent=self._percents[:, 0],
            gpu_cap_percent=self._percents[:, 1],
            ambient_k=np.full(n_nodes, REFERENCE_AMBIENT_K),
            ambient_known=nowhere,
            zones=[None] * n_nodes,
            rack=np.full(n_nodes, -1),
            rack_capacity_w=np.zeros(0),
            cluster_capacity_w=self._settings.default_capacity_w,
            sample_time_s=np.array([at_s for at_s, _ in recent]),
            sample_power_w=np.column_stack([w for _, w in recent]),
            sample_valid=np.ones(len(recent), dtype=np.bool_),
        )
        return twin_fleet(readings, cooling=self._control.cooling)


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
