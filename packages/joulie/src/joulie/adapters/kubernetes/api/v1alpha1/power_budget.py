"""PowerBudget: how many watts nodes may draw together."""

from __future__ import annotations

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
TimeConstant = Annotated[float, Meta(extra_json_schema={"minimum": 1, "maximum": 7200})]


class BreakerSpec(JoulieStruct, frozen=True):
    """The circuit breaker that feeds the nodes.

    Attributes:
        rated_watts: load that it is rated for, W.
        hold: largest load that it carries for ever, as a share of the rating; 1.05 by default (IEC 60947-2).
        time_constant_seconds: time constant of its thermal element, s; 60 by default. Its maker's curve says.
        instantaneous: load from which it trips at once, as a share of the rating; 5 by default.
    """

    rated_watts: CapWatts
    hold: HoldShare | None = None
    time_constant_seconds: TimeConstant | None = None
    instantaneous: InstantaneousShare | None = None


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
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.breaker) || self.watts <= self.breaker.ratedWatts",
            "watts must not exceed the breaker's ratedWatts",
        ),
    )

    watts: CapWatts
    node_selector: Labels = field(default_factory=dict)
    mode: Annotated[str, one_of(Mode)] | None = None
    response_seconds: ResponseSeconds | None = None
    breaker: BreakerSpec | None = None


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
        nodes: number of nodes that it covers.
        measured_watts: what they draw, W; a node without a fresh reading counts with its worst case.
        worst_case_watts: what they could draw under the limits in force, W.
        headroom_watts: limit less worst case, W; negative where the worst case exceeds the limit.
        curtailed_nodes: number of nodes that may draw less than they could.
        curtailed: those nodes, the first 64 by name; in mode observe, those that would be curtailed.
        last_updated: time of the last update.
        conditions: Enforced, Infeasible (what is missing) and Blind (nodes without a reading).
    """

    limit_watts: Watts | None = None
    nodes: Count | None = None
    measured_watts: Watts | None = None
    worst_case_watts: Watts | None = None
    headroom_watts: float | None = None
    curtailed_nodes: Count | None = None
    curtailed: Annotated[tuple[CurtailedNode, ...], up_to(MAX_CURTAILED)] = ()
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
