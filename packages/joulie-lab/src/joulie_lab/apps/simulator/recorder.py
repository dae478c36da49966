"""Records a run of the simulator: samples over time, drains and, at the end, the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from joulie.domain.units import IntArray
from joulie_lab.apps.simulator.trace_player import JobRecord, JobState, TracePlayer
from joulie_lab.apps.simulator.world import World
from joulie_lab.simulation.experiment.outcome import (
    Drain,
    JobEnd,
    JobOutcome,
    NodeOutcome,
    Outcome,
    OutcomeSeries,
    Pace,
)
from joulie_lab.simulation.live.jobs import Work

SAMPLES = 2000
"""Number of samples of a run, independent of its duration."""

_ENDS = {
    JobState.WAITING: JobEnd.WAITING,
    JobState.SUBMITTED: JobEnd.WAITING,
    JobState.RUNNING: JobEnd.RUNNING,
    JobState.COMPLETED: JobEnd.COMPLETED,
    JobState.REFUSED: JobEnd.REFUSED,
}


class _Sample(NamedTuple):
    """One sample; the fields are those of `OutcomeSeries`."""

    time_s: float
    it_w: float
    cooling_w: float
    outdoor_k: float
    running: int
    waiting: int
    eco_nodes: int
    draining_nodes: int
    capped_nodes: int
    throttled_nodes: int
    performance_pods_on_eco: int
    """A momentary count: labels and pods arrive by separate watches, so a pod may briefly seem misplaced."""


class Recorder:
    """Records a world and the power states in its nodes' labels.

    Attributes:
        next_s: simulated time of the next sample, s.
    """

    def __init__(self, world: World, player: TracePlayer | None, duration_s: float, *, samples: int = SAMPLES) -> None:
        """Record a world from its start.

        Args:
            world: world to record.
            player: jobs of the trace; None without a trace.
            duration_s: duration of the run, s of simulated time.
            samples: number of samples to take.
        """
        self.next_s = 0.0
        self._world = world
        self._player = player
        self._interval_s = duration_s / samples
        self._samples: list[_Sample] = []
        self._polled_s: float | None = None
        self._gaps_s: list[float] = []
        self._eco: set[str] = set()
        self._draining_since_s: dict[str, float] = {}
        self._drains: list[Drain] = []

    def node(self, name: str, *, eco: bool, draining: bool) -> None:
        """Record a change of a node's power state."""
        (self._eco.add if eco else self._eco.discard)(name)
        if draining:
            self._draining_since_s.setdefault(name, self._world.time_s)
        elif name in self._draining_since_s:
            self._drains.append(Drain(name, self._draining_since_s.pop(name), self._world.time_s))

    def polled(self, clock_s: float) -> None:
        """Record that the simulator polled the cluster, to measure its pace.

        Args:
            clock_s: time on a monotonic clock, s.
        """
        if self._polled_s is not None:
            self._gaps_s.append(clock_s - self._polled_s)
        self._polled_s = clock_s

    def begin(self) -> None:
        """Start the run: drains recorded before do not count."""
        self._drains.clear()
        self._draining_since_s = dict.fromkeys(self._draining_since_s, 0.0)

    def sample(self) -> None:
        """Take a sample."""
        world = self._world
        fleet = world.fleet
        records = [] if self._player is None else [self._player.job_of_pod(key) for key in world.workload.pods]
        performance_nodes = [r.node for r in records if r is not None and r.workload_class == "performance"]
        self._samples.append(
            _Sample(
                time_s=world.time_s,
                it_w=world.it_power_w,
                cooling_w=world.cooling.cooling_w,
                outdoor_k=world.outdoor_k,
                running=len(world.workload),
                waiting=0 if self._player is None else self._player.counts()[JobState.SUBMITTED],
                eco_nodes=len(self._eco),
                draining_nodes=len(self._draining_since_s),
                capped_nodes=int(fleet.at_cap.sum()),
                throttled_nodes=int(fleet.throttled.sum()),
                performance_pods_on_eco=sum(node in self._eco for node in performance_nodes),
            )
        )
        self.next_s += self._interval_s

    def outcome(self, *, cooled: bool) -> Outcome:
        """The outcome of the run up to now.

        Args:
            cooled: whether the run has a cooling plant.
        """
        world = self._world
        open_drains = [Drain(node, start_s, None) for node, start_s in self._draining_since_s.items()]
        energies_j = world.fleet.state.energy_j.tolist()
        return Outcome(
            duration_s=world.time_s,
            it_j=world.it_energy_j,
            cooling_j=world.cooling_energy_j if cooled else None,
            jobs=tuple(self._jobs()),
            nodes=tuple(
                NodeOutcome(spec.name, spec.gpu.key if spec.gpu else spec.cpu.key, energy_j)
                for spec, energy_j in zip(world.fleet.specs, energies_j, strict=True)
            ),
            drains=tuple(sorted([*self._drains, *open_drains], key=lambda drain: (drain.start_s, drain.node))),
            series=_series(self._samples),
            pace=Pace(float(np.mean(self._gaps_s)), float(np.percentile(self._gaps_s, 99))) if self._gaps_s else None,
        )

    def _jobs(self) -> Iterator[JobOutcome]:
        if self._player is None:
            return
        workload = self._world.workload
        for record in self._player.records.values():
            left = workload.work_left(record.pod_key) if record.pod_key in workload else record.work
            yield _job(record, left)


def _job(record: JobRecord, left: Work) -> JobOutcome:
    job = record.job
    return JobOutcome(
        job_id=job.job_id,
        workload_id=job.workload_id,
        workload_type=job.workload_type,
        workload_class=record.workload_class,
        end=_ENDS[record.state],
        submit_s=job.submit_s,
        ideal_s=job.ideal_s,
        cpu_units=job.cpu_units,
        gpu_units=job.gpu_units,
        cpu_units_done=job.cpu_units - left.cpu_units,
        gpu_units_done=job.gpu_units - left.gpu_units,
        problem=record.problem,
        node=record.node,
        start_s=record.started_s,
        end_s=record.completed_s,
    )


def _series(samples: list[_Sample]) -> OutcomeSeries:
    columns = list(zip(*samples, strict=True)) or [()] * len(_Sample._fields)
    time_s, it_w, cooling_w, outdoor_k = (np.asarray(column, dtype=np.float64) for column in columns[:4])
    counts: list[IntArray] = [np.asarray(column, dtype=np.int64) for column in columns[4:]]
    return OutcomeSeries(time_s, it_w, cooling_w, outdoor_k, *counts)
