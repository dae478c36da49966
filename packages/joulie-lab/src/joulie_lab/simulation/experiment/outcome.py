"""What a run of an experiment leaves behind: the same whether it ran natively or on a control plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from joulie.domain.units import FloatArray, IntArray


class JobEnd(StrEnum):
    """What became of a job."""

    COMPLETED = "completed"
    RUNNING = "running"
    """Its work was not done at the end of the run."""
    WAITING = "waiting"
    """It had no node at the end of the run, though some node could hold it."""
    UNSCHEDULABLE = "unschedulable"
    """No node of the cluster could ever hold it, or its gang."""
    REFUSED = "refused"
    """The API server would not take its pod, or its numbers are none."""


@dataclass(frozen=True)
class JobOutcome:
    """One job (one pod) of the trace; times are s after the start of the trace.

    Attributes:
        job_id: of the trace.
        workload_id: the workload that it belongs to.
        workload_type: family, for reports.
        workload_class: performance or standard.
        end: what became of it.
        problem: why, where it is neither completed nor running; empty else.
        node: where it ran last; empty if nowhere.
        submit_s: when it was submitted.
        start_s: when it first ran; None if never.
        end_s: when its work was done; None if never.
        ideal_s: how long it runs alone, uncapped and unthrottled, once it (and its gang) runs, s.
        cpu_units: CPU work asked for, core-s at the highest clock.
        gpu_units: GPU work asked for, GPU-s without a cap.
        cpu_units_done: of it done by the end of the run.
        gpu_units_done: of it done by the end of the run.
    """

    job_id: str
    workload_id: str
    workload_type: str
    workload_class: str
    end: JobEnd
    submit_s: float
    ideal_s: float
    cpu_units: float
    gpu_units: float
    cpu_units_done: float
    gpu_units_done: float
    problem: str = ""
    node: str = ""
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class NodeOutcome:
    """One node: its family (GPU model, else CPU model) and its energy over the run, J."""

    name: str
    family: str
    energy_j: float


@dataclass(frozen=True)
class Drain:
    """A node on its way from performance to eco; `end_s` is None where it still was at the end of the run."""

    node: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class OutcomeSeries:
    """The cluster over time, arrays of shape ``(n_samples,)``, each value of the moment of the sample.

    Attributes:
        time_s: s after the start of the trace.
        it_w: power of all nodes, W.
        cooling_w: power of the cooling plant, W; zero without one.
        outdoor_k: temperature outdoors, K.
        running: pods that run.
        waiting: pods without a node.
        eco_nodes: nodes under eco caps.
        draining_nodes: nodes on their way there.
        capped_nodes: nodes whose CPUs or GPUs draw what their cap allows.
        throttled_nodes: nodes whose clock is held down by heat.
        performance_pods_on_eco: must be zero.
    """

    time_s: FloatArray
    it_w: FloatArray
    cooling_w: FloatArray
    outdoor_k: FloatArray
    running: IntArray
    waiting: IntArray
    eco_nodes: IntArray
    draining_nodes: IntArray
    capped_nodes: IntArray
    throttled_nodes: IntArray
    performance_pods_on_eco: IntArray


@dataclass(frozen=True)
class Pace:
    """How closely the simulator service followed the clock while time passed.

    Attributes:
        mean_s: between two looks at the cluster, s of the clock.
        p99_s: 99th percentile of that.
    """

    mean_s: float
    p99_s: float


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Attributes:
        duration_s: length of the run, s.
        it_j: energy of all nodes over the run, J.
        cooling_j: energy of the cooling plant, J; None without one.
        jobs: in order of submission.
        nodes: in order of their names.
        drains: in order of their beginnings.
        series: the cluster over time.
        carbon_g: emissions, gCO2eq; None where the scenario names no intensity.
        cost: None where the scenario names no price.
        notes: what a reader must know: lines left out, power extrapolated.
        pace: of the simulator service; None natively, where time waits.
        invalid: why the run does not count; empty for one that does.
    """

    duration_s: float
    it_j: float
    cooling_j: float | None
    jobs: tuple[JobOutcome, ...]
    nodes: tuple[NodeOutcome, ...]
    drains: tuple[Drain, ...]
    series: OutcomeSeries
    carbon_g: float | None = None
    cost: float | None = None
    notes: tuple[str, ...] = field(default=())
    pace: Pace | None = None
    invalid: str = ""
