"""The played cluster: nodes, pods, kubelets, a scheduler, and the faults that happen to them and to the operator.

Nodes boot, fail to boot, come up by themselves or die while they are off; pods are bound by a view that lags;
disruption budgets refuse evictions and power budgets curtail; the operator is killed between any two writes, cannot
reach the API server for minutes, and has a clock that jumps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from joulie.domain.capping.admission import PodRoom
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules, Term
from joulie.domain.sleep.snapshot import BoundPod, Room, SleepNode
from joulie.domain.sleep.states import Awake, state_of

STEP_S = 10.0
BOOT_S = (30.0, 150.0)
SHUT_DOWN_S = (0.0, 90.0)
DEAF_S = (60.0, 900.0)
OUTAGE_S = 300.0
REFUSED_S = (20.0, 300.0)
_CURTAILED_S = (20.0, 200.0)
_AGAINST_MOVES = 0.01
"""Chance in a step of each fault that stops evictions."""
_MOVABLE = 0.9
_LEAVES_S = (0.0, 40.0)
_LEFT_MIN = 30.0
"""How long pods are believed to run yet, min: much longer than they do, so that nodes are emptied often."""


class KilledError(Exception):
    """The operator was killed before its next write."""


@dataclass
class Node:
    """A node, and what its machine and its power switch do.

    Attributes:
        name: its name.
        family: kind of hardware.
        room: what pods may request of it.
        on: whether it has power.
        boot: number of its boots.
        boots_until_s: when it has booted.
        off_at_s: when it will have shut down; its kubelet is ready until then.
        dead: whether it does not come up any more, until it is repaired.
        mark: value of the annotation in which the operator keeps its state.
        tainted: whether it has the operator's taint.
        deaf_until_s: when it will hear again that it is to wake.
    """

    name: str
    family: str
    room: Room
    on: bool = True
    boot: int = 0
    boots_until_s: float = 0.0
    off_at_s: float = math.inf
    dead: bool = False
    mark: str = ""
    tainted: bool = False
    deaf_until_s: float = 0.0

    def ready(self, now_s: float) -> bool:
        """Whether its kubelet says so."""
        return self.on and not self.dead and now_s >= self.boots_until_s

    @property
    def runs_pods(self) -> bool:
        """Whether pods start on it, where it is ready."""
        return math.isinf(self.off_at_s)


@dataclass
class Pod:
    """A pod, from its creation to its end.

    Attributes:
        name: its name.
        requests: what it requests.
        runs_s: how long it runs, s.
        only: the node that it must run on; empty for any.
        node: the node that it is bound to; empty while it is pending.
        started_s: when it began to run.
        done: whether it has ended by itself.
        movable: whether it may be evicted.
        leaves_at_s: when it will be gone from its node, since it was evicted; another one is made in its place.
    """

    name: str
    requests: Room
    runs_s: float
    only: str = ""
    node: str = ""
    started_s: float | None = None
    done: bool = False
    movable: bool = False
    leaves_at_s: float = math.inf

    @property
    def leaving(self) -> bool:
        """Whether it was evicted and is not gone yet."""
        return math.isfinite(self.leaves_at_s)

    @property
    def rules(self) -> NodeRules:
        """Its node affinity."""
        if not self.only:
            return ANYWHERE
        return NodeRules(terms=(Term(fields=(Requirement("metadata.name", "In", (self.only,)),)),))


class Cluster:
    """Five nodes of two families, and their pods.

    Args:
        seed: seed of what is drawn for evictions, apart from the rest: courses are those that they were before nodes
            were emptied.
        rng: what all else is drawn from.

    Attributes:
        nodes: all nodes, in order.
        pods: all pods that were created.
        now_s: virtual time, s since the epoch.
        clock_s: by how much the operator's clock is fast, s.
        faults: number of faults by name.
        lost: running pods whose node was switched off.
    """

    def __init__(self, seed: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._moves_rng = np.random.default_rng([seed, 2])
        self.nodes = [Node(f"c{i}", "cpu", Room(16.0, 64.0, 0.0, 20.0)) for i in range(3)]
        self.nodes += [Node(f"g{i}", "gpu", Room(32.0, 128.0, 4.0, 20.0)) for i in range(2)]
        self._by_name = {node.name: node for node in self.nodes}
        self.pods: list[Pod] = []
        self.now_s, self.clock_s = 1e6, 0.0
        self.faults: Counter[str] = Counter()
        self.lost = 0
        self._refused_until_s = self._curtailed_until_s = self._api_down_until_s = 0.0
        self._kill_after: int | None = None

    # ---- nodes, kubelets and scheduler

    def live(self) -> None:
        """One step: nodes go down, pods start, end and leave."""
        self.now_s += STEP_S
        for node in self.nodes:
            if self.now_s >= node.off_at_s:
                self.lost += sum(pod.started_s is not None for pod in self.pods_on(node))
                node.on, node.off_at_s = False, math.inf
        for pod in self.pods:
            if pod.node and not pod.done:
                self._run(pod)

    def _run(self, pod: Pod) -> None:
        if self.now_s >= pod.leaves_at_s:
            pod.node, pod.started_s, pod.leaves_at_s = "", None, math.inf
            return
        node = self._by_name[pod.node]
        if pod.started_s is None:
            pod.started_s = self.now_s if node.ready(self.now_s) and node.runs_pods else None
        elif self.now_s - pod.started_s >= pod.runs_s:
            pod.done = True

    def schedule(self, seen: Iterable[SleepNode]) -> None:
        """Bind pods, as kube-scheduler does, by a view that may be old; a node that is gone from the world is not."""
        free = {node.name: self._free(node) for node in self.nodes}
        may = [node for node in seen if node.ready and isinstance(node.state, Awake)]
        for pod in self.pods:
            if pod.node:
                continue
            for node in may:
                if pod.only in ("", node.name) and free[node.name].holds(pod.requests):
                    pod.node = node.name
                    free[node.name] = free[node.name].less(pod.requests)
                    break

    def node(self, name: str) -> Node:
        """The node of this name."""
        return self._by_name[name]

    def pods_on(self, node: Node) -> list[Pod]:
        """The pods of a node that have not ended."""
        return [pod for pod in self.pods if pod.node == node.name and not pod.done]

    def _free(self, node: Node) -> Room:
        free = node.room
        for pod in self.pods_on(node):
            free = free.less(pod.requests)
        return free

    def can_run(self, pod: Pod) -> bool:
        """Whether any node that can wake has what it requests."""
        if pod.node:
            return not self._by_name[pod.node].dead
        return any(
            not node.dead and pod.only in ("", node.name) and node.room.holds(pod.requests) for node in self.nodes
        )

    # ---- the API server

    @property
    def api_down(self) -> bool:
        """Whether the API server cannot be reached."""
        return self.now_s < self._api_down_until_s

    @property
    def refuses_evictions(self) -> bool:
        """Whether a disruption budget refuses every eviction."""
        return self.now_s < self._refused_until_s

    def read(self, node: Node) -> SleepNode:
        """The node as the API server has it."""
        pods = self.pods_on(node)
        return SleepNode(
            node.name,
            node.family,
            state_of(node.mark, tainted=node.tainted, now_s=self.now_s + self.clock_s),
            node.mark,
            ready=node.ready(self.now_s),
            boot=str(node.boot),
            jobs=len(pods),
            allocatable=node.room,
            free=self._free(node),
            base_w=700.0 if node.family == "gpu" else 150.0,
            pods=tuple(self._bound(pod) for pod in pods),
        )

    @property
    def pod_room(self) -> PodRoom:
        """Room that power budgets have for pods; none while they curtail."""
        return PodRoom(known=self.now_s >= self._curtailed_until_s)

    def _bound(self, pod: Pod) -> BoundPod:
        return BoundPod(
            pod.name,
            pod.requests,
            pod.rules,
            movable=pod.movable and pod.started_s is not None,
            terminating=pod.leaving,
            age_s=0.0 if pod.started_s is None else self.now_s - pod.started_s,
            left_min=_LEFT_MIN,
            draw_w=20.0,
        )

    def evict(self, pod: Pod) -> None:
        """Have a pod leave its node, after a while."""
        pod.leaves_at_s = self.now_s + float(self._moves_rng.uniform(*_LEAVES_S))

    # ---- power switches

    def tell_on(self, node: Node) -> None:
        """Tell a node to wake; it may not hear."""
        if self.now_s >= node.deaf_until_s:
            self._power_on(node)

    def shut_down(self, node: Node) -> None:
        """Have a node shut down, after a while; pods that run until then are lost."""
        if node.runs_pods and node.on:
            node.off_at_s = self.now_s + float(self._rng.uniform(*SHUT_DOWN_S))

    def _power_on(self, node: Node) -> None:
        """It starts; one that is on, perhaps on its way down, stays as it is."""
        if not node.dead and not node.on:
            node.on, node.boot = True, node.boot + 1
            node.boots_until_s = self.now_s + float(self._rng.uniform(*BOOT_S))

    # ---- pods that come

    def arrive(self) -> None:
        """Create the pods of a step."""
        for _ in range(int(self._rng.poisson(0.12))):
            gpus = float(self._rng.choice([0, 0, 1, 4]))
            cores = float(self._rng.choice([1, 4, 8, 16, 64] if not gpus else [4, 8]))
            pod = self._new_pod(Room(cores, cores, gpus, 1.0))
            node = self.nodes[int(self._rng.integers(len(self.nodes)))]
            if self._rng.random() < 0.2:
                pod.only = node.name
            elif self._rng.random() < 0.1 and self._free(node).holds(pod.requests):
                pod.node = node.name  # bound by name, or by a scheduler that knows no taints

    def want_all(self) -> None:
        """Create a pod for each node: after the last fault none may stay off that can wake."""
        for node in self.nodes:
            self._new_pod(Room(1.0, 1.0, 0.0, 1.0)).only = node.name

    def _new_pod(self, requests: Room) -> Pod:
        pod = Pod(f"p{len(self.pods)}", requests, float(self._rng.exponential(240.0)))
        pod.movable = bool(self._moves_rng.random() < _MOVABLE)
        self.pods.append(pod)
        return pod

    # ---- faults

    def disturb(self) -> None:
        """Let the faults of a step happen."""
        faults: tuple[tuple[str, float, Callable[[Node], None]], ...] = (
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
                self.faults[name] += 1
                happen(self.nodes[int(self._rng.integers(len(self.nodes)))])
        for name, begin in (("evictions refused", self._refuse), ("power curtailed", self._curtail)):
            if self._moves_rng.random() < _AGAINST_MOVES:
                self.faults[name] += 1
                begin()

    def may_die(self) -> None:
        """Called before each write of the operator.

        Raises:
            KilledError: it dies now.
        """
        if self._kill_after is None:
            return
        self._kill_after -= 1
        if self._kill_after < 0:
            self._kill_after = None
            raise KilledError

    def _refuse(self) -> None:
        self._refused_until_s = self.now_s + float(self._moves_rng.uniform(*REFUSED_S))

    def _curtail(self) -> None:
        self._curtailed_until_s = self.now_s + float(self._moves_rng.uniform(*_CURTAILED_S))

    def _deafen(self, node: Node) -> None:
        node.deaf_until_s = self.now_s + float(self._rng.uniform(*DEAF_S))

    def _die(self, node: Node) -> None:
        node.dead = node.dead or not node.on

    def _repair(self, node: Node) -> None:
        node.dead = False

    def _cut(self, _node: Node) -> None:
        self._api_down_until_s = self.now_s + OUTAGE_S

    def _kill(self, _node: Node) -> None:
        self._kill_after = int(self._rng.integers(0, 4))

    def _jump(self, _node: Node) -> None:
        self.clock_s += float(self._rng.choice([-3600.0, -60.0, 60.0, 3600.0]))

    def _spoil(self, node: Node) -> None:
        if node.mark:
            node.mark = "whatever"
