"""Power budgets over nodes: limits of nodes that keep every budget that covers them.

A budget is kept by what nodes *could* draw under the limits in force, not by what they draw: no reading has to arrive
for it, so readings that are late, lost or wrong cannot break it, and the last limits of an operator that died are still
safe. Only behind a breaker may that sum exceed the budget, for as long as the breaker carries it (`feed`).

Budgets may nest and overlap. They are decided one after the other, those of fewer nodes first, each by the feed's
controller; a node's limit is the lowest of them, and what an inner budget takes is room in the outer ones. A node whose
limit cannot be changed counts with the worst case that is in force. Power is raised only into room that lowered limits
have already given, as their agents confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from joulie.domain.capping.feed import (
    FeedDecision,
    FeedMemory,
    FeedReading,
    FeedServers,
    FeedSettings,
    decide_feed,
    first_memory,
)
from joulie.domain.capping.trip import TripCurve
from joulie.domain.units import BoolArray, FloatArray, IntArray, non_negative, positive

RESPONSE_S = 15.0
"""Default of how soon a change must act, s."""
READING_ERROR = 0.05
"""Default of by how much more may be drawn behind a breaker than is read, as a share."""
_NO_SLACK = TripCurve(hold=1.0, time_constant_s=1e-3, instantaneous=1e6)
"""Of a budget without a breaker: it carries no overload."""
_MIN_RANGE_W = 1e-6
_SHARE_OF_RESPONSE_FOR_READINGS = 0.5
"""Age of readings, as a share of the response time, from which they are stale: the rest is for what acts on them."""


@dataclass(frozen=True)
class Breaker:
    """The breaker of a feed.

    Attributes:
        rating_w: load that it is rated for, W.
        curve: its time-current curve.
        reading_error: by how much more may be drawn than is read, as a share.
    """

    rating_w: float
    curve: TripCurve
    reading_error: float = READING_ERROR

    def __post_init__(self) -> None:
        positive("rating_w", self.rating_w)


@dataclass(frozen=True, eq=False)
class Budget:
    """A budget, as it is in force now.

    Attributes:
        name: unique name.
        limit_w: what its nodes may draw together, W; behind a breaker, for long.
        nodes: indices of the nodes that it covers, ascending, shape ``(n_covered,)``.
        response_s: how soon a change must act, s.
        breaker: of the feed; None where the limit allows no overload at all.
        enforced: whether its limits are set; otherwise they are only worked out.
    """

    name: str
    limit_w: float
    nodes: IntArray
    response_s: float = RESPONSE_S
    breaker: Breaker | None = None
    enforced: bool = True

    def __post_init__(self) -> None:
        positive("limit_w", self.limit_w)
        positive("response_s", self.response_s)
        if self.breaker is not None:
            non_negative("breaker.rating_w - limit_w", self.breaker.rating_w - self.limit_w)

    @property
    def feed(self) -> FeedSettings:
        """Settings of the feed's controller."""
        stale_s = self.response_s * _SHARE_OF_RESPONSE_FOR_READINGS
        if self.breaker is None:
            return FeedSettings(
                self.limit_w,
                _NO_SLACK,
                self.response_s,
                target=1.0,
                alarm_heat=1.0,
                stale_s=stale_s,
                limit_critical=True,
            )
        rating_w, curve = self.breaker.rating_w, self.breaker.curve
        alarm_heat = (1.0 + curve.trip_heat) / 2.0
        target = self.limit_w / rating_w
        return FeedSettings(
            rating_w,
            curve,
            self.response_s,
            target=target,
            alarm_heat=max(alarm_heat, target**2),
            stale_s=stale_s,
            reading_error=self.breaker.reading_error,
        )


@dataclass(frozen=True, eq=False)
class BudgetNodes:
    """Nodes under budgets; arrays of shape ``(n,)``.

    Attributes:
        names: node names.
        critical: whose work is slowed last.
        floor_w: worst case under the lowest limits that the node accepts, W.
        full_w: worst case without limits, W.
        in_force_w: worst case under the limits in force, W; `full_w` where nothing is confirmed.
        asked_w: worst case under the limits that the node is asked to set, W.
        steerable: whether a new limit will be carried out.
        power_w: measured power, W; NaN where there is no fresh reading.
        read_s: time of the reading, s.
        priority: nodes that are not critical give in ascending order of it; None where all are alike.
    """

    names: tuple[str, ...]
    critical: BoolArray
    floor_w: FloatArray
    full_w: FloatArray
    in_force_w: FloatArray
    asked_w: FloatArray
    steerable: BoolArray
    power_w: FloatArray
    read_s: FloatArray
    priority: IntArray | None = None


@dataclass(frozen=True, eq=False)
class BudgetMemory:
    """State of one budget's feed, and the nodes that it is about."""

    nodes: tuple[str, ...]
    feed: FeedMemory


@dataclass(frozen=True, eq=False)
class BudgetOutcome:
    """What a budget comes to.

    Attributes:
        limit_w: of each node that it covers, as this budget alone asks, W, shape ``(n_covered,)``.
        measured_w: measured power, W; a node without a reading counts with its worst case.
        worst_w: worst case under the limits in force, W.
        missing_w: by how much the lowest limits that nodes accept exceed the budget, W; 0 where it can be kept.
        unread: number of nodes without a fresh reading.
        unsteerable: number of nodes whose limits cannot be changed.
        curtailed: which of the nodes may draw less than they could, shape ``(n_covered,)``.
        blind: whether readings that limits depend on, those behind a breaker, are lost, too old or stuck,
            or were within the last minute.
    """

    limit_w: FloatArray
    measured_w: float
    worst_w: float
    missing_w: float
    unread: int
    unsteerable: int
    curtailed: BoolArray
    blind: bool = False


_NO_NODES = BudgetOutcome(np.zeros(0), 0.0, 0.0, 0.0, 0, 0, np.zeros(0, dtype=np.bool_))


@dataclass(frozen=True, eq=False)
class BudgetDecision:
    """Limits of all nodes.

    Attributes:
        limit_w: worst case that each node's limits are to leave, W, shape ``(n,)``; `full_w` means no limit.
        outcomes: by budget.
        memory: for the next decision, by budget.
    """

    limit_w: FloatArray
    outcomes: Mapping[str, BudgetOutcome] = field(default_factory=dict)
    memory: Mapping[str, BudgetMemory] = field(default_factory=dict)


def decide_budgets(
    now_s: float, nodes: BudgetNodes, budgets: Sequence[Budget], memory: Mapping[str, BudgetMemory]
) -> BudgetDecision:
    """The limits of nodes under all budgets.

    Args:
        now_s: time, s.
        nodes: all nodes that a budget covers.
        budgets: in any order.
        memory: of the last decision; empty after a start.

    Raises:
        InvalidQuantityError: a quantity is NaN or out of range.
    """
    # What cannot be changed is in force; what can be changed is between its floor and full power.
    floor_w = np.where(nodes.steerable, nodes.floor_w, nodes.in_force_w)
    wanted_w = np.where(nodes.steerable, nodes.full_w, nodes.in_force_w)
    share = np.ones(len(nodes.names))
    outcomes: dict[str, BudgetOutcome] = {}
    kept: dict[str, BudgetMemory] = {}
    room_w: list[tuple[IntArray, float]] = []
    for budget in sorted(budgets, key=lambda one: (not one.enforced, one.nodes.size, one.name)):
        covered = budget.nodes
        if not covered.size:
            outcomes[budget.name] = _NO_NODES
            continue
        decision, kept[budget.name] = _decide_one(now_s, nodes, budget, floor_w, wanted_w, memory.get(budget.name))
        limit_w = np.minimum(decision.limit_w, wanted_w[covered])
        if budget.enforced:
            wanted_w[covered] = limit_w
            carried_w = max(budget.limit_w, float(limit_w.sum()))
            room_w.append((covered, max(carried_w - float(nodes.in_force_w[covered].sum()), 0.0)))
        outcomes[budget.name] = _outcome(nodes, budget, limit_w, floor_w[covered], decision)
    raised_w = np.maximum(wanted_w - nodes.in_force_w, 0.0)
    for covered, left_w in room_w:
        asked_w = float(raised_w[covered].sum())
        share[covered] = np.minimum(share[covered], 1.0 if asked_w <= left_w else left_w / asked_w)
    limit_w = np.minimum(wanted_w, nodes.in_force_w) + share * raised_w
    # A node that does not answer is asked for what it was asked before.
    return BudgetDecision(np.where(nodes.steerable, limit_w, nodes.asked_w), outcomes, kept)


def _decide_one(
    now_s: float,
    nodes: BudgetNodes,
    budget: Budget,
    floor_w: FloatArray,
    wanted_w: FloatArray,
    before: BudgetMemory | None,
) -> tuple[FeedDecision, BudgetMemory]:
    """One budget's decision, where inner budgets have left its nodes `wanted_w`."""
    covered, settings = budget.nodes, budget.feed
    low_w = floor_w[covered]
    high_w = np.maximum(wanted_w[covered], low_w + _MIN_RANGE_W)
    tier = None if nodes.priority is None else nodes.priority[covered]
    servers = FeedServers(nodes.critical[covered], low_w, high_w, np.ones(covered.size), tier)
    names = tuple(nodes.names[index] for index in covered.tolist())
    if before is None:
        feed = first_memory(servers, settings, now_s)
    elif before.nodes != names:
        # The breaker is as warm as it was, whoever is behind it now; the level continues, and rises by its ramp.
        fresh = first_memory(servers, settings, now_s)
        old = before.feed
        feed = replace(fresh, heat=max(fresh.heat, old.heat), level=min(fresh.level, old.level))
    else:
        feed = before.feed
    decision = decide_feed(now_s, _reading(nodes, covered), servers, settings, feed)
    return decision, BudgetMemory(names, decision.memory)


def _reading(nodes: BudgetNodes, covered: IntArray) -> FeedReading | None:
    """What is measured of a budget's nodes, dated by the oldest reading that counts; None where there is none."""
    power_w, read_s = nodes.power_w[covered], nodes.read_s[covered]
    known = np.isfinite(power_w)
    return FeedReading(float(read_s[known].min()), power_w) if known.any() else None


def _outcome(
    nodes: BudgetNodes, budget: Budget, limit_w: FloatArray, floor_w: FloatArray, decision: FeedDecision
) -> BudgetOutcome:
    covered = budget.nodes
    power_w, in_force_w = nodes.power_w[covered], nodes.in_force_w[covered]
    known = np.isfinite(power_w)
    return BudgetOutcome(
        limit_w,
        float(np.where(known, power_w, in_force_w).sum()),
        float(in_force_w.sum()),
        max(float(floor_w.sum()) - budget.limit_w, 0.0),
        int((~known).sum()),
        int((~nodes.steerable[covered]).sum()),
        np.asarray(nodes.steerable[covered] & (limit_w < nodes.full_w[covered] - 1.0)),
        decision.blind and budget.breaker is not None,
    )
