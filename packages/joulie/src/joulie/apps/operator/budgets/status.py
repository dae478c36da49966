"""The status of a PowerBudget: a decision in the API's terms."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    CurtailedNode,
    PowerBudget,
    PowerBudgetStatus,
)
from joulie.adapters.kubernetes.api.v1alpha1.power_budget import MAX_CURTAILED
from joulie.adapters.kubernetes.times import rfc3339
from joulie.domain.capping.budgets import Budget, BudgetNodes, BudgetOutcome

ENFORCED = "Enforced"
INVALID = "Invalid"
"""Reason of `ENFORCED` where a part of the budget cannot be read."""
INFEASIBLE = "Infeasible"
BLIND = "Blind"

_BAND = 0.01
"""Dead-band of watts, as a share of the limit."""
_ROOM_MARGIN = 0.005
"""Share of the limit by which the room for pods may fall before it is written again."""
_ROUNDING_W = 0.5


def status_of(
    stored: PowerBudget,
    budget: Budget,
    outcome: BudgetOutcome,
    nodes: BudgetNodes,
    now_s: float,
    pod_room_w: float | None = None,
    invalid: str = "",
) -> PowerBudgetStatus:
    """The status of a budget, with the times of its conditions and curtailed nodes taken from the stored one.

    Times in the future, of a clock that was set back since, become now.

    Args:
        stored: the budget as it is stored.
        budget: as it was decided upon.
        outcome: of the decision.
        nodes: all nodes.
        now_s: time, s since the epoch.
        pod_room_w: what is left for pods, W; None where it holds none back.
        invalid: what of it cannot be read; empty if all can.
    """
    curtailed = budget.nodes[outcome.curtailed]
    since = {one.node: one.since for one in stored.status.curtailed}
    now = rfc3339(now_s)
    limits_w = dict(zip(budget.nodes.tolist(), outcome.limit_w.tolist(), strict=True))
    return PowerBudgetStatus(
        limit_watts=round(budget.limit_w, 1),
        nodes=int(budget.nodes.size),
        measured_watts=round(outcome.measured_w, 1),
        worst_case_watts=round(outcome.worst_w, 1),
        headroom_watts=round(budget.limit_w - outcome.worst_w, 1),
        pod_headroom_watts=None if pod_room_w is None else round(_written_room_w(pod_room_w, budget.limit_w), 1),
        curtailed_nodes=int(curtailed.size),
        curtailed=tuple(
            CurtailedNode(nodes.names[index], round(limits_w[index], 1), min(since.get(nodes.names[index], now), now))
            for index in curtailed.tolist()[:MAX_CURTAILED]
        ),
        last_updated=now,
        conditions=_conditions(stored, budget, outcome, now, invalid),
    )


def status_matches(wanted: PowerBudgetStatus, stored: PowerBudgetStatus) -> bool:
    """Whether a stored status agrees with the wanted one, within the dead-band of watts."""
    band_w = _BAND * (wanted.limit_watts or 0.0)
    watts = ("limit_watts", "measured_watts", "worst_case_watts", "headroom_watts")
    same = all(
        (one := getattr(wanted, name)) is not None
        and (other := getattr(stored, name)) is not None
        and abs(one - other) <= band_w
        for name in watts
    )
    exact = ("nodes", "curtailed_nodes", "limit_reason")
    return (
        same
        and _room_holds(wanted.pod_headroom_watts, stored.pod_headroom_watts, wanted.limit_watts or 0.0)
        and all(getattr(wanted, name) == getattr(stored, name) for name in exact)
        and _contents(wanted) == _contents(stored)
        and _limits_close(wanted, stored, band_w)
        and _achieved(wanted) == _achieved(stored)
    )


def _written_room_w(room_w: float, limit_w: float) -> float:
    """The room for pods less what it may fall by before it is written again: pods never go by one that is too large."""
    reduced_w = room_w - _ROOM_MARGIN * limit_w
    return max(reduced_w, 0.0) if room_w >= 0.0 else reduced_w


def _room_holds(wanted: float | None, stored: float | None, limit_w: float) -> bool:
    """Whether pods may go by the stored room: not above what is left, nor far below; a few watts differ from none."""
    if wanted is None or stored is None:
        return wanted is stored
    close = -_ROOM_MARGIN * limit_w <= wanted - stored <= _BAND * limit_w
    return close and (wanted < 0.0) == (stored < 0.0)


def _achieved(status: PowerBudgetStatus) -> list[tuple[object, ...]]:
    """What is said of events, but for their mean power, which changes all the time."""
    return [(one.name, one.complied_seconds, one.baseline_watts, one.message) for one in status.reductions]


def _limits_close(wanted: PowerBudgetStatus, stored: PowerBudgetStatus, band_w: float) -> bool:
    one, other = ({node.node: node.watts for node in status.curtailed} for status in (wanted, stored))
    return one.keys() == other.keys() and all(abs(one[node] - other[node]) <= band_w for node in one)


def _contents(status: PowerBudgetStatus) -> frozenset[tuple[str, str, str]]:
    return frozenset((one.type, one.status, told(one)) for one in status.conditions)


def told(condition: Condition) -> str:
    """What of a condition is told when it changes: its reason, and what cannot be read; watts change all the time."""
    return condition.reason + (condition.message if condition.reason == INVALID else "")


def _conditions(
    stored: PowerBudget, budget: Budget, outcome: BudgetOutcome, now: str, invalid: str
) -> tuple[Condition, ...]:
    before: Mapping[str, Condition] = {one.type: one for one in stored.status.conditions}

    def condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        old = before.get(kind)
        since = min(old.last_transition_time, now) if old is not None and old.status == status else now
        return Condition(kind, status.value, reason, since, message, stored.metadata.generation or None)

    missing_w, count = outcome.missing_w, budget.nodes.size
    infeasible = missing_w > _ROUNDING_W
    missing = f"{missing_w:.0f} W are missing: no node can be limited further" if infeasible else ""
    if infeasible and outcome.unsteerable:
        missing += f", and {outcome.unsteerable} of {count} nodes take no limit and count with their worst case"
    not_read = False, INVALID, f"{invalid}; until that is mended the limit may fall and does not rise"
    return (
        condition(ENFORCED, *(not_read if invalid else _enforced(budget, outcome, missing))),
        condition(
            INFEASIBLE, infeasible, "FloorsExceedLimit" if infeasible else "Feasible", missing if infeasible else ""
        ),
        condition(BLIND, *_blind(outcome, count)),
    )


def _blind(outcome: BudgetOutcome, count: int) -> tuple[bool, str, str]:
    """Whether readings are missing that count: status, reason and message."""
    if outcome.unread:
        message = f"{outcome.unread} of {count} nodes have no fresh reading and count with their worst case"
        return True, "NoReading", message
    if outcome.blind:
        return True, "OldReadings", "readings are too old, or stay the same: the worst case is kept within the limit"
    return False, "AllRead", ""


def _enforced(budget: Budget, outcome: BudgetOutcome, missing: str) -> tuple[bool, str, str]:
    """Whether the budget is kept: status, reason and message."""
    worst = f"nodes could draw {outcome.worst_w:.0f} W"
    if not budget.enforced:
        return False, "ObserveMode", f"observe mode: limits are not set, {worst}"
    if not budget.nodes.size:
        return False, "NoNodes", "nodeSelector selects no managed node"
    if missing:
        return False, "Infeasible", missing
    if outcome.worst_w <= budget.limit_w + _ROUNDING_W:
        return True, "WorstCaseFits", worst
    if budget.breaker is not None:
        return True, "BreakerCarries", f"{worst}, which the breaker carries until limits act"
    return False, "WaitingForAgents", f"{worst} until agents confirm their limits"
