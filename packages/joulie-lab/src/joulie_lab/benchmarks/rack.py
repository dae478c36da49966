"""Benchmark of nested PowerBudgets through a demand-response event: 16 modelled nodes in virtual time.

The decisions are the operator's (`domain.capping.budgets`, `watts_in_force`, `node_limits`); nodes are those of the
simulator service. Agents set what they are asked for after a random delay and confirm it after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.capping.budgets import Budget, BudgetMemory, BudgetNodes, decide_budgets
from joulie.domain.capping.demand_response import (
    ADJUST_FROM_S,
    ADJUST_UNTIL_S,
    DAYS,
    Course,
    baseline_10_in_10,
)
from joulie.domain.capping.node_limits import NO_DEVICES, DeviceLimits, NodeLimits, PowerCeiling
from joulie.domain.capping.watts_in_force import Reduction, watts_in_force
from joulie.domain.hardware import CapRange
from joulie.domain.units import SECONDS_PER_HOUR, BoolArray, FloatArray, IntArray
from joulie_lab.benchmarks.breaker_load import inference
from joulie_lab.benchmarks.feeds import GPUS, longest, server
from joulie_lab.benchmarks.results import Figures
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.nodes import FleetLoad, NodeSpec

NODES, RACK = 16, 8
GPU_NODES = 10
CRITICAL_EVERY = 5
"""Every fifth node runs performance pods."""
DECIDE_S, READ_LATE_S = 2, 2
RESPONSE_S = 15.0
ACT_S, CONFIRM_S = (0.5, 3.0), (0.5, 2.0)
"""How long an agent takes to set a limit, and then to confirm it, from and to, s."""
FEED_SHARE, RACK_SHARE, NODE_SHARE = 0.95, 0.96, 0.75
"""Budgets, as a share of the worst case of their nodes without limits."""
REDUCE_PCT = 30.0
HOUR_S = 3600
"""Length of the event, and of the times before and after it that are played, s."""
EVERY_S = 10
OTHER_W = 130.0
"""What no limit reaches, W a node: a little more than the modelled nodes draw."""
_AMBIENT_K = 293.0
_HISTORY_STEP_S = 60
_FIRST_S = 60
_MORE = 1.15
"""The demand of the breaker benchmark's inference servers is raised by so much."""


class BudgetFigures(Figures, frozen=True):
    """A budget over the run.

    Attributes:
        limit_w: without an event, W.
        nodes: that it covers.
        over_s: longest time without a break above the limit in force, s.
        over_w: most above it, W; both after the first minute, in which the first limits are set.
    """

    limit_w: float
    nodes: int
    over_s: float
    over_w: float


class Given(Figures, frozen=True):
    """What a group of nodes gave during the event, beside the same demand without limits.

    Attributes:
        nodes: of the group.
        natural_w: mean power without limits, W.
        given_w: mean power that limits took, W.
        work_lost_pct: of their work.
    """

    nodes: int
    natural_w: float
    given_w: float
    work_lost_pct: float


class RackResult(Figures, frozen=True):
    """The result; series are means over `EVERY_S`."""

    nodes: int
    gpu_nodes: int
    critical: int
    response_s: float
    reduce_pct: float
    seed: int
    budgets: Mapping[str, BudgetFigures]
    complied_s: float
    asked_s: float
    baseline_w: float
    baseline_adjustment: float
    mean_w: float
    shed_w: float
    unlimited_w: float
    rebound_w: float
    given: Mapping[str, Given]
    hours: Sequence[float]
    limit_w: Sequence[float]
    worst_w: Sequence[float]
    power_w: Sequence[float]
    natural_w: Sequence[float]


@dataclass
class _Rack:
    """The nodes, the limits that they were asked for, have and confirmed."""

    rng: np.random.Generator
    fleet: LiveFleet
    critical: BoolArray
    asked: list[PowerCeiling | None] = field(default_factory=list)
    due: dict[int, tuple[float, PowerCeiling | None]] = field(default_factory=dict)
    confirm: dict[int, tuple[float, PowerCeiling | None]] = field(default_factory=dict)
    confirmed: list[PowerCeiling | None] = field(default_factory=list)

    @classmethod
    def of(cls, rng: np.random.Generator) -> _Rack:
        one = server()
        specs = [
            NodeSpec(f"node-{index:02d}", one.cpu, one.sockets, one.cores, one.gpu, GPUS)
            if index % NODES < GPU_NODES // 2 or RACK <= index < RACK + GPU_NODES // 2
            else NodeSpec(f"node-{index:02d}", one.cpu, one.sockets, one.cores)
            for index in range(NODES)
        ]
        fleet = LiveFleet(specs, ambient_k=_AMBIENT_K)
        critical = np.arange(NODES) % CRITICAL_EVERY == 0
        return cls(rng, fleet, critical, [None] * NODES, {}, {}, [None] * NODES)

    def load(self, demand: FloatArray) -> None:
        load = FleetLoad.idle(NODES, self.fleet.n_devices)
        load.cpu_util[:] = demand
        load.gpu_util[:] = demand[:, np.newaxis]
        load.gpu_busy[:] = self.fleet.gpus[:, np.newaxis] > 0
        self.fleet.set_load(load)

    def limits(self, index: int) -> NodeLimits:
        spec, asked, has = self.fleet.specs[index], self.asked[index], self.confirmed[index]
        cpu = _device(spec.sockets, spec.cpu.cap_range, asked and asked.cpu_w, has and has.cpu_w)
        gpu = NO_DEVICES
        if spec.gpu is not None:
            gpu = _device(spec.gpus, spec.gpu.cap_range, asked and asked.gpu_w, has and has.gpu_w)
        return NodeLimits(cpu, gpu, OTHER_W)

    def ask(self, index: int, ceiling: PowerCeiling | None, now_s: float) -> None:
        if ceiling != self.asked[index]:
            self.asked[index] = ceiling
            self.due[index] = (now_s + self.rng.uniform(*ACT_S), ceiling)

    def agents(self, now_s: float) -> None:
        for index, (due_s, ceiling) in list(self.due.items()):
            if due_s <= now_s:
                del self.due[index]
                self.fleet.cap_cpu(index, None if ceiling is None else ceiling.cpu_w)
                self.fleet.cap_gpus(index, None if ceiling is None else ceiling.gpu_w)
                self.confirm[index] = (now_s + self.rng.uniform(*CONFIRM_S), ceiling)
        for index, (due_s, ceiling) in list(self.confirm.items()):
            if due_s <= now_s:
                del self.confirm[index]
                self.confirmed[index] = ceiling


def _device(count: float, limits: CapRange | None, asked_w: float | None, has_w: float | None) -> DeviceLimits:
    if limits is None:
        raise LookupError("the modelled server takes no limits")
    asked_w = limits.base_w if asked_w is None else max(asked_w, limits.min_w)
    in_force_w = max(limits.base_w if has_w is None else max(has_w, limits.min_w), asked_w)
    return DeviceLimits(count, limits.min_w, limits.base_w, in_force_w, asked_w)


def measure(seed: int, tell: Callable[[str], None], *, hour_s: int = HOUR_S) -> RackResult:
    """The run with its event, beside the same demand without limits, and ten days before for the baseline.

    Args:
        seed: of the demand and of the agents' delays.
        tell: is told what comes next.
        hour_s: length of the event, and of the times before and after it, s.
    """
    n_steps = 3 * hour_s
    rack = _Rack.of(np.random.default_rng([seed, 1]))
    demand = _demand(rack, n_steps, [seed, 0])
    full_w = np.array([rack.limits(index).full_w for index in range(NODES)])
    every = np.arange(NODES)
    covered: dict[str, IntArray] = {
        "feed": every,
        "rack-a": every[:RACK],
        "rack-b": every[RACK:],
        "node-01": every[1:2],
    }
    shares = {"feed": FEED_SHARE, "rack-a": RACK_SHARE, "rack-b": RACK_SHARE, "node-01": NODE_SHARE}
    base_w = {name: round(shares[name] * float(full_w[nodes].sum())) for name, nodes in covered.items()}
    event = Reduction("event", hour_s, 2 * hour_s, base_w["feed"] * (1.0 - REDUCE_PCT / 100.0))
    tell("the event")
    power_w, worst_w, limits_w, rate = _play(rack, demand, covered, base_w, event)
    tell("the same demand without limits")
    natural_w = _natural(demand)
    tell("ten days before")
    days = {}
    for day in range(DAYS):
        earlier = _demand(rack, 5 * HOUR_S, [seed, 10 + day])
        drawn_w = np.minimum(_natural(earlier[::_HISTORY_STEP_S]).sum(axis=1), base_w["feed"])
        hour = HOUR_S // _HISTORY_STEP_S
        window = slice(*(round(4 * hour - before_s / _HISTORY_STEP_S) for before_s in (ADJUST_FROM_S, ADJUST_UNTIL_S)))
        days[float(day)] = (float(drawn_w[4 * hour :].mean()), float(drawn_w[window].mean()))
    during = slice(hour_s, 2 * hour_s)
    baseline = baseline_10_in_10(days, float(power_w[:hour_s].sum(axis=1).mean()))
    if baseline is None:
        raise ValueError("ten days are known")
    course, asked_s = Course(event.start_s, event.limit_w), None
    for step in range(during.start, during.stop):
        course = course.sampled(float(step), float(power_w[step].sum()))
        if asked_s is None and worst_w[step] <= event.limit_w + 0.5:
            asked_s = float(step - hour_s)
    total_w = power_w.sum(axis=1)
    return RackResult(
        nodes=NODES,
        gpu_nodes=int((rack.fleet.gpus > 0).sum()),
        critical=int(np.count_nonzero(rack.critical)),
        response_s=RESPONSE_S,
        reduce_pct=REDUCE_PCT,
        seed=seed,
        budgets={
            name: _figures(power_w[:, nodes].sum(axis=1), limits_w[name], base_w[name], nodes.size)
            for name, nodes in covered.items()
        },
        complied_s=-1.0 if course.complied_s is None else course.complied_s,
        asked_s=-1.0 if asked_s is None else asked_s,
        baseline_w=baseline.power_w,
        baseline_adjustment=baseline.adjustment,
        mean_w=float(total_w[during].mean()),
        shed_w=baseline.power_w - float(total_w[during].mean()),
        unlimited_w=float(natural_w[during].sum(axis=1).mean()),
        rebound_w=float((total_w - limits_w["feed"])[during.stop :].max()),
        given=_given(rack, natural_w[during], power_w[during], rate[during]),
        hours=[round(step / SECONDS_PER_HOUR, 4) for step in range(0, n_steps, EVERY_S)],
        limit_w=_means(limits_w["feed"]),
        worst_w=_means(worst_w),
        power_w=_means(total_w),
        natural_w=_means(natural_w.sum(axis=1)),
    )


def _play(
    rack: _Rack,
    demand: FloatArray,
    covered: Mapping[str, IntArray],
    base_w: Mapping[str, float],
    event: Reduction,
) -> tuple[FloatArray, FloatArray, dict[str, FloatArray], FloatArray]:
    """Power of each node, worst case of all, limit of each budget, and rate of work of each node, by second."""
    power_w, rate = np.zeros(demand.shape), np.ones(demand.shape)
    worst_w, limits_w = np.zeros(len(demand)), {name: np.zeros(len(demand)) for name in covered}
    memory: Mapping[str, BudgetMemory] = {}
    names = tuple(spec.name for spec in rack.fleet.specs)
    for step in range(len(demand)):
        now_s = float(step)
        for name in covered:
            reductions = [event] if name == "feed" else []
            limits_w[name][step] = watts_in_force(now_s, base_w[name], reductions=reductions).limit_w
        rack.agents(now_s)
        nodes = [rack.limits(index) for index in range(NODES)]
        worst_w[step] = sum(one.in_force_w for one in nodes)
        if step % DECIDE_S == 0:
            read = power_w[max(step - READ_LATE_S, 0)]
            seen = BudgetNodes(
                names,
                rack.critical,
                np.array([one.floor_w for one in nodes]),
                np.array([one.full_w for one in nodes]),
                np.array([one.in_force_w for one in nodes]),
                np.array([one.asked_w for one in nodes]),
                np.ones(NODES, dtype=np.bool_),
                read,
                np.full(NODES, max(now_s - READ_LATE_S, 0.0)),
            )
            budgets = [Budget(name, limits_w[name][step], covered[name], RESPONSE_S) for name in covered]
            decision = decide_budgets(now_s, seen, budgets, memory)
            memory = decision.memory
            for index, one in enumerate(nodes):
                rack.ask(index, one.ceiling(float(decision.limit_w[index])), now_s)
        rack.load(demand[step])
        before_j = rack.fleet.state.energy_j.copy()
        rack.fleet.advance(1.0, _AMBIENT_K)
        power_w[step] = rack.fleet.state.energy_j - before_j
        rate[step] = _rate(rack.fleet)
    return power_w, worst_w, limits_w, rate


def _demand(rack: _Rack, n_steps: int, seed: Sequence[int]) -> FloatArray:
    """Demand of each node, 0..1, shape ``(n_steps, n)``."""
    return np.minimum(_MORE * inference(rack.critical, n_steps, np.random.default_rng(seed)), 1.0)


def _natural(demand: FloatArray) -> FloatArray:
    """Power of each node without limits, W, of the shape of the demand."""
    rack = _Rack.of(np.random.default_rng(0))
    power_w = np.zeros(demand.shape)
    for step, row in enumerate(demand):
        rack.load(row)
        power_w[step] = rack.fleet.wall_w
    return power_w


def _rate(fleet: LiveFleet) -> FloatArray:
    """Rate of work of each node: that of its GPUs, else its clock."""
    return np.where(fleet.gpus > 0, fleet.mean_gpu_throughput.mean(axis=1), fleet.mean_frequency)


def _figures(power_w: FloatArray, limit_w: FloatArray, base_w: float, nodes: int) -> BudgetFigures:
    over_w = (power_w - limit_w)[_FIRST_S:]
    return BudgetFigures(base_w, nodes, float(longest((over_w > 0.5).tolist())), max(float(over_w.max()), 0.0))


def _given(rack: _Rack, natural_w: FloatArray, power_w: FloatArray, rate: FloatArray) -> dict[str, Given]:
    critical, gpus = rack.critical, rack.fleet.gpus > 0
    groups = {
        "standard, GPU": ~critical & gpus,
        "standard, CPU": ~critical & ~gpus,
        "performance, GPU": critical & gpus,
        "performance, CPU": critical & ~gpus,
    }
    return {
        name: Given(
            int(members.sum()),
            float(natural_w[:, members].sum(axis=1).mean()),
            float((natural_w - power_w)[:, members].sum(axis=1).mean()),
            100.0 * float(1.0 - rate[:, members].mean()),
        )
        for name, members in groups.items()
    }


def _means(values: FloatArray) -> list[float]:
    return [round(float(one), 1) for one in values.reshape(-1, EVERY_S).mean(axis=1)]
