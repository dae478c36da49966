"""Rows and summary of `kubectl joulie status`, computed from Nodes, NodeTwins and pods without any I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, NodeTwinSpec, PlannedSleep, PlannedState
from joulie.adapters.kubernetes.api.v1alpha1.fields import ControlOutcome, ControlResult
from joulie.adapters.kubernetes.requests import Requests, offered_gpus, pod_requests
from joulie.adapters.kubernetes.sleep_marks import has_asleep_taint, sleep_mark
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.kubectl.agents import Agent, agent_of
from joulie.apps.kubectl.columns import (
    Column,
    age_column,
    format_age,
    format_count,
    format_number,
    format_power,
    number_column,
    text_column,
)
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.sleep.states import Asleep, Awake, Cordoned, Emptying, Failed, SleepState, Waking, state_of

_BYTES_PER_GIB = 1024.0**3
_UNKNOWN = "unknown"
_MAX_NAMES = 5
NO_REPORT = "no report"
NO_AGENT = "no agent runs on this node: nothing measures it, and caps stay as they are"
STALE_S = 300.0
"""Default of the setting TWIN_STALENESS_THRESHOLD, s."""
_ENDED = frozenset({"Succeeded", "Failed"})
_CLASS_STYLES = {"performance": "green", "eco": "cyan", "draining": "yellow", _UNKNOWN: "dim"}


class BoundPod(NamedTuple):
    """What the overview shows of a pod that is bound to a node.

    Attributes:
        node_name: name of the node.
        requests: its requests; None once it has ended.
        agent: the pod as an agent; None for others.
    """

    node_name: str
    requests: Requests | None
    agent: Agent | None


def bound_pod(pod: Pod) -> BoundPod:
    """Reduce a pod to what the overview shows of it."""
    requests = None if pod.status.phase in _ENDED else pod_requests(pod)[0]
    return BoundPod(pod.spec.node_name, requests, agent_of(pod))


@dataclass(frozen=True)
class NodeRow:
    """State of one node; unknown values are None.

    Attributes:
        name: node name.
        schedulable_class: performance, eco, draining or unknown.
        profile: power profile set by the operator.
        headroom_score: power headroom, 0..100.
        cooling_stress_score: cooling stress, 0..100.
        psu_stress_score: power supply stress, 0..100.
        cpu_requested_pct: CPU requests relative to allocatable, percent.
        memory_requested_pct: memory requests relative to allocatable, percent.
        gpu_requested_pct: GPU requests relative to allocatable, percent; None without GPUs.
        pods: number of unfinished pods on the node.
        cpu_cap: requested cap of each CPU package, with its unit (W or %).
        gpu_cap: requested cap of each GPU, with its unit (W or %).
        power_w: measured power, W.
        capped_power_w: maximum power under the caps, W.
        trend_w_per_min: slope of the power, W/min.
        power_source: source of the power measurement.
        estimated_pue: estimated PUE of the facility.
        rack: rack label of the node.
        cooling_zone: cooling zone label of the node.
        cpu_control: backend and result of the CPU cap; `no report` where a cap is requested and the agent has not
            reported about it.
        gpu_control: the same for the GPU cap.
        planned: profile and caps that would be set on a node in observe mode; None where they are.
        planned_sleep: state of sleep in which the node would be, where that is only observed; None where it would be
            open to pods.
        sleep: state of a node that sleeps, is about to, or wakes: emptying, cordoned, asleep, waking or failed; None
            where it is open to pods.
        sleep_s: time for which it has been in that state, s.
        age_s: age of the twin, s.
        notes: reasons for missing data and for caps that are not in force.
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
    planned: str | None
    planned_sleep: str | None
    sleep: str | None
    sleep_s: float | None
    age_s: float | None
    notes: tuple[str, ...]


def _class_style(row: NodeRow) -> str:
    return _CLASS_STYLES.get(row.schedulable_class, "")


def _sleep_text(row: NodeRow) -> str:
    return "-" if row.sleep is None else f"{row.sleep} {format_age(row.sleep_s)}"


def planned_text(row: NodeRow) -> str | None:
    """What would be done on a node, sleep included: ``eco 60%, asleep``; None where all of it is done."""
    return ", ".join(one for one in (row.planned, row.planned_sleep) if one is not None) or None


def _age_style(row: NodeRow) -> str:
    return "red" if is_stale(row) else ""


COLUMNS: Mapping[str, Column[NodeRow]] = {
    "name": text_column("NODE", lambda row: row.name, min_width=20),
    "class": replace(text_column("CLASS", lambda row: row.schedulable_class), style=_class_style),
    "headroom": number_column("HEADROOM", lambda row: row.headroom_score, descending=False),
    "cooling": number_column("COOLING", lambda row: row.cooling_stress_score),
    "psu": number_column("PSU", lambda row: row.psu_stress_score, wide=True),
    "cpu": number_column("CPU%", lambda row: row.cpu_requested_pct, rank=1),
    "memory": number_column("MEM%", lambda row: row.memory_requested_pct, rank=4),
    "gpu": number_column("GPU%", lambda row: row.gpu_requested_pct, rank=2),
    "pods": number_column("PODS", lambda row: row.pods, rank=5),
    "cpu-cap": text_column("CPU-CAP", lambda row: row.cpu_cap),
    "gpu-cap": text_column("GPU-CAP", lambda row: row.gpu_cap),
    "planned": text_column("PLANNED", planned_text, rank=3),
    "sleep": replace(text_column("SLEEP", lambda row: row.sleep), text=_sleep_text),
    "power": number_column("POWER", lambda row: row.power_w, "{:.0f}W"),
    "limit": number_column("LIMIT", lambda row: row.capped_power_w, "{:.0f}W", wide=True),
    "trend": number_column("TREND", lambda row: row.trend_w_per_min, "{:+.0f}W/min", wide=True),
    "source": text_column("SOURCE", lambda row: row.power_source, rank=6),
    "pue": number_column("PUE", lambda row: row.estimated_pue, "{:.2f}", wide=True),
    "rack": text_column("RACK", lambda row: row.rack, wide=True),
    "zone": text_column("ZONE", lambda row: row.cooling_zone, wide=True),
    "cpu-control": text_column("CPU-CONTROL", lambda row: row.cpu_control, wide=True),
    "gpu-control": text_column("GPU-CONTROL", lambda row: row.gpu_control, wide=True),
    "age": replace(age_column("AGE", lambda row: row.age_s, rank=3), style=_age_style),
}


def is_stale(row: NodeRow) -> bool:
    """Whether the twin is stale for the scheduler extender with default settings."""
    return row.age_s is not None and row.age_s >= STALE_S


def node_rows(
    nodes: Iterable[Node],
    twins: Iterable[NodeTwin],
    pods: Iterable[BoundPod],
    now_s: float,
    *,
    agents: Collection[str] | None = None,
) -> list[NodeRow]:
    """Rows of the nodes, sorted by name.

    Args:
        nodes: nodes to show.
        twins: all NodeTwins.
        pods: all bound pods, including ended ones.
        now_s: current time, s since the epoch.
        agents: names of the nodes on which an agent runs; None if that cannot be known.
    """
    by_node = {twin.spec.node_name: twin for twin in twins}
    requests_of: dict[str, list[Requests]] = {}
    for pod in pods:
        if pod.requests is not None:
            requests_of.setdefault(pod.node_name, []).append(pod.requests)
    rows = [
        _row(
            node,
            by_node.get(name),
            requests_of.get(name, []),
            now_s,
            without_agent=agents is not None and name not in agents,
        )
        for node in nodes
        for name in (node.metadata.name,)
    ]
    return sorted(rows, key=lambda row: row.name)


def summary(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """Summary of the cluster, as in the JSON output."""
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
        "sleep": dict(Counter(row.sleep for row in rows if row.sleep is not None)),
        "plannedSleep": dict(Counter(row.planned_sleep for row in rows if row.planned_sleep is not None)),
        "observed": [row.name for row in rows if row.planned is not None],
        "withoutAgent": [row.name for row in rows if NO_AGENT in row.notes],
        "stale": [row.name for row in rows if is_stale(row)],
    }


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """Summary as human-readable lines."""
    classes = ", ".join(f"{count} {name}" for name, count in facts["classes"].items() if count)
    nodes, pods = format_count(facts["nodes"], "node"), format_count(facts["pods"], "pod")
    lines = [f"{nodes}{f' ({classes})' if classes else ''}, {pods}"]
    if facts["nodesWithPower"]:
        lines.append(
            f"{format_power(facts['powerW'])} measured on {format_count(facts['nodesWithPower'], 'node')},"
            f" mean headroom {format_number(facts['meanHeadroomScore'])},"
            f" highest cooling stress {format_number(facts['maxCoolingStressScore'])}"
        )
    if facts["observed"]:
        lines.append(f"observe mode, nothing applied, on {format_count(len(facts['observed']), 'node')}")
    for key, text in (("sleep", "closed"), ("plannedSleep", "would be closed")):
        if facts[key]:
            states = ", ".join(f"{count} {state}" for state, count in sorted(facts[key].items()))
            lines.append(f"{text} to pods so that they can sleep: {states}")
    for key, text in (
        ("controlProblems", "caps not in force"),
        ("withoutAgent", "no agent runs"),
        ("stale", "data older than 5 min"),
    ):
        if facts[key]:
            lines.append(f"{text} on {format_count(len(facts[key]), 'node')}: {_first_names(facts[key])}")
    return lines


def _first_names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MAX_NAMES} more" if len(nodes) > _MAX_NAMES else ""
    return ", ".join(nodes[:_MAX_NAMES]) + more


def document(rows: Sequence[NodeRow]) -> dict[str, Any]:
    """JSON document with summary and rows."""
    return {"summary": summary(rows), "nodes": [asdict(row) for row in rows]}


def _row(
    node: Node, twin: NodeTwin | None, requests: Sequence[Requests], now_s: float, *, without_agent: bool
) -> NodeRow:
    labels = node.metadata.labels
    status = twin.status if twin else None
    power = status.power_measurement if status else None
    sleep = state_of(sleep_mark(node), tainted=has_asleep_taint(node), now_s=now_s)
    would_sleep = status.planned.sleep if status and status.planned else None
    return NodeRow(
        name=node.metadata.name,
        schedulable_class=(status.schedulable_class if status else None) or _UNKNOWN,
        profile=twin.spec.profile if twin else None,
        headroom_score=status.predicted_power_headroom_score if status else None,
        cooling_stress_score=status.predicted_cooling_stress_score if status else None,
        psu_stress_score=status.predicted_psu_stress_score if status else None,
        cpu_requested_pct=_requested_pct(sum(one.cpu_cores for one in requests), _allocatable(node, "cpu")),
        memory_requested_pct=_requested_pct(
            sum(one.memory_gib for one in requests) * _BYTES_PER_GIB, _allocatable(node, "memory")
        ),
        gpu_requested_pct=_requested_pct(sum(one.gpus for one in requests), offered_gpus(node.status.allocatable)),
        pods=len(requests),
        cpu_cap=_cpu_cap(twin.spec if twin else None),
        gpu_cap=_gpu_cap(twin.spec if twin else None),
        power_w=power.measured_node_power_w if power else None,
        capped_power_w=power.node_capped_power_w if power else None,
        trend_w_per_min=power.power_trend_w_per_min if power else None,
        power_source=power.source if power else None,
        estimated_pue=status.estimated_pue if status else None,
        rack=labels.get(names.RACK_LABEL),
        cooling_zone=labels.get(names.COOLING_ZONE_LABEL),
        cpu_control=_control(twin, "cpu"),
        gpu_control=_control(twin, "gpu"),
        planned=_planned(twin),
        planned_sleep=None if would_sleep is None else would_sleep.state,
        sleep=None if isinstance(sleep, Awake) else type(sleep).__name__.lower(),
        sleep_s=None if isinstance(sleep, Awake) else now_s - sleep.since_s,
        age_s=_twin_age_s(twin, now_s),
        notes=(*_sleep_notes(sleep, would_sleep), *_notes(twin, without_agent=without_agent)),
    )


def _allocatable(node: Node, resource: str) -> float:
    try:
        return parse_quantity(node.status.allocatable.get(resource, "0"))
    except QuantityError:
        return 0.0


def _requested_pct(used: float, allocatable: float) -> float | None:
    return used / allocatable * 100.0 if allocatable > 0.0 else None


def _cpu_cap(of: NodeTwinSpec | PlannedState | None) -> str | None:
    cap = of.cpu if of else None
    if cap is None:
        return None
    return _cap(cap.package_power_cap_watts, cap.package_power_cap_pct_of_max)


def _gpu_cap(of: NodeTwinSpec | PlannedState | None) -> str | None:
    cap = of.gpu.power_cap if of and of.gpu else None
    if cap is None:
        return None
    return _cap(cap.cap_watts_per_gpu, cap.cap_pct_of_max)


def _planned(twin: NodeTwin | None) -> str | None:
    """What would be done on a node in observe mode: ``eco 60% (drain first)``; None where the plan is applied."""
    planned = twin.status.planned if twin else None
    if planned is None or planned.profile is None:
        return None
    caps = [cap for cap in (_cpu_cap(planned), _gpu_cap(planned)) if cap is not None]
    text = " ".join([planned.profile, "/".join(dict.fromkeys(caps))]).rstrip()
    return f"{text} (drain first)" if planned.draining else text


def _cap(watts: float | None, percent: float | None) -> str | None:
    if watts is not None:
        return f"{watts:g}W"
    return None if percent is None else f"{percent:g}%"


def _control(twin: NodeTwin | None, device: str) -> str | None:
    """Backend and result of the report about a device's cap; `NO_REPORT` where it is about another spec, or missing."""
    if twin is None:
        return None
    report = _report(twin, device)
    if report is None or report.result is None:
        return NO_REPORT if _requests_cap(twin, device) else None
    return f"{report.backend}:{report.result}" if report.backend else report.result


def _report(twin: NodeTwin, device: str) -> ControlResult | None:
    """The agent's report about a device, if it was made for the caps that are requested now."""
    control = twin.status.control_status
    if control is None or control.observed_generation != twin.metadata.generation:
        return None
    report: ControlResult | None = getattr(control, device)
    return report


def _requests_cap(twin: NodeTwin, device: str) -> bool:
    """Whether a cap is requested that lowers a limit."""
    return {"cpu": _cpu_cap, "gpu": _gpu_cap}[device](twin.spec) not in {None, "100%"}


def _failed(control: str | None) -> bool:
    return control is not None and control.rpartition(":")[2] in {"blocked", "error", NO_REPORT}


def _twin_age_s(twin: NodeTwin | None, now_s: float) -> float | None:
    updated_s = None if twin is None else time_or_none(twin.status.last_updated)
    return None if updated_s is None else now_s - updated_s


def _sleep_notes(state: SleepState, would: PlannedSleep | None) -> tuple[str, ...]:
    """Why a node is closed to pods, and what opens it; or why it would be."""
    match state:
        case Awake():
            return () if would is None else (f"would be {would.state}: {would.reason or 'no reason given'}",)
        case Emptying():
            return ("emptied so that it can sleep: its pods are moved to other nodes",)
        case Cordoned():
            return ("closed to pods: it sleeps soon, unless one needs it",)
        case Asleep():
            return ("asleep until a pod needs it",)
        case Waking():
            return (f"waking: told {format_count(state.attempt, 'time')}, not ready yet",)
        case Failed():
            return ("it did not wake and was given up for a while: see its events",)


def _notes(twin: NodeTwin | None, *, without_agent: bool) -> tuple[str, ...]:
    """Notes for the administrator: why a node has no scores, why a cap is not in force."""
    if twin is None:
        return ("no NodeTwin: the operator does not manage this node or is not running",)
    notes = []
    if twin.status.predicted_power_headroom_score is None:
        notes += [item.message for item in twin.status.conditions if item.status == "False" and item.message]
    for device in ("cpu", "gpu"):
        control = _control(twin, device)
        report = _report(twin, device)
        if control == NO_REPORT:
            notes.append(f"{device.upper()} cap not confirmed: the agent has not reported about this cap")
        elif report is not None and (_failed(control) or report.result == ControlOutcome.UNCONFIRMED):
            notes.append(f"{device.upper()} cap {report.result}: {report.message or 'no reason given'}")
    if without_agent:
        notes.append(NO_AGENT)
    return tuple(notes)
