"""Nodes and their twins as rows: pure, from objects of the API to what is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.api.v1alpha1.fields import ControlResult
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.quantity import QuantityError, parse_quantity, parse_rfc3339
from joulie.domain.policy import PodPhase

_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_BYTES_PER_GIB = 1024.0**3
_UNKNOWN = "unknown"


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
        cpu_cap: cap of each package as the spec says, with its unit; ``-`` where uncapped.
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
        note: the twin's reason for missing data.
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
    cpu_cap: str
    gpu_cap: str
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
    note: str | None


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        title: header.
        text: cell of a row.
        key: what rows are sorted by; the larger of two comes first where `descending`.
        wide: shown with ``-o wide`` only.
        descending: order of ``--sort-by``.
    """

    title: str
    text: Callable[[NodeRow], str]
    key: Callable[[NodeRow], Any]
    wide: bool = False
    descending: bool = False


def _number(value: float | None, form: str = "{:.0f}") -> str:
    return "-" if value is None else form.format(value)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0.0):.0f}s"


def _last(value: float | None, *, descending: bool = False) -> float:
    """A sort key that puts what is not known at the end."""
    if value is None:
        return -math.inf if descending else math.inf
    return value


COLUMNS: Mapping[str, Column] = {
    "name": Column("NODE", lambda row: row.name, lambda row: row.name),
    "class": Column("CLASS", lambda row: row.schedulable_class, lambda row: (row.schedulable_class, row.name)),
    "headroom": Column("HEADROOM", lambda row: _number(row.headroom_score), lambda row: _last(row.headroom_score)),
    "cooling": Column(
        "COOLING",
        lambda row: _number(row.cooling_stress_score),
        lambda row: _last(row.cooling_stress_score, descending=True),
        descending=True,
    ),
    "psu": Column(
        "PSU",
        lambda row: _number(row.psu_stress_score),
        lambda row: _last(row.psu_stress_score, descending=True),
        wide=True,
        descending=True,
    ),
    "cpu": Column(
        "CPU%",
        lambda row: _number(row.cpu_requested_pct),
        lambda row: _last(row.cpu_requested_pct, descending=True),
        descending=True,
    ),
    "memory": Column(
        "MEM%",
        lambda row: _number(row.memory_requested_pct),
        lambda row: _last(row.memory_requested_pct, descending=True),
        descending=True,
    ),
    "gpu": Column(
        "GPU%",
        lambda row: _number(row.gpu_requested_pct),
        lambda row: _last(row.gpu_requested_pct, descending=True),
        descending=True,
    ),
    "pods": Column("PODS", lambda row: str(row.pods), lambda row: row.pods, descending=True),
    "cpu-cap": Column("CPU-CAP", lambda row: row.cpu_cap, lambda row: (row.cpu_cap, row.name)),
    "gpu-cap": Column("GPU-CAP", lambda row: row.gpu_cap, lambda row: (row.gpu_cap, row.name)),
    "power": Column(
        "POWER",
        lambda row: _number(row.power_w, "{:.0f}W"),
        lambda row: _last(row.power_w, descending=True),
        descending=True,
    ),
    "limit": Column(
        "LIMIT",
        lambda row: _number(row.capped_power_w, "{:.0f}W"),
        lambda row: _last(row.capped_power_w, descending=True),
        wide=True,
        descending=True,
    ),
    "trend": Column(
        "TREND",
        lambda row: _number(row.trend_w_per_min, "{:+.1f}W/min"),
        lambda row: _last(row.trend_w_per_min, descending=True),
        wide=True,
        descending=True,
    ),
    "source": Column("SOURCE", lambda row: row.power_source or "-", lambda row: (row.power_source or "~", row.name)),
    "pue": Column(
        "PUE",
        lambda row: _number(row.estimated_pue, "{:.2f}"),
        lambda row: _last(row.estimated_pue, descending=True),
        wide=True,
        descending=True,
    ),
    "rack": Column("RACK", lambda row: row.rack or "-", lambda row: (row.rack or "~", row.name), wide=True),
    "zone": Column(
        "ZONE", lambda row: row.cooling_zone or "-", lambda row: (row.cooling_zone or "~", row.name), wide=True
    ),
    "cpu-control": Column(
        "CPU-CONTROL", lambda row: row.cpu_control or "-", lambda row: (row.cpu_control or "~", row.name), wide=True
    ),
    "gpu-control": Column(
        "GPU-CONTROL", lambda row: row.gpu_control or "-", lambda row: (row.gpu_control or "~", row.name), wide=True
    ),
    "age": Column("AGE", lambda row: _age(row.age_s), lambda row: _last(row.age_s, descending=True), descending=True),
}


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


def sorted_rows(rows: Sequence[NodeRow], column: str, *, reverse: bool = False) -> list[NodeRow]:
    """Rows in the order of a column; what matters most comes first: least headroom, most stress, oldest."""
    key = COLUMNS[column]
    return sorted(rows, key=key.key, reverse=key.descending != reverse)


def summary(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """The cluster in a few numbers."""
    classes = {
        name: sum(row.schedulable_class == name for row in rows)
        for name in ("performance", "eco", "draining", _UNKNOWN)
    }
    headroom = [row.headroom_score for row in rows if row.headroom_score is not None]
    power = [row.power_w for row in rows if row.power_w is not None]
    cooling = [row.cooling_stress_score for row in rows if row.cooling_stress_score is not None]
    blocked = [row.name for row in rows if _failed(row.cpu_control) or _failed(row.gpu_control)]
    return {
        "nodes": len(rows),
        "classes": classes,
        "powerW": sum(power) if power else None,
        "nodesWithPower": len(power),
        "meanHeadroomScore": sum(headroom) / len(headroom) if headroom else None,
        "maxCoolingStressScore": max(cooling, default=None),
        "pods": sum(row.pods for row in rows),
        "controlProblems": blocked,
    }


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """The summary for people."""
    classes = ", ".join(f"{count} {name}" for name, count in facts["classes"].items() if count)
    power = "unknown" if facts["powerW"] is None else f"{facts['powerW'] / 1000.0:.1f} kW"
    lines = [
        f"{facts['nodes']} nodes ({classes or 'none'}), {facts['pods']} pods",
        f"power {power} (of {facts['nodesWithPower']} nodes), mean headroom {_number(facts['meanHeadroomScore'])},"
        f" highest cooling stress {_number(facts['maxCoolingStressScore'])}",
    ]
    problems = facts["controlProblems"]
    if problems:
        shown = ", ".join(problems[:5]) + (f" and {len(problems) - 5} more" if len(problems) > 5 else "")
        lines.append(f"caps not in force on {len(problems)}: {shown} (see -o wide)")
    return lines


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
        note=_note(twin),
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


def _cpu_cap(twin: NodeTwin | None) -> str:
    cap = twin.spec.cpu if twin else None
    if cap is None:
        return "-"
    return _cap(cap.package_power_cap_watts, cap.package_power_cap_pct_of_max)


def _gpu_cap(twin: NodeTwin | None) -> str:
    cap = twin.spec.gpu.power_cap if twin and twin.spec.gpu else None
    if cap is None:
        return "-"
    return _cap(cap.cap_watts_per_gpu, cap.cap_pct_of_max)


def _cap(watts: float | None, percent: float | None) -> str:
    if watts is not None:
        return f"{watts:g}W"
    return "-" if percent is None else f"{percent:g}%"


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


def _note(twin: NodeTwin | None) -> str | None:
    """Why a twin has no scores, from its conditions."""
    if twin is None:
        return "no NodeTwin: the operator does not manage this node, or does not run"
    if twin.status.predicted_power_headroom_score is not None:
        return None
    reasons = [condition.message for condition in twin.status.conditions if condition.status == "False"]
    return "; ".join(reason for reason in reasons if reason) or None
