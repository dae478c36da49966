"""PowerTrial: a randomised experiment that measures what Joulie saves on this cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, field

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    Conditions,
    Count,
    JoulieStruct,
    Name,
    Rule,
    Timestamp,
    one_of,
    up_to,
)
from joulie.domain.trial.protocol import MIN_PAIRS, Judged, Treated

MAX_NODES_OF_HALF = 2500
"""Nodes of a half, so that the object stays far below the API server's limit of 1.5 MiB."""
_MAX_PAIRS = 200

LabelValue = Annotated[str, Meta(extra_json_schema={"maxLength": 63})]
Labels = Annotated[dict[str, LabelValue], Meta(extra_json_schema={"maxProperties": 16})]
Minutes = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 10080})]
Percent = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1000})]
Washout = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 10080})]
Pairs = Annotated[int, Meta(extra_json_schema={"minimum": MIN_PAIRS, "maximum": _MAX_PAIRS})]
Days = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 366})]
Half = Annotated[tuple[Name, ...], up_to(MAX_NODES_OF_HALF)]
Order = Annotated[tuple[Annotated[str, one_of(Treated)], ...], up_to(2 * _MAX_PAIRS)]


class WashoutBy(StrEnum):
    """What a washout follows from, where no minutes are set."""

    AUTO = "auto"


class TrialGuard(JoulieStruct, frozen=True):
    """What a trial may cost at most; beyond it the trial ends. Without a bound nothing of that kind ends it.

    A bound is broken when a confidence sequence, which holds at all looks together, lies above it. The operator judges
    by the pods that it saw start and end, and begins anew when it is restarted.

    Attributes:
        max_slowdown_percent: by which pods of one owner run longer on enforced nodes than on observed ones, %. Not in a
            trial of deferral, where each owner's pods are under one arm.
        max_failures_percent: by which a larger share of pods fails where treated, percentage points.
        max_wait_minutes: mean wait of pods for a node, min; in a trial of deferral of the workloads that wait, from
            creation to start.
    """

    max_slowdown_percent: Percent | None = None
    max_failures_percent: Percent | None = None
    max_wait_minutes: Minutes | None = None


class PowerTrialSpec(JoulieStruct, frozen=True):
    """What a trial measures, and for how long. It cannot be changed, except to stop.

    Attributes:
        judges: enforcement, by nodes that are enforced and observed by turns; or deferral, by workloads that wait or
            start at once. Enforcement by default.
        node_selector: labels of the nodes that take part; all managed nodes by default. Nodes whose mode somebody has
            set by the label joulie.io/mode never take part. Changing it after the draw has no effect.
        pairs: pairs of blocks in which one half of the nodes is enforced and the other observed; 12 by default.
            `joulie trial plan` says how many a saving of a given size needs.
        block_minutes: length of a block, min; 360 by default.
        washout_minutes: beginning of each block that is not measured, min; 60 by default.
        washout: auto, instead of minutes: as long as pods of jobs still run when a block ends, by how long those have
            run that run at the draw; at most half a block, and 60 min if they are too few to tell.
        days: length of a trial of deferral, d; 28 by default.
        seed: seed of the draw; drawn from the object's UID by default.
        start_time: start of the first block, or of drawing workloads; when the operator first sees the object by
            default.
        stop: whether to end the trial now.
        guard: what ends the trial early.
    """

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.washout) || (has(self.washoutMinutes) ? self.washoutMinutes : 60)"
            " < (has(self.blockMinutes) ? self.blockMinutes : 360)",
            "the washout must be shorter than a block",
        ),
        Rule(
            "self.?pairs == oldSelf.?pairs && self.?blockMinutes == oldSelf.?blockMinutes"
            " && self.?washoutMinutes == oldSelf.?washoutMinutes && has(self.washout) == has(oldSelf.washout)"
            " && has(self.judges) == has(oldSelf.judges) && (!has(self.judges) || self.judges == oldSelf.judges)"
            " && self.?days == oldSelf.?days"
            " && self.?seed == oldSelf.?seed && self.?startTime == oldSelf.?startTime",
            "a trial cannot be changed: stop it and create another",
        ),
        Rule(
            "!(has(self.washout) && has(self.washoutMinutes))",
            "a washout is either auto or so many minutes",
        ),
        Rule(
            "has(self.judges) && self.judges == 'deferral'"
            " ? !(has(self.pairs) || has(self.blockMinutes) || has(self.washoutMinutes) || has(self.washout)"
            " || has(self.nodeSelector) || (has(self.guard) && has(self.guard.maxSlowdownPercent)))"
            " : !has(self.days)",
            "a trial of deferral has days and neither blocks, nodes nor a bound of slowdown; others have no days",
        ),
    )

    judges: Annotated[str, one_of(Judged)] | None = None

    node_selector: Labels = field(default_factory=dict)
    pairs: Pairs | None = None
    block_minutes: Minutes | None = None
    washout_minutes: Washout | None = None
    washout: Annotated[str, one_of(WashoutBy)] | None = None
    days: Days | None = None
    seed: Count | None = None
    start_time: Timestamp | None = None
    stop: bool | None = None
    guard: TrialGuard | None = None


class TrialProtocol(JoulieStruct, frozen=True):
    """The draw, fixed before the first block.

    Attributes:
        start_time: start of the first block.
        end_time: end of the last block.
        block_minutes: length of a block, min.
        washout_minutes: beginning of each block that is not measured, min.
        seed: seed of the draw.
        first_half: names of the nodes of the first half.
        second_half: names of the nodes of the second half.
        left_out: names of nodes without a partner of the same hardware, which stay as they are.
        order: what is enforced in the first block of each pair; in its second block it is the opposite.
    """

    start_time: Timestamp
    end_time: Timestamp
    block_minutes: Minutes
    washout_minutes: Washout
    seed: Count
    first_half: Half
    second_half: Half
    left_out: Half = ()
    order: Order = ()


class WorkloadDraw(JoulieStruct, frozen=True):
    """The draw of a trial of deferral, fixed before it begins: from seed and name each workload's arm follows.

    Attributes:
        start_time: since when pods take part that are created.
        end_time: until when; earlier than planned where the trial was stopped or ended by its guard.
        seed: seed of the draw.
    """

    start_time: Timestamp
    end_time: Timestamp
    seed: Count


class PowerTrialStatus(JoulieStruct, frozen=True):
    """The draw and the course of a trial, written by the operator.

    Attributes:
        protocol: the draw.
        workloads: the draw of a trial of deferral, in place of the protocol.
        block: number of the block in force, from 1.
        treated: what is enforced in it: first, second, all or none.
        conditions: Running, with the reason why not.
    """

    protocol: TrialProtocol | None = None
    workloads: WorkloadDraw | None = None
    block: Count | None = None
    treated: Annotated[str, one_of(Treated)] | None = None
    conditions: Conditions = ()


class PowerTrial(KubernetesObject, kw_only=True, frozen=True):
    """A randomised switchback over matched halves of the nodes: enforced and observed by turns, by chance.

    The operator labels the nodes with their mode (joulie.io/mode) block by block, and removes the labels when the trial
    ends, is stopped or is deleted. A trial of deferral has no blocks and leaves nodes alone: by chance, each workload
    that asks the grid controller to wait does so, or starts at once.

    Attributes:
        spec: what is measured.
        status: the draw and the course.
    """

    metadata: ObjectMeta
    spec: PowerTrialSpec
    status: PowerTrialStatus = PowerTrialStatus()
