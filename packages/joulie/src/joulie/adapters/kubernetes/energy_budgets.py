"""EnergyBudgets in the domain's terms, and their conditions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import (
    BudgetAmounts,
    BudgetLimits,
    Condition,
    EnergyBudget,
    EnergyBudgetStatus,
)
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import ENERGY_BUDGETS
from joulie.domain.accounting.energy_budget import Amounts, BudgetTarget

USAGE_KNOWN = "UsageKnown"
EXHAUSTED = "Exhausted"
HOLDING = "Holding"
"""Types of conditions; accounting writes the first two, the grid controller the third."""


def target_of(budget: EnergyBudget) -> BudgetTarget:
    """The pods that a budget is for."""
    target = budget.spec.target
    owner = ("", "") if target.owner is None else (target.owner.kind, target.owner.name)
    return BudgetTarget(budget.metadata.namespace, *owner, tuple(sorted(target.match_labels.items())))


def amounts_of(amounts: BudgetLimits | BudgetAmounts) -> Amounts:
    """Limits, or used amounts."""
    return Amounts(amounts.energy_kwh, amounts.emissions_g, amounts.cost)


def condition_of(budget: EnergyBudget, type_: str) -> Condition | None:
    """A condition of a budget; None without it."""
    return next((one for one in budget.status.conditions if one.type == type_), None)


def with_times(budget: EnergyBudget, conditions: Iterable[Condition], now: str) -> tuple[Condition, ...]:
    """Conditions with the time since when each has its status.

    Args:
        budget: budget with its present conditions.
        conditions: new conditions.
        now: current time, RFC 3339.
    """
    timed = []
    for one in conditions:
        old = condition_of(budget, one.type)
        since = old.last_transition_time if old is not None and old.status == one.status else now
        generation = budget.metadata.generation or None
        timed.append(msgspec.structs.replace(one, last_transition_time=since, observed_generation=generation))
    return tuple(timed)


def reference_of(budget: EnergyBudget) -> ObjectReference:
    """Reference to a budget for its events."""
    meta = budget.metadata
    return ObjectReference(
        ENERGY_BUDGETS.kind, meta.name, ENERGY_BUDGETS.api_version, namespace=meta.namespace, uid=meta.uid
    )


async def write_status(client: KubeClient, key: Key, status: EnergyBudgetStatus, *, field_manager: str) -> None:
    """Apply the part of a budget's status that one program owns; nothing to do if the budget is gone.

    Raises:
        KubernetesError: the write failed.
    """
    with suppress(NotFoundError):
        await client.apply(
            ENERGY_BUDGETS,
            key.name,
            {"status": status},
            namespace=key.namespace,
            field_manager=field_manager,
            subresource="status",
        )
