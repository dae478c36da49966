"""Assembles the answer about pods from cached objects, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.v1alpha1 import GpuLimit, NodeTwin
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts
from joulie.apps.kubectl.agents import Agent, agent_of
from joulie.apps.kubectl.budget import BudgetRow
from joulie.apps.kubectl.limits import LimitRow
from joulie.apps.kubectl.web.answers import BudgetItem, FleetNode, PodItem, PodState
from joulie.apps.kubectl.web.fleet import UNCAPPED
from joulie.domain.grid import names
from joulie.domain.policy import PodPhase
from joulie.domain.usage import PodKey

STATES = ("waiting", "limited", "running")
"""In the order in which pods are shown."""
_GATES = {
    names.GATE: "waits for cleaner or cheaper power",
    names.BUDGET_GATE: "waits for an energy budget of its namespace",
}
"""What pods with a scheduling gate of Joulie's wait for."""


class WatchedPod(NamedTuple):
    """What is kept of a pod.

    Attributes:
        facts: its cached fields.
        agent: the pod as an agent; None for others.
        gates: its scheduling gates.
        unscheduled: the scheduler's message; empty for pods that have a node.
    """

    facts: PodFacts
    agent: Agent | None
    gates: tuple[str, ...]
    unscheduled: str


def watched_pod(pod: Pod) -> WatchedPod | None:
    """Reduce a pod; None for one that has finished."""
    facts = pod_facts(pod)
    if facts.phase is PodPhase.FINISHED:
        return None
    if pod.spec.node_name:
        return WatchedPod(facts, agent_of(pod), (), "")
    scheduled = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
    gates = tuple(gate.name for gate in pod.spec.scheduling_gates)
    return WatchedPod(facts, None, gates, (scheduled.message or "") if scheduled else "")


@dataclass(frozen=True)
class Limits:
    """Power limits that pods run under.

    Attributes:
        gpus: limit of the GPU of single pods.
        nodes: caps in force that lower the power of nodes without GPUs in use, in words, by node.
        gpu_nodes: the same for pods with GPUs.
    """

    gpus: Mapping[PodKey, GpuLimit]
    nodes: Mapping[str, str]
    gpu_nodes: Mapping[str, str]

    def node_caps(self, facts: PodFacts) -> str:
        """Caps of a pod's node; empty without any."""
        return (self.gpu_nodes if facts.requests.gpus > 0.0 else self.nodes).get(facts.node_name, "")

    def state(self, facts: PodFacts) -> PodState:
        """Whether a pod waits, runs under a limit, or just runs."""
        if not facts.node_name:
            return "waiting"
        limited = (facts.namespace, facts.name) in self.gpus or self.node_caps(facts)
        return "limited" if limited else "running"


def limits_of(nodes: Iterable[FleetNode], twins: Iterable[NodeTwin]) -> Limits:
    """The power limits that are in force or asked for."""
    capped = [node for node in nodes if node.cap_state in {"confirmed", "unconfirmed"}]
    return Limits(
        {(one.pod.namespace, one.pod.name): one for twin in twins for one in twin.spec.gpu_limits},
        {node.name: caps for node in capped if (caps := _lowering(("CPUs", node.cpu_cap)))},
        {node.name: caps for node in capped if (caps := _lowering(("CPUs", node.cpu_cap), ("GPUs", node.gpu_cap)))},
    )


def pod_key(pod: WatchedPod) -> PodKey:
    """Namespace and name of a pod."""
    return pod.facts.namespace, pod.facts.name


def by_state(pods: Iterable[WatchedPod], limits: Limits) -> dict[str, list[WatchedPod]]:
    """Pods by state, in their order."""
    found: dict[str, list[WatchedPod]] = {state: [] for state in STATES}
    for pod in pods:
        found[limits.state(pod.facts)].append(pod)
    return found


def pod_item(pod: WatchedPod, limits: Limits) -> PodItem:
    """A pod in the form of the API."""
    facts = pod.facts
    state = limits.state(facts)
    limit = limits.gpus.get((facts.namespace, facts.name))
    if state == "waiting":
        why = _wait(pod)
    elif state == "running":
        why = "runs without a power limit"
    elif limit is not None:
        values = {"W": limit.watts, "MHz": limit.max_sm_clock_mhz}
        words = " and ".join(f"{value:g} {unit}" for unit, value in values.items() if value is not None)
        why = f"its GPU is limited to {words}"
    else:
        why = f"its node runs under a power cap: {limits.node_caps(facts)}"
    return PodItem(
        namespace=facts.namespace,
        name=facts.name,
        workload=f"{facts.owner.kind}/{facts.owner.name}",
        state=state,
        why=why,
        node=facts.node_name or None,
        since=facts.running_since_s,
        limit_w=None if limit is None else limit.watts,
    )


def with_limits(items: Sequence[PodItem], rows: Iterable[LimitRow]) -> list[PodItem]:
    """Pods with what their limits cost them, by the rows of `kubectl joulie limits` of their nodes."""
    by_job = {(row.node, row.namespace, row.job): row for row in rows if row.knob is not None}
    found = []
    for item in items:
        row = by_job.get((item.node or "", item.namespace, item.workload)) if item.state == "limited" else None
        found.append(item if row is None else _with_limit(item, row))
    return found


def budget_items(rows: Iterable[BudgetRow]) -> list[BudgetItem]:
    """EnergyBudgets in the form of the API."""
    return [
        BudgetItem(
            namespace=row.namespace,
            name=row.name,
            target=row.target,
            period=row.period,
            limits=row.limits,
            left={key: limit - row.used[key] for key, limit in row.limits.items() if key in row.used},
            used_pct=row.used_pct,
            forecast_pct=row.forecast_pct,
            holding=row.holding,
            ends=row.period_end,
            why=row.problem or row.reason,
        )
        for row in rows
    ]


def _with_limit(item: PodItem, row: LimitRow) -> PodItem:
    clock = row.max_sm_clock_mhz
    limit = f"{item.limit_w:g} W" if clock is None else f"{clock:g} MHz"
    of = "" if row.original_w is None or clock is not None else f" of {row.original_w:g} W"
    cost = "" if row.slowdown is None else f", which takes {(row.slowdown - 1.0) * 100.0:.1f} % longer"
    saved = "" if row.saved_pct is None else f" and saves {row.saved_pct:.1f} % of its energy"
    return msgspec.structs.replace(
        item,
        why=f"its GPU is limited to {limit}{of}{cost}{saved}",
        original_w=row.original_w,
        slowdown=row.slowdown,
        saved_pct=row.saved_pct,
    )


def _wait(pod: WatchedPod) -> str:
    if not pod.gates:
        return f"waits for a node: {pod.unscheduled}" if pod.unscheduled else "waits for the scheduler"
    ours = [text for gate, text in _GATES.items() if gate in pod.gates]
    others = [gate for gate in pod.gates if gate not in _GATES]
    return " and ".join([*ours, *([f"waits for its scheduling gates: {', '.join(others)}"] if others else [])])


def _lowering(*wanted: tuple[str, str | None]) -> str:
    return ", ".join(f"{device} at {cap}" for device, cap in wanted if cap not in {None, UNCAPPED})
