"""Outcome of a run of an experiment, in the same form for native runs and runs on a control plane."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from joulie.domain.units import FloatArray, IntArray


class JobEnd(StrEnum):
    """State of a job at the end of the run."""

    COMPLETED = "completed"
    RUNNING = "running"
    """It was running, its work not done."""
    WAITING = "waiting"
    """It had no node, though some node could hold it."""
    UNSCHEDULABLE = "unschedulable"
    """No node of the cluster could ever hold it, or its gang."""
    REFUSED = "refused"
    """The API server would reject its pod, or its numbers are invalid."""


@dataclass(frozen=True)
class JobOutcome:
    """Outcome of a job (a pod) of the trace; times are s after the start of the trace.

    Attributes:
        job_id: identifier in the trace.
        workload_id: workload that it belongs to.
        workload_type: family of the workload, for reports.
        workload_class: performance or standard.
        end: state at the end of the run.
        problem: reason if it is neither completed nor running; else empty.
        node: node on which it ran last; empty if none.
        submit_s: submission time.
        start_s: time of its first run; None if it never ran.
        end_s: time at which its work was done; None if it was not.
        ideal_s: duration alone, uncapped and unthrottled, once it (and its gang) runs, s.
        cpu_units: CPU work, core-s at the highest clock.
        gpu_units: GPU work, uncapped GPU-s.
        cpu_units_done: CPU work done by the end of the run.
        gpu_units_done: GPU work done by the end of the run.
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
    """Outcome of a node: its family (GPU model, else CPU model) and its energy over the run, J."""

    name: str
    family: str
    energy_j: float


@dataclass(frozen=True)
class Drain:
    """Drain of a node from performance to eco, s after the start; `end_s` is None if it had not ended with the run."""

    node: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class OutcomeSeries:
    """The cluster over time: instantaneous values, arrays of shape ``(n_samples,)``.

    Attributes:
        time_s: time of the sample, s after the start of the trace.
        it_w: power of all nodes, W.
        cooling_w: power of the cooling plant, W; zero without one.
        outdoor_k: outdoor temperature, K.
        running: number of running pods.
        waiting: number of pods without a node.
        eco_nodes: number of nodes under eco caps.
        draining_nodes: number of draining nodes.
        capped_nodes: number of nodes whose CPUs or GPUs are slowed by their cap.
        throttled_nodes: number of thermally throttled nodes.
        performance_pods_on_eco: number of performance pods on eco nodes; must be zero.
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
    """How closely the simulator service followed the wall clock.

    Attributes:
        mean_s: mean wall time between two updates of the cluster, s.
        p99_s: 99th percentile of it, s.
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
        jobs: outcomes of the jobs, in order of submission.
        nodes: outcomes of the nodes, ordered by name.
        drains: drains, ordered by start.
        series: the cluster over time.
        busy_gpu_j: energy of GPUs while pods held them, J; None where it was not measured.
        busy_gpu_s: time for which pods held GPUs, GPU-s; None where it was not measured.
        carbon_g: emissions, gCO2eq; None if the scenario names no carbon intensity.
        cost: cost in the scenario's currency; None if it names no price.
        notes: notes for the reader: lines left out, power extrapolated.
        pace: pace of the simulator service; None for native runs, which do not follow the clock.
        invalid: why the run does not count; empty if it does.
    """

    duration_s: float
    it_j: float
    cooling_j: float | None
    jobs: tuple[JobOutcome, ...]
    nodes: tuple[NodeOutcome, ...]
    drains: tuple[Drain, ...]
    series: OutcomeSeries
    busy_gpu_j: float | None = None
    busy_gpu_s: float | None = None
    carbon_g: float | None = None
    cost: float | None = None
    notes: tuple[str, ...] = field(default=())
    pace: Pace | None = None
    invalid: str = ""
