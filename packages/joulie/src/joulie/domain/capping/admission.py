"""Which pods may start under power budgets: those whose start takes no watts from pods that need full power.

A budget keeps its limit whatever starts, since limits of nodes are set in advance. What a start can cost is speed.
Nodes without a pod that needs full power give first, down to the lowest limits of their devices; where that is not
enough, the others would have to give too. So the room for pods is a budget's limit less what its nodes are expected to
draw with all that may give at its lowest limit, and a pod needs of it

- what it is expected to draw, on a node with pods that need full power;
- that, and what the node could no longer give, where it is the first such pod of the node;
- less what the node's lowest limits leave unused, which the account has as drawn;
- nothing on other nodes: they are limited to their floor already in this account.

Where there is no room left at all, limits are already not enough, and no pod starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.capping.budgets import Budget, BudgetNodes
from joulie.domain.units import BoolArray, FloatArray, FloatLike

SETTLING_S = 120.0
"""How long after it has started a pod's expected watts count beside what is measured, s."""
ROUNDING_W = 0.5
"""Difference up to which a pod still fits, W."""


@dataclass(frozen=True)
class PodRoom:
    """Room that power budgets have for pods that are moved.

    Attributes:
        left_w: by budget in force, what is left for pods, W; 0 where one curtails.
        budgets: names of the budgets that cover each node; a node that none covers is absent.
        known: whether budgets have been decided upon; before, no node has room.
    """

    left_w: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    known: bool = True

    def of_node(self, node: str) -> float:
        """What is left for pods on a node, W; infinite where no budget covers it."""
        if not self.known:
            return 0.0
        return min((self.left_w[budget] for budget in self.budgets.get(node, ())), default=math.inf)


UNLIMITED_ROOM = PodRoom()


def spared_w(nodes: BudgetNodes, low_w: FloatArray) -> FloatArray:
    """What nodes draw where those with pods that need full power are not slowed, W, shape ``(n,)``.

    Args:
        nodes: the nodes; one without a fresh reading counts with its worst case.
        low_w: what each node counts that may be slowed, W.
    """
    drawn_w = np.where(np.isfinite(nodes.power_w), nodes.power_w, nodes.in_force_w)
    return np.where(nodes.critical & nodes.steerable, np.maximum(low_w, drawn_w), low_w)


def room_for_pods(nodes: BudgetNodes, budgets: Sequence[Budget]) -> Mapping[str, float]:
    """What budgets have left for pods, W, by name; negative where limits are not enough. Observed ones are left out.

    Args:
        nodes: as the budgets were decided upon: nodes that are off or waking count with what `with_switched` says.
        budgets: in any order.
    """
    expected_w = spared_w(nodes, np.where(nodes.steerable, nodes.floor_w, nodes.in_force_w))
    return {one.name: one.limit_w - float(expected_w[one.nodes].sum()) for one in budgets if one.enforced}


def needed_w(
    pod_w: FloatLike, full_power: bool, critical: BoolArray, drawn_w: FloatArray, floor_w: FloatArray
) -> FloatArray:
    """What a pod needs of the room of the budgets that cover a node, W, shape ``(n,)``.

    Args:
        pod_w: what it is expected to add to the node, W.
        full_power: whether it needs full power.
        critical: which nodes have pods that do.
        drawn_w: power of the nodes, W; their worst case where it is not known.
        floor_w: worst case under the lowest limits that the nodes accept, W, counted as `drawn_w` is.
    """
    before_w = np.where(critical, np.maximum(drawn_w, floor_w), floor_w)
    after_w = np.where(critical | full_power, np.maximum(drawn_w + pod_w, floor_w), floor_w)
    return np.asarray(after_w - before_w)


def counted_w(
    pod_w: FloatLike, full_power: bool, critical: BoolArray, drawn_w: FloatArray, floor_w: FloatArray
) -> FloatArray:
    """The same of a pod that is being placed, W: what lowest limits leave unused, another may have used before it."""
    first_w = pod_w + np.maximum(drawn_w - floor_w, 0.0) if full_power else 0.0
    return np.asarray(np.where(critical, pod_w, first_w), dtype=np.float64)


def fits(needed: FloatArray, left_w: FloatArray) -> BoolArray:
    """Whether a pod may start where it needs so much and so much is left; shapes ``(n,)``."""
    return np.asarray(needed <= left_w + ROUNDING_W)
