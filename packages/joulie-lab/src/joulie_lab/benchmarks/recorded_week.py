"""Benchmark replay: a plant that differs from the model in hidden ways, and the recording of it.

The plant is the native runtime, with jobs whose memory and I/O intensity no recording has, behind meters: each node
draws more or less than its model in a way of its own, and more at high load; fans follow the outdoor temperature; the
use of pods is measured with an error; meters have noise and drop out. The responses of its GPUs to limits are drawn
apart from those of the replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from joulie.adapters.recording_files import Head, RecordingFiles
from joulie.domain.power.cpu import CpuPower
from joulie.domain.recording import Exit, NodeRecord, Period, PodRecord
from joulie.domain.units import SECONDS_PER_HOUR, FloatArray, joules_to_kwh
from joulie_lab.simulation.experiment.outcome import JobOutcome, Outcome
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import SimNode, sim_nodes
from joulie_lab.simulation.native.runtime import Sample, Setup, run
from joulie_lab.simulation.trace import TraceJob
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.settings import Arrivals, GeneratorSettings

START_S = 1_790_000_000.0 // 86400.0 * 86400.0
"""Start of the recording, s since the epoch."""
STEP_S = 300.0
"""Time between two samples, s."""
_SEED = 7
_NODE_SPREAD, _CURVATURE, _FANS_PER_K = 0.03, 0.05, 0.002
_FAMILY_BASE_W, _FAMILY_FACTOR = (0.0, 60.0), (0.85, 1.15)
"""What the family of a node adds to its model's power, and by what it multiplies it, at most."""
_DAILY_K = 8.0
_METER_NOISE, _DROPOUT, _USE_ERROR = 0.01, 0.02, 0.03


@dataclass(frozen=True)
class Plan:
    """What is recorded.

    Attributes:
        nodes: number of nodes, a multiple of 10.
        hours: length of the recording, h.
        drain_hours: time after it in which its jobs can finish, h.
        workloads_per_hour: arrivals, for as many nodes.
        seeds: number of runs of each policy in the replay.
    """

    nodes: int
    hours: int
    drain_hours: float
    workloads_per_hour: float
    seeds: int


FULL = Plan(nodes=200, hours=168, drain_hours=96.0, workloads_per_hour=60.0, seeds=3)
SMALL = Plan(nodes=20, hours=48, drain_hours=48.0, workloads_per_hour=8.0, seeds=2)
LARGE = Plan(nodes=1000, hours=168, drain_hours=24.0, workloads_per_hour=325.0, seeds=1)
SMALL_LARGE = Plan(nodes=20, hours=24, drain_hours=24.0, workloads_per_hour=8.0, seeds=1)


class Plant:
    """The plant and its recording.

    Args:
        plan: what is recorded.
        seed: seed of jobs and hidden differences.
    """

    def __init__(self, plan: Plan, seed: int = _SEED) -> None:
        self.plan = plan
        self._seed = seed
        tenth = plan.nodes // 10
        self.nodes = sim_nodes(
            [
                NodeGroup(name="h100", count=2 * tenth, cpu="AMD EPYC 9654", gpu="NVIDIA H100 NVL", gpus=8),
                NodeGroup(name="l40s", count=2 * tenth, cpu="AMD EPYC 9534", gpu="NVIDIA L40S", gpus=4),
                NodeGroup(name="cpu", count=6 * tenth, cpu="AMD EPYC 9655"),
            ]
        )
        rng = np.random.default_rng(seed)
        families = sorted({node.family for node in self.nodes})
        own = np.array([families.index(node.family) for node in self.nodes])
        self._base_w = rng.uniform(*_FAMILY_BASE_W, len(families))[own]
        factor = rng.uniform(*_FAMILY_FACTOR, len(families))[own]
        self._factor = factor * rng.normal(1.0, _NODE_SPREAD, len(self.nodes))
        self._rng = rng

    @cached_property
    def jobs(self) -> tuple[TraceJob, ...]:
        """What runs on it."""
        settings = GeneratorSettings(
            arrivals=Arrivals(workloads_per_hour=self.plan.workloads_per_hour, pattern="diurnal"),
            gpu_share=0.6,
            performance_share=0.25,
            gpu_resources={"nvidia.com/gpu": 1.0},
        )
        return tuple(generate(settings, self._seed, float(self.plan.hours)))

    def play(self, control: Control | None, scheduler: str) -> tuple[Outcome, FloatArray]:
        """Run the jobs. Returns the outcome, and the true power of each node by step, W, ``(n_nodes, n_steps)``."""
        hours = self.plan.hours + self.plan.drain_hours
        node_j: list[FloatArray] = []

        def keep(sample: Sample) -> None:
            node_j.append(sample.node_j.copy())

        setup = Setup(
            nodes=self.nodes,
            duration_s=hours * SECONDS_PER_HOUR,
            control=control,
            scheduler=scheduler,
            seed=self._seed,
            n_samples=round(hours * SECONDS_PER_HOUR / STEP_S) + 1,
        )
        outcome = run(setup, self.jobs, on_sample=keep)
        model_w = np.diff(np.array(node_j).T, axis=1) / STEP_S
        return outcome, self._true_w(model_w)

    def _true_w(self, model_w: FloatArray) -> FloatArray:
        full_w = np.array([_full_w(node) for node in self.nodes])[:, np.newaxis]
        bent_w = model_w * (1.0 + _CURVATURE * (model_w / full_w - 0.5))
        hour = np.arange(model_w.shape[1]) * STEP_S / SECONDS_PER_HOUR
        fans = 1.0 + _FANS_PER_K * _DAILY_K * np.sin(2.0 * np.pi * (hour - 9.0) / 24.0)
        return np.asarray(self._base_w[:, np.newaxis] + self._factor[:, np.newaxis] * bent_w * fans)

    def record(self, folder: Path) -> float:
        """Record a week without power management. Returns the true energy, that of the drain included, kWh."""
        outcome, true_w = self.play(None, "kube")
        hours = self.plan.hours
        period = Period(START_S, START_S + hours * SECONDS_PER_HOUR)
        files = RecordingFiles.create(folder, Head(period, STEP_S, anonymised=False))
        files.write("nodes", [asdict(node_record(node)) for node in self.nodes])
        by_id = {job.job_id: job for job in self.jobs}
        ran = [one for one in outcome.jobs if one.start_s is not None and one.start_s < hours * SECONDS_PER_HOUR]
        files.write("pods", [asdict(pod_record(one, by_id[one.job_id], period)) for one in ran])
        error = dict(zip((one.job_id for one in ran), self._rng.normal(1.0, _USE_ERROR, len(ran)), strict=True))
        for number, hour in enumerate(period.hours):
            files.write("use", list(_use_rows(ran, by_id, error, hour)), hour)
            files.write("power", list(self._power_rows(true_w, number, hour)), hour)
        return kwh(true_w)

    def _power_rows(self, true_w: FloatArray, number: int, hour: Period) -> Iterator[Mapping[str, object]]:
        steps = round(SECONDS_PER_HOUR / STEP_S)
        own_w = true_w[:, number * steps : (number + 1) * steps]
        measured_w = own_w * self._rng.normal(1.0, _METER_NOISE, own_w.shape)
        there = self._rng.random(own_w.shape) >= _DROPOUT
        # The meter of one node is broken for a quarter of the time.
        there[0] &= (number // 6) % 4 != 0
        for node, step in zip(*np.nonzero(there), strict=True):
            time_s = hour.from_s + (step + 1) * STEP_S
            yield {"time_s": time_s, "node": self.nodes[node].name, "power_w": float(measured_w[node, step])}


def kwh(power_w: FloatArray) -> float:
    """Energy of power by node and step, kWh."""
    return joules_to_kwh(float(power_w.sum()) * STEP_S)


def _full_w(node: SimNode) -> float:
    gpus_w = 0.0 if node.spec.gpu is None else node.spec.gpus * node.spec.gpu.default_w
    return float(CpuPower.of(node.spec.cpu, node.spec.sockets).curve_w[-1]) + gpus_w


def node_record(node: SimNode) -> NodeRecord:
    """A simulated node as a recording has it."""
    spec = node.spec
    return NodeRecord(
        node=node.name,
        cpu_model=spec.cpu.key,
        sockets=spec.sockets,
        cores=spec.cores,
        memory_gib=node.memory_gib,
        gpu_model=None if spec.gpu is None else spec.gpu.key,
        gpus=spec.gpus,
        gpu_resource=node.gpu_resource or None,
    )


def pod_record(one: JobOutcome, job: TraceJob, period: Period) -> PodRecord:
    """A job that started, as a recording has its pod."""
    ended = one.end_s is not None and one.end_s <= period.until_s - period.from_s
    assert one.start_s is not None
    return PodRecord(
        uid=one.job_id,
        namespace=job.namespace,
        name=one.job_id,
        owner_kind="Job",
        owner_name=job.workload_id,
        workload_class=one.workload_class,
        cpu_cores=job.shape.cores,
        memory_gib=job.shape.memory_gib,
        gpus=float(job.shape.gpus),
        arrived_s=period.from_s + job.submit_s,
        started_s=period.from_s + one.start_s,
        ended_s=period.from_s + one.end_s if ended and one.end_s is not None else None,
        node=one.node,
        exit=Exit.SUCCEEDED if ended else None,
    )


def _use_rows(
    ran: Sequence[JobOutcome], jobs: Mapping[str, TraceJob], error: Mapping[str, float], hour: Period
) -> Iterator[Mapping[str, object]]:
    """Use of the pods that run at the end of the hour or end in it; one sample, since it does not change."""
    from_s, until_s = hour.from_s - START_S, hour.until_s - START_S
    for one in ran:
        assert one.start_s is not None
        if one.start_s < until_s and (one.end_s is None or one.end_s > from_s):
            job, profile = jobs[one.job_id], jobs[one.job_id].profile
            yield {
                "time_s": min(until_s, one.end_s or until_s) + START_S,
                "namespace": job.namespace,
                "pod": one.job_id,
                "cpu_cores": job.shape.cores * profile.cpu_utilization * error[one.job_id],
                "gpu_pct": min(100.0, 100.0 * profile.gpu_utilization * error[one.job_id]) if job.shape.gpus else None,
            }
