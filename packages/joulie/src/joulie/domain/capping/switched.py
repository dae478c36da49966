"""Nodes that are off or waking under power budgets: what they count with, and which of them may wake.

A node that its switch reports off draws its standby power. One that wakes runs its fans, memory tests and devices
without limits, and counts with its boot peak until its agent has confirmed a limit. One that is wanted but still off
counts with its boot peak already: the others give what it will need, and it is woken once they have confirmed that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.capping.admission import spared_w
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
    boot_peak_w: float | None = None
    """The most that it draws while it starts, W; None for its worst case without limits."""

    def counts_w(self, full_w: float) -> float:
        """Worst case that budgets count, W.

        Args:
            full_w: worst case of the node without limits, W.

        Raises:
            InvalidQuantityError: a power is NaN, infinite or negative.
        """
        return self._off_w if self.state is SwitchState.OFF else self._boot_w(full_w)

    def extra_w(self, full_w: float) -> float:
        """By how much more it counts while it wakes than while it is off, W.

        Raises:
            InvalidQuantityError: a power is NaN, infinite or negative.
        """
        return max(self._boot_w(full_w) - self._off_w, 0.0)

    @property
    def _off_w(self) -> float:
        return float(non_negative("standby_w", self.standby_w))

    def _boot_w(self, full_w: float) -> float:
        return float(non_negative("boot_peak_w", full_w if self.boot_peak_w is None else self.boot_peak_w))


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
    counts_w = np.array(
        [
            switched[name].counts_w(full_w) if name in switched else np.nan
            for name, full_w in zip(nodes.names, nodes.full_w.tolist(), strict=True)
        ]
    )
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


@dataclass(frozen=True)
class WakeRoom:
    """Room that power budgets have for nodes to wake. A node that no budget in force covers needs none.

    Attributes:
        granted: nodes that were wanted and may wake now.
        extra_w: of the nodes that need room, by how much more they count while they wake, W.
        budgets: names of the budgets that cover each of them.
        left_w: by budget, what is left for nodes that wake if all others give what they can, W.
        known: whether budgets have been decided upon; before, no node wakes.
    """

    granted: frozenset[str] = frozenset()
    extra_w: Mapping[str, float] = field(default_factory=dict)
    budgets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_w: Mapping[str, float] = field(default_factory=dict)
    known: bool = True

    def may_wake(self, node: str) -> bool:
        """Whether a node may wake now."""
        return self.known and (node in self.granted or node not in self.budgets)


NO_BUDGETS = WakeRoom()
UNKNOWN_ROOM = WakeRoom(known=False)


def wake_room(
    asleep: Collection[str],
    nodes: BudgetNodes,
    switched: Mapping[str, Switched],
    budgets: Sequence[Budget],
    decision: BudgetDecision,
) -> WakeRoom:
    """The room for nodes to wake.

    In the decision every wanted node counts with its boot peak. So where a budget's worst case fits, all that are
    wanted under it fit. Behind a breaker, where the worst case may exceed the limit, what is measured must fit.

    Args:
        asleep: names of nodes that sleep, off or not.
        nodes: all nodes as if they were on.
        switched: what was counted of nodes that are off or waking, by name.
        budgets: as decided upon.
        decision: upon the nodes `with_switched`.

    Raises:
        InvalidQuantityError: a power is NaN, infinite or negative.
    """
    low_w = np.where(nodes.steerable, nodes.floor_w, nodes.in_force_w)
    index = {name: place for place, name in enumerate(nodes.names)}
    for name, one in switched.items():
        if name in index:
            waking = one.state is SwitchState.WAKING
            low_w[index[name]] = one.counts_w(nodes.full_w[index[name]]) if waking else one.standby_w
    # A critical node is slowed by no budget behind a breaker, unless that alarms.
    unslowed_w = spared_w(nodes, low_w)
    covering: dict[int, list[str]] = {index[name]: [] for name in asleep if name in index}
    left_w: dict[str, float] = {}
    full: set[str] = set()
    for budget in budgets:
        outcome = decision.outcomes.get(budget.name)
        if not budget.enforced or outcome is None:
            continue
        carried_w = low_w if budget.breaker is None else unslowed_w
        left_w[budget.name] = budget.limit_w - float(carried_w[budget.nodes].sum())
        power_w = outcome.worst_w if budget.breaker is None else outcome.measured_w
        if power_w > budget.limit_w + _ROUNDING_W:
            full.add(budget.name)
        for place in budget.nodes.tolist():
            if place in covering:
                covering[place].append(budget.name)
    found = {nodes.names[place]: tuple(names) for place, names in covering.items() if names}
    extra_w = {name: float(nodes.full_w[index[name]] - low_w[index[name]]) for name in found}
    wanted = set()
    for name, one in switched.items():
        if name in found:
            extra_w[name] = one.extra_w(float(nodes.full_w[index[name]]))
            if one.state is SwitchState.WANTED and full.isdisjoint(found[name]):
                wanted.add(name)
    return WakeRoom(frozenset(wanted), extra_w, found, left_w)
