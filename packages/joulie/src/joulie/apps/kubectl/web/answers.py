"""JSON types of the API under ``/api/v1``, which every page is drawn from; `openapi` describes them.

Fields whose value is unknown are null: unknown is never zero. Instants are s since the epoch in UTC.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from joulie.adapters.program_api.grid import SignalItem
from joulie.apps.kubectl.power_budget import PowerEventItem

CapState = Literal["none", "confirmed", "unconfirmed", "notInForce"]
PodState = Literal["waiting", "limited", "running"]
Health = Literal["ok", "warning", "unknown"]


class Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Part of an answer."""


class FleetNode(Answer, frozen=True):
    """One node.

    Attributes:
        name: node name.
        family: models of its CPUs and GPUs.
        rack: rack label.
        schedulable_class: performance, eco, draining or unknown.
        headroom_score: power headroom below the caps, 0..100.
        cooling_stress_score: use of the cooling capacity, 0..100.
        psu_stress_score: use of the rack's power capacity, 0..100.
        power_w: measured power, W.
        capped_power_w: maximum power under the caps in force, W.
        power_source: source of the measurement.
        trend_w_per_min: slope of the power, W/min.
        age_s: age of the data, s.
        stale: whether the data is too old for decisions.
        pods: number of its unfinished pods that the reader may see.
        cpu_cap: wanted cap of each CPU package, with its unit.
        gpu_cap: wanted cap of each GPU, with its unit.
        cap_state: none (no cap is wanted), confirmed, unconfirmed (written, not read back) or notInForce.
        next: what changes next, and why; null if nothing is about to change.
        planned: what would be done, in observe mode, sleep included; null where the plan is applied.
        notes: why data is missing, and why caps are not in force.
    """

    name: str
    family: str
    rack: str | None
    schedulable_class: str
    headroom_score: float | None
    cooling_stress_score: float | None
    psu_stress_score: float | None
    power_w: float | None
    capped_power_w: float | None
    power_source: str | None
    trend_w_per_min: float | None
    age_s: float | None
    stale: bool
    pods: int
    cpu_cap: str | None
    gpu_cap: str | None
    cap_state: CapState
    next: str | None
    planned: str | None
    notes: tuple[str, ...]


class FleetSummary(Answer, frozen=True):
    """Counts over all nodes, whatever the page of the answer.

    Attributes:
        nodes: number of nodes.
        pods: number of unfinished pods on them that the reader may see.
        classes: number of nodes by class.
        cap_states: number of nodes by the state of their caps.
        power_w: sum of the measured powers, W; null if none is measured.
        nodes_with_power: number of nodes in this sum.
        stale: number of nodes with data too old for decisions.
        without_agent: number of nodes that no agent runs on; null if the agents' pods are not visible.
        changing: number of nodes with a change ahead.
    """

    nodes: int
    pods: int
    classes: dict[str, int]
    cap_states: dict[str, int]
    power_w: float | None
    nodes_with_power: int
    stale: int
    without_agent: int | None
    changing: int


class FleetAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/fleet``.

    Attributes:
        at: time of the answer.
        problems: data that is missing or outdated, and why.
        summary: counts over all nodes.
        nodes: nodes by name.
        next_page: value of ``continue`` for the next page; null on the last one.
    """

    at: float
    problems: tuple[str, ...]
    summary: FleetSummary
    nodes: list[FleetNode]
    next_page: str | None = msgspec.field(default=None, name="continue")


class GpuLimitItem(Answer, frozen=True):
    """One GPU and its power limit.

    Attributes:
        gpu: UUID or PCI address.
        limit_w: limit in force, W.
        original_w: limit without Joulie, W.
        namespace: namespace of the pod that holds it; null if there is none that the reader may see.
        job: workload that it is limited for, or that holds it; likewise.
        knob: what limits it; null where nothing of Joulie's does.
        why: reason of the limit.
        slowdown: time for the same work over that without the limit.
        saved_pct: energy for the same work that is saved, %.
    """

    gpu: str
    limit_w: float | None
    original_w: float | None
    namespace: str | None
    job: str | None
    knob: str | None
    why: str
    slowdown: float | None
    saved_pct: float | None


class PodItem(Answer, frozen=True):
    """One unfinished pod.

    Attributes:
        namespace: its namespace.
        name: its name.
        workload: kind and name of its workload.
        state: waiting, limited (it runs under a power limit) or running.
        why: one sentence: what it waits for, or what limits it.
        node: node that it is bound to.
        since: start of the pod, if it runs.
        latest_start: latest start, if the grid controller holds it.
        limit_w: power limit of its GPU, W.
        original_w: limit without Joulie, W.
        slowdown: time for the same work over that without the limit, as measured or expected.
        saved_pct: energy for the same work that is saved, %.
    """

    namespace: str
    name: str
    workload: str
    state: PodState
    why: str
    node: str | None
    since: float | None
    latest_start: float | None = None
    limit_w: float | None = None
    original_w: float | None = None
    slowdown: float | None = None
    saved_pct: float | None = None


class BudgetItem(Answer, frozen=True):
    """One EnergyBudget.

    Attributes:
        namespace: its namespace.
        name: its name.
        target: pods that it is for.
        period: its period.
        limits: energyKWh, emissionsG and cost that may be used.
        left: the same that are left; without those that are unknown.
        used_pct: largest used share of a limit, %.
        forecast_pct: largest share expected at the end of the period, %.
        holding: whether new pods wait.
        ends: when the period turns, RFC 3339.
        why: why pods wait, or why the use is unknown.
    """

    namespace: str
    name: str
    target: str
    period: str
    limits: dict[str, float]
    left: dict[str, float]
    used_pct: float | None
    forecast_pct: float | None
    holding: bool | None
    ends: str | None
    why: str | None


class PodsAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/pods``: waiting pods first, then limited ones, then the others.

    Attributes:
        at: time of the answer.
        problems: data that is missing or outdated, and why.
        namespaces: namespaces with pods that the reader may see.
        counts: number of pods by state, of the requested namespace.
        pods: pods of this page.
        budgets: budgets of the requested namespace.
        next_page: value of ``continue`` for the next page; null on the last one.
    """

    at: float
    problems: tuple[str, ...]
    namespaces: list[str]
    counts: dict[str, int]
    pods: list[PodItem]
    budgets: list[BudgetItem]
    next_page: str | None = msgspec.field(default=None, name="continue")


class ConditionItem(Answer, frozen=True):
    """One condition of a node's twin.

    Attributes:
        type: condition type.
        status: True, False or Unknown.
        reason: machine-readable reason.
        message: explanation.
        since: last transition, RFC 3339.
    """

    type: str
    status: str
    reason: str
    message: str | None
    since: str


class PowerParts(Answer, frozen=True):
    """Power of a node now and what it is made of, from the operator.

    Attributes:
        power_w: power, W.
        low_w: lower bound of an estimate, W.
        high_w: upper bound of an estimate, W.
        cpu_w: power of the CPU packages, W.
        gpu_w: power of the GPUs, W.
        idle_w: idle power, charged to no pod, W.
        system_w: power not attributed to any pod, W.
        quality: fresh, stale or missing.
        source: source of the power.
        age_s: age of the sample, s.
    """

    power_w: float | None
    low_w: float | None
    high_w: float | None
    cpu_w: float | None
    gpu_w: float | None
    idle_w: float | None
    system_w: float | None
    quality: str | None
    source: str | None
    age_s: float | None


class PowerHour(Answer, frozen=True):
    """Mean power of a node in one hour, from the ledger: the parts with measured, estimated and assumed power.

    Attributes:
        at: start of the hour.
        measured_w: part from measured power, W.
        estimated_w: part modelled from measured use, W.
        assumed_w: part from assumed power, W.
    """

    at: float
    measured_w: float
    estimated_w: float
    assumed_w: float


class NodeAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/nodes/{name}``.

    Attributes:
        at: time of the answer.
        problems: data that is missing or outdated, and why.
        node: state of the node.
        power: power now; null if the operator does not tell.
        history: mean power by hour, PUE included.
        gpus: its GPUs.
        conditions: conditions of its twin.
        pods: its pods that the reader may see.
    """

    at: float
    problems: tuple[str, ...]
    node: FleetNode
    power: PowerParts | None
    history: list[PowerHour]
    gpus: list[GpuLimitItem]
    conditions: list[ConditionItem]
    pods: list[PodItem]


class PlannedItem(Answer, frozen=True):
    """What would be done on some nodes in observe mode.

    Attributes:
        what: profile, caps and sleep.
        nodes: number of these nodes.
    """

    what: str
    nodes: int


class TrialItem(Answer, frozen=True):
    """One PowerTrial.

    Attributes:
        name: its name.
        running: whether it runs; null before the operator has seen it.
        why: why it does or does not.
        block: number of the block in force, from 1.
        blocks: number of blocks; null before the draw, as what follows, and in a trial of deferral, as nodes.
        nodes: number of nodes in its halves.
        treated: what is enforced in this block: first, second, all or none.
        starts: start of the first block, or since when workloads are drawn, RFC 3339.
        ends: end of the last block, or until when, RFC 3339.
    """

    name: str
    running: bool | None
    why: str | None
    block: int | None
    blocks: int | None
    nodes: int | None
    treated: str | None
    starts: str | None
    ends: str | None


class PowerBudgetItem(Answer, frozen=True):
    """One PowerBudget.

    Attributes:
        name: its name.
        nodes_of: labels of the nodes that it covers.
        mode: enforce or observe.
        limit_w: limit, W.
        spec_w: limit without schedule, signal and events, W.
        limit_by: what decides the limit: spec, schedule, signal or the name of an event.
        measured_w: power that its nodes draw, W.
        worst_case_w: power that they could draw under the limits in force, W.
        pod_headroom_w: power left for pods that need full power, W; negative where limits are not enough.
        nodes: number of nodes.
        curtailed: number of nodes that may draw less than they could.
        events: what events that reduce it achieved.
        kept: whether the limit is kept.
        why: why it is or is not.
    """

    name: str
    nodes_of: str
    mode: str
    limit_w: float
    spec_w: float
    limit_by: str | None
    measured_w: float | None
    worst_case_w: float | None
    pod_headroom_w: float | None
    nodes: int | None
    curtailed: int | None
    events: list[PowerEventItem]
    kept: bool | None
    why: str | None


class PlansAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/plans``: what would be changed, what is tried, and which limits of power must be kept.

    Attributes:
        at: time of the answer.
        problems: data that is missing or outdated, and why.
        observed: number of nodes in observe mode.
        planned: what would be done on them.
        trials: PowerTrials.
        power_budgets: PowerBudgets.
    """

    at: float
    problems: tuple[str, ...]
    observed: int
    planned: list[PlannedItem]
    trials: list[TrialItem]
    power_budgets: list[PowerBudgetItem]


class Check(Answer, frozen=True):
    """One thing that has to work.

    Attributes:
        name: what is checked.
        health: ok, warning or unknown.
        text: what was found, and what to do.
    """

    name: str
    health: Health
    text: str


class SignalsAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/signals``.

    Attributes:
        at: time of the answer.
        signals: carbon intensity and price by zone, with the minimum of their forecast.
        waiting: number of pods that wait for them, by reason; null for readers who may not list all pods.
    """

    at: float
    signals: list[SignalItem]
    waiting: dict[str, int] | None


class SourceItem(Answer, frozen=True):
    """One source of power, carbon intensity or price.

    Attributes:
        kind: power, carbon or price.
        name: source, or zone and source.
        nodes: number of nodes that it measures; null for grid signals.
        quality: fresh, stale or missing.
        oldest_s: age of its oldest value, s.
        problem: why it is stale or missing.
    """

    kind: str
    name: str
    nodes: int | None
    quality: str
    oldest_s: float | None
    problem: str | None


class HealthAnswer(Answer, frozen=True):
    """The answer at ``/api/v1/health``.

    Attributes:
        at: time of the answer.
        problems: data that is missing or outdated, and why.
        checks: what has to work: leaders, agents, caps, the ledger, the extender.
        sources: sources and the age of their values.
        blocked: notes of nodes whose caps are not in force or that no agent runs on, at most 200.
        blocked_total: number of these nodes.
    """

    at: float
    problems: tuple[str, ...]
    checks: list[Check]
    sources: list[SourceItem]
    blocked: list[tuple[str, str]]
    blocked_total: int
