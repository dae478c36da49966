"""Nodes and their twins as rows: pure, from objects of the API to what is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.api.v1alpha1.fields import ControlResult
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.apps.kubectl.columns import Column, aged, count, measured, named, number, watts
from joulie.domain.policy import PodPhase
from joulie.domain.resource_quantity import QuantityError, parse_quantity

_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_BYTES_PER_GIB = 1024.0**3
_UNKNOWN = "unknown"
_SHOWN = 5
STALE_S = 300.0
"""Default of TWIN_STALENESS_THRESHOLD."""
_CLASS_STYLES = {"performance": "green", "eco": "cyan", "draining": "yellow", _UNKNOWN: "dim"}


@dataclass(frozen=True)
class NodeRow:
    """One node; None is what is not known.

    Attributes:
        name: of the node.
        schedulable_class: performance, eco, draining or unknown.
        profile: what the operator wants.
        headroom_score: 0..100.
        cooling_stress_score: 0..100.
        psu_stress_score: 0..100.
        cpu_requested_pct: requests over what the node offers, percent.
        memory_requested_pct: likewise.
        gpu_requested_pct: likewise; None without GPUs.
        pods: pods on the node that are not finished.
        cpu_cap: cap of each package as the spec says, with its unit.
        gpu_cap: cap of each GPU, likewise.
        power_w: measured power, W.
        capped_power_w: power that the caps allow, W.
        trend_w_per_min: slope of the power, W/min.
        power_source: where the power comes from.
        estimated_pue: of the facility.
        rack: label of the node.
        cooling_zone: label of the node.
        cpu_control: backend and result of the CPU cap.
        gpu_control: backend and result of the GPU cap.
        age_s: age of the twin, s.
        notes: why data is missing, why a cap is not in force.
    """

    name: str
    schedulable_class: str
    profile: str | None
    headroom_score: float | None
    cooling_stress_score: float | None
    psu_stress_score: float | None
    cpu_requested_pct: float | None
    memory_requested_pct: float | None
    gpu_requested_pct: float | None
    pods: int
    cpu_cap: str | None
    gpu_cap: str | None
    power_w: float | None
    capped_power_w: float | None
    trend_w_per_min: float | None
    power_source: str | None
    estimated_pue: float | None
    rack: str | None
    cooling_zone: str | None
    cpu_control: str | None
    gpu_control: str | None
    age_s: float | None
    notes: tuple[str, ...]


def _class_style(row: NodeRow) -> str:
    return _CLASS_STYLES.get(row.schedulable_class, "")


def _age_style(row: NodeRow) -> str:
    return "red" if is_stale(row) else ""


COLUMNS: Mapping[str, Column[NodeRow]] = {
    "name": named("NODE", lambda row: row.name, least=20),
    "class": replace(named("CLASS", lambda row: row.schedulable_class), style=_class_style),
    "headroom": measured("HEADROOM", lambda row: row.headroom_score, descending=False),
    "cooling": measured("COOLING", lambda row: row.cooling_stress_score),
    "psu": measured("PSU", lambda row: row.psu_stress_score, wide=True),
    "cpu": measured("CPU%", lambda row: row.cpu_requested_pct, rank=1),
    "memory": measured("MEM%", lambda row: row.memory_requested_pct, rank=4),
    "gpu": measured("GPU%", lambda row: row.gpu_requested_pct, rank=2),
    "pods": measured("PODS", lambda row: row.pods, rank=5),
    "cpu-cap": named("CPU-CAP", lambda row: row.cpu_cap),
    "gpu-cap": named("GPU-CAP", lambda row: row.gpu_cap),
    "power": measured("POWER", lambda row: row.power_w, "{:.0f}W"),
    "limit": measured("LIMIT", lambda row: row.capped_power_w, "{:.0f}W", wide=True),
    "trend": measured("TREND", lambda row: row.trend_w_per_min, "{:+.0f}W/min", wide=True),
    "source": named("SOURCE", lambda row: row.power_source, rank=6),
    "pue": measured("PUE", lambda row: row.estimated_pue, "{:.2f}", wide=True),
    "rack": named("RACK", lambda row: row.rack, wide=True),
    "zone": named("ZONE", lambda row: row.cooling_zone, wide=True),
    "cpu-control": named("CPU-CONTROL", lambda row: row.cpu_control, wide=True),
    "gpu-control": named("GPU-CONTROL", lambda row: row.gpu_control, wide=True),
    "age": replace(aged("AGE", lambda row: row.age_s, rank=3), style=_age_style),
}


def is_stale(row: NodeRow) -> bool:
    """Whether the scheduler extender, as it is set by default, does not count the twin any more."""
    return row.age_s is not None and row.age_s >= STALE_S


def node_rows(
    nodes: Iterable[Node], twins: Iterable[NodeTwin], pods: Iterable[PodFacts], now_s: float
) -> list[NodeRow]:
    """A row for each node, by name.

    Args:
        nodes: the nodes to show.
        twins: the twins there are.
        pods: all pods, finished ones too.
        now_s: time, s since the epoch.
    """
    by_node = {twin.spec.node_name: twin for twin in twins}
    pods_of: dict[str, list[PodFacts]] = {}
    for pod in pods:
        if pod.node_name and pod.phase is not PodPhase.FINISHED:
            pods_of.setdefault(pod.node_name, []).append(pod)
    rows = [_row(node, by_node.get(node.metadata.name), pods_of.get(node.metadata.name, []), now_s) for node in nodes]
    return sorted(rows, key=lambda row: row.name)


def summary(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """The cluster in a few numbers."""
    classes = {
        name: sum(row.schedulable_class == name for row in rows)
        for name in ("performance", "eco", "draining", _UNKNOWN)
    }
    headroom = [row.headroom_score for row in rows if row.headroom_score is not None]
    power = [row.power_w for row in rows if row.power_w is not None]
    cooling = [row.cooling_stress_score for row in rows if row.cooling_stress_score is not None]
    not_in_force = [row.name for row in rows if _failed(row.cpu_control) or _failed(row.gpu_control)]
    return {
        "nodes": len(rows),
        "classes": classes,
        "powerW": sum(power) if power else None,
        "nodesWithPower": len(power),
        "meanHeadroomScore": sum(headroom) / len(headroom) if headroom else None,
        "maxCoolingStressScore": max(cooling, default=None),
        "pods": sum(row.pods for row in rows),
        "controlProblems": not_in_force,
        "stale": [row.name for row in rows if is_stale(row)],
    }


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """The summary for people."""
    classes = ", ".join(f"{count} {name}" for name, count in facts["classes"].items() if count)
    lines = [f"{count(facts['nodes'], 'node')}{f' ({classes})' if classes else ''}, {count(facts['pods'], 'pod')}"]
    if facts["nodesWithPower"]:
        lines.append(
            f"{watts(facts['powerW'])} measured on {count(facts['nodesWithPower'], 'node')},"
            f" mean headroom {number(facts['meanHeadroomScore'])},"
            f" highest cooling stress {number(facts['maxCoolingStressScore'])}"
        )
    for key, text in (("controlProblems", "caps not in force"), ("stale", "data older than 5 min")):
        if facts[key]:
            lines.append(f"{text} on {count(len(facts[key]), 'node')}: {_some(facts[key])}")
    return lines


def _some(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more


def document(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """Summary and rows for programs."""
    return {"summary": summary(rows), "nodes": [asdict(row) for row in rows]}


def _row(node: Node, twin: NodeTwin | None, pods: Sequence[PodFacts], now_s: float) -> NodeRow:
    labels = node.metadata.labels
    status = twin.status if twin else None
    power = status.power_measurement if status else None
    control = status.control_status if status else None
    return NodeRow(
        name=node.metadata.name,
        schedulable_class=(status.schedulable_class if status else None) or _UNKNOWN,
        profile=twin.spec.profile if twin else None,
        headroom_score=status.predicted_power_headroom_score if status else None,
        cooling_stress_score=status.predicted_cooling_stress_score if status else None,
        psu_stress_score=status.predicted_psu_stress_score if status else None,
        cpu_requested_pct=_share(sum(pod.requests.cpu_cores for pod in pods), _offered(node, "cpu")),
        memory_requested_pct=_share(
            sum(pod.requests.memory_gib for pod in pods) * _BYTES_PER_GIB, _offered(node, "memory")
        ),
        gpu_requested_pct=_share(sum(pod.requests.gpus for pod in pods), _offered(node, *_GPU_RESOURCES)),
        pods=len(pods),
        cpu_cap=_cpu_cap(twin),
        gpu_cap=_gpu_cap(twin),
        power_w=power.measured_node_power_w if power else None,
        capped_power_w=power.node_capped_power_w if power else None,
        trend_w_per_min=power.power_trend_w_per_min if power else None,
        power_source=power.source if power else None,
        estimated_pue=status.estimated_pue if status else None,
        rack=labels.get(names.RACK_LABEL),
        cooling_zone=labels.get(names.COOLING_ZONE_LABEL),
        cpu_control=_control(control.cpu if control else None),
        gpu_control=_control(control.gpu if control else None),
        age_s=_twin_age_s(twin, now_s),
        notes=_notes(twin),
    )


def _offered(node: Node, *resources: str) -> float:
    total = 0.0
    for resource in resources:
        try:
            total += parse_quantity(node.status.allocatable.get(resource, "0"))
        except QuantityError:
            continue
    return total


def _share(used: float, offered: float) -> float | None:
    return used / offered * 100.0 if offered > 0.0 else None


def _cpu_cap(twin: NodeTwin | None) -> str | None:
    cap = twin.spec.cpu if twin else None
    if cap is None:
        return None
    return _cap(cap.package_power_cap_watts, cap.package_power_cap_pct_of_max)


def _gpu_cap(twin: NodeTwin | None) -> str | None:
    cap = twin.spec.gpu.power_cap if twin and twin.spec.gpu else None
    if cap is None:
        return None
    return _cap(cap.cap_watts_per_gpu, cap.cap_pct_of_max)


def _cap(watts: float | None, percent: float | None) -> str | None:
    if watts is not None:
        return f"{watts:g}W"
    return None if percent is None else f"{percent:g}%"


def _control(result: ControlResult | None) -> str | None:
    if result is None or result.result is None:
        return None
    return f"{result.backend}:{result.result}" if result.backend else result.result


def _failed(control: str | None) -> bool:
    return control is not None and control.rpartition(":")[2] in {"blocked", "error"}


def _twin_age_s(twin: NodeTwin | None, now_s: float) -> float | None:
    if twin is None or twin.status.last_updated is None:
        return None
    try:
        return now_s - parse_rfc3339(twin.status.last_updated)
    except ValueError:
        return None


def _notes(twin: NodeTwin | None) -> tuple[str, ...]:
    """What an administrator should know of a node: why it has no scores, why a cap is not in force."""
    if twin is None:
        return ("no NodeTwin: the operator does not manage this node, or does not run",)
    notes = []
    if twin.status.predicted_power_headroom_score is None:
        notes += [item.message for item in twin.status.conditions if item.status == "False" and item.message]
    control = twin.status.control_status
    reports = {"CPU": control.cpu, "GPU": control.gpu} if control else {}
    for device, report in reports.items():
        if report is not None and _failed(_control(report)):
            notes.append(f"{device} cap {report.result}: {report.message or 'no reason given'}")
    return tuple(notes)
