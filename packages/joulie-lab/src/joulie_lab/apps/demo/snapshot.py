"""Snapshots of the demo's cluster, from API objects and the simulator's answers. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.domain.policy import PodPhase, WorkloadClass

_UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeSnapshot:
    """One node; None where a value is not known yet.

    Attributes:
        name: node name.
        schedulable_class: scheduling class in its NodeTwin.
        power_w: measured power of CPUs and GPUs, W.
        limit_w: their maximum power under the caps, W.
        tdp_w: their maximum power without caps, W.
        headroom_score: power headroom score, 0..100.
        cooling_stress_score: cooling stress score, 0..100.
        cpu_cap_pct: CPU cap in force, percent.
        gpu_cap_pct: GPU cap in force, percent; None without GPUs.
        pods: number of pods on it.
        performance_pods: number of them of class performance.
        control: result of the agent's last control cycle.
    """

    name: str
    schedulable_class: str
    power_w: float | None
    limit_w: float | None
    tdp_w: float | None
    headroom_score: float | None
    cooling_stress_score: float | None
    cpu_cap_pct: float | None
    gpu_cap_pct: float | None
    pods: int
    performance_pods: int
    control: str


@dataclass(frozen=True)
class Snapshot:
    """The cluster at one time.

    Attributes:
        simulated_s: simulated time, s.
        it_power_w: power of all nodes at the wall, W.
        cooling_w: power of cooling, W.
        it_kwh: energy of the nodes so far, kWh.
        cooling_kwh: energy of cooling so far, kWh.
        waiting: number of submitted jobs without a node.
        running: number of running jobs.
        completed: number of completed jobs.
        total: number of jobs in the trace.
        nodes: the nodes, by name.
    """

    simulated_s: float
    it_power_w: float
    cooling_w: float
    it_kwh: float
    cooling_kwh: float
    waiting: int
    running: int
    completed: int
    total: int
    nodes: tuple[NodeSnapshot, ...]

    def as_row(self) -> dict[str, Any]:
        """The snapshot as a row of `samples.json`."""
        return asdict(self)

    @property
    def finished(self) -> bool:
        """Whether every job has completed."""
        return self.total > 0 and self.completed >= self.total


def take_snapshot(
    nodes: Iterable[Node],
    twins: Iterable[NodeTwin],
    pods: Iterable[PodFacts],
    energy: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
) -> Snapshot:
    """Take a snapshot of the cluster.

    Args:
        nodes: nodes to show.
        twins: their NodeTwins.
        pods: pods of the cluster.
        energy: the simulator's answer to /debug/energy.
        jobs: its answer to /debug/jobs.
    """
    by_node = {twin.spec.node_name: twin for twin in twins}
    on_node: dict[str, list[PodFacts]] = {}
    for pod in pods:
        if pod.node_name and pod.phase is not PodPhase.FINISHED:
            on_node.setdefault(pod.node_name, []).append(pod)
    states = [str(job["state"]) for job in jobs]
    submitted = [job for job in jobs if job["state"] == "submitted"]
    return Snapshot(
        simulated_s=float(energy["simulatedSeconds"]),
        it_power_w=float(energy["itPowerW"]),
        cooling_w=float(energy["coolingPowerW"]),
        it_kwh=float(energy["itKwh"]),
        cooling_kwh=float(energy["coolingKwh"]),
        waiting=len(submitted),
        running=states.count("running"),
        completed=states.count("completed"),
        total=len(states),
        nodes=tuple(
            _node_snapshot(node.metadata.name, by_node.get(node.metadata.name), on_node.get(node.metadata.name, []))
            for node in sorted(nodes, key=lambda node: node.metadata.name)
        ),
    )


def _node_snapshot(name: str, twin: NodeTwin | None, pods: Sequence[PodFacts]) -> NodeSnapshot:
    performance_pods = sum(pod.effective_class() is WorkloadClass.PERFORMANCE for pod in pods)
    if twin is None:
        return NodeSnapshot(
            name, _UNKNOWN, None, None, None, None, None, None, None, len(pods), performance_pods, "no twin yet"
        )
    status = twin.status
    power = status.power_measurement
    caps = status.effective_cap_state
    control = status.control_status
    outcomes = [item.result for item in (control.cpu, control.gpu) if item and item.result] if control else []
    return NodeSnapshot(
        name=name,
        schedulable_class=status.schedulable_class or _UNKNOWN,
        power_w=power.measured_node_power_w if power else None,
        limit_w=power.node_capped_power_w if power else None,
        tdp_w=power.node_tdp_w if power else None,
        headroom_score=status.predicted_power_headroom_score,
        cooling_stress_score=status.predicted_cooling_stress_score,
        cpu_cap_pct=caps.cpu_pct if caps else None,
        gpu_cap_pct=caps.gpu_pct if caps else None,
        pods=len(pods),
        performance_pods=performance_pods,
        control=", ".join(dict.fromkeys(outcomes)),
    )
