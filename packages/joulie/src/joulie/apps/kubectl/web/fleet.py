"""Assembles the answers about nodes from cached objects, without any I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware, NodeTwin, SchedulableClass
from joulie.adapters.kubernetes.api.v1alpha1.fields import ControlOutcome
from joulie.apps.kubectl.limits import LimitRow
from joulie.apps.kubectl.overview import NO_AGENT, NodeRow, is_stale, planned_text
from joulie.apps.kubectl.web.answers import (
    CapState,
    ConditionItem,
    FleetNode,
    FleetSummary,
    GpuLimitItem,
    SourceItem,
)

_DRAINING = "Draining"
UNCAPPED = "100%"
_UNRECOGNISED = "unrecognised hardware"


def fleet_node(row: NodeRow, family: str, twin: NodeTwin | None) -> FleetNode:
    """A node in the form of the API.

    Args:
        row: its row of `kubectl joulie status`.
        family: see `family_of`.
        twin: its twin; None without one.
    """
    return FleetNode(
        name=row.name,
        family=family,
        rack=row.rack,
        schedulable_class=row.schedulable_class,
        headroom_score=row.headroom_score,
        cooling_stress_score=row.cooling_stress_score,
        psu_stress_score=row.psu_stress_score,
        power_w=row.power_w,
        capped_power_w=row.capped_power_w,
        power_source=row.power_source,
        trend_w_per_min=row.trend_w_per_min,
        age_s=row.age_s,
        stale=is_stale(row),
        pods=row.pods,
        cpu_cap=row.cpu_cap,
        gpu_cap=row.gpu_cap,
        cap_state=_cap_state(row),
        next=_next_change(row, twin),
        planned=planned_text(row),
        notes=row.notes,
    )


def family_of(node: Node, hardware: NodeHardware | None) -> str:
    """Models of the CPUs and GPUs: from the NodeHardware, else from the node's labels."""
    labels = node.metadata.labels
    cpu, gpu = labels.get(names.HW_CPU_MODEL_LABEL), labels.get(names.HW_GPU_MODEL_LABEL)
    if hardware is not None:
        found = hardware.status
        if found.cpu is not None:
            cpu = found.cpu.model or found.cpu.raw_model or cpu
        if found.gpu is not None and found.gpu.present:
            gpu = found.gpu.model or found.gpu.raw_model or gpu
            gpu = f"{found.gpu.count} x {gpu}" if gpu and found.gpu.count else gpu
    return ", ".join(part for part in (cpu, gpu) if part) or _UNRECOGNISED


def fleet_summary(nodes: Sequence[FleetNode], *, agents_known: bool) -> FleetSummary:
    """Counts over the nodes; `agents_known` says whether notes tell on which no agent runs."""
    power_w = [node.power_w for node in nodes if node.power_w is not None]
    classes = Counter(node.schedulable_class for node in nodes)
    return FleetSummary(
        nodes=len(nodes),
        pods=sum(node.pods for node in nodes),
        classes={one.value: classes[one.value] for one in SchedulableClass},
        cap_states=dict(Counter(node.cap_state for node in nodes)),
        power_w=sum(power_w) if power_w else None,
        nodes_with_power=len(power_w),
        stale=sum(node.stale for node in nodes),
        without_agent=sum(NO_AGENT in node.notes for node in nodes) if agents_known else None,
        changing=sum(node.next is not None for node in nodes),
    )


def power_sources(nodes: Iterable[FleetNode]) -> list[SourceItem]:
    """Sources of the nodes' power, with the age of the oldest twin that has each."""
    by_source: dict[str, list[FleetNode]] = {}
    for node in nodes:
        by_source.setdefault(node.power_source or "none", []).append(node)
    return [
        SourceItem(
            kind="power",
            name=source,
            nodes=len(found),
            quality="missing" if source == "none" else "stale" if any(node.stale for node in found) else "fresh",
            oldest_s=max((node.age_s for node in found if node.age_s is not None), default=None),
            problem="no source has measured these nodes" if source == "none" else None,
        )
        for source, found in sorted(by_source.items())
    ]


def gpu_items(rows: Iterable[LimitRow], visible: frozenset[str] | None) -> list[GpuLimitItem]:
    """GPUs with their limits.

    Args:
        rows: rows of `kubectl joulie limits`.
        visible: namespaces that the reader may see; None for all. Holders in others are left out.
    """
    items = []
    for row in rows:
        seen = row.namespace is None or visible is None or row.namespace in visible
        item = GpuLimitItem(
            gpu=row.gpu,
            limit_w=row.limit_w,
            original_w=row.original_w,
            namespace=row.namespace if seen else None,
            job=row.job if seen else None,
            knob=row.knob,
            why=row.why if seen else "held by a pod of another namespace",
            slowdown=row.slowdown if seen else None,
            saved_pct=row.saved_pct if seen else None,
        )
        items.append(item)
    return items


def condition_items(twin: NodeTwin | None) -> list[ConditionItem]:
    """Conditions of a twin, latest transition first."""
    conditions = sorted(twin.status.conditions if twin else (), key=attrgetter("last_transition_time"), reverse=True)
    return [
        ConditionItem(
            type=one.type, status=one.status, reason=one.reason, message=one.message, since=one.last_transition_time
        )
        for one in conditions
    ]


def _cap_state(row: NodeRow) -> CapState:
    pairs = ((row.cpu_cap, row.cpu_control), (row.gpu_cap, row.gpu_control))
    results = {control.rpartition(":")[2] for cap, control in pairs if cap not in {None, UNCAPPED} and control}
    results -= {ControlOutcome.NONE.value, ControlOutcome.OBSERVED.value}
    if not results:
        return "none"
    if results == {ControlOutcome.APPLIED.value}:
        return "confirmed"
    return (
        "unconfirmed" if results <= {ControlOutcome.APPLIED.value, ControlOutcome.UNCONFIRMED.value} else "notInForce"
    )


def _next_change(row: NodeRow, twin: NodeTwin | None) -> str | None:
    if row.planned is not None:
        return f"observe mode: would become {row.planned}; nothing is applied"
    if twin is None:
        return None
    policy = f" (policy {twin.spec.policy.name})" if twin.spec.policy and twin.spec.policy.name else ""
    draining = next((one for one in twin.status.conditions if one.type == _DRAINING and one.status == "True"), None)
    if draining is not None or row.schedulable_class == SchedulableClass.DRAINING:
        why = "" if draining is None else f": {draining.message or draining.reason}"
        return f"becomes eco once it has drained{policy}{why}"
    if row.schedulable_class not in {twin.spec.profile, SchedulableClass.UNKNOWN}:
        return f"becomes {twin.spec.profile}{policy} once its caps are confirmed"
    return None


def grouped(nodes: Iterable[FleetNode], key: str) -> Mapping[str, list[FleetNode]]:
    """Nodes by rack or family, in the order of the groups' names."""
    groups: dict[str, list[FleetNode]] = {}
    for node in nodes:
        groups.setdefault((node.rack or "no rack label") if key == "rack" else node.family, []).append(node)
    return dict(sorted(groups.items()))
