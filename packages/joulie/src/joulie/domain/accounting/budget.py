"""Energy budgets: when one is exceeded, and the action to take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from joulie.domain.accounting.period import Period
from joulie.domain.quantities import positive_number


class BudgetAction(StrEnum):
    """What happens when a budget is crossed."""

    LOG = "log"
    NOTIFY = "notify"
    """An event."""
    ANNOTATE = "annotate"
    LABEL = "label"
    SUSPEND = "suspend"
    """The Job, where it allows to be interrupted; of a namespace, until its period turns."""


class WindowKind(StrEnum):
    """Which time a budget is for."""

    CALENDAR = "calendar"
    ROLLING = "rolling"


class BudgetResponse(StrEnum):
    """What happens once a budget is exhausted."""

    REPORT = "report"
    GATE = "gate"
    """New pods wait."""
    SUSPEND = "suspend"
    """New pods wait, and running Jobs that are interruptible are suspended."""


class WhenUnknown(StrEnum):
    """What happens to new pods while nobody knows how much of a budget is used."""

    OPEN = "open"
    CLOSED = "closed"


_Choice = TypeVar("_Choice", BudgetAction, Period)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much energy a pod or a namespace may use.

    Attributes:
        scope: uid of the pod, or name of the namespace.
        limit_j: energy, PUE included, J.
        action: what to do when it is crossed.
        since_s: start of the period that it is for, s since the epoch; 0 for the whole life of a pod.

    Raises:
        InvalidQuantityError: a limit that is not above zero.
    """

    scope: str
    limit_j: float
    action: BudgetAction = BudgetAction.LOG
    since_s: float = 0.0

    def __post_init__(self) -> None:
        positive_number("limit_j", self.limit_j)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A budget that has been crossed. Another limit or another period is another crossing.

    Attributes:
        budget: which.
        used_j: energy used when it was seen, J.
        time_s: when it was seen, s since the epoch.
    """

    budget: Budget
    used_j: float
    time_s: float

    @property
    def exceeded_by_j(self) -> float:
        """Energy above the limit, J."""
        return self.used_j - self.budget.limit_j


def crossing(budget: Budget, used_j: float, now_s: float) -> Crossing | None:
    """The crossing of a budget; None while no more is used than it allows.

    Whether it has been crossed before is remembered by the ledger.

    Args:
        budget: to look at.
        used_j: energy used since it began, PUE included, J.
        now_s: time, s since the epoch.
    """
    return Crossing(budget, used_j, now_s) if used_j > budget.limit_j else None


def parse_choice(kind: type[_Choice], text: str) -> _Choice:
    """An action or period as written in an annotation.

    Raises:
        ValueError: unknown value; the message lists the valid ones.
    """
    try:
        return kind(text.strip().lower())
    except ValueError:
        raise ValueError(f"must be one of {', '.join(kind)}, got {text!r}") from None
