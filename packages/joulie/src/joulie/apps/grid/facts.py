"""Cached facts of pods, Jobs, owners and namespaces.

The caches keep only these parts of an object, since a cluster has many; facts compare by value, to notice changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from joulie.adapters.kubernetes.api.core import (
    CronJob,
    Deployment,
    Job,
    Namespace,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    ReplicaSet,
    ReplicasStatus,
    StatefulSet,
)
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.names import MODE_LABEL
from joulie.adapters.kubernetes.placement import required_terms, requirements
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.domain.grid import names
from joulie.domain.mode import Mode, mode_of
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.scheduling.labels import Requirement

_JOULIE_PREFIX = "joulie.io/"
_KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

SUSPENDED_SINCE = "joulie.io/grid-suspended-since"
"""Annotation on a Job: time when the controller suspended it. A suspended Job without it was suspended by others.

Empty if somebody else has resumed the Job since; the controller then neither suspends nor resumes it any more.
"""
RESUMED_SINCE = "joulie.io/grid-resumed-since"
"""Annotation on a Job: time when the controller resumed it; absent while it is suspended."""
WORK_DONE = "joulie.io/grid-work-done"
"""Annotation on a Job: time that it ran before it was last suspended, s."""

BUDGET_WAITING_SINCE = "joulie.io/budget-waiting-since"
"""Annotation on a Job that the controller suspended for an EnergyBudget: since when it waits.

Where somebody else has resumed it, the annotation stays until the budget lets go, and the Job is left alone.
"""
_FIRST_RECONCILED_S = 60.0
"""Time after its creation within which a Deployment has its first conditions, s."""

Affinity = tuple[tuple[Requirement, ...], ...]


class Owner(msgspec.Struct, frozen=True, gc=False):
    """Controlling owner of an object.

    Attributes:
        kind: kind, such as Job, ReplicaSet or StatefulSet.
        name: name of the owner.
        uid: UID of the owner.
    """

    kind: str
    name: str
    uid: str


class Asking(msgspec.Struct, frozen=True):
    """Fields of a pod, or of a Job's template, that determine when it may start.

    Attributes:
        scheduler_name: ``spec.schedulerName``.
        annotations: annotations of the Compute Gardener and of Joulie.
        workload_label: value of the workload-type label; None without one.
        node_selector: ``spec.nodeSelector``.
        affinity: terms of the required node affinity.
    """

    scheduler_name: str = ""
    annotations: dict[str, str] = {}
    workload_label: str | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity = ()


class GatedPod(msgspec.Struct, frozen=True):
    """Cached facts of a pod with the scheduling gate.

    Attributes:
        uid: UID of the pod.
        created_s: creation, s since the epoch.
        priority: priority, as resolved by admission.
        owner: its controller; None without one.
        asking: fields that determine when it may start.
    """

    uid: str
    created_s: float
    priority: int
    owner: Owner | None
    asking: Asking


class JobFacts(msgspec.Struct, frozen=True):
    """Cached facts of a Job that has not ended.

    Attributes:
        uid: UID of the Job.
        created_s: creation, s since the epoch.
        started_s: last start or resumption, s since the epoch; None before the first.
        deadline_s: maximum runtime from then on, s; None without a deadline.
        suspended: ``spec.suspend``.
        queued: whether a queue controller manages it, so that only that one suspends and resumes it.
        asking: fields of the Job and its template that determine when it may start.
        owner: its controller, such as a CronJob; None without one.
        suspended_since: value of the annotation `SUSPENDED_SINCE`; None without it, empty for a Job left to others.
        work_done_s: time that it ran before it was last suspended, s.
        resumed_since: value of the annotation `RESUMED_SINCE`; None without it.
        held: annotations of its last suspension that its pods inherit, see `joulie.domain.grid.names.HELD_KEYS`.
        workload: kind and name of its CronJob, or its own; its controller's where that is another one.
        labels: labels of its pods.
        active: number of its pods that have not ended.
        budget_since: value of the annotation `BUDGET_WAITING_SINCE`; None without it.
    """

    uid: str
    created_s: float
    started_s: float | None
    deadline_s: float | None
    suspended: bool
    queued: bool
    asking: Asking
    owner: Owner | None = None
    suspended_since: str | None = None
    work_done_s: float = 0.0
    resumed_since: str | None = None
    held: dict[str, str] = {}
    workload: tuple[str, str] = ("", "")
    labels: dict[str, str] = {}
    active: int = 0
    budget_since: str | None = None

    @property
    def finish_by_s(self) -> float | None:
        """Time when the deadline ends it, s since the epoch; None without a deadline or before it starts."""
        if self.deadline_s is None or self.started_s is None:
            return None
        return self.started_s + self.deadline_s

    @property
    def suspended_by_us(self) -> bool:
        """Whether the controller suspended it, and so has to resume it."""
        return self.suspended and bool(self.suspended_since)

    @property
    def resumed_by_others(self) -> bool:
        """Whether somebody else resumed it after the controller had suspended it."""
        return not self.suspended and bool(self.suspended_since)


class CronJobFacts(msgspec.Struct, frozen=True, gc=False):
    """Cached facts of a CronJob that is not suspended.

    Attributes:
        uid: UID of the CronJob.
        schedule: ``spec.schedule``.
        time_zone: ``spec.timeZone``; None without one.
    """

    uid: str
    schedule: str
    time_zone: str | None


class ReplicasFacts(msgspec.Struct, frozen=True):
    """Cached facts of a ReplicaSet, StatefulSet or Deployment.

    Attributes:
        uid: UID of the object.
        owner: its controller, such as the Deployment of a ReplicaSet; None without one.
        created_s: creation, s since the epoch.
        has_run: whether a pod of it is ready, or is known to have been.
    """

    uid: str
    owner: Owner | None
    created_s: float
    has_run: bool


class NamespaceFacts(msgspec.Struct, frozen=True):
    """Cached facts of a namespace: the labels and annotations that are policies.

    Attributes:
        uid: UID of the namespace.
        labels: labels of the Compute Gardener.
        annotations: annotations of the Compute Gardener and of Joulie.
        mode: value of its label joulie.io/mode; None without one.
    """

    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    mode: str | None = None

    def observed(self, default: Mode) -> bool:
        """Whether Joulie holds nothing in the namespace; `default` is the mode of namespaces without a label."""
        return mode_of(self.mode, default) is Mode.OBSERVE


def keep_gated(pod: Pod) -> GatedPod | None:
    """Cached facts of a pod; None without the gate or while it is being deleted.

    Raises:
        QuantityError: the creation time is invalid.
    """
    meta = pod.metadata
    if meta.deletion_timestamp is not None or all(gate.name != names.GATE for gate in pod.spec.scheduling_gates):
        return None
    return GatedPod(meta.uid, created_s(meta), pod.spec.priority or 0, owner_of(meta), asking_of(meta, pod.spec))


def keep_job(job: Job) -> JobFacts | None:
    """Cached facts of a Job; None if it has ended or is being deleted.

    Raises:
        QuantityError: a timestamp is invalid.
    """
    meta, status = job.metadata, job.status
    ended = any(one.type in {"Complete", "Failed"} and one.status == "True" for one in status.conditions)
    if meta.deletion_timestamp is not None or ended:
        return None
    template = asking_of(job.spec.template.metadata, job.spec.template.spec)
    own = grid_annotations(meta.annotations)
    # Pods get the template's annotations; the Job's own ones add the keys that the template lacks.
    asking = msgspec.structs.replace(template, annotations={**own, **template.annotations})
    return JobFacts(
        uid=meta.uid,
        created_s=created_s(meta),
        started_s=None if status.start_time is None else parse_rfc3339(status.start_time),
        deadline_s=job.spec.active_deadline_seconds,
        suspended=job.spec.suspend,
        queued=_KUEUE_QUEUE_LABEL in meta.labels,
        asking=asking,
        owner=owner_of(meta),
        suspended_since=own.get(SUSPENDED_SINCE),
        work_done_s=_seconds(own.get(WORK_DONE)),
        resumed_since=own.get(RESUMED_SINCE),
        held={key: value for key, value in own.items() if key in names.HELD_KEYS},
        workload=("Job", meta.name) if meta.controller is None else (meta.controller.kind, meta.controller.name),
        labels=job.spec.template.metadata.labels,
        active=status.active,
        budget_since=own.get(BUDGET_WAITING_SINCE),
    )


def keep_cron_job(cron_job: CronJob) -> CronJobFacts | None:
    """Cached facts of a CronJob; None while it is suspended."""
    spec = cron_job.spec
    return None if spec.suspend else CronJobFacts(cron_job.metadata.uid, spec.schedule, spec.time_zone)


def keep_replicas(found: ReplicaSet | StatefulSet) -> ReplicasFacts:
    """Cached facts of a ReplicaSet or StatefulSet.

    Raises:
        QuantityError: the creation time is invalid.
    """
    return ReplicasFacts(found.metadata.uid, owner_of(found.metadata), created_s(found.metadata), _works(found.status))


def keep_deployment(found: Deployment) -> ReplicasFacts:
    """Cached facts of a Deployment.

    Its condition Available is False from its first reconciliation until its pods are available, so a later transition
    says that they have been.

    Raises:
        QuantityError: a timestamp is invalid.
    """
    meta, since_s = found.metadata, created_s(found.metadata) + _FIRST_RECONCILED_S
    changes = (one.last_transition_time for one in found.status.conditions if one.type == "Available")
    changed = any(parse_rfc3339(text) > since_s for text in changes if text)
    return ReplicasFacts(meta.uid, owner_of(meta), created_s(meta), changed or _works(found.status))


def _works(status: ReplicasStatus) -> bool:
    return max(status.ready_replicas, status.available_replicas) > 0


def keep_namespace(namespace: Namespace) -> NamespaceFacts:
    """Cached facts of a namespace."""
    meta = namespace.metadata
    labels = {key: value for key, value in meta.labels.items() if key.startswith(names.PREFIX)}
    return NamespaceFacts(meta.uid, labels, grid_annotations(meta.annotations), meta.labels.get(MODE_LABEL))


def owner_of(meta: ObjectMeta) -> Owner | None:
    """Controlling owner of an object; None without one."""
    controller = meta.controller
    return None if controller is None else Owner(controller.kind, controller.name, controller.uid)


def created_s(meta: ObjectMeta) -> float:
    """Creation time of an object, s since the epoch.

    Raises:
        QuantityError: the object has no valid creation time.
    """
    return parse_rfc3339(meta.creation_timestamp or "")


def asking_of(meta: ObjectMeta, spec: PodSpec) -> Asking:
    """Fields of a pod or template that determine when it may start."""
    return Asking(
        spec.scheduler_name,
        grid_annotations(meta.annotations),
        meta.labels.get(names.WORKLOAD_TYPE_LABEL),
        spec.node_selector,
        _affinity(spec),
    )


def grid_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations of the Compute Gardener and of Joulie."""
    return {key: value for key, value in annotations.items() if key.startswith((names.PREFIX, _JOULIE_PREFIX))}


def _affinity(spec: PodSpec) -> Affinity:
    return tuple(_labels_of(term) for term in required_terms(spec) or ())


@lru_cache(maxsize=4096)
def _labels_of(term: NodeSelectorTerm) -> tuple[Requirement, ...]:
    """Requirements of a term; cached, so that the pods of a template share one value."""
    return requirements(term.match_expressions)


def _seconds(text: str | None) -> float:
    """Parse a number of seconds that the controller has written; 0 if it is missing or was made invalid."""
    try:
        return max(0.0, parse_quantity(text)) if text else 0.0
    except QuantityError:
        return 0.0
