"""Accounting policies of a pod, from annotations of the pod, of its namespace, and of the grid controller.

An invalid annotation is reported and treated as absent, so that the next level of the cascade applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from typing import TypeVar

from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.accounting.facts import AccountedNamespace, AccountedPod
from joulie.domain.accounting.budget import Budget, BudgetAction, parse_choice
from joulie.domain.accounting.period import Period, calendar_window
from joulie.domain.accounting.profiles import pue_in
from joulie.domain.accounting.records import Held, UnitCount
from joulie.domain.grid import names
from joulie.domain.grid.request import Cascade, first_readable, gpu_workload_type_in, workload_type
from joulie.domain.quantities import JOULES_PER_KWH

NAMESPACE_BUDGET_KWH = "joulie.io/namespace-energy-budget-kwh"
NAMESPACE_BUDGET_ACTION = "joulie.io/namespace-energy-budget-action"
NAMESPACE_BUDGET_PERIOD = "joulie.io/namespace-energy-budget-period"
_MAX_KWH = 1e9
_MAX_UNIT = 63
"""Characters of the name of a functional unit."""

T = TypeVar("T")


@dataclass(frozen=True)
class PodPolicy:
    """Accounting policy of one pod; None means that the default applies.

    Attributes:
        pue: PUE of its data centre.
        gpu_pue: PUE for its GPUs.
        gpu_workload_type: inference, training or rendering.
        budget: its energy budget.
        held: how the grid controller held it back; None if it did not.
        delivers: what it delivers when it succeeds, in its functional unit; None if it does not say.
        mistakes: one message per invalid annotation, for an event.
    """

    pue: float | None = None
    gpu_pue: float | None = None
    gpu_workload_type: str | None = None
    budget: Budget | None = None
    held: Held | None = None
    delivers: UnitCount | None = None
    mistakes: tuple[str, ...] = ()


_NO_POLICIES = AccountedNamespace()


def pod_policy(pod: AccountedPod, namespace: AccountedNamespace | None) -> PodPolicy:
    """The accounting policy of a pod: its own annotations, else its namespace's."""
    policies = namespace or _NO_POLICIES
    kind = workload_type(pod.labels.get(names.WORKLOAD_TYPE_LABEL), pod.owner.kind)
    cascade = Cascade(pod.annotations, kind, policies.labels, policies.annotations)
    mistakes: list[str] = []

    def read(key: str, reader: Callable[[str], T]) -> T | None:
        _, value, malformed = first_readable(cascade, {key: reader})
        mistakes.extend(malformed)
        return value

    limit_j = read(names.ENERGY_BUDGET_KWH, _limit_j)
    action = read(names.ENERGY_BUDGET_ACTION, _action)
    return PodPolicy(
        pue=read(names.PUE, pue_in),
        gpu_pue=read(names.GPU_PUE, pue_in),
        gpu_workload_type=read(names.GPU_WORKLOAD_TYPE, gpu_workload_type_in),
        budget=None if limit_j is None else Budget(pod.uid, limit_j, action or BudgetAction.LOG),
        held=held(pod),
        delivers=read(names.FUNCTIONAL_UNITS, _functional_units),
        mistakes=tuple(mistakes),
    )


@dataclass(frozen=True)
class NamespaceBudget:
    """The energy budget in the annotations of a namespace.

    Attributes:
        limit_j: energy in a period, J.
        action: what happens once it is exceeded.
        period: period of UTC.
    """

    limit_j: float
    action: BudgetAction
    period: Period

    def now(self, namespace: str, now_s: float) -> Budget:
        """The budget of the present period."""
        return Budget(namespace, self.limit_j, self.action, calendar_window(self.period, UTC, now_s).start_s)


def namespace_budget(namespace: AccountedNamespace) -> tuple[NamespaceBudget | None, tuple[str, ...]]:
    """The energy budget of a namespace, and messages about invalid annotations."""
    mistakes: list[str] = []

    def read(key: str, reader: Callable[[str], T]) -> T | None:
        text = namespace.annotations.get(key)
        if text is None:
            return None
        try:
            return reader(text)
        except ValueError as error:
            mistakes.append(f"annotation {key} is ignored: {text[:40]!r} is not {error}")
            return None

    limit_j = read(NAMESPACE_BUDGET_KWH, _limit_j)
    action = read(NAMESPACE_BUDGET_ACTION, _action) or BudgetAction.LOG
    period = read(NAMESPACE_BUDGET_PERIOD, _period) or Period.MONTH
    return None if limit_j is None else NamespaceBudget(limit_j, action, period), tuple(mistakes)


def held(pod: AccountedPod) -> Held | None:
    """How a pod was held back, from the grid controller's annotations; None if it was not."""
    annotations = pod.annotations
    carbon_since_s = time_or_none(annotations.get(names.CARBON_DELAY_TIMESTAMP))
    price_since_s = time_or_none(annotations.get(names.PRICE_DELAY_TIMESTAMP))
    if carbon_since_s is None and price_since_s is None:
        return None
    return Held(
        carbon_since_s,
        price_since_s,
        _number(annotations.get(names.INITIAL_CARBON_INTENSITY)),
        _number(annotations.get(names.INITIAL_ELECTRICITY_RATE)),
        _number(annotations.get(names.BIND_CARBON_INTENSITY)),
        _number(annotations.get(names.BIND_ELECTRICITY_RATE)),
    )


def _limit_j(text: str) -> float:
    kwh = _number(text)
    if kwh is None or not 0.0 < kwh <= _MAX_KWH:
        raise ValueError(f"a number of kWh above 0 and at most {_MAX_KWH:g}")
    return kwh * JOULES_PER_KWH


def _action(text: str) -> BudgetAction:
    try:
        return parse_choice(BudgetAction, text)
    except ValueError:
        raise ValueError("one of " + ", ".join(BudgetAction)) from None


def _period(text: str) -> Period:
    try:
        return parse_choice(Period, text)
    except ValueError:
        raise ValueError("one of " + ", ".join(Period)) from None


def _functional_units(text: str) -> UnitCount:
    number, _, unit = text.strip().partition(" ")
    amount = _number(number)
    if amount is None or amount <= 0.0 or not 0 < len(unit.strip()) <= _MAX_UNIT:
        raise ValueError('a number above 0 and the name of a unit, such as "5000 images"')
    return UnitCount(unit.strip(), amount, f"annotation {names.FUNCTIONAL_UNITS}")


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
