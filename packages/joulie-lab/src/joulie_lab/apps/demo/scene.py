"""What can be seen of a cluster at a moment, and over time: pure, from API objects and the simulator's answers."""

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
class NodeScene:
    """One node; None is what is not known yet.

    Attributes:
        name: of the node.
        schedulable_class: as its twin says.
        power_w: power of CPUs and GPUs as measured, W.
        limit_w: what the caps allow, W.
        tdp_w: what the hardware allows, W.
        headroom_score: 0..100.
        cooling_stress_score: 0..100.
        cpu_cap_pct: CPU cap in force, percent.
        gpu_cap_pct: GPU cap in force, percent; None without GPUs.
        pods: pods on it.
        performance_pods: pods of class performance among them.
        control: outcome of the agent's last control.
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
class Scene:
    """The cluster at a moment.

    Attributes:
        simulated_s: simulated time, s.
        it_power_w: power of all whole nodes, W.
        cooling_w: power of cooling, W.
        it_kwh: energy of the nodes so far, kWh.
        cooling_kwh: energy of cooling so far, kWh.
        waiting: jobs without a node.
        running: jobs that run.
        completed: jobs that are done.
        total: jobs of the trace.
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
    nodes: tuple[NodeScene, ...]

    def as_row(self) -> dict[str, Any]:
        """For a file of samples."""
        return asdict(self)

    @property
    def finished(self) -> bool:
        """Whether every job is done."""
        return self.total > 0 and self.completed >= self.total


def scene(
    nodes: Iterable[Node],
    twins: Iterable[NodeTwin],
    pods: Iterable[PodFacts],
    energy: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
) -> Scene:
    """The cluster now.

    Args:
        nodes: nodes to show.
        twins: their twins.
        pods: pods of the cluster.
        energy: answer of the simulator's /debug/energy.
        jobs: of its /debug/jobs.
    """
    by_node = {twin.spec.node_name: twin for twin in twins}
    on_node: dict[str, list[PodFacts]] = {}
    for pod in pods:
        if pod.node_name and pod.phase is not PodPhase.FINISHED:
            on_node.setdefault(pod.node_name, []).append(pod)
    states = [str(job["state"]) for job in jobs]
    submitted = [job for job in jobs if job["state"] == "submitted"]
    return Scene(
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
            _node_scene(node.metadata.name, by_node.get(node.metadata.name), on_node.get(node.metadata.name, []))
            for node in sorted(nodes, key=lambda node: node.metadata.name)
        ),
    )


def _node_scene(name: str, twin: NodeTwin | None, pods: Sequence[PodFacts]) -> NodeScene:
    performance_pods = sum(pod.effective_class() is WorkloadClass.PERFORMANCE for pod in pods)
    if twin is None:
        return NodeScene(
            name, _UNKNOWN, None, None, None, None, None, None, None, len(pods), performance_pods, "no twin yet"
        )
    status = twin.status
    power = status.power_measurement
    caps = status.effective_cap_state
    control = status.control_status
    outcomes = [item.result for item in (control.cpu, control.gpu) if item and item.result] if control else []
    return NodeScene(
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
