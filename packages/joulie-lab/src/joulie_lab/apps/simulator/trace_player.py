"""Plays a trace: which jobs are due, what their pods look like, what became of them."""

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
"""Scheduling gate of a gang's pods while they are held back."""
_IMAGE = "registry.k8s.io/pause:3.10"
_MAX_LABEL = 63
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_KWOK_TAINT = {"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}
_WHOLE_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


class JobState(StrEnum):
    """Where a job is in its life."""

    WAITING = "waiting"
    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    """The API server does not take its pod."""


@dataclass
class JobRecord:
    """One job and what became of it; times are simulated seconds.

    Attributes:
        job: the job.
        work: what it has left.
        state: see `JobState`.
        attempt: how often its pod was created anew.
        node: where its pod runs, or ran.
        started_s: when it first ran.
        completed_s: when its work was done.
        problem: why it is refused.
        held: whether its pod is kept from the scheduler until its gang can go.
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
        """Name of its present pod."""
        return self.job.job_id if self.attempt == 0 else f"{self.job.job_id}-r{self.attempt}"

    @property
    def pod_key(self) -> str:
        """Namespace and name of its present pod."""
        return f"{self.job.namespace}/{self.pod_name}"

    @property
    def workload_class(self) -> str:
        """What the annotation says, performance or standard: bounded, for metrics."""
        return "performance" if self.job.annotations.get(WORKLOAD_CLASS_ANNOTATION) == "performance" else "standard"


@dataclass
class TracePlayer:
    """The jobs of a trace in time.

    Attributes:
        scheduler_name: scheduler of the pods.
        holds_gangs: whether the pods of gangs are kept from the scheduler until all of them have room.
        records: the jobs by id, in order of submission.
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
        """A player at the start of the trace.

        Raises:
            ValueError: two jobs have one id.
        """
        player = cls(scheduler_name, holds_gangs)
        for job in sorted(jobs, key=lambda job: (job.submit_s, job.job_id)):
            if job.job_id in player.records:
                raise ValueError(f"job {job.job_id} is there twice")
            record = JobRecord(job, Work(job.cpu_units, job.gpu_units))
            player.records[job.job_id] = record
            player._order.append(record)
            if job.gang:
                player._gang_size[job.workload_id] += 1
        return player

    def due(self, time_s: float) -> list[JobRecord]:
        """The jobs whose pods are to be created now: those whose time has come, and those that lost their pod."""
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
        """The API server does not take the pod, and will not take it later either."""
        record.state, record.problem = JobState.REFUSED, problem

    def retry(self, record: JobRecord) -> None:
        """The pod could not be created just now."""
        self._again.append(record)

    def started(self, pod_key: str, node: str, time_s: float) -> JobRecord | None:
        """A pod runs; its record, None where no job of the trace owns it."""
        record = self._by_pod.get(pod_key)
        if record is None or record.state is JobState.COMPLETED:
            return None
        record.state, record.node, record.held, record.problem = JobState.RUNNING, node, False, ""
        if record.started_s is None:
            record.started_s = time_s
        return record

    def completed(self, pod_key: str, time_s: float) -> JobRecord | None:
        """The work of a pod is done."""
        record = self._by_pod.get(pod_key)
        if record is None or record.state is JobState.COMPLETED:
            return None
        record.state, record.completed_s, record.work = JobState.COMPLETED, time_s, Work(0.0, 0.0)
        return record

    def lost(self, pod_key: str, left: Work | None) -> JobRecord | None:
        """A pod is gone before its work was done (evicted, its node deleted): another one goes on where it stopped."""
        record = self._by_pod.pop(pod_key, None)
        if record is None or record.state is JobState.COMPLETED:
            return None
        if left is not None:
            record.work = left
        if record.work == Work(record.job.cpu_units, record.job.gpu_units):
            # Nothing was done: a member of a gang that gave up its place has not begun.
            record.started_s, record.node = None, ""
        record.state, record.attempt, record.held = JobState.WAITING, record.attempt + 1, False
        self._again.append(record)
        return record

    def of_pod(self, pod_key: str) -> JobRecord | None:
        """The job that a pod belongs to, None where no job of the trace owns it."""
        return self._by_pod.get(pod_key)

    def counts(self) -> Counter[JobState]:
        """How many jobs are in each state."""
        return Counter(record.state for record in self._order)

    def gangs(self) -> dict[str, list[JobRecord]]:
        """The members of each gang that is held back, in the order in which the gangs are complete."""
        members: dict[str, list[JobRecord]] = {}
        for record in self._order:
            if self._holds(record):
                gang = record.job.workload_id
                members[gang] = members.pop(gang, [])
                members[gang].append(record)
        return members

    def alone(self) -> Iterator[JobRecord]:
        """The jobs outside of gangs whose pods were created and do not run yet."""
        return (one for one in self._order if one.state is JobState.SUBMITTED and not self._holds(one))

    def gang(self, job: TraceJob) -> tuple[str | None, int]:
        """The gang of a job and its size; None and 1 outside of any."""
        return (job.workload_id, self._gang_size[job.workload_id]) if job.gang else (None, 1)

    @property
    def finished(self) -> bool:
        """Whether no job is left."""
        return all(record.state in {JobState.COMPLETED, JobState.REFUSED} for record in self._order)

    def pod(self, record: JobRecord) -> dict[str, Any]:
        """The pod of a job, as it is created."""
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
    """Annotations of the pod of a job: what the trace says of sensitivities, under what its own annotations say."""
    said = {CPU_SENSITIVITY_ANNOTATION: job.cpu_sensitivity, GPU_SENSITIVITY_ANNOTATION: job.gpu_sensitivity}
    return {name: level for name, level in said.items() if level} | dict(job.annotations)


def _label_value(text: str) -> str:
    """A text as a label may have it: ids of workloads are free text, and what is cut may end in a dash."""
    return _NOT_IN_LABELS.sub("-", text)[:_MAX_LABEL].strip("-._")
