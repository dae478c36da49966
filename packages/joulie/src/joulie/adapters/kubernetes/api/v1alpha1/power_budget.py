"""PowerBudget: how many watts nodes may draw together."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, field

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    CapWatts,
    Conditions,
    Count,
    JoulieStruct,
    Name,
    Rule,
    Text,
    Timestamp,
    Watts,
    one_of,
    up_to,
)
from joulie.domain.mode import Mode

MAX_CURTAILED = 64
"""Nodes that a status names; `curtailedNodes` counts all."""

LabelValue = Annotated[str, Meta(extra_json_schema={"maxLength": 63})]
Labels = Annotated[dict[str, LabelValue], Meta(extra_json_schema={"maxProperties": 16})]
ResponseSeconds = Annotated[float, Meta(extra_json_schema={"minimum": 5, "maximum": 600})]
HoldShare = Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 2})]
InstantaneousShare = Annotated[float, Meta(extra_json_schema={"minimum": 2, "maximum": 100})]
ClockTime = Annotated[
    str, Meta(extra_json_schema={"pattern": "^(([01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)$", "maxLength": 5})
]
Days = Annotated[str, Meta(extra_json_schema={"pattern": r"^(\*|[0-7](-[0-7])?(,[0-7](-[0-7])?)*)$", "maxLength": 32})]
ErrorPercent = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 20})]
RampSeconds = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 86400})]
ReducePercent = Annotated[
    float, Meta(extra_json_schema={"minimum": 0, "exclusiveMinimum": True, "maximum": 100, "exclusiveMaximum": True})
]
ZoneName = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 64})]
TimeConstant = Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 7200})]


class BreakerSpec(JoulieStruct, frozen=True):
    """The circuit breaker that feeds the nodes.

    Attributes:
        rated_watts: load that it is rated for, W.
        hold: largest load that it carries for ever, as a share of the rating; 1.05 by default (IEC 60947-2).
        time_constant_seconds: time constant of its thermal element, s; 60 by default. Its maker's curve says.
        instantaneous: load from which it trips at once, as a share of the rating; 5 by default.
        reading_error_percent: by how much more may be drawn than is read, %; 5 by default.
    """

    rated_watts: CapWatts
    hold: HoldShare | None = None
    time_constant_seconds: TimeConstant | None = None
    instantaneous: InstantaneousShare | None = None
    reading_error_percent: ErrorPercent | None = None


class ScheduleWindow(JoulieStruct, frozen=True):
    """A window of the calendar with a limit of its own.

    Attributes:
        days: days on which it begins, such as 1-5 or 0,6 (0 is Sunday); all days by default.
        start: local time of its start, such as 17:00.
        end: local time of its end, exclusive, at most 24:00; at or before the start: on the next day.
        watts: limit within it, W.
    """

    start: ClockTime
    end: ClockTime
    watts: CapWatts
    days: Days | None = None


class VtnSignal(StrEnum):
    """Signal that an OpenADR VTN tells."""

    PRICE = "price"
    GHG = "ghg"


class FollowSpec(JoulieStruct, frozen=True):
    """A signal that the limit follows: it falls from `watts` to `wattsAtHigh` while the signal rises.

    Attributes:
        query: PromQL of the signal, which has one series, such as the metric of carbon intensity of one zone.
        signal: signal of the VTN in the operator's OPENADR_URL instead: price (currency/kWh), or ghg (g/kWh).
        low: value up to which `watts` hold.
        high: value from which `wattsAtHigh` hold.
        watts_at_high: limit there, W.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.low < self.high", "low must be below high"),
        Rule("has(self.query) != has(self.signal)", "either query or signal is needed"),
    )

    low: float
    high: float
    watts_at_high: CapWatts
    query: Text | None = None
    signal: Annotated[str, one_of(VtnSignal)] | None = None


class ReductionSpec(JoulieStruct, frozen=True):
    """An event that reduces the budget for a time, such as one of demand response.

    Attributes:
        name: unique within the budget.
        start: start.
        end: end; later than the start.
        watts: limit meanwhile, W.
        reduce_percent: by how much `watts` of the budget are reduced, %.
        ramp_seconds: how long the limit takes to return afterwards, s; 300 by default.
        source: who asked for it, for people: an OpenADR event, an alert, a person.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.watts) != has(self.reducePercent)", "either watts or reducePercent is needed"),
        Rule("self.start < self.end", "end must be later than start"),
    )

    name: Name
    start: Timestamp
    end: Timestamp
    watts: CapWatts | None = None
    reduce_percent: ReducePercent | None = None
    ramp_seconds: RampSeconds | None = None
    source: Text = ""


class PowerBudgetSpec(JoulieStruct, frozen=True):
    """A budget over nodes.

    Attributes:
        watts: what the nodes may draw together, W. Subtract what else is on the same feed.
        node_selector: labels of the nodes that it covers, such as joulie.io/rack; all managed nodes by default. Budgets
            may nest and overlap: the tightest holds.
        mode: enforce (default), or observe: the status says what would be done.
        response_seconds: how soon a change must act, s; 15 by default. A node whose agent has not confirmed a limit by
            then counts with its worst case.
        breaker: breaker that feeds the nodes. With one, what nodes could draw may exceed `watts` for as long as it
            carries that; without, never.
        redundant_with: name of the budget of the other feed of a redundant pair. Each must carry the nodes of both
            after a failover, so each covers the nodes that one of them selects.
        time_zone: IANA time zone of the schedule, such as Europe/Berlin; UTC by default.
        schedule: windows of the calendar with lower limits; of those that cover a time the lowest counts.
        follow: signal that the limit follows, such as carbon intensity or price.
        reductions: events that reduce the budget for a time.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.breaker) || self.watts <= self.breaker.ratedWatts",
            "watts must not exceed the breaker's ratedWatts",
        ),
        Rule("has(self.schedule) || !has(self.timeZone)", "timeZone is that of schedule, which is missing"),
        # An unknown zone is an error of getHours; offsets and Local, which it takes, are no zones here.
        Rule(
            "!has(self.timeZone) || !self.timeZone.contains(':') && self.timeZone != 'Local' && "
            "timestamp('2026-01-01T00:00:00Z').getHours(self.timeZone) >= 0",
            "timeZone must be an IANA time zone, such as Europe/Berlin",
        ),
    )

    watts: CapWatts
    node_selector: Labels = field(default_factory=dict)
    mode: Annotated[str, one_of(Mode)] | None = None
    response_seconds: ResponseSeconds | None = None
    breaker: BreakerSpec | None = None
    redundant_with: Name | None = None
    time_zone: ZoneName | None = None
    schedule: Annotated[tuple[ScheduleWindow, ...], up_to(32)] = ()
    follow: FollowSpec | None = None
    reductions: Annotated[
        tuple[ReductionSpec, ...],
        up_to(16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()


class ReductionStatus(JoulieStruct, frozen=True):
    """What an event achieved.

    Attributes:
        name: of the reduction.
        limit_watts: limit during it, W.
        mean_watts: mean power so far, W.
        complied_seconds: time from its start until the nodes drew no more than the limit for good, s.
        baseline_watts: mean power that would have been drawn without it, by 10-in-10 with same-day adjustment, W.
        shed_watts: baseline less mean power, W.
        message: why a figure is missing.
    """

    name: Name
    limit_watts: Watts
    mean_watts: Watts | None = None
    complied_seconds: float | None = None
    baseline_watts: Watts | None = None
    shed_watts: float | None = None
    message: Text = ""


class CurtailedNode(JoulieStruct, frozen=True):
    """A node that may draw less than it could.

    Attributes:
        node: name of the node.
        watts: what its limits leave it, what no limit reaches included, W.
        since: when that began.
    """

    node: Name
    watts: Watts
    since: Timestamp


class PowerBudgetStatus(JoulieStruct, frozen=True):
    """How the budget is kept, written by the operator.

    Attributes:
        limit_watts: limit in force, W.
        limit_reason: what decides the limit: spec, schedule, signal, the name of a reduction, or invalid: a part of the
            budget cannot be read, and until that is mended the limit does not rise.
        nodes: number of nodes that it covers.
        measured_watts: what they draw, W; a node without a fresh reading counts with its worst case.
        worst_case_watts: what they could draw under the limits in force, W.
        headroom_watts: limit less worst case, W; negative where the worst case exceeds the limit.
        pod_headroom_watts: what is left for pods that need full power, W: limit less what nodes are expected to draw
            with all nodes without such pods at their lowest limits. Pods wait where it does not suffice. Negative where
            limits are not enough; absent in mode observe.
        curtailed_nodes: number of nodes that may draw less than they could.
        curtailed: those nodes, the first 64 by name; in mode observe, those that would be curtailed.
        reductions: what the events in the spec achieved, until they are removed from it.
        last_updated: time of the last update.
        conditions: Enforced, Infeasible (what is missing) and Blind (nodes without a reading).
    """

    limit_watts: Watts | None = None
    limit_reason: Name | None = None
    nodes: Count | None = None
    measured_watts: Watts | None = None
    worst_case_watts: Watts | None = None
    headroom_watts: float | None = None
    pod_headroom_watts: float | None = None
    curtailed_nodes: Count | None = None
    curtailed: Annotated[tuple[CurtailedNode, ...], up_to(MAX_CURTAILED)] = ()
    reductions: Annotated[
        tuple[ReductionStatus, ...],
        up_to(16, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    last_updated: Timestamp | None = None
    conditions: Conditions = ()


class PowerBudget(KubernetesObject, kw_only=True, frozen=True):
    """A limit in watts on what nodes draw together: of a rack, a feed or the cluster.

    The operator sets power limits such that the nodes cannot draw more, whatever runs on them. Nodes without
    performance pods give first. No node gets a lower limit than its devices accept.

    Attributes:
        spec: the budget.
        status: how it is kept.
    """

    metadata: ObjectMeta
    spec: PowerBudgetSpec
    status: PowerBudgetStatus = PowerBudgetStatus()
