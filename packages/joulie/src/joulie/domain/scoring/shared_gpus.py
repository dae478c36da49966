"""SCORING=frugal: which part of each GPU of a cluster is given, and the openb benchmark's score on it.

The score is `fragmentation.joulie_placement`, the function that the benchmark compiles. This module says what its
inputs are on a real cluster. A node whose pods do not add up, or ask for what nobody can count, is not judged: what it
has left is unknown, which is not nothing. docs/design/0038 has the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.fragmentation import (
    ANY_MODEL,
    POWER_WEIGHT_MILLI_PER_W,
    GpuRequest,
    NodeKind,
    Outlook,
    TypicalPods,
    joulie_placement,
    lean_cpu_milli_per_gpu,
    node_power_w,
    potential_milli,
    typical_pods,
)
from joulie.domain.scoring.sharing import FULL_GPU_MILLI, gpus_with, sockets_of
from joulie.domain.units import FloatArray, IntArray

UNJUDGED = -1
MAX_REMEMBERED_PODS = 20_000
"""Pods from which those seen earlier count half in what is typical."""
_RELEARN_GROWTH = 1.1
_MAX_STATES = 50_000
_NONE: IntArray = np.zeros(0, np.int64)
_NO_TYPICAL = TypicalPods(_NONE, _NONE, _NONE, _NONE, np.zeros(0))


class GpuDemand(NamedTuple):
    """The GPUs that a pod asks for.

    Attributes:
        gpus: 0 for none.
        gpu_milli: on each of them, thousandths.
        stated: whether the pod's annotation says so, which kube-scheduler does not know, instead of its requests.
        given: the GPUs that were given to it; empty if nobody says.
    """

    gpus: int = 0
    gpu_milli: int = 0
    stated: bool = False
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class SharingPod:
    """A pod on a node.

    Attributes:
        node: node name.
        name: of the pod, for messages.
        cpu_milli: requested thousandths of a CPU.
        demand: its GPUs; None if they cannot be counted.
    """

    node: str
    name: str
    cpu_milli: int
    demand: GpuDemand | None


@dataclass(frozen=True)
class SharedNode:
    """The hardware of a node.

    Attributes:
        kind: CPU and power.
        gpus: number of GPUs.
    """

    kind: NodeKind
    gpus: int

    @classmethod
    def of(
        cls, threads: float, cpu_max_w: float, cpu_idle_w: float, gpus: int, gpu_idle_w: float, gpu_max_w: float
    ) -> SharedNode:
        """From the power of all CPUs and of one GPU; a GPU or socket with any pod is taken to draw its maximum."""
        cpu_milli = round(threads * 1000.0)
        sockets = max(1, sockets_of(cpu_milli))
        kind = NodeKind(cpu_milli, ANY_MODEL, gpu_idle_w, gpu_max_w, cpu_idle_w / sockets, cpu_max_w / sockets)
        return cls(kind, gpus)

    @property
    def added_w(self) -> float:
        """What one more GPU in use adds, W."""
        return self.kind.gpu_limit_w - self.kind.gpu_idle_w if self.gpus else 0.0


class NodeState(NamedTuple):
    """What is left of a node; nodes with equal states score alike.

    Attributes:
        kind: its hardware.
        cpu_left_milli: thousandths of a CPU.
        gpu_left: thousandths of each GPU, the fullest first.
    """

    kind: NodeKind
    cpu_left_milli: int
    gpu_left: tuple[int, ...]


def gpus_left(n_gpus: int, pods: Iterable[SharingPod]) -> tuple[list[int], str]:
    """What is left of each GPU in thousandths, and why that is not known (empty if it is).

    Pods whose GPUs are known come first. Of the others, one that asks for a part is taken to have the GPU with the
    least left that has room, one that asks for whole GPUs the first that are free.
    """
    left = [FULL_GPU_MILLI] * n_gpus
    for pod in sorted(pods, key=lambda pod: pod.demand is None or not pod.demand.given):
        demand = pod.demand
        if demand is None:
            return left, f"the GPUs of pod {pod.name} cannot be counted"
        given = demand.given or _assumed(left, demand)
        if len(given) < demand.gpus:
            return left, f"pod {pod.name} does not fit its GPUs beside the others"
        for gpu in given:
            if gpu >= n_gpus or left[gpu] < demand.gpu_milli:
                return left, f"pod {pod.name} has GPU {gpu}, which has no room for it"
            left[gpu] -= demand.gpu_milli
    return left, ""


def _assumed(left: list[int], demand: GpuDemand) -> tuple[int, ...]:
    """The GPUs that a pod is taken to have; fewer than it asks for where there is no room."""
    room = [gpu for gpu, milli in enumerate(left) if milli >= demand.gpu_milli]
    return tuple(sorted(room, key=left.__getitem__)[: demand.gpus])


class Scores:
    """Scores of states that were asked for under one outlook, so that a state is judged once for equal pods."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = Outlook(
            # Loops in plain Python are several times faster over lists than over arrays.
            TypicalPods._make(column.tolist() for column in outlook.typical),
            outlook.cpu_milli_per_gpu,
            outlook.power_weight_milli_per_w,
        )
        self._states: list[NodeState] = []
        self._before: list[tuple[float, float]] = []
        self._number: dict[NodeState, int] = {}
        self._costs: dict[GpuRequest, FloatArray] = {}

    @property
    def full(self) -> bool:
        """Whether so many states are known that it is time to begin anew."""
        return len(self._states) >= _MAX_STATES

    def number(self, state: NodeState) -> int:
        """Number of a state."""
        found = self._number.get(state)
        if found is None:
            found = self._number[state] = len(self._states)
            self._states.append(state)
            potential = potential_milli(state.cpu_left_milli, state.gpu_left, state.kind.model, self._outlook)
            self._before.append((potential, node_power_w(state.cpu_left_milli, state.gpu_left, state.kind)))
        return found

    def costs(self, request: GpuRequest, numbers: IntArray) -> FloatArray:
        """Steps that a pod costs in states by number, the shape of `numbers`; NaN of `UNJUDGED`, infinite without room.

        The lowest is the best.
        """
        known = self._costs.get(request, np.empty(0))
        # One more than there are states: the last stays unknown, and is what UNJUDGED finds.
        missing = len(self._states) + 1 - len(known)
        if missing > 0:
            known = self._costs[request] = np.concatenate([known, np.full(missing, np.nan)])
        costs = known[numbers]
        new = np.unique(numbers[np.isnan(costs) & (numbers != UNJUDGED)])
        if not len(new):
            return costs
        known[new] = [self._cost(request, number) for number in new.tolist()]
        return known[numbers]

    def _cost(self, request: GpuRequest, number: int) -> float:
        state = self._states[number]
        if not has_room(state, request):
            return np.inf
        before_milli, before_w = self._before[number]
        work = list(state.gpu_left)
        steps, _, _ = joulie_placement(
            state.cpu_left_milli, state.gpu_left, work, state.kind, request, self._outlook, before_milli, before_w
        )
        return -float(steps)


def has_room(state: NodeState, request: GpuRequest) -> bool:
    """Whether this many GPUs of a node have this much left."""
    return request.gpus == 0 or gpus_with(state.gpu_left, request.gpu_milli) >= request.gpus


@dataclass(frozen=True, eq=False)
class SharingView:
    """A snapshot of all nodes; arrays have shape ``(n_slots,)``.

    Attributes:
        scores: of states.
        numbers: number of the state of each node; `UNJUDGED` where it is not known.
        ranks: the order of equals: by the watts that one more GPU in use adds, then by name.
        states: of each node; None where it is not known.
    """

    scores: Scores
    numbers: IntArray
    ranks: FloatArray
    states: list[NodeState | None]

    def costs(self, request: GpuRequest) -> FloatArray:
        """See `Scores.costs`."""
        return self.scores.costs(request, self.numbers)


class _LastView(NamedTuple):
    """The latest view, of which the next differs in few nodes.

    Attributes:
        roster: what its slots belong to.
        view: it.
    """

    roster: object
    view: SharingView


class SharedGpus:
    """The pods of all nodes with the parts of GPUs that they hold, and the pods to expect. Used from one loop only."""

    def __init__(self, power_weight_milli_per_w: float = POWER_WEIGHT_MILLI_PER_W) -> None:
        """Create an empty one; see `POWER_WEIGHT_MILLI_PER_W`."""
        self._weight = power_weight_milli_per_w
        self._nodes: dict[str, SharedNode] = {}
        self._pods: dict[Hashable, SharingPod] = {}
        self._on_node: dict[str, dict[Hashable, SharingPod]] = {}
        self._states: dict[str, tuple[NodeState | None, str]] = {}
        self._seen: Counter[GpuRequest] = Counter()
        self._n_seen = 0
        self._relearn_at = 0.0
        self._scores: Scores | None = None
        self._changed: set[str] = set()
        self._last: _LastView | None = None

    def set_node(self, name: str, node: SharedNode | None) -> None:
        """Set the hardware of a node; None if it is not known, or not to be judged."""
        if self._nodes.get(name) == node:
            return
        if node is None:
            del self._nodes[name]
        else:
            self._nodes[name] = node
        self._states.pop(name, None)
        self._scores = None

    def set_pod(self, key: Hashable, pod: SharingPod | None) -> None:
        """Set or, with None, remove a pod."""
        before = self._pods.pop(key, None)
        if pod is not None:
            self._pods[key] = pod
        if before == pod:
            return
        if before is not None:
            there = self._on_node[before.node]
            del there[key]
            if not there:
                del self._on_node[before.node]
            self._forget_state(before.node)
        if pod is not None:
            self._on_node.setdefault(pod.node, {})[key] = pod
            self._forget_state(pod.node)
            if before is None and pod.demand is not None:
                self._remember(GpuRequest(pod.cpu_milli, pod.demand.gpus, pod.demand.gpu_milli))

    def state(self, name: str) -> tuple[NodeState | None, str]:
        """What is left of a node, or None and why that is not known."""
        found = self._states.get(name)
        if found is None:
            found = self._states[name] = self._state(name)
        return found

    def _forget_state(self, name: str) -> None:
        self._states.pop(name, None)
        self._changed.add(name)

    def _state(self, name: str) -> tuple[NodeState | None, str]:
        node = self._nodes.get(name)
        if node is None:
            return None, "its GPUs are not known"
        pods = self._on_node.get(name, {}).values()
        left, problem = gpus_left(node.gpus, pods)
        if problem:
            return None, problem
        cpu_left = node.kind.cpu_milli - sum(pod.cpu_milli for pod in pods)
        return NodeState(node.kind, max(0, cpu_left), tuple(sorted(left))), ""

    def view(self, slots: Mapping[str, int], n_slots: int, roster: object) -> SharingView:
        """A snapshot by slot.

        Args:
            slots: slot of each node by name.
            n_slots: number of slots.
            roster: the same for as long as `slots` is.
        """
        if self._scores is None or self._scores.full or self._n_seen >= self._relearn_at:
            self._scores = Scores(self._outlook())
            self._relearn_at = max(1.0, _RELEARN_GROWTH * self._n_seen)
        last = self._last
        numbers: IntArray
        states: list[NodeState | None]
        if last is None or last.roster is not roster or last.view.scores is not self._scores:
            numbers, states = np.full(n_slots, UNJUDGED), [None] * n_slots
            ranks, changed = self._ranked(slots, n_slots), set(slots)
        else:
            numbers, states = last.view.numbers.copy(), last.view.states.copy()
            ranks, changed = last.view.ranks, self._changed & slots.keys()
        for name in changed:
            slot = slots[name]
            state, _ = self.state(name)
            states[slot], numbers[slot] = state, UNJUDGED if state is None else self._scores.number(state)
        self._changed.clear()
        view = SharingView(self._scores, numbers, ranks, states)
        self._last = _LastView(roster, view)
        return view

    def _ranked(self, slots: Mapping[str, int], n_slots: int) -> FloatArray:
        ranks = np.full(n_slots, float(n_slots))
        added_w = {name: node.added_w for name, node in self._nodes.items()}
        for rank, name in enumerate(sorted(slots, key=lambda name: (added_w.get(name, np.inf), name))):
            ranks[slots[name]] = rank
        return ranks

    def _outlook(self) -> Outlook:
        gpus = np.array([node.gpus for node in self._nodes.values()], dtype=np.int64)
        cpu_milli = np.array([node.kind.cpu_milli for node in self._nodes.values()], dtype=np.int64)
        # Without GPUs there is nothing to be short of.
        lean = lean_cpu_milli_per_gpu(cpu_milli, gpus) if (gpus > 0).any() else 1.0
        return Outlook(self._typical(), lean, self._weight)

    def _typical(self) -> TypicalPods:
        if not self._seen:
            return _NO_TYPICAL
        kinds = np.repeat(np.array(list(self._seen)), list(self._seen.values()), axis=0)
        return typical_pods(kinds[:, 0], kinds[:, 1], kinds[:, 2], np.full(len(kinds), ANY_MODEL))

    def _remember(self, request: GpuRequest) -> None:
        self._seen[request] += 1
        self._n_seen += 1
        if self._n_seen >= MAX_REMEMBERED_PODS:
            self._seen = +Counter({kind: count // 2 for kind, count in self._seen.items()})
            self._n_seen = self._seen.total()
            self._relearn_at = _RELEARN_GROWTH * self._n_seen
