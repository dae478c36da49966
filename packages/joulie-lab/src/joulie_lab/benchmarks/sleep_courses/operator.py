"""The operator of a course: decides by `joulie.domain.sleep`, and counts what it does and what must not happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.sleep.commands import Action, Command, Move, Remembered, SleepDecision, recalled, still_holds
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import ExpectedPods, Room, SleepNode, SleepSettings, SleepSnapshot, WaitingPod
from joulie.domain.sleep.states import Asleep, Awake, Emptying, SleepState, Waking, mark_of, state_of
from joulie_lab.benchmarks.sleep_courses.cluster import Cluster, KilledError, Node

_EXPECT_S = (60.0, 1800.0)


class Operator:
    """Decides on the nodes of a cluster, step by step, and forgets all when it is killed.

    Args:
        cluster: the cluster.
        settings: settings of sleep.
        seed: seed of its forecast.

    Attributes:
        counts: what it did, and what must not happen, by the names of `Outcome`.
    """

    def __init__(self, cluster: Cluster, settings: SleepSettings, seed: int) -> None:
        self._cluster = cluster
        self._settings = settings
        self._memory: dict[str, Remembered] = {}
        self._told_off: set[str] = set()
        self._forecast_rng = np.random.default_rng([seed, 1])
        self._forecast: tuple[ExpectedPods, ...] = ()
        self._expect_until_s = 0.0
        self.counts: Counter[str] = Counter()

    def step(self, seen: Sequence[SleepNode]) -> None:
        """Decide by what was seen, and carry it out until it is done or killed."""
        now_s = self._cluster.now_s + self._cluster.clock_s
        nodes = {node.name: self._remembered(node, now_s) for node in seen}
        pending = tuple(WaitingPod(pod.name, pod.requests, pod.rules) for pod in self._cluster.pods if not pod.node)
        snapshot = SleepSnapshot(
            now_s, list(nodes.values()), pending, self._expected(), pod_room=self._cluster.pod_room
        )
        decision = decide(snapshot, self._settings)
        self.counts["unexplained"] += sum(not decision.waits.get(pod.name) for pod in pending)
        self._check(nodes, decision)
        commanded = {command.node for command in decision.commands}
        for name, node in nodes.items():
            if name not in commanded:
                self._memory[name] = Remembered(node.mark, decision.states[name])
        try:
            for command in decision.commands:
                state = decision.states[command.node]
                if self._carry_out(command, nodes[command.node], state):
                    self._memory[command.node] = Remembered(mark_of(state), state)
            for move in decision.moves:
                self._move(move, nodes[move.node])
            self._switch_again(now_s)
        except KilledError:
            self._memory, self._told_off = {}, set()  # a new leader knows what is marked

    def _remembered(self, node: SleepNode, now_s: float) -> SleepNode:
        known = self._memory.get(node.name)
        return replace(node, state=recalled(known, node.mark, tainted=bool(node.mark), now_s=now_s))

    def _check(self, nodes: Mapping[str, SleepNode], decision: SleepDecision) -> None:
        """Count a decision by which more nodes wake, or are emptied, than may."""
        before, after = [node.state for node in nodes.values()], list(decision.states.values())
        for kind, most, name in (
            (Waking, self._settings.max_waking, "too_many_waking"),
            (Emptying, self._settings.consolidation.max_nodes, "moved_fixed"),
        ):
            self.counts[name] += _number(after, kind) > max(_number(before, kind), most)

    def _expected(self) -> tuple[ExpectedPods, ...]:
        """A forecast that is right or wrong, as chance will have it."""
        now_s, rng = self._cluster.now_s, self._forecast_rng
        if now_s >= self._expect_until_s:
            self._expect_until_s = now_s + float(rng.uniform(*_EXPECT_S))
            soon, more = rng.integers(0, 4, 2)
            gpus = float(rng.choice([0, 0, 4]))
            self._forecast = (ExpectedPods(Room(4.0, 4.0, gpus, 1.0), ANYWHERE, int(soon), int(soon + more)),)
        return self._forecast

    def _carry_out(self, command: Command, seen: SleepNode, state: SleepState) -> bool:
        """Check, mark, switch: killed between any two of them. Returns whether it was carried out."""
        node = self._cluster.node(command.node)
        if self._cluster.api_down or not still_holds(command, seen, self._cluster.read(node)):
            return False
        if command.action is Action.EMPTY and self._cluster.refuses_evictions:
            now_s = self._cluster.now_s + self._cluster.clock_s
            self._memory[node.name] = Remembered(seen.mark, Awake(given_up_s=now_s))
            return False
        self.counts["emptied"] += command.action is Action.CORDON and isinstance(seen.state, Emptying)
        self._cluster.may_die()
        node.mark, node.tainted = mark_of(state), not isinstance(state, Awake)
        self._cluster.may_die()
        if command.action is Action.POWER_OFF:
            self.counts["sleeps"] += 1
            self._tell_off(node)
        elif command.action is Action.POWER_ON:
            self.counts["wakes"] += 1
            self._cluster.tell_on(node)
        elif command.action is Action.GIVE_UP:
            self.counts["given_up"] += 1
        return True

    def _move(self, move: Move, seen: SleepNode) -> None:
        """Evict a pod, unless the node is no longer marked as it was, or its disruption budget refuses."""
        pod = next(pod for pod in self._cluster.pods if pod.name == move.pod)
        if self._cluster.api_down or self._cluster.node(move.node).mark != seen.mark:
            return
        if pod.node != move.node or pod.done or pod.leaving:
            return
        self._cluster.may_die()
        if self._cluster.refuses_evictions:
            return
        self.counts["moves"] += 1
        self.counts["moved_fixed"] += not pod.movable
        self._cluster.evict(pod)

    def _switch_again(self, now_s: float) -> None:
        """Tell the switches again what the marks want."""
        if self._cluster.api_down:
            return
        for node in self._cluster.nodes:
            state = state_of(node.mark, tainted=node.tainted, now_s=now_s)
            if not isinstance(state, Asleep):
                self._told_off.discard(node.name)
            if isinstance(state, Waking) and not node.on:
                self._cluster.may_die()
                self._cluster.tell_on(node)
            elif isinstance(state, Asleep) and self._may_tell_off(node, state):
                self._cluster.may_die()
                self._tell_off(node)
                self._memory[node.name] = Remembered(node.mark, state)

    def _may_tell_off(self, node: Node, state: Asleep) -> bool:
        # A boot that the mark does not name would count as one that is back, while it is on its way down.
        told = node.name in self._told_off
        return node.on and not told and not self._cluster.pods_on(node) and state.boot == str(node.boot)

    def _tell_off(self, node: Node) -> None:
        self._told_off.add(node.name)
        self._cluster.shut_down(node)


def _number(states: Sequence[SleepState], kind: type[SleepState]) -> int:
    return sum(isinstance(state, kind) for state in states)
