"""Nodes that are off or waking under power budgets: what they count with, and which of them may wake.

A node that its switch reports off draws its standby power. One that wakes runs its fans, memory tests and devices
without limits, and counts with its boot peak until its agent has confirmed a limit. One that is wanted but still off
counts with its boot peak already: the others give what it will need, and it is woken once they have confirmed that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.budgets import Budget, BudgetDecision, BudgetNodes
from joulie.domain.units import non_negative

_ROUNDING_W = 0.5


class SwitchState(StrEnum):
    """State of a node's power, as its switch reports it."""

    OFF = "off"
    WANTED = "wanted"
    """Off, and to be woken as soon as budgets have room for it."""
    WAKING = "waking"
    """Told to start; not ready yet."""


class Switched(NamedTuple):
    """A node that is not simply on."""

    state: SwitchState
    standby_w: float
    """While off: management controller and standby supply, W."""
    boot_peak_w: float
    """The most that it draws while it starts, W."""

    @property
    def counts_w(self) -> float:
        """Worst case that budgets count, W.

        Raises:
            InvalidQuantityError: a power is NaN, infinite or negative.
        """
        power_w = self.standby_w if self.state is SwitchState.OFF else self.boot_peak_w
        return float(non_negative("power of a switched node", power_w))


def with_switched(nodes: BudgetNodes, switched: Mapping[str, Switched]) -> BudgetNodes:
    """The nodes with those that are off or waking; they take no limit.

    Args:
        nodes: all nodes as if they were on.
        switched: by name; nodes that are simply on are absent.

    Raises:
        InvalidQuantityError: a power is NaN, infinite or negative.
    """
    if not switched:
        return nodes
    counts_w = np.array([switched[name].counts_w if name in switched else np.nan for name in nodes.names])
    off = np.isfinite(counts_w)
    floor_w, full_w, in_force_w, asked_w = (
        np.where(off, counts_w, values) for values in (nodes.floor_w, nodes.full_w, nodes.in_force_w, nodes.asked_w)
    )
    return replace(
        nodes,
        floor_w=floor_w,
        full_w=full_w,
        in_force_w=in_force_w,
        asked_w=asked_w,
        steerable=nodes.steerable & ~off,
        # Nothing is read of it, and nothing needs to be: what it counts is known.
        power_w=np.where(off, counts_w, nodes.power_w),
        read_s=np.where(off, np.nanmax(np.where(off, -np.inf, nodes.read_s), initial=-np.inf), nodes.read_s),
    )


def may_wake(
    nodes: BudgetNodes,
    switched: Mapping[str, Switched],
    budgets: Sequence[Budget],
    decision: BudgetDecision,
    *,
    at_once: int,
) -> tuple[str, ...]:
    """The nodes that may be woken now, those that come first in `nodes` first.

    In the decision every wanted node counts with its boot peak. So where a budget's worst case fits, all that are
    wanted under it fit. Behind a breaker, where the worst case may exceed the limit, what is measured must fit.

    Args:
        nodes: as decided upon, `with_switched`.
        switched: by name.
        budgets: as decided upon.
        decision: the last one.
        at_once: how many nodes may wake at the same time.
    """
    free = at_once - sum(one.state is SwitchState.WAKING for one in switched.values())
    full: set[int] = set()
    for budget in budgets:
        outcome = decision.outcomes.get(budget.name)
        if not budget.enforced or outcome is None:
            continue
        power_w = outcome.worst_w if budget.breaker is None else outcome.measured_w
        if power_w > budget.limit_w + _ROUNDING_W:
            full.update(budget.nodes.tolist())
    wanted = [
        name
        for index, name in enumerate(nodes.names)
        if index not in full and name in switched and switched[name].state is SwitchState.WANTED
    ]
    return tuple(wanted[: max(free, 0)])
