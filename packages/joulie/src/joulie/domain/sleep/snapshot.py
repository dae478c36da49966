"""Input of a decision about sleep: nodes, pending pods, and the room that power budgets leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from joulie.domain.capping.admission import UNLIMITED_ROOM, PodRoom
from joulie.domain.capping.switched import NO_BUDGETS, WakeRoom
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules, Taint
from joulie.domain.sleep.states import SleepState
from joulie.domain.units import non_negative, positive


class Room(NamedTuple):
    """Resources of a node, or requests of a pod."""

    cores: float = 0.0
    memory_gib: float = 0.0
    gpus: float = 0.0
    pods: float = 0.0

    def holds(self, other: Room) -> bool:
        """Whether another amount fits into this."""
        return (
            self.cores >= other.cores
            and self.memory_gib >= other.memory_gib
            and self.gpus >= other.gpus
            and self.pods >= other.pods
        )

    def less(self, other: Room) -> Room:
        """What is left of it without another amount."""
        return Room(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Room()


@dataclass(frozen=True)
class ConsolidationSettings:
    """When nodes are emptied, and how fast. Moving a pod costs it time, so that all is on the cautious side.

    Attributes:
        max_nodes: nodes that may be emptied at the same time; 0 for none.
        max_moves: pods to evict at one look.
        min_age_s: younger pods stay, so that none is moved around, s.
        lost_s: work that a pod loses at most that runs to an end, s: time between its checkpoints.
        restart_s: time in which a pod that is moved does no work, s.
        horizon_s: time for which an emptied node sleeps at most, as far as anybody knows, s.
        boot_s: time in which a node wakes, s: with its power and without pods.
        gain: how many times what it costs emptying a node must save.
        held_looks: looks at which a pod may wait that an emptying node has room for, before it is opened.
        timeout_s: time after which a node is opened that is not empty, s.
        pause_s: time after which emptying it is tried again, s.
    """

    max_nodes: int = 0
    max_moves: int = 5
    min_age_s: float = 600.0
    lost_s: float = 2_592_000.0
    restart_s: float = 60.0
    horizon_s: float = 3600.0
    boot_s: float = 300.0
    gain: float = 2.0
    held_looks: int = 12
    timeout_s: float = 900.0
    pause_s: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("max_nodes", "min_age_s", "lost_s", "restart_s", "boot_s", "pause_s"):
            non_negative(name, getattr(self, name))
        for name in ("max_moves", "horizon_s", "gain", "held_looks", "timeout_s"):
            positive(name, getattr(self, name))


@dataclass(frozen=True)
class SleepSettings:
    """Settings of sleeping nodes.

    Attributes:
        empty_s: time for which a node is empty before it is cordoned, s.
        settle_s: time for which it is cordoned without a pod before it is switched off, s.
        settle_looks: looks at which it was, at least; they hold where the clock jumps.
        wake_timeout_s: time in which a node that was told to wake must be ready, s.
        obey_looks: looks at which a node is on, at least, before it counts as one that did not switch off.
        wake_attempts: how often it is told before it is given up.
        failed_s: time after which one that was given up may be tried again, s.
        max_waking: number of nodes that may wake at the same time.
        min_awake: minimum number of nodes awake in each family.
        consolidation: when nodes are emptied that have few pods.
    """

    empty_s: float = 600.0
    settle_s: float = 60.0
    settle_looks: int = 3
    wake_timeout_s: float = 600.0
    obey_looks: int = 30
    wake_attempts: int = 3
    failed_s: float = 3600.0
    max_waking: int = 5
    min_awake: int = 1
    consolidation: ConsolidationSettings = ConsolidationSettings()

    def __post_init__(self) -> None:
        for name in ("empty_s", "settle_s", "failed_s", "min_awake"):
            non_negative(name, getattr(self, name))
        for name in ("settle_looks", "obey_looks", "wake_timeout_s", "wake_attempts", "max_waking"):
            positive(name, getattr(self, name))


@dataclass(frozen=True)
class BoundPod:
    """A pod that keeps its node awake, as consolidation sees it.

    Attributes:
        name: its namespace and name.
        requests: what it asks for.
        rules: nodes that it may run on.
        movable: whether it may be restarted elsewhere.
        ends: whether it runs to an end: then it loses work when it is moved.
        terminating: whether it is on its way out.
        age_s: for how long it runs, s.
        left_min: how long it is expected to run yet, min.
        draw_w: what it draws, W.
    """

    name: str
    requests: Room
    rules: NodeRules = ANYWHERE
    movable: bool = False
    ends: bool = True
    terminating: bool = False
    age_s: float = 0.0
    left_min: float = 0.0
    draw_w: float = 0.0


@dataclass(frozen=True)
class SleepNode:
    """A node as it is seen.

    Attributes:
        name: its name.
        family: nodes of one family stand in for one another.
        state: state in which it was left, see `recalled`.
        mark: text of the annotation that keeps the state; empty without one.
        ready: whether its kubelet is.
        boot: id of its boot; empty where it is not known. One that was told to switch off is ready for a while yet.
        switchable: whether it is really switched off; else it rests where it is, and stays ready.
        keep: why it must not sleep; empty if it may.
        jobs: pods bound to it that have not ended, without those of DaemonSets and static ones.
        allocatable: what it offers to pods.
        free: what of it no pod has requested, those of DaemonSets included.
        labels: its labels.
        taints: its taints, without Joulie's.
        base_w: power that it saves asleep, W.
        pods: those that keep it awake; empty where nodes are not emptied.
    """

    name: str
    family: str
    state: SleepState
    mark: str = ""
    ready: bool = True
    boot: str = ""
    switchable: bool = True
    keep: str = ""
    jobs: int = 0
    allocatable: Room = NOTHING
    free: Room = NOTHING
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    base_w: float = 0.0
    pods: tuple[BoundPod, ...] = ()


@dataclass(frozen=True)
class WaitingPod:
    """A pod without a node, which kube-scheduler may bind (no gate holds it).

    Attributes:
        name: its namespace and name.
        requests: what it asks for.
        rules: nodes that it may run on.
        duration_min: how long it is expected to run, min.
    """

    name: str
    requests: Room
    rules: NodeRules = ANYWHERE
    duration_min: float = 60.0


class ExpectedPods(NamedTuple):
    """Pods alike that the forecast of demand expects.

    Attributes:
        requests: what each asks for.
        rules: nodes that they may run on.
        soon: number that comes in the time in which a node wakes: nodes are woken for them.
        later: number that comes before a node that went to sleep now would have paid for waking, these included: nodes
            are kept awake for them.
    """

    requests: Room
    rules: NodeRules
    soon: int
    later: int


@dataclass(frozen=True)
class SleepSnapshot:
    """What a decision is made of.

    Attributes:
        now_s: s since the epoch.
        nodes: the managed nodes.
        pods: pods that wait for a node, in order of creation.
        expected: pods that the forecast of demand expects.
        wake_room: room that power budgets have for nodes to wake.
        until_back: pods that the forecast expects while an emptied node would sleep.
        pod_room: room that power budgets have for pods that are moved.
    """

    now_s: float
    nodes: Sequence[SleepNode]
    pods: Sequence[WaitingPod] = ()
    expected: Sequence[ExpectedPods] = ()
    wake_room: WakeRoom = NO_BUDGETS
    until_back: Sequence[ExpectedPods] = ()
    pod_room: PodRoom = UNLIMITED_ROOM
