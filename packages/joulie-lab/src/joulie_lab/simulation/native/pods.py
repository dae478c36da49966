"""Pods of jobs, in the form that scheduler, operator and extender use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulie.domain.drain import GuardedPod
from joulie.domain.marginal import PodRequests
from joulie.domain.policy import WorkloadClass
from joulie.domain.scoring.extender import PodView, Sensitivity
from joulie_lab.simulation.gangs import PodKind
from joulie_lab.simulation.trace import WORKLOAD_CLASS_KEY, JobShape, TraceJob

RESCHEDULABLE_KEY = "joulie.io/reschedulable"
_CLASSES = {member.value: member for member in WorkloadClass}
_SENSITIVITIES = {"high": Sensitivity.HIGH, "medium": Sensitivity.MEDIUM}
_RESCHEDULABLE = {"true": True, "false": False}

PRIORITIES: Mapping[str, int] = {
    "": 0,
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""Value by PriorityClass: those that every Kubernetes cluster has."""


class RefusedError(ValueError):
    """A job whose pod the API server would reject, or which could never end; the message says why."""


@dataclass(frozen=True, eq=False)
class SimPod:
    """The pod of a job.

    Attributes:
        index: index of the job, in order of submission.
        job: the job.
        shape: its requests, as numbers.
        kind: its scheduling kind: pods of one kind fit the same nodes.
        requests: its requests as the extender counts them.
        view: the pod as the extender sees it.
        blocks: whether it blocks a drain.
        lifts_caps: whether it also lifts the caps of a capped node.
    """

    index: int
    job: TraceJob
    shape: JobShape
    kind: PodKind
    requests: PodRequests
    view: PodView
    blocks: bool
    lifts_caps: bool

    @property
    def gang(self) -> str | None:
        """The gang that it belongs to; None outside of any."""
        return self.job.workload_id if self.job.gang else None


def sim_pod(index: int, job: TraceJob, *, share_gpus: bool, priorities: Mapping[str, int] = PRIORITIES) -> SimPod:
    """Build the pod of a job.

    Args:
        index: index of the job, in order of submission.
        job: the job.
        share_gpus: whether a pod that needs a share of a GPU gets only that share; if not, it gets a whole GPU.
        priorities: value by PriorityClass.

    Raises:
        RefusedError: the API server would reject the pod, or the job could never end.
    """
    try:
        shape, rules, _ = job.shape, job.node_rules, job.ideal_s
    except ValueError as error:
        raise RefusedError(str(error)) from error
    if job.priority_class not in priorities:
        raise RefusedError(f"unknown PriorityClass {job.priority_class}")
    annotations = job.annotations
    class_name = annotations.get(WORKLOAD_CLASS_KEY)
    # As Joulie's programs read it: an unknown class counts as standard; without one, constraints decide.
    workload_class = None if class_name is None else _CLASSES.get(class_name, WorkloadClass.STANDARD)
    reschedulable = _RESCHEDULABLE.get(annotations.get(RESCHEDULABLE_KEY, ""))
    performance = workload_class is WorkloadClass.PERFORMANCE
    guarded = GuardedPod(workload_class, reschedulable=reschedulable)
    return SimPod(
        index=index,
        job=job,
        shape=shape,
        kind=PodKind.from_shape(
            shape,
            rules,
            performance=performance,
            share_gpus=share_gpus,
            priority=priorities[job.priority_class],
        ),
        requests=PodRequests(shape.cores, shape.memory_gib, float(shape.gpus)),
        view=PodView(
            performance=performance,
            reschedulable=reschedulable,
            cpu_sensitivity=_SENSITIVITIES.get(job.cpu_sensitivity, Sensitivity.LOW),
            gpu_sensitivity=_SENSITIVITIES.get(job.gpu_sensitivity, Sensitivity.LOW),
        ),
        blocks=guarded.blocks,
        lifts_caps=guarded.lifts_caps,
    )
