"""Lifecycle of the jobs of a run, from submission to completion, and their outcomes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.policy import WorkloadClass
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome
from joulie_lab.simulation.native.fitting import EmptyCluster
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.pods import RefusedError, SimPod, sim_pod
from joulie_lab.simulation.native.running import RunningJobs
from joulie_lab.simulation.trace import TraceJob


class Placement(NamedTuple):
    """Node and GPUs of a pod."""

    node: int
    """Index of the node."""
    devices: tuple[int, ...]
    """Indices of its GPUs on the node."""


@dataclass
class _Record:
    job: TraceJob
    pod: SimPod | None = None
    end: JobEnd = JobEnd.WAITING
    problem: str = ""
    placement: Placement | None = None
    start_s: float | None = None
    end_s: float | None = None


class Jobs:
    """State of each job of a trace.

    Attributes:
        gang_sizes: number of members by gang, among the jobs that will be submitted.
        notes: notes for the reader of the results.
    """

    def __init__(
        self,
        jobs: Iterable[TraceJob],
        nodes: Sequence[SimNode],
        arrivals_s: float,
        priorities: Mapping[str, int],
        *,
        share_gpus: bool,
    ) -> None:
        """Validate all jobs: those that could never run are marked before the run begins.

        Args:
            jobs: jobs of the trace, in any order.
            nodes: nodes of the cluster.
            arrivals_s: jobs submitted at or after this time are left out, s.
            priorities: value by PriorityClass.
            share_gpus: see `sim_pod`.
        """
        ordered = sorted(jobs, key=lambda job: job.submit_s)
        self._node_names = [node.name for node in nodes]
        self._records = [_Record(job) for job in ordered if job.submit_s < arrivals_s]
        late = len(ordered) - len(self._records)
        self.notes: tuple[str, ...] = (f"{late} jobs submitted after the arrivals are left out",) if late else ()
        cluster = EmptyCluster(nodes, share_gpus=share_gpus)
        gangs: defaultdict[str, list[_Record]] = defaultdict(list)
        for index, record in enumerate(self._records):
            self._validate(index, record, cluster, priorities, share_gpus=share_gpus)
            if record.job.gang:
                gangs[record.job.workload_id].append(record)
        for members in gangs.values():
            _validate_gang(members, cluster)
        self.gang_sizes: Counter[str] = Counter(pod.gang for pod in self._pods if pod.gang is not None)
        self._due = iter(self._pods)
        self._next = next(self._due, None)

    @property
    def next_submit_s(self) -> float:
        """Time at which the next job is submitted, s; inf after the last one."""
        return math.inf if self._next is None else self._next.job.submit_s

    def submitted(self, now_s: float) -> list[SimPod]:
        """Pods of the jobs submitted by now that were not returned before."""
        found = []
        while self._next is not None and self._next.job.submit_s <= now_s:
            found.append(self._next)
            self._next = next(self._due, None)
        return found

    def started(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """Record that a pod starts to run on a node."""
        record = self._records[pod.index]
        record.placement, record.start_s, record.end = Placement(node, devices), now_s, JobEnd.RUNNING

    def finished(self, pod: SimPod, now_s: float) -> Placement:
        """Record that the work of a pod is done. Returns its placement."""
        record = self._records[pod.index]
        assert record.placement is not None
        record.end, record.end_s = JobEnd.COMPLETED, now_s
        return record.placement

    def outcomes(self, running: RunningJobs, now_s: float) -> tuple[JobOutcome, ...]:
        """Outcomes of all jobs, in order of submission.

        Args:
            running: the running jobs.
            now_s: end of the run, s.
        """
        return tuple(self._outcome(record, running, now_s) for record in self._records)

    @property
    def _pods(self) -> list[SimPod]:
        return [record.pod for record in self._records if record.pod is not None and record.end is JobEnd.WAITING]

    def _validate(
        self, index: int, record: _Record, cluster: EmptyCluster, priorities: Mapping[str, int], *, share_gpus: bool
    ) -> None:
        try:
            record.pod = sim_pod(index, record.job, share_gpus=share_gpus, priorities=priorities)
        except RefusedError as error:
            record.end, record.problem = JobEnd.REFUSED, str(error)
            return
        problem = None if record.job.gang else cluster.never_fits(record.job)
        if problem is not None:
            record.end, record.problem = JobEnd.UNSCHEDULABLE, problem

    def _outcome(self, record: _Record, running: RunningJobs, now_s: float) -> JobOutcome:
        job, pod, end, problem = record.job, record.pod, record.end, record.problem
        cpu_left, gpu_left = job.cpu_units, job.gpu_units
        if end is JobEnd.COMPLETED:
            cpu_left = gpu_left = 0.0
        elif end is JobEnd.RUNNING and pod is not None:
            cpu_left, gpu_left = running.work_left(pod, now_s)
        if pod is not None and end in {JobEnd.RUNNING, JobEnd.WAITING}:
            partly = None if pod.gang is None else self._partly_placed(pod.gang, running)
            if partly is not None:
                end, problem = JobEnd.WAITING, partly
            elif end is JobEnd.WAITING:
                problem = "no node that it may use had enough free capacity"
        return JobOutcome(
            job_id=job.job_id,
            workload_id=job.workload_id,
            workload_type=job.workload_type,
            workload_class=(WorkloadClass.PERFORMANCE if job.is_performance else WorkloadClass.STANDARD).value,
            end=end,
            submit_s=job.submit_s,
            ideal_s=0.0 if pod is None else job.ideal_s,
            cpu_units=job.cpu_units,
            gpu_units=job.gpu_units,
            cpu_units_done=job.cpu_units - cpu_left,
            gpu_units_done=job.gpu_units - gpu_left,
            problem=problem,
            node="" if record.placement is None else self._node_names[record.placement.node],
            start_s=record.start_s,
            end_s=record.end_s,
        )

    def _partly_placed(self, gang: str, running: RunningJobs) -> str | None:
        """How many members of a gang are placed, in words; None if all are."""
        size, missing = self.gang_sizes[gang], running.missing_members(gang)
        return f"{size - missing} of {size} members placed" if missing > 0 else None


def _validate_gang(members: Sequence[_Record], cluster: EmptyCluster) -> None:
    """Mark all members of a gang as unschedulable if one of them is refused, or if the gang could never fit."""
    refused = next((one for one in members if one.end is JobEnd.REFUSED), None)
    problem = (
        cluster.gang_never_fits([one.job for one in members])
        if refused is None
        else f"gang {refused.job.workload_id}: {refused.job.job_id} is refused"
    )
    if problem is None:
        return
    for one in members:
        if one.end is JobEnd.WAITING:
            one.end, one.problem = JobEnd.UNSCHEDULABLE, problem
