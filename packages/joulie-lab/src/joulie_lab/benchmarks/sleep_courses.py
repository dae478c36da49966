"""Random courses of a small cluster whose nodes sleep, with every fault that the decision must survive.

A course is a world of its own: nodes that boot, fail to boot, come up by themselves or die while they are off; pods
that a scheduler binds by a view that lags; a forecast that is often wrong; disruption budgets that refuse evictions and
power budgets that curtail; and an operator that decides by `joulie.domain.sleep`, empties nodes, is killed between any
two writes, cannot reach the API server for minutes, and whose clock jumps.
After the faults the world goes on in peace until all that can run has run. Source: spec, power budgets, sleep and wake;
issue 19, faults.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules, Term
from joulie.domain.sleep.commands import Action, Command, Move, Remembered, recalled, still_holds
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import (
    BoundPod,
    ConsolidationSettings,
    ExpectedPods,
    Room,
    SleepNode,
    SleepSettings,
    SleepSnapshot,
    WaitingPod,
)
from joulie.domain.sleep.states import Asleep, Awake, Emptying, SleepState, Waking, mark_of, state_of
from joulie_lab.adapters.executors import in_processes
from joulie_lab.benchmarks.results import Figures

STEP_S = 10.0
_SETTINGS = SleepSettings(
    empty_s=60.0,
    settle_s=30.0,
    wake_timeout_s=180.0,
    obey_looks=12,
    wake_attempts=2,
    failed_s=300.0,
    max_waking=2,
    consolidation=ConsolidationSettings(
        max_nodes=1,
        max_moves=2,
        min_age_s=30.0,
        lost_s=60.0,
        restart_s=10.0,
        boot_s=60.0,
        gain=1.0,
        held_looks=5,
        timeout_s=180.0,
        pause_s=120.0,
    ),
)
_FAULTY_STEPS = 90
_PEACEFUL_STEPS = 400
_BOOT_S = (30.0, 150.0)
_SHUT_DOWN_S = (0.0, 90.0)
_DEAF_S = (60.0, 900.0)
_OUTAGE_S = 300.0
_MOVABLE = 0.9
_AGAINST_MOVES = 0.01
_LEAVES_S = (0.0, 40.0)
_LEFT_MIN = 30.0
"""How long pods are believed to run yet, min: much longer than they do, so that nodes are emptied often."""
_REFUSED_S = (20.0, 300.0)
_CURTAILED_S = (20.0, 200.0)
_EXPECT_S = (60.0, 1800.0)
_CHUNK = 50
FULL_COURSES = 10_000
SMALL_COURSES = 60


class KilledError(Exception):
    """The operator was killed before its next write."""


@dataclass
class _Node:
    name: str
    family: str
    room: Room
    on: bool = True
    boot: int = 0
    boots_until_s: float = 0.0
    off_at_s: float = math.inf
    """When it will have shut down; its kubelet is ready until then."""
    dead: bool = False
    mark: str = ""
    tainted: bool = False
    deaf_until_s: float = 0.0
    """When it will hear again that it is to wake."""

    def ready(self, now_s: float) -> bool:
        return self.on and not self.dead and now_s >= self.boots_until_s

    @property
    def runs_pods(self) -> bool:
        """Whether pods start on it, where it is ready."""
        return math.isinf(self.off_at_s)


@dataclass
class _Pod:
    name: str
    requests: Room
    runs_s: float
    only: str = ""
    """The node that it must run on; empty for any."""
    node: str = ""
    started_s: float | None = None
    done: bool = False
    movable: bool = False
    leaves_at_s: float = math.inf
    """When it will be gone from its node, since it was evicted; another one is made in its place."""


@dataclass(frozen=True)
class Outcome:
    """What came of a course.

    Attributes:
        seed: its seed.
        pods: pods created.
        finished: pods that ended by themselves.
        lost: running pods whose node was switched off.
        unexplained: pending pods to which a decision gave no reason.
        stranded: pods that could have run and have not, long after the last fault.
        too_many_waking: steps in which more nodes were waking than may.
        sleeps: nodes switched off.
        wakes: nodes told to wake.
        given_up: nodes given up.
        emptied: nodes whose pods were all moved.
        moves: pods moved from nodes that are emptied.
        moved_fixed: pods moved that must stay, or more nodes emptied at once than may.
        faults: faults by name.
        slept_share: share of all node-steps in which a node was off.
    """

    seed: int
    pods: int
    finished: int
    lost: int
    unexplained: int
    stranded: int
    too_many_waking: int
    sleeps: int
    wakes: int
    given_up: int
    emptied: int
    moves: int
    moved_fixed: int
    faults: dict[str, int] = field(default_factory=dict)
    slept_share: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.lost or self.unexplained or self.stranded or self.too_many_waking or self.moved_fixed)


_COUNTED = (
    *("lost", "unexplained", "too_many_waking", "sleeps", "wakes", "given_up"),
    *("emptied", "moves", "moved_fixed"),
)


class Course:
    """One random course."""

    def __init__(self, seed: int, settings: SleepSettings = _SETTINGS) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._settings = replace(settings, min_awake=int(self._rng.integers(2)))
        self._nodes = [_Node(f"c{i}", "cpu", Room(16.0, 64.0, 0.0, 20.0)) for i in range(3)]
        self._nodes += [_Node(f"g{i}", "gpu", Room(32.0, 128.0, 4.0, 20.0)) for i in range(2)]
        self._by_name = {node.name: node for node in self._nodes}
        self._pods: list[_Pod] = []
        self._now_s, self._clock_s = 1e6, 0.0
        self._seen: list[list[SleepNode]] = []
        self._memory: dict[str, Remembered] = {}
        self._told_off: set[str] = set()
        self._forecast_rng = np.random.default_rng([seed, 1])
        self._moves_rng = np.random.default_rng([seed, 2])
        self._refused_until_s = self._curtailed_until_s = 0.0
        self._forecast: tuple[ExpectedPods, ...] = ()
        self._expect_until_s = 0.0
        self._api_down_until_s = 0.0
        self._kill_after: int | None = None
        self._faults: dict[str, int] = {}
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._off_steps = 0

    def play(self) -> Outcome:
        """Play it to its end."""
        steps = 0
        for step in range(_FAULTY_STEPS + _PEACEFUL_STEPS):
            if step < _FAULTY_STEPS:
                self._disturb()
                self._arrive()
                if step == _FAULTY_STEPS - 1:
                    self._want_all()
            elif all(pod.done or not self._can_run(pod) for pod in self._pods):
                break
            self._live()
            steps += 1
        stranded = sum(not pod.done and self._can_run(pod) for pod in self._pods)
        share = self._off_steps / (len(self._nodes) * max(1, steps))
        finished = sum(pod.done for pod in self._pods)
        return Outcome(
            self._seed,
            len(self._pods),
            finished,
            stranded=stranded,
            faults=self._faults,
            slept_share=share,
            **self._counts,
        )

    def _live(self) -> None:
        """One step of the world."""
        self._now_s += STEP_S
        for node in self._nodes:
            if self._now_s >= node.off_at_s:
                self._counts["lost"] += sum(pod.started_s is not None for pod in self._on(node))
                node.on, node.off_at_s = False, math.inf
        self._run_pods()
        self._seen = [*self._seen[-2:], self._look(self._now_s)]
        if self._now_s >= self._api_down_until_s:
            self._schedule(self._seen[0 if self._rng.random() < 0.5 else -1])
        self._operate()
        self._off_steps += sum(not node.on for node in self._nodes)

    # ---- what happens to the world

    def _disturb(self) -> None:
        faults: tuple[tuple[str, float, Callable[[_Node], None]], ...] = (
            ("does not wake", 0.03, self._deafen),
            ("wakes by itself", 0.01, self._power_on),
            ("dies asleep", 0.005, self._die),
            ("repaired", 0.02, self._repair),
            ("API server away", 0.008, self._cut),
            ("operator killed", 0.04, self._kill),
            ("clock jumps", 0.03, self._jump),
            ("mark spoilt", 0.005, self._spoil),
        )
        for name, chance, happen in faults:
            if self._rng.random() < chance:
                self._faults[name] = self._faults.get(name, 0) + 1
                happen(self._nodes[int(self._rng.integers(len(self._nodes)))])
        # Drawn apart, so that courses stay those that they were before nodes were emptied.
        for name, begin in (("evictions refused", self._refuse), ("power curtailed", self._curtail)):
            if self._moves_rng.random() < _AGAINST_MOVES:
                self._faults[name] = self._faults.get(name, 0) + 1
                begin()

    def _refuse(self) -> None:
        self._refused_until_s = self._now_s + float(self._moves_rng.uniform(*_REFUSED_S))

    def _curtail(self) -> None:
        self._curtailed_until_s = self._now_s + float(self._moves_rng.uniform(*_CURTAILED_S))

    def _deafen(self, node: _Node) -> None:
        node.deaf_until_s = self._now_s + float(self._rng.uniform(*_DEAF_S))

    def _die(self, node: _Node) -> None:
        node.dead = node.dead or not node.on

    def _repair(self, node: _Node) -> None:
        node.dead = False

    def _cut(self, _node: _Node) -> None:
        self._api_down_until_s = self._now_s + _OUTAGE_S

    def _kill(self, _node: _Node) -> None:
        self._kill_after = int(self._rng.integers(0, 4))

    def _jump(self, _node: _Node) -> None:
        self._clock_s += float(self._rng.choice([-3600.0, -60.0, 60.0, 3600.0]))

    def _spoil(self, node: _Node) -> None:
        if node.mark:
            node.mark = "whatever"

    def _power_on(self, node: _Node) -> None:
        """It starts; one that is on, perhaps on its way down, stays as it is."""
        if not node.dead and not node.on:
            node.on, node.boot = True, node.boot + 1
            node.boots_until_s = self._now_s + float(self._rng.uniform(*_BOOT_S))

    def _arrive(self) -> None:
        for _ in range(int(self._rng.poisson(0.12))):
            gpus = float(self._rng.choice([0, 0, 1, 4]))
            cores = float(self._rng.choice([1, 4, 8, 16, 64] if not gpus else [4, 8]))
            pod = self._new_pod(Room(cores, cores, gpus, 1.0))
            node = self._nodes[int(self._rng.integers(len(self._nodes)))]
            if self._rng.random() < 0.2:
                pod.only = node.name
            elif self._rng.random() < 0.1 and self._free(node).holds(pod.requests):
                pod.node = node.name  # bound by name, or by a scheduler that knows no taints

    def _new_pod(self, requests: Room) -> _Pod:
        pod = _Pod(f"p{len(self._pods)}", requests, float(self._rng.exponential(240.0)))
        pod.movable = bool(self._moves_rng.random() < _MOVABLE)
        self._pods.append(pod)
        return pod

    def _want_all(self) -> None:
        """After the last fault every node is needed: none may stay off that can wake."""
        for node in self._nodes:
            self._new_pod(Room(1.0, 1.0, 0.0, 1.0)).only = node.name

    def _run_pods(self) -> None:
        for pod in self._pods:
            if not pod.node or pod.done:
                continue
            if self._now_s >= pod.leaves_at_s:
                pod.node, pod.started_s, pod.leaves_at_s = "", None, math.inf
                continue
            ready = self._by_name[pod.node].ready(self._now_s) and self._by_name[pod.node].runs_pods
            if pod.started_s is None:
                pod.started_s = self._now_s if ready else None
            elif self._now_s - pod.started_s >= pod.runs_s:
                pod.done = True

    def _schedule(self, seen: Iterable[SleepNode]) -> None:
        """Bind pods, as kube-scheduler does, by a view that may be old; a node that is gone from the world is not."""
        free = {node.name: self._free(node) for node in self._nodes}
        may = [node for node in seen if node.ready and isinstance(node.state, Awake)]
        for pod in self._pods:
            if pod.node:
                continue
            for node in may:
                if pod.only in ("", node.name) and free[node.name].holds(pod.requests):
                    pod.node = node.name
                    free[node.name] = free[node.name].less(pod.requests)
                    break

    def _on(self, node: _Node) -> list[_Pod]:
        return [pod for pod in self._pods if pod.node == node.name and not pod.done]

    def _free(self, node: _Node) -> Room:
        free = node.room
        for pod in self._on(node):
            free = free.less(pod.requests)
        return free

    def _can_run(self, pod: _Pod) -> bool:
        if pod.node:
            return not self._by_name[pod.node].dead
        return any(
            not node.dead and pod.only in ("", node.name) and node.room.holds(pod.requests) for node in self._nodes
        )

    # ---- the operator

    def _look(self, now_s: float) -> list[SleepNode]:
        return [self._read(node, now_s) for node in self._nodes]

    def _read(self, node: _Node, now_s: float) -> SleepNode:
        """The node as the API server has it."""
        state = state_of(node.mark, tainted=node.tainted, now_s=now_s + self._clock_s)
        return SleepNode(
            node.name,
            node.family,
            state,
            node.mark,
            ready=node.ready(self._now_s),
            boot=str(node.boot),
            jobs=len(self._on(node)),
            allocatable=node.room,
            free=self._free(node),
            base_w=700.0 if node.family == "gpu" else 150.0,
            pods=tuple(self._bound(pod) for pod in self._on(node)),
            pod_room_w=0.0 if self._now_s < self._curtailed_until_s else math.inf,
        )

    def _bound(self, pod: _Pod) -> BoundPod:
        return BoundPod(
            pod.name,
            pod.requests,
            _rules(pod),
            movable=pod.movable and pod.started_s is not None,
            terminating=math.isfinite(pod.leaves_at_s),
            age_s=0.0 if pod.started_s is None else self._now_s - pod.started_s,
            left_min=_LEFT_MIN,
            draw_w=20.0,
        )

    def _operate(self) -> None:
        now_s = self._now_s + self._clock_s
        seen = self._seen[0 if self._now_s < self._api_down_until_s else int(self._rng.integers(len(self._seen)))]
        memory = self._memory
        nodes = {
            node.name: replace(
                node, state=recalled(memory.get(node.name), node.mark, tainted=bool(node.mark), now_s=now_s)
            )
            for node in seen
        }
        waiting = tuple(WaitingPod(pod.name, pod.requests, _rules(pod)) for pod in self._pods if not pod.node)
        decision = decide(SleepSnapshot(now_s, list(nodes.values()), waiting, self._expected()), self._settings)
        self._counts["unexplained"] += sum(not decision.waits.get(pod.name) for pod in waiting)
        before, after = (
            sum(isinstance(state, Waking) for state in states)
            for states in ((node.state for node in nodes.values()), decision.states.values())
        )
        emptying = sum(isinstance(state, Emptying) for state in decision.states.values())
        may = max(
            self._settings.consolidation.max_nodes, sum(isinstance(one.state, Emptying) for one in nodes.values())
        )
        self._counts["moved_fixed"] += emptying > may
        self._counts["too_many_waking"] += after > max(before, self._settings.max_waking)
        commanded = {command.node for command in decision.commands}
        for name, node in nodes.items():
            if name not in commanded:
                memory[name] = Remembered(node.mark, decision.states[name])
        try:
            for command in decision.commands:
                state = decision.states[command.node]
                if self._carry_out(command, nodes[command.node], state):
                    memory[command.node] = Remembered(mark_of(state), state)
            for move in decision.moves:
                self._move(move, nodes[move.node])
            self._switch_again(now_s)
        except KilledError:
            self._memory, self._told_off = {}, set()  # a new leader knows what is marked

    def _move(self, move: Move, seen: SleepNode) -> None:
        """Evict a pod, unless the node is no longer marked as it was, or its disruption budget refuses."""
        pod = next(pod for pod in self._pods if pod.name == move.pod)
        if self._now_s < self._api_down_until_s or self._by_name[move.node].mark != seen.mark:
            return
        if pod.node != move.node or pod.done or math.isfinite(pod.leaves_at_s):
            return
        self._may_die()
        if self._now_s < self._refused_until_s:
            return
        self._counts["moves"] += 1
        self._counts["moved_fixed"] += not pod.movable
        pod.leaves_at_s = self._now_s + float(self._moves_rng.uniform(*_LEAVES_S))

    def _expected(self) -> tuple[ExpectedPods, ...]:
        """A forecast that is right or wrong, as chance will have it."""
        if self._now_s >= self._expect_until_s:
            rng = self._forecast_rng
            self._expect_until_s = self._now_s + float(rng.uniform(*_EXPECT_S))
            soon, more = rng.integers(0, 4, 2)
            gpus = float(rng.choice([0, 0, 4]))
            self._forecast = (ExpectedPods(Room(4.0, 4.0, gpus, 1.0), ANYWHERE, int(soon), int(soon + more)),)
        return self._forecast

    def _carry_out(self, command: Command, seen: SleepNode, state: SleepState) -> bool:
        """Check, mark, switch: killed between any two of them. Returns whether it was carried out."""
        node = self._by_name[command.node]
        if self._now_s < self._api_down_until_s:
            return False
        if not still_holds(command, seen, self._read(node, self._now_s)):
            return False
        if command.action is Action.EMPTY and self._now_s < self._refused_until_s:
            now_s = self._now_s + self._clock_s
            self._memory[node.name] = Remembered(seen.mark, Awake(given_up_s=now_s))
            return False
        self._counts["emptied"] += command.action is Action.CORDON and isinstance(seen.state, Emptying)
        self._may_die()
        node.mark, node.tainted = mark_of(state), not isinstance(state, Awake)
        self._may_die()
        if command.action is Action.POWER_OFF:
            self._counts["sleeps"] += 1
            self._shut_down(node)
        elif command.action is Action.POWER_ON:
            self._counts["wakes"] += 1
            self._tell_on(node)
        elif command.action is Action.GIVE_UP:
            self._counts["given_up"] += 1
        return True

    def _switch_again(self, now_s: float) -> None:
        """Tell the switches again what the marks want."""
        if self._now_s < self._api_down_until_s:
            return
        for node in self._nodes:
            state = state_of(node.mark, tainted=node.tainted, now_s=now_s)
            if not isinstance(state, Asleep):
                self._told_off.discard(node.name)
            if isinstance(state, Waking) and not node.on:
                self._may_die()
                self._tell_on(node)
            elif isinstance(state, Asleep) and self._may_tell_off(node, state):
                self._may_die()
                self._shut_down(node)
                self._memory[node.name] = Remembered(node.mark, state)

    def _may_tell_off(self, node: _Node, state: Asleep) -> bool:
        # A boot that the mark does not name would count as one that is back, while it is on its way down.
        told = node.name in self._told_off
        return node.on and not told and not self._on(node) and state.boot == str(node.boot)

    def _tell_on(self, node: _Node) -> None:
        if self._now_s >= node.deaf_until_s:
            self._power_on(node)

    def _shut_down(self, node: _Node) -> None:
        """It shuts down, after a while; pods that run until then are lost."""
        self._told_off.add(node.name)
        if node.runs_pods and node.on:
            node.off_at_s = self._now_s + float(self._rng.uniform(*_SHUT_DOWN_S))

    def _may_die(self) -> None:
        if self._kill_after is None:
            return
        self._kill_after -= 1
        if self._kill_after < 0:
            self._kill_after = None
            raise KilledError


def _rules(pod: _Pod) -> NodeRules:
    if not pod.only:
        return ANYWHERE
    return NodeRules(terms=(Term(fields=(Requirement("metadata.name", "In", (pod.only,)),)),))


class SleepResult(Figures, frozen=True):
    """Sums over all courses; see `Outcome`."""

    courses: int
    broken: int
    without_fault: int
    pods: int
    finished: int
    lost: int
    unexplained: int
    stranded: int
    too_many_waking: int
    sleeps: int
    wakes: int
    given_up: int
    slept_pct: float
    faults: Mapping[str, int]
    emptied: int = 0
    moves: int = 0
    moved_fixed: int = 0


def play_courses(
    courses: int, *, first: int = 0, n_workers: int = 1, note: Callable[[str], None] = lambda _text: None
) -> SleepResult:
    """Play so many courses.

    Args:
        courses: number of courses.
        first: seed of the first; each has the next one.
        n_workers: number of processes.
        note: told of progress, and of courses in which something happened that must not.
    """
    last = first + courses
    chunks = [range(start, min(start + _CHUNK, last)) for start in range(first, last, _CHUNK)]
    outcomes: list[Outcome] = []
    for played in in_processes(_play, chunks, n_workers):
        outcomes += played
        for outcome in played:
            if not outcome.holds:
                note(str(outcome))
        if len(outcomes) // 1000 > (len(outcomes) - len(played)) // 1000:
            note(f"{len(outcomes):,} of {courses:,} courses")
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)

    def total(name: str) -> int:
        return sum(getattr(outcome, name) for outcome in outcomes)

    return SleepResult(
        courses=len(outcomes),
        broken=sum(not outcome.holds for outcome in outcomes),
        without_fault=sum(not outcome.faults for outcome in outcomes),
        pods=total("pods"),
        finished=total("finished"),
        lost=total("lost"),
        unexplained=total("unexplained"),
        stranded=total("stranded"),
        too_many_waking=total("too_many_waking"),
        sleeps=total("sleeps"),
        wakes=total("wakes"),
        given_up=total("given_up"),
        emptied=total("emptied"),
        moves=total("moves"),
        moved_fixed=total("moved_fixed"),
        slept_pct=100.0 * float(np.mean([outcome.slept_share for outcome in outcomes])),
        faults=dict(sorted(faults.items())),
    )


def _play(seeds: range) -> list[Outcome]:
    return [Course(seed).play() for seed in seeds]
