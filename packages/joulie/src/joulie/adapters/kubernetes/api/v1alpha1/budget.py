"""EnergyBudget: how much energy, emissions or money the pods of a namespace may use in a period."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    Conditions,
    Count,
    JoulieStruct,
    Name,
    Rule,
    Text,
    Timestamp,
    one_of,
    up_to,
)
from joulie.domain.accounting.budget import BudgetResponse, WhenUnknown, WindowKind
from joulie.domain.accounting.period import Period

LabelValue = Annotated[str, Meta(extra_json_schema={"maxLength": 63})]
Labels = Annotated[dict[str, LabelValue], Meta(extra_json_schema={"maxProperties": 16})]
Limit = Annotated[float, Meta(extra_json_schema={"minimum": 0, "exclusiveMinimum": True, "maximum": 1e12})]
Share = Annotated[float, Meta(extra_json_schema={"minimum": 0, "exclusiveMinimum": True, "maximum": 1})]
ZoneName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 64})]


class BudgetOwner(JoulieStruct, frozen=True):
    """A workload: the top-level owner of its pods.

    Attributes:
        kind: CronJob, Job, Deployment, StatefulSet, ReplicaSet or another kind.
        name: name of the workload.
    """

    kind: Name
    name: Name


class BudgetTarget(JoulieStruct, frozen=True):
    """The pods that the budget is for. A pod must match all that is given.

    Attributes:
        owner: workload of the pods.
        match_labels: labels of the pods.
    """

    owner: BudgetOwner | None = None
    match_labels: Labels = field(default_factory=dict)


class BudgetLimits(JoulieStruct, frozen=True):
    """What may be used in a period; the budget is exhausted once one of them is.

    Attributes:
        energy_kwh: energy, PUE included, kWh.
        emissions_g: emissions, gCO2eq.
        cost: cost, in the currency of the prices.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.energyKWh) || has(self.emissionsG) || has(self.cost)",
            "at least one of energyKWh, emissionsG and cost is needed",
        ),
    )

    energy_kwh: Limit | None = field(default=None, name="energyKWh")
    emissions_g: Limit | None = None
    cost: Limit | None = None


class EnergyBudgetSpec(JoulieStruct, frozen=True):
    """A budget, and what happens once it is exhausted.

    Attributes:
        target: pods that the budget is for; all pods of the namespace by default.
        limits: what may be used in a period.
        period: hour, day, week (from Monday, ISO 8601) or month.
        window: calendar (default; periods of the time zone's calendar) or rolling (the time until now; a rolling month
            has 30 days).
        time_zone: IANA time zone of calendar periods, such as Europe/Berlin; UTC by default.
        warn_at: shares of the limit at which a warning is given; 0.8 by default.
        action: once it is exhausted, report (default), gate (new pods wait), or suspend (as gate, and running Jobs that
            have joulie.io/interruptible "true" are suspended, which deletes their pods).
        when_unknown: while the usage is unknown, new pods start (open) or wait (closed); the setting
            BUDGET_WHEN_UNKNOWN by default.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.timeZone) || !has(self.window) || self.window != 'rolling'",
            "a rolling window has no time zone: remove timeZone",
        ),
    )

    limits: BudgetLimits
    period: Annotated[str, one_of(Period)]
    target: BudgetTarget = BudgetTarget()
    window: Annotated[str, one_of(WindowKind)] | None = None
    time_zone: ZoneName | None = None
    warn_at: Annotated[tuple[Share, ...], up_to(8)] | None = None
    action: Annotated[str, one_of(BudgetResponse)] | None = None
    when_unknown: Annotated[str, one_of(WhenUnknown)] | None = None


class BudgetAmounts(JoulieStruct, frozen=True):
    """Energy, emissions and cost; absent if unknown.

    Attributes:
        energy_kwh: energy, PUE included, kWh.
        emissions_g: emissions, gCO2eq; energy of unknown carbon intensity counts at the mean intensity of the rest.
        cost: cost, in the currency of the prices; likewise.
    """

    energy_kwh: float | None = field(default=None, name="energyKWh")
    emissions_g: float | None = None
    cost: float | None = None


class BudgetHeld(JoulieStruct, frozen=True):
    """What waits for the budget.

    Attributes:
        pods: number of pods that are gated.
        jobs: number of Jobs that are suspended.
    """

    pods: Count | None = None
    jobs: Count | None = None


class EnergyBudgetStatus(JoulieStruct, frozen=True):
    """Use of the budget, written by accounting, and what waits for it, written by the grid controller.

    Attributes:
        period_start: start of the current period.
        period_end: end of the current calendar period, when what waits is released.
        used: used since the start of the period.
        forecast: expected use at the end of the period, at the present pace; absent while less than a 24th of it
            was measured.
        forecast_from: time from which there is a forecast; absent if there is one.
        used_pct: largest used share of a limit, %.
        forecast_pct: largest expected share of a limit at the end of the period, %.
        currency: currency of the cost.
        counted_since: time since when the pods are counted.
        warned_pct: largest share at which a warning was given in the current period, %.
        last_updated: time of the last measurement.
        held: what waits for the budget.
        conditions: UsageKnown, Exhausted and Holding.
    """

    period_start: Timestamp | None = None
    period_end: Timestamp | None = None
    used: BudgetAmounts | None = None
    forecast: BudgetAmounts | None = None
    forecast_from: Timestamp | None = None
    used_pct: float | None = None
    forecast_pct: float | None = None
    currency: Text | None = None
    counted_since: Timestamp | None = None
    warned_pct: float | None = None
    last_updated: Timestamp | None = None
    held: BudgetHeld | None = None
    conditions: Conditions = ()


class EnergyBudget(KubernetesObject, kw_only=True, frozen=True):
    """A budget of energy, emissions or money for pods of its namespace, by hour, day, week or month.

    Once it is exhausted, new pods wait until the period turns or the limit is raised, and then start in order of
    waiting. Running pods are not deleted, except those of interruptible Jobs if the action is suspend.

    Attributes:
        spec: the budget.
        status: its use.
    """

    metadata: ObjectMeta
    spec: EnergyBudgetSpec
    status: EnergyBudgetStatus = EnergyBudgetStatus()
