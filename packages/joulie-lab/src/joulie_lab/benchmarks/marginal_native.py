"""The native side of the benchmark marginal cluster: events in simulated time, with the product's own functions.

Nodes sleep by `joulie.domain.sleep.decide`, jobs are placed by the scores that kube-scheduler and the extender give.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.estimates import TYPICAL_IDLE_SHARE
from joulie.domain.marginal import FullLoad, PodRequests, gpu_coefficient
from joulie.domain.power_estimate import gpu_idle_w
from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.scheduling.scores import (
    MAX_NODE_SCORE,
    NodeAmounts,
    PodAmounts,
    balanced_allocation,
    default_scores,
    with_extender,
)
from joulie.domain.scoring.extender import NodeClass, PodView, TwinView, wire_score
from joulie.domain.scoring.marginal_energy import energy_score
from joulie.domain.scoring.marginal_placement import Job, NodeOccupancy, cheapest, packing_ranks, placement_costs
from joulie.domain.scoring.occupancy import NO_PODS, LifeClass, Occupancy, PlacedPod
from joulie.domain.sleep.commands import Action, Command
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.demand import SLOT_S, DemandHistory, ForecastSettings
from joulie.domain.sleep.snapshot import (
    BoundPod,
    ExpectedPods,
    Room,
    SleepNode,
    SleepSettings,
    SleepSnapshot,
    WaitingPod,
)
from joulie.domain.sleep.states import Asleep, Awake, Emptying, SleepState
from joulie.domain.units import IntArray
from joulie_lab.benchmarks.marginal_cluster import (
    BOOT_S,
    GIB_PER_CORE,
    POWER,
    PRODUCT,
    Course,
    Pace,
    Plan,
    Way,
    awake_s,
)
from joulie_lab.simulation.native.nodes import SimNode

_REFRESH_S = 10.0
"""Interval at which the extender estimates anew until when nodes are busy, s."""

_PODS_S = 120.0
"""Time between two looks for a node to empty, s."""


@dataclass(frozen=True)
class Moving:
    """What moving a job does to it.

    Attributes:
        share: share of the jobs that may be moved.
        checkpoint_s: time between checkpoints, s: what was done since the last is lost; 0 for jobs that lose nothing.
        restart_s: time in which a job that was moved does no work, s.
        ends: whether the product takes it for a job that loses work.
    """

    share: float = 1.0
    checkpoint_s: float = math.inf
    restart_s: float = 60.0
    ends: bool = True

    def kept_s(self, ran_s: float) -> float:
        """What is left of so much work, s."""
        return ran_s - (ran_s if math.isinf(self.checkpoint_s) else math.fmod(ran_s, self.checkpoint_s or ran_s or 1.0))


class _Event(IntEnum):
    """What happens; of what happens at once the first comes first."""

    END, READY, ARRIVAL, RETRY, LOOK, BIND = range(6)


def play(
    plan: Plan,
    way: Way,
    pace: Pace = PRODUCT,
    settings: SleepSettings | None = None,
    demand: DemandHistory | None = None,
    forecast: ForecastSettings | None = None,
    moving: Moving | None = None,
) -> Course:
    """Run all jobs of a plan; at its start all nodes sleep but one of each kind.

    Args:
        plan: what is run.
        way: how nodes are chosen.
        pace: how fast the parts act.
        settings: settings of sleep; None for the defaults.
        demand: what is known of demand before the run, which goes on learning; None for no forecast.
        forecast: settings of the forecast; None for the defaults.
        moving: what moving a job does to it, where `settings` have nodes emptied; None for the defaults.
    """
    native = _Native(
        plan, way, pace, settings or SleepSettings(), demand, forecast or ForecastSettings(), moving or Moving()
    )
    native.run()
    return native.course()


class _Native:
    def __init__(
        self,
        plan: Plan,
        way: Way,
        pace: Pace,
        settings: SleepSettings,
        demand: DemandHistory | None,
        forecast: ForecastSettings,
        moving: Moving,
    ) -> None:
        self._moving = moving
        self._movable = np.random.default_rng([plan.seed, len(plan.jobs)]).random(len(plan.jobs)) < moving.share
        self._left_s, self._redone_s = plan.jobs.duration_s.astype(float), np.zeros(len(plan.jobs))
        self._began_s, self._moves = np.full(len(plan.jobs), np.nan), 0
        self._pods_seen_s = self._decided_s = -math.inf
        self._until_back: tuple[ExpectedPods, ...] = ()
        self._plan, self._way, self._pace, self._settings = plan, way, pace, settings
        self._forecast, self._demand = forecast, demand
        self._expected: tuple[ExpectedPods, ...] = ()
        self._expected_at, self._n_arrived = (-1.0, 0), 0
        jobs, nodes, cluster = plan.jobs, plan.nodes, plan.cluster
        n_jobs, n_nodes = len(jobs), len(nodes)
        self._rng = np.random.default_rng([plan.seed, n_nodes])
        self._cores, self._gpus = (cluster.per_node(name).astype(float) for name in ("cores", "gpus"))
        self._cpu_max_w, self._gpu_max_w = (cluster.per_node(name) for name in ("cpu_max_w", "gpu_max_w"))
        self._gpu_idle_w = cluster.per_node("gpu_idle_w")
        self._size = NodeAmounts.of(self._cores, GIB_PER_CORE * self._cores)
        self._free_cores, self._free_gpus = self._cores.copy(), self._gpus.copy()
        self._n_pods = np.zeros(n_nodes, dtype=np.int64)
        self._draws_w = np.zeros(n_nodes)
        self._job_w = POWER.w_per_core * jobs.cores * jobs.cpu_util + jobs.gpus * self._gpu_max_w.max() * (
            gpu_coefficient(jobs.performance) * jobs.gpu_util
        )
        # What the product knows of the hardware, which is not the model by which energies are counted.
        self._base_w = np.array([_base_w(node) for node in nodes])
        self._load = FullLoad(self._cpu_max_w, self._cores, np.full(n_nodes, self._gpu_max_w.max()))
        self._names = [node.name for node in nodes]
        self._occupancy = Occupancy()
        self._refreshed_s = -math.inf
        self._open, self._ready = np.zeros(n_nodes, bool), np.zeros(n_nodes, bool)
        self._states: list[SleepState] = [Asleep(-1.0, "0") for _ in nodes]
        self._boots = [0] * n_nodes
        self._switched: list[list[tuple[float, bool]]] = [[(0.0, False)] for _ in nodes]
        for index in (0, int(np.argmax(self._gpus > 0.0))):
            self._states[index], self._switched[index] = Awake(), [(0.0, True)]
            self._open[index] = self._ready[index] = True
        self._start_s, self._end_s = np.full(n_jobs, np.nan), np.full(n_jobs, np.nan)
        self._node = np.full(n_jobs, -1)
        self._wakes = 0
        self._changed = set(range(n_nodes))
        self._seen_last: list[SleepNode | None] = [None] * n_nodes
        self._active: deque[int] = deque()
        self._waiting: dict[int, float] = {}
        self._pending: dict[int, WaitingPod] = {}
        self._binding = False
        self._events: list[tuple[float, int, int]] = [
            (float(at_s), _Event.ARRIVAL, job) for job, at_s in enumerate(jobs.arrival_s)
        ]
        self._events.append((0.0, _Event.LOOK, 0))
        heapq.heapify(self._events)

    def run(self) -> None:
        """Play all events until the end of the run."""
        while self._events and self._events[0][0] <= self._plan.end_s:
            now_s, kind, index = heapq.heappop(self._events)
            match kind:
                case _Event.END:
                    # A job that was moved meanwhile ends later.
                    if self._node[index] >= 0 and now_s == self._began_s[index] + self._left_s[index]:
                        self._ended(index, now_s)
                case _Event.READY:
                    self._ready[index] = True
                    self._changed.add(index)
                case _Event.ARRIVAL:
                    self._arrived(index, now_s)
                    self._schedule(now_s)
                case _Event.RETRY:
                    self._active.append(index)
                    self._schedule(now_s)
                case _Event.LOOK:
                    self._look(now_s)
                    heapq.heappush(self._events, (now_s + self._pace.look_s, _Event.LOOK, 0))
                case _Event.BIND:
                    self._binding = False
                    self._schedule(now_s)

    def course(self) -> Course:
        """What came of it."""
        awake = np.array([awake_s(switched, self._plan.end_s) for switched in self._switched])
        return Course(self._start_s, self._end_s, self._node, awake, self._wakes, self._moves, self._redone_s)

    # ---- kube-scheduler

    def _arrived(self, job: int, now_s: float) -> None:
        requests = self._requests(job)
        self._pending[job] = WaitingPod(str(job), requests)
        if self._demand is not None:
            self._n_arrived += 1
            self._demand.arrived(requests, ANYWHERE, now_s)
        self._active.append(job)

    def _schedule(self, now_s: float) -> None:
        """Try the pods in the queue, as many as the scheduler has time for now."""
        while self._active and not self._binding:
            job = self._active.popleft()
            node = self._choose(job, now_s)
            if node is None:
                self._waiting[job] = now_s
            else:
                self._bind(job, node, now_s)
            if self._pace.bind_s > 0.0:
                self._binding = True
                heapq.heappush(self._events, (now_s + self._pace.bind_s, _Event.BIND, 0))

    def _room_came(self, now_s: float) -> None:
        """Pods that found no node are tried again, after their backoff."""
        for job, tried_s in self._waiting.items():
            heapq.heappush(self._events, (max(now_s, tried_s + self._pace.retry_s), _Event.RETRY, job))
        self._waiting.clear()

    def _bind(self, job: int, node: int, now_s: float) -> None:
        jobs = self._plan.jobs
        del self._pending[job]
        self._node[job], self._began_s[job] = node, now_s + self._pace.hold_s
        if math.isnan(self._start_s[job]):
            self._start_s[job] = self._began_s[job]
        self._count(job, node, +1)
        life = LifeClass(jobs.class_names[jobs.job_class[job]], service=True, gpu=bool(jobs.gpus[job] > 0))
        placed = PlacedPod(self._names[node], float(jobs.cores[job]), float(jobs.gpus[job]), life, now_s)
        self._occupancy.set_pod(job, placed, now_s)
        heapq.heappush(self._events, (float(self._began_s[job] + self._left_s[job]), _Event.END, job))

    def _ended(self, job: int, now_s: float) -> None:
        self._end_s[job] = now_s
        self._count(job, int(self._node[job]), -1)
        self._occupancy.set_pod(job, None, now_s)
        self._room_came(now_s)

    def _moved(self, job: int, now_s: float) -> None:
        """A job is evicted, and waits for another node."""
        ran_s = max(0.0, now_s - float(self._began_s[job]))
        kept_s = self._moving.kept_s(ran_s)
        self._left_s[job] += self._moving.restart_s - kept_s
        self._redone_s[job] += self._moving.restart_s + ran_s - kept_s
        self._moves += 1
        self._count(job, int(self._node[job]), -1)
        self._node[job] = -1
        self._occupancy.set_pod(job, None, now_s)
        self._pending[job] = WaitingPod(str(job), self._requests(job))
        self._active.append(job)

    def _requests(self, job: int) -> Room:
        return requests_of(float(self._plan.jobs.cores[job]), float(self._plan.jobs.gpus[job]))

    def _count(self, job: int, node: int, sign: int) -> None:
        jobs = self._plan.jobs
        self._changed.add(node)
        self._free_cores[node] -= sign * jobs.cores[job]
        self._free_gpus[node] -= sign * jobs.gpus[job]
        self._n_pods[node] += sign
        self._draws_w[node] += sign * self._job_w[job]

    def _choose(self, job: int, now_s: float) -> int | None:
        jobs = self._plan.jobs
        cores, gpus = float(jobs.cores[job]), float(jobs.gpus[job])
        fits = self._open & self._ready & (self._free_cores >= cores) & (self._free_gpus >= gpus)
        candidates = np.flatnonzero(fits)
        if len(candidates) == 0:
            return None
        if self._way is Way.MARGINAL:
            return self._cheapest(job, candidates, now_s)
        scores = self._scores(job, candidates)
        best = candidates[scores == scores.max()]
        return int(best[self._rng.integers(len(best))])

    def _scores(self, job: int, candidates: IntArray) -> IntArray:
        cores = float(self._plan.jobs.cores[job])
        pod = PodAmounts.of(cores, GIB_PER_CORE * cores)
        used_cores = self._cores - self._free_cores
        requested = NodeAmounts.of(used_cores, GIB_PER_CORE * used_cores).at(candidates)
        size = self._size.at(candidates)
        if self._way is Way.MOST_ALLOCATED:
            return most_allocated(requested.plus(pod), size) + balanced_allocation(pod, requested, size)
        scores = default_scores(pod, requested, requested, size)
        return with_extender(scores, self._energy(job)[candidates]) if self._way is Way.ENERGY else scores

    def _energy(self, job: int) -> IntArray:
        """Scores of SCORING=energy on the wire, with twins that are never late."""
        jobs, n_nodes = self._plan.jobs, len(self._cores)
        zeros, ones = np.zeros(n_nodes), np.ones(n_nodes)
        twins = TwinView(
            node_class=np.full(n_nodes, int(NodeClass.PERFORMANCE)),
            fresh=np.ones(n_nodes, bool),
            capped_w=self._cpu_max_w + self._gpus * self._gpu_max_w,
            measured_w=POWER.awake_fraction * self._cpu_max_w + self._free_gpus * self._gpu_idle_w + self._draws_w,
            cooling_stress_pct=zeros,
            headroom_score=zeros,
            trend_w_per_min=zeros,
            cpu_cap_fraction=ones,
            gpu_cap_fraction=ones,
        )
        requests = PodRequests(float(jobs.cores[job]), GIB_PER_CORE * float(jobs.cores[job]), float(jobs.gpus[job]))
        return wire_score(energy_score(PodView(bool(jobs.performance[job])), requests, twins, self._load))

    def _cheapest(self, job: int, candidates: IntArray, now_s: float) -> int:
        """The node to which SCORING=marginal gives its highest score, which no other plugin outweighs."""
        jobs = self._plan.jobs
        if now_s - self._refreshed_s >= _REFRESH_S:
            self._refreshed_s = now_s
            self._occupancy.refresh(now_s)
        found = self._occupancy.view(now_s)
        busy_min = found.busy_min[[self._occupancy.index.get(name, NO_PODS) for name in self._names]]
        nodes = NodeOccupancy(self._base_w, busy_min, self._cores, self._gpus, self._free_cores, self._free_gpus)
        life = LifeClass(jobs.class_names[jobs.job_class[job]], service=True, gpu=bool(jobs.gpus[job] > 0))
        duration_min = self._occupancy.duration_min(life, None)
        one = Job(float(jobs.cores[job]), float(jobs.gpus[job]), duration_min)
        costs = placement_costs(nodes, one, nodes.surcharge_w_per_core)[candidates]
        return int(candidates[next(cheapest(costs, packing_ranks(nodes)[candidates], 1))])

    # ---- the operator

    def _look(self, now_s: float) -> None:
        news, empties = self._forecast_changed(now_s), self._looks_at_pods(now_s)
        if not (news or empties or self._changed or self._pending) and not any(
            self._may_change(state, now_s) for state in self._states
        ):
            return
        nodes = [self._as_seen(index) for index in range(len(self._names))]
        self._changed.clear()
        self._decided_s = now_s
        if empties:
            nodes, self._pods_seen_s = self._with_pods(nodes, now_s), now_s
        pods = tuple(self._pending.values())
        decision = decide(
            SleepSnapshot(now_s, nodes, pods, self._expected, until_back=self._until_back), self._settings
        )
        self._states = [decision.states[name] for name in self._names]
        index_of = {name: index for index, name in enumerate(self._names)}
        opened = [self._obey(command, index_of[command.node], now_s) for command in decision.commands]
        for move in decision.moves:
            self._moved(int(move.pod), now_s)
        if any(opened) or decision.moves:
            self._room_came(now_s)
        if decision.moves:
            self._schedule(now_s)

    def _forecast_changed(self, now_s: float) -> bool:
        """Whether other pods are expected than at the last look."""
        before, settings = self._expected, self._forecast
        # Nothing else changes what is expected.
        at = now_s // SLOT_S, self._n_arrived
        if self._demand is not None:
            self._demand.watch(now_s)
        if self._demand is not None and at != self._expected_at:
            self._expected_at, self._expected = at, self._demand.expected(now_s, settings)
            if self._settings.consolidation.max_nodes:
                keep_s = max(settings.keep_s, self._settings.consolidation.horizon_s)
                self._until_back = self._demand.expected(now_s, replace(settings, keep_s=keep_s))
        return self._expected != before

    def _looks_at_pods(self, now_s: float) -> bool:
        """Whether nodes may be emptied at this look: ages of pods change all the time, so that takes long."""
        if not self._settings.consolidation.max_nodes:
            return False
        due = now_s - self._pods_seen_s >= _PODS_S
        return due or any(isinstance(state, Emptying) for state in self._states)

    def _obey(self, command: Command, index: int, now_s: float) -> bool:
        """Carry out a command. Returns whether a node was opened."""
        self._changed.add(index)
        match command.action:
            case Action.CORDON | Action.EMPTY:
                self._open[index] = False
            case Action.UNCORDON:
                self._open[index] = True
            case Action.POWER_OFF:
                self._ready[index] = False
                self._switched[index].append((now_s, False))
            case Action.POWER_ON:
                self._boots[index] += 1
                self._wakes += 1
                self._switched[index].append((now_s, True))
                heapq.heappush(self._events, (now_s + BOOT_S, _Event.READY, index))
            case Action.GIVE_UP:
                raise AssertionError(f"{command.node} did not wake: {command.reason}")
        return command.action is Action.UNCORDON

    def _with_pods(self, nodes: Sequence[SleepNode], now_s: float) -> list[SleepNode]:
        left_min = {int(str(job)): left for job, left in self._occupancy.left_min(now_s).items()}
        pods: list[list[BoundPod]] = [[] for _ in nodes]
        for job, job_left_min in left_min.items():
            pod = BoundPod(
                str(job),
                self._requests(job),
                movable=bool(self._movable[job]),
                ends=self._moving.ends,
                age_s=max(0.0, now_s - float(self._began_s[job])),
                left_min=job_left_min,
                draw_w=float(self._job_w[job]),
            )
            pods[self._node[job]].append(pod)
        return [replace(node, pods=tuple(found)) if found else node for node, found in zip(nodes, pods, strict=True)]

    def _may_change(self, state: SleepState, now_s: float) -> bool:
        """Whether time alone may change the state of a node."""
        if isinstance(state, Asleep):
            return False
        if isinstance(state, Awake):
            # What was decided since it may be closed holds until something else changes.
            due_s = math.inf if state.empty_since_s is None else state.empty_since_s + self._settings.empty_s
            return self._decided_s < due_s <= now_s
        return True

    def _as_seen(self, index: int) -> SleepNode:
        """A node as the operator sees it; most have not changed since the last look."""
        last = self._seen_last[index]
        if last is None or index in self._changed or last.state is not self._states[index]:
            last = self._seen_last[index] = self._seen(index)
        return last

    def _seen(self, index: int) -> SleepNode:
        cores, gpus = float(self._cores[index]), float(self._gpus[index])
        free_cores, free_gpus = float(self._free_cores[index]), float(self._free_gpus[index])
        return SleepNode(
            name=self._names[index],
            family="gpu" if gpus else "cpu",
            state=self._states[index],
            ready=bool(self._ready[index]),
            boot=str(self._boots[index]),
            jobs=int(self._n_pods[index]),
            allocatable=Room(cores, GIB_PER_CORE * cores, gpus, math.inf),
            free=Room(free_cores, GIB_PER_CORE * free_cores, free_gpus, math.inf),
            base_w=float(self._base_w[index]),
        )


def requests_of(cores: float, gpus: float) -> Room:
    """What a job asks for."""
    return Room(cores, GIB_PER_CORE * cores, gpus, 1.0)


def _base_w(node: SimNode) -> float:
    """Power of an idle node, as operator and extender estimate it, W."""
    cpu_w = TYPICAL_IDLE_SHARE * node.spec.cpu.tdp_w * node.spec.sockets
    return cpu_w + gpu_idle_w(node.hardware, BUILTIN_CATALOGUE)


def most_allocated(requested: NodeAmounts, allocatable: NodeAmounts) -> IntArray:
    """NodeResourcesFit's score with the strategy MostAllocated: the mean of what is taken of CPU and memory, percent.

    Source: k8s.io/kubernetes, pkg/scheduler, framework/plugins/noderesources, mostRequestedScore.

    Args:
        requested: by all pods of the node and the new one.
        allocatable: of the node.
    """
    shares = [
        np.minimum(asked, size) * MAX_NODE_SCORE // np.maximum(size, 1)
        for asked, size in zip(requested, allocatable, strict=True)
    ]
    return np.asarray(sum(shares)) // len(shares)
