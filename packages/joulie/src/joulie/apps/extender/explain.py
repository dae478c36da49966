"""Explanations of filter and score, computed by the same functions as the answers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from joulie.apps.extender.feed import WatchState
from joulie.apps.extender.fleet import REFUSALS, Fleet, FleetView
from joulie.apps.extender.judge import JudgedPod, node_points, placement_order
from joulie.apps.extender.limits import limits_of
from joulie.apps.extender.refusals import refused_by_power
from joulie.domain.scoring.extender import NodeClass, explain, may_run, wire_score
from joulie.domain.scoring.formulas import adaptive_trend_scale
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.units import FloatArray

_TERMS = (
    "headroom_pct",
    "headroom_points",
    "cooling_points",
    "trend_points",
    "base",
    "congestion_points",
    "capped_points",
)


class _Json(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Part of a debug answer."""


class ClusterState(_Json, frozen=True):
    """Cluster-wide inputs of all scores.

    Attributes:
        perf_pressure: mean of 100 - headroom over the fresh performance nodes.
        cluster_trend_w_per_min: sum of the trends of the fresh nodes, W/min.
        trend_scale_w_per_min: W/min that cost a point.
        age_seconds: age of this view, s.
    """

    perf_pressure: float
    cluster_trend_w_per_min: float
    trend_scale_w_per_min: float
    age_seconds: float


class NodeState(_Json, frozen=True):
    """Inputs of a node's score; unknown numbers are absent.

    Attributes:
        node: node name.
        node_class: performance, eco, draining or unknown.
        fresh: whether its twin is valid and not stale.
        why_neutral: why it gets the neutral score; empty if it does not.
        age_seconds: age of its twin, s.
        cpu_max_w: maximum power of all CPUs, W, possibly a fallback.
        cores: allocatable CPUs.
        gpu_max_w: maximum power of one GPU, W, possibly a fallback.
    """

    node: str
    node_class: str = msgspec.field(name="class")
    fresh: bool
    why_neutral: str
    age_seconds: float | None
    capped_w: float | None
    measured_w: float | None
    headroom_score: float | None
    cooling_stress_pct: float | None
    trend_w_per_min: float | None
    cpu_cap_fraction: float | None
    gpu_cap_fraction: float | None
    cpu_max_w: float
    cores: float
    gpu_max_w: float


class WatchAge(_Json, frozen=True):
    """State of a watch; see `joulie.apps.extender.feed.WatchState`."""

    resource: str
    objects: int
    synced: bool
    silence_seconds: float
    problem: str | None


class Scoring(_Json, frozen=True):
    """Answer of /debug/scoring."""

    cluster: ClusterState
    watches: list[WatchAge]
    nodes: list[NodeState]


class ExplainedPod(_Json, frozen=True):
    """The pod as the extender sees it: values from annotation, else profile, else default.

    Attributes:
        workload_class: performance or standard.
        reschedulable: None if not set.
        daemon: whether a DaemonSet owns it.
        cpu_sensitivity: high, medium or low.
        gpu_sensitivity: high, medium or low.
        cores: requested CPUs.
        memory_gib: requested memory, GiB.
        gpus: requested GPUs.
        mistakes: malformed annotations, a sentence each.
    """

    namespace: str
    name: str
    workload_class: str
    reschedulable: bool | None
    daemon: bool
    cpu_sensitivity: str
    gpu_sensitivity: str
    cores: float
    memory_gib: float
    gpus: float
    mistakes: tuple[str, ...]


class NodeScore(_Json, frozen=True):
    """The terms of a node's score.

    ``base = clamp(headroomPoints + coolingPoints - trendPoints)``, ``score = clamp(clamp(base + congestionPoints -
    cappedPoints) + zonePoints)``, each within 0..100, and ``wireScore = round(score / 10)``. A node without a fresh
    twin has the neutral score and no terms but zonePoints; with another SCORING no node has other terms.
    With marginal, `costWMin` is the energy that the pod adds beyond its own, and of the nodes that kube-scheduler asks
    about the one where it is lowest gets 10. With frugal, so is `costSteps`: what the pod makes useless, in steps of 60
    thousandths of a GPU, power included.
    """

    node: str
    node_class: str = msgspec.field(name="class")
    allowed: bool
    refusal: str
    why_neutral: str
    marginal_w: float
    headroom_pct: float | None
    headroom_points: float | None
    cooling_points: float | None
    trend_points: float | None
    base: float | None
    congestion_points: float | None
    capped_points: float | None
    zone_points: float
    score: float
    wire_score: int
    cost_w_min: float | None
    cost_steps: float | None


class Explanation(_Json, frozen=True):
    """Answer of /debug/explain; the best nodes first."""

    pod: ExplainedPod
    cluster: ClusterState
    nodes: list[NodeScore]


def scoring(fleet: Fleet, view: FleetView, watches: Iterable[WatchState], now_s: float) -> Scoring:
    """The inputs of all scores.

    Args:
        fleet: the nodes.
        view: the view that requests are answered from.
        watches: states of the watches.
        now_s: s since the epoch.
    """
    twins, load = view.twins, view.load
    columns = {
        "age_seconds": now_s - view.updated_s,
        "capped_w": twins.capped_w,
        "measured_w": twins.measured_w,
        "headroom_score": twins.headroom_score,
        "cooling_stress_pct": twins.cooling_stress_pct,
        "trend_w_per_min": twins.trend_w_per_min,
        "cpu_cap_fraction": twins.cpu_cap_fraction,
        "gpu_cap_fraction": twins.gpu_cap_fraction,
    }
    nodes = [
        NodeState(
            node=name,
            node_class=_class_name(view, slot),
            fresh=bool(twins.fresh[slot]),
            why_neutral=fleet.why_stale(name, view.now_s),
            cpu_max_w=float(load.cpu_max_w[slot]),
            cores=float(load.cores[slot]),
            gpu_max_w=float(load.gpu_max_w[slot]),
            **{column: _known(values, slot) for column, values in columns.items()},
        )
        for name, slot in sorted(view.roster.slots.items())
    ]
    states = [
        WatchAge(
            resource=state.resource,
            objects=state.objects,
            synced=state.synced,
            silence_seconds=state.silence_s,
            problem=state.problem,
        )
        for state in watches
    ]
    return Scoring(cluster=_cluster(view, now_s), watches=states, nodes=nodes)


def explanation(pod: JudgedPod, fleet: Fleet, view: FleetView, now_s: float) -> Explanation:
    """The filter result and score of every node for a pod, with reasons."""
    marginal_w = view.load.marginal_w(pod.requests, performance=pod.view.performance)
    terms = explain(pod.view, view.twins, marginal_w)
    order = placement_order(pod, view)
    score, zone_points = node_points(pod, view, order), view.points_for(pod.chosen_zone)
    refused = _refused(pod, view)
    wire = wire_score(score)
    # The terms are those of the headroom score.
    counted = view.scoring is ScoringAim.HEADROOM
    absent = np.full(score.shape, np.nan)
    columns = {name: getattr(terms, name) if counted else absent for name in _TERMS}
    costs = absent if order is None else order.costs
    marginal = view.scoring is ScoringAim.MARGINAL
    nodes = [
        NodeScore(
            node=name,
            node_class=_class_name(view, slot),
            allowed=name not in refused,
            refusal=refused.get(name, ""),
            why_neutral=fleet.why_stale(name, view.now_s),
            marginal_w=float(marginal_w[slot]),
            zone_points=float(zone_points[slot]),
            score=float(score[slot]),
            wire_score=int(wire[slot]),
            cost_w_min=_known(costs, slot) if marginal else None,
            cost_steps=None if marginal else _known(costs, slot),
            **{column: _known(values, slot) for column, values in columns.items()},
        )
        for name, slot in view.roster.slots.items()
    ]
    nodes.sort(key=lambda node: (not node.allowed, -node.score, node.cost_w_min or node.cost_steps or 0.0, node.node))
    uncounted = () if view.sharing is None else pod.uncounted
    mistakes = limits_of(pod, view).mistakes + uncounted
    return Explanation(pod=_explained(pod, mistakes), cluster=_cluster(view, now_s), nodes=nodes)


def _refused(pod: JudgedPod, view: FleetView) -> dict[str, str]:
    """Why nodes are refused, by name."""
    slots = view.roster.slots
    allowed = may_run(pod.view, view.twins.node_class)
    by_class = {
        name: REFUSALS[NodeClass(int(view.twins.node_class[slot]))] for name, slot in slots.items() if not allowed[slot]
    }
    return by_class | {name: one.message for name, one in refused_by_power(list(slots), pod, view).refused.items()}


def _explained(pod: JudgedPod, other_mistakes: tuple[str, ...]) -> ExplainedPod:
    return ExplainedPod(
        namespace=pod.facts.namespace,
        name=pod.facts.name,
        workload_class="performance" if pod.view.performance else "standard",
        reschedulable=pod.view.reschedulable,
        daemon=pod.view.daemon,
        cpu_sensitivity=pod.view.cpu_sensitivity.name.lower(),
        gpu_sensitivity=pod.view.gpu_sensitivity.name.lower(),
        cores=pod.requests.cores,
        memory_gib=pod.requests.memory_gib,
        gpus=pod.requests.gpus,
        mistakes=pod.mistakes + other_mistakes,
    )


def _cluster(view: FleetView, now_s: float) -> ClusterState:
    trend_w_per_min = view.twins.cluster_trend_w_per_min
    return ClusterState(
        perf_pressure=view.twins.perf_pressure,
        cluster_trend_w_per_min=trend_w_per_min,
        trend_scale_w_per_min=float(adaptive_trend_scale(trend_w_per_min)),
        age_seconds=now_s - view.now_s,
    )


def _class_name(view: FleetView, slot: int) -> str:
    return NodeClass(int(view.twins.node_class[slot])).name.lower()


def _known(values: FloatArray, slot: int) -> float | None:
    value = float(values[slot])
    return value if np.isfinite(value) else None
