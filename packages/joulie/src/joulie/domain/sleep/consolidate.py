"""Consolidation: which node is emptied so that it can sleep, and which of its pods go now.

A node is emptied if all of its pods may be restarted elsewhere, find room on nodes that are awake, and what it saves
asleep is several times what that costs: work that is done twice, time in which pods start, the power of nodes that stay
awake longer for the pods that they get (the rule of SCORING=marginal), and a boot. It saves power until its pods would
have ended anyway, or until demand is expected that needs it. One node is begun with at a time, and its pods have their
room on others before the next one is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.scoring.marginal_placement import (
    Job,
    NodeOccupancy,
    busy_or_idle_min,
    cheapest,
    packing_ranks,
    placement_costs,
)
from joulie.domain.sleep.commands import Move
from joulie.domain.sleep.snapshot import BoundPod, ConsolidationSettings, Room, SleepNode, SleepSnapshot
from joulie.domain.sleep.states import Awake, Emptying
from joulie.domain.units import BoolArray, FloatArray, IntArray

MAX_PODS = 32
"""Pods of a node that is emptied, at most."""
_MAX_TRIED = 8
"""Nodes for whose pods room is looked for in one decision; those that save most."""
_MAX_EXPECTED = 500
_SETTLES_S = 120.0
"""Time from the last pod's leaving until the node is off, s: it stays closed for a while first."""


def why_not_emptied(node: SleepNode, state: Emptying, snapshot: SleepSnapshot, settings: ConsolidationSettings) -> str:
    """Why a node that is emptied is to be opened instead; empty if it goes on."""
    passed_s = snapshot.now_s - state.since_s
    stays = [pod.name for pod in node.pods if not (pod.movable or pod.terminating)]
    came = [pod.name for pod in node.pods if pod.age_s < passed_s]
    reasons = (
        (not settings.max_nodes, "nodes are not emptied"),
        (bool(node.keep), node.keep),
        (not node.ready, "not ready"),
        (snapshot.pod_room.of_node(node.name) <= 0.0, "a power budget curtails it"),
        (state.held_looks >= settings.held_looks, "a pod waits that it has room for"),
        (passed_s >= settings.timeout_s, f"not empty after {passed_s:.0f} s"),
        (bool(stays), f"pod {next(iter(stays), '')} must not be moved"),
        (bool(came), f"pod {next(iter(came), '')} came"),
    )
    return next((reason for holds, reason in reasons if holds), "")


class _Spread(NamedTuple):
    """Where the pods of a node find room.

    Attributes:
        moves: where each goes.
        cost_w_min: energy that the nodes need more that get them, W min.
        free: what is left free, shape ``(4, n_nodes)``.
        busy_min: for how long the nodes are up then, shape ``(n_nodes,)``.
        left_w: what budgets have left for pods then, W, shape ``(n_budgets + 1,)``.
    """

    moves: tuple[Move, ...]
    cost_w_min: float
    free: FloatArray
    busy_min: FloatArray
    left_w: FloatArray


class Consolidation:
    """The nodes of one decision while moves are booked: room and watts that one pod takes are not given away twice.

    A pod takes its watts from every budget that covers the node that it goes to, and gives none back where it was, not
    to the same budget either: that node counts with its lowest limit, with the pod or without, until it is off.

    Args:
        nodes: those that are awake.
        free: what of each node nobody has, nor a pod that waits is to get, by name.
        snapshot: the cluster.
        settings: settings of consolidation.
    """

    def __init__(
        self,
        nodes: Sequence[SleepNode],
        free: Mapping[str, Room],
        snapshot: SleepSnapshot,
        settings: ConsolidationSettings,
    ) -> None:
        self._now_s, self._settings = snapshot.now_s, settings
        # Nodes of no family are kept for somebody.
        self._nodes = [node for node in nodes if node.ready and node.family]
        self._index = {node.name: index for index, node in enumerate(self._nodes)}
        self._free = np.array([free[node.name] for node in self._nodes]).reshape(-1, len(Room._fields)).T
        self._base_w, self._cores, self._gpus = (
            np.array(values, dtype=np.float64)
            for values in (
                [node.base_w for node in self._nodes],
                [node.allocatable.cores for node in self._nodes],
                [node.allocatable.gpus for node in self._nodes],
            )
        )
        self._room = snapshot.pod_room
        self._left_w, self._budgets = self._budgets_of_nodes()
        left_min = np.array([_left_min(node) for node in self._nodes])
        empty_min = np.array([_empty_min(node, self._now_s) for node in self._nodes])
        n_jobs = np.array([node.jobs for node in self._nodes], dtype=np.int64)
        self._busy_min = busy_or_idle_min(left_min, empty_min, n_jobs)
        self._admitted: dict[NodeRules, BoolArray] = {}
        self._reserved: BoolArray = np.zeros(len(self._nodes), dtype=np.bool_)
        self._moves: list[Move] = []
        self._reserve(snapshot)

    @property
    def moves(self) -> tuple[Move, ...]:
        """The pods to evict now."""
        return tuple(self._moves[: self._settings.max_moves])

    def go_on(self, node: SleepNode, state: Emptying) -> bool:
        """Go on with a node that is emptied. Returns whether the pods that it still has find room elsewhere."""
        spread = self._spread(node, [pod for pod in node.pods if not pod.terminating])
        if spread is None:
            return False
        self._book(spread)
        # The next pods go once those that went have a node.
        if not state.held_looks:
            self._moves += spread.moves
        return True

    def begin(self, nodes: Iterable[SleepNode]) -> tuple[SleepNode, str] | None:
        """The node to begin with, of these that may sleep, and why; None where it pays for none."""
        worth = [(self._saved_w_min(node), self._own_cost_w_min(node), node) for node in nodes if self._movable(node)]
        worth = [one for one in worth if one[0] >= self._settings.gain * one[1]]
        worth.sort(key=lambda one: (one[1] - one[0], one[2].name))
        best: tuple[float, SleepNode, str, _Spread] | None = None
        for saved_w_min, own_w_min, node in worth[:_MAX_TRIED]:
            spread = self._spread(node, node.pods)
            if spread is None:
                continue
            cost_w_min = own_w_min + spread.cost_w_min
            if saved_w_min < self._settings.gain * cost_w_min:
                continue
            if best is None or saved_w_min - cost_w_min > best[0]:
                saved_kwh, cost_kwh = saved_w_min / 60_000.0, cost_w_min / 60_000.0
                pods = f"{len(node.pods)} pods fit elsewhere"
                told = f"{pods}; asleep it saves {saved_kwh:.2f} kWh, moving them costs {cost_kwh:.2f} kWh"
                best = saved_w_min - cost_w_min, node, told, spread
        if best is None:
            return None
        self._book(best[3])
        return best[1], best[2]

    # ---- what it saves and costs

    def _movable(self, node: SleepNode) -> bool:
        """Whether a node may be emptied at all."""
        state, settings = node.state, self._settings
        index = self._index.get(node.name)
        return (
            index is not None
            and not self._reserved[index]
            and isinstance(state, Awake)
            and abs(self._now_s - state.given_up_s) >= settings.pause_s
            and node.switchable
            and not node.keep
            and self._room.of_node(node.name) > 0.0
            and 0 < len(node.pods) == node.jobs <= MAX_PODS
            and all(pod.movable and not pod.terminating and pod.age_s >= settings.min_age_s for pod in node.pods)
        )

    def _saved_w_min(self, node: SleepNode) -> float:
        """What a node saves asleep, W min, as long as its pods would have kept it awake and nobody needs it."""
        asleep_min = min(_left_min(node), self._settings.horizon_s / SECONDS_PER_MINUTE)
        return node.base_w * max(0.0, asleep_min - _SETTLES_S / SECONDS_PER_MINUTE)

    def _own_cost_w_min(self, node: SleepNode) -> float:
        """Energy of work that is done twice, of pods that start, and of a boot, W min."""
        settings = self._settings
        again_w_s = sum(
            pod.draw_w * ((min(pod.age_s, settings.lost_s) if pod.ends else 0.0) + settings.restart_s)
            for pod in node.pods
        )
        return (again_w_s + node.base_w * settings.boot_s) / SECONDS_PER_MINUTE

    # ---- room

    def _reserve(self, snapshot: SleepSnapshot) -> None:
        """Keep room for the pods that are expected before an emptied node would be back, on the fullest nodes."""
        numbers: dict[tuple[Room, NodeRules], int] = {}
        for one in (*snapshot.until_back, *snapshot.expected):
            kind = one.requests, one.rules
            numbers[kind] = max(numbers.get(kind, 0), one.later)
        left = _MAX_EXPECTED
        order = np.lexsort((self._free[0], self._free[2]))
        for (requests, rules), number in numbers.items():
            asked = np.array(requests)[:, np.newaxis]
            for _ in range(min(left, number)):
                left -= 1
                fits = self._admits(rules) & (self._free >= asked).all(axis=0)
                first = order[fits[order]][:1]
                if not len(first):
                    break
                self._free[:, first] -= asked
                self._reserved[first] = True

    def _budgets_of_nodes(self) -> tuple[FloatArray, IntArray]:
        """What budgets have left for pods, W, and the budgets of each node, padded with the last one, without limit."""
        left_w = [*self._room.left_w.values(), math.inf if self._room.known else 0.0]
        index = {name: number for number, name in enumerate(self._room.left_w)}
        covering = [self._room.budgets.get(node.name, ()) for node in self._nodes]
        depth = max(map(len, covering), default=0) + 1
        # Most nodes are covered by the same budgets as others.
        rows = {
            names: [*(index[name] for name in names), *[len(index)] * (depth - len(names))] for names in set(covering)
        }
        return np.array(left_w), np.array([rows[names] for names in covering], dtype=np.int64).reshape(-1, depth)

    def _spread(self, node: SleepNode, pods: Sequence[BoundPod]) -> _Spread | None:
        """Where the pods of a node find room elsewhere, the largest first; None if one of them finds none."""
        free, busy_min, left_w = self._free.copy(), self._busy_min.copy(), self._left_w.copy()
        # kube-scheduler may choose one node for all of them.
        open_to_it = left_w[self._budgets].min(axis=1) >= sum(pod.draw_w for pod in pods)
        if node.name in self._index:
            open_to_it[self._index[node.name]] = False
        moves, cost_w_min = [], 0.0
        for pod in sorted(pods, key=lambda one: (-one.requests.gpus, -one.requests.cores, one.name)):
            asked = np.array(pod.requests)
            fits = open_to_it & self._admits(pod.rules) & (free >= asked[:, np.newaxis]).all(axis=0)
            nodes = NodeOccupancy(self._base_w, busy_min, self._cores, self._gpus, free[0], free[2])
            job = Job(pod.requests.cores, pod.requests.gpus, pod.left_min)
            costs = np.where(fits, placement_costs(nodes, job, nodes.surcharge_w_per_core), np.inf)
            index = next(cheapest(costs, packing_ranks(nodes), 1), None)
            if index is None:
                return None
            cost_w_min += max(0.0, float(costs[index]))
            free[:, index] -= asked
            busy_min[index] = max(busy_min[index], pod.left_min)
            left_w[self._budgets[index]] -= pod.draw_w
            moves.append(Move(pod.name, node.name, self._nodes[index].name))
        return _Spread(tuple(moves), cost_w_min, free, busy_min, left_w)

    def _book(self, spread: _Spread) -> None:
        self._free, self._busy_min, self._left_w = spread.free, spread.busy_min, spread.left_w

    def _admits(self, rules: NodeRules) -> BoolArray:
        """Which nodes the rules of a pod admit."""
        found = self._admitted.get(rules)
        if found is None:
            found = self._admitted[rules] = np.array(
                [rules.admits(node.labels, node.name, node.taints) for node in self._nodes], dtype=np.bool_
            )
        return found


def _left_min(node: SleepNode) -> float:
    """How long the pods of a node are expected to keep it awake, min."""
    return max((pod.left_min for pod in node.pods), default=0.0)


def _empty_min(node: SleepNode, now_s: float) -> float:
    since_s = node.state.empty_since_s if isinstance(node.state, Awake) else None
    return 0.0 if since_s is None else max(0.0, now_s - since_s) / SECONDS_PER_MINUTE
