"""Replays a job trace: decides which jobs are due, builds their pods and tracks their states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from joulie.adapters.kubernetes.names import (
    CPU_SENSITIVITY_ANNOTATION,
    GPU_SENSITIVITY_ANNOTATION,
    WORKLOAD_CLASS_ANNOTATION,
)
from joulie_lab.simulation.live.jobs import Work
from joulie_lab.simulation.trace import TraceJob

JOB_LABEL = "sim.joulie.io/job"
WORKLOAD_LABEL = "sim.joulie.io/workload"
GANG_GATE = "sim.joulie.io/gang"
"""Scheduling gate of a gang's pods until the gang is released."""
_IMAGE = "registry.k8s.io/pause:3.10"
_MAX_LABEL = 63
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_KWOK_TAINT = {"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}
_WHOLE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


class JobState(StrEnum):
    """State of a job."""

    WAITING = "waiting"
    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    """The API server rejected its pod."""


@dataclass
class JobRecord:
    """A job of the trace and its progress; times are simulated seconds.

    Attributes:
        job: the job.
        work: remaining work.
        state: state of the job.
        attempt: number of times that its pod was recreated.
        node: node that its pod runs or ran on; empty before.
        started_s: time of its first start, s; None before.
        completed_s: time of its completion, s; None before.
        problem: why it was refused, or why its gang is not released; empty if neither.
        held: whether its pod is gated until its gang is released.
    """

    job: TraceJob
    work: Work
    state: JobState = JobState.WAITING
    attempt: int = 0
    node: str = ""
    started_s: float | None = None
    completed_s: float | None = None
    problem: str = ""
    held: bool = False

    @property
    def pod_name(self) -> str:
        """Name of its current pod."""
        return self.job.job_id if self.attempt == 0 else f"{self.job.job_id}-r{self.attempt}"

    @property
    def pod_key(self) -> str:
        """Namespace and name of its current pod."""
        return f"{self.job.namespace}/{self.pod_name}"

    @property
    def workload_class(self) -> str:
        """Workload class from the annotation: performance, or else standard; a bounded set, for metric labels."""
        return "performance" if self.job.annotations.get(WORKLOAD_CLASS_ANNOTATION) == "performance" else "standard"


@dataclass
class TracePlayer:
    """Tracks the jobs of a trace over time.

    Attributes:
        scheduler_name: scheduler name of the pods.
        holds_gangs: whether the pods of a gang are gated until all of them fit.
        records: jobs by id, in order of submission.
    """

    scheduler_name: str
    holds_gangs: bool = False
    records: dict[str, JobRecord] = field(default_factory=dict)
    _by_pod: dict[str, JobRecord] = field(default_factory=dict)
    _gang_size: Counter[str] = field(default_factory=Counter)
    _next: int = 0
    _order: list[JobRecord] = field(default_factory=list)
    _again: list[JobRecord] = field(default_factory=list)

    @classmethod
    def of(cls, jobs: Iterable[TraceJob], scheduler_name: str, *, holds_gangs: bool = False) -> TracePlayer:
        """Create a player at the start of the trace.

        Raises:
            ValueError: two jobs have the same id.
        """
        player = cls(scheduler_name, holds_gangs)
        for job in sorted(jobs, key=lambda job: (job.submit_s, job.job_id)):
            if job.job_id in player.records:
                raise ValueError(f"duplicate job id {job.job_id}")
            record = JobRecord(job, Work(job.cpu_units, job.gpu_units))
            player.records[job.job_id] = record
            player._order.append(record)
            if job.gang:
                player._gang_size[job.workload_id] += 1
        return player

    def due(self, time_s: float) -> list[JobRecord]:
        """The jobs whose pods are to be created now: newly submitted ones and those that lost their pod."""
        due, self._again = self._again, []
        while self._next < len(self._order) and self._order[self._next].job.submit_s <= time_s:
            due.append(self._order[self._next])
            self._next += 1
        return due

    def submitted(self, record: JobRecord) -> None:
        """The pod of a job was created."""
        record.state = JobState.SUBMITTED
        record.held = self._holds(record)
        self._by_pod[record.pod_key] = record

    def refused(self, record: JobRecord, problem: str) -> None:
        """The API server rejected the pod permanently."""
        record.state, record.problem = JobState.REFUSED, problem

    def retry(self, record: JobRecord) -> None:
        """The pod could not be created for a transient reason; try again at the next tick."""
        self._again.append(record)

    def started(self, pod_key: str, node: str, time_s: float) -> JobRecord | None:
        """A pod started running; returns its job, None if it belongs to no job of the trace."""
        record = self._by_pod.get(pod_key)
        if record is None or record.state is JobState.COMPLETED:
            return None
        record.state, record.node, record.held, record.problem = JobState.RUNNING, node, False, ""
        if record.started_s is None:
            record.started_s = time_s
        return record

    def completed(self, pod_key: str, time_s: float) -> JobRecord | None:
        """A pod completed its job's work; returns the job, None if it belongs to no uncompleted job of the trace."""
        record = self._by_pod.get(pod_key)
        if record is None or record.state is JobState.COMPLETED:
            return None
        record.state, record.completed_s, record.work = JobState.COMPLETED, time_s, Work(0.0, 0.0)
        return record

    def lost(self, pod_key: str, left: Work | None) -> JobRecord | None:
        """A pod was deleted before it completed (eviction, deleted node); a new pod continues the remaining work."""
        record = self._by_pod.pop(pod_key, None)
        if record is None or record.state is JobState.COMPLETED:
            return None
        if left is not None:
            record.work = left
        if record.work == Work(record.job.cpu_units, record.job.gpu_units):
            # No work was done: a stopped member of a gang counts as not started.
            record.started_s, record.node = None, ""
        record.state, record.attempt, record.held = JobState.WAITING, record.attempt + 1, False
        self._again.append(record)
        return record

    def job_of_pod(self, pod_key: str) -> JobRecord | None:
        """The job that a pod belongs to; None if it belongs to no job of the trace."""
        return self._by_pod.get(pod_key)

    def counts(self) -> Counter[JobState]:
        """Number of jobs in each state."""
        return Counter(record.state for record in self._order)

    def gangs(self) -> dict[str, list[JobRecord]]:
        """The members of each gated gang, in the order in which the gangs are completely submitted."""
        members: dict[str, list[JobRecord]] = {}
        for record in self._order:
            if self._holds(record):
                gang = record.job.workload_id
                members[gang] = members.pop(gang, [])
                members[gang].append(record)
        return members

    def alone(self) -> Iterator[JobRecord]:
        """The jobs outside gangs whose pods were created and do not run yet."""
        return (one for one in self._order if one.state is JobState.SUBMITTED and not self._holds(one))

    def gang(self, job: TraceJob) -> tuple[str | None, int]:
        """The gang of a job and its size; None and 1 if it is in no gang."""
        return (job.workload_id, self._gang_size[job.workload_id]) if job.gang else (None, 1)

    @property
    def finished(self) -> bool:
        """Whether all jobs have ended."""
        return all(record.state in {JobState.COMPLETED, JobState.REFUSED} for record in self._order)

    def pod(self, record: JobRecord) -> dict[str, Any]:
        """Build the pod of a job."""
        job = record.job
        limits = {name: amount for name, amount in job.requests.items() if name not in _WHOLE_RESOURCES}
        spec: dict[str, Any] = {
            "schedulerName": self.scheduler_name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": dict(job.node_selector),
            "tolerations": [_KWOK_TAINT],
            "containers": [
                {"name": "work", "image": _IMAGE, "resources": {"requests": dict(job.requests), "limits": limits}}
            ],
        }
        if self._holds(record):
            spec["schedulingGates"] = [{"name": GANG_GATE}]
        if job.affinity is not None:
            spec["affinity"] = dict(job.affinity)
        if job.priority_class:
            spec["priorityClassName"] = job.priority_class
        labels = {JOB_LABEL: _label_value(job.job_id), WORKLOAD_LABEL: _label_value(job.workload_id)}
        metadata = {"name": record.pod_name, "labels": labels, "annotations": _annotations(job)}
        return {"metadata": metadata, "spec": spec}

    def _holds(self, record: JobRecord) -> bool:
        return self.holds_gangs and record.job.gang and self._gang_size[record.job.workload_id] > 1

    def describe(self) -> list[dict[str, Any]]:
        """All jobs, for /debug/jobs."""
        return [
            {
                "jobId": record.job.job_id,
                "pod": record.pod_key,
                "class": record.workload_class,
                "state": record.state,
                "node": record.node,
                "submittedSeconds": record.job.submit_s,
                "startedSeconds": record.started_s,
                "completedSeconds": record.completed_s,
                "attempts": record.attempt + 1,
                "problem": record.problem,
            }
            for record in self._order
        ]


def _annotations(job: TraceJob) -> dict[str, str]:
    """Annotations of a job's pod: the trace's sensitivities, overridden by the job's own annotations."""
    said = {CPU_SENSITIVITY_ANNOTATION: job.cpu_sensitivity, GPU_SENSITIVITY_ANNOTATION: job.gpu_sensitivity}
    return {name: level for name, level in said.items() if level} | dict(job.annotations)


def _label_value(text: str) -> str:
    """Convert free text, such as a workload id, to a valid label value, without dashes at its ends."""
    return _NOT_IN_LABELS.sub("-", text)[:_MAX_LABEL].strip("-._")
