"""What the controller keeps of each object: little, since a cluster has many; comparable, to notice changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from joulie.adapters.kubernetes.api.core import Job, Namespace, NodeSelectorTerm, Pod, PodSpec
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.placement import required_terms, requirements
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.domain.grid import names
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.scheduling.labels import Requirement

_JOULIE_PREFIX = "joulie.io/"
_KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

SUSPENDED_SINCE = "joulie.io/grid-suspended-since"
"""On a Job: the controller has suspended it, and when. A Job without it was suspended by somebody else.

Empty: somebody else has resumed it since, so that from then on it is theirs to suspend and to resume.
"""
WORK_DONE = "joulie.io/grid-work-done"
"""On a Job: how long it ran before it was last suspended, s."""

Affinity = tuple[tuple[Requirement, ...], ...]


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The controller of a pod.

    Attributes:
        kind: Job, ReplicaSet, StatefulSet and so on.
        name: of the object.
        uid: of the object.
    """

    kind: str
    name: str
    uid: str


class Asking(msgspec.Struct, frozen=True):
    """What a pod, or a Job's template, says that bears on when it runs.

    Attributes:
        scheduler_name: ``spec.schedulerName``.
        annotations: those of the Compute Gardener and of Joulie.
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
    """What is kept of a pod that has the gate.

    Attributes:
        uid: of the pod.
        created_s: s since the epoch.
        priority: as admission has resolved it.
        owner: its controller; None without one.
        asking: what it says.
    """

    uid: str
    created_s: float
    priority: int
    owner: Owner | None
    asking: Asking


class JobFacts(msgspec.Struct, frozen=True):
    """What is kept of a Job that has not ended.

    Attributes:
        uid: of the Job.
        created_s: s since the epoch.
        started_s: when it was started or last resumed, s since the epoch; None before.
        deadline_s: how long it may take from then, s; None without a deadline.
        suspended: ``spec.suspend``.
        queued: a queue controller manages it, so nobody else suspends or resumes it.
        asking: what it and its template say.
        suspended_since: value of the controller's own annotation; None without one, empty for a Job left to others.
        work_done_s: how long it ran before it was last suspended, s.
    """

    uid: str
    created_s: float
    started_s: float | None
    deadline_s: float | None
    suspended: bool
    queued: bool
    asking: Asking
    suspended_since: str | None = None
    work_done_s: float = 0.0

    @property
    def finish_by_s(self) -> float | None:
        """When it is ended, done or not; None without a deadline, and while it does not run."""
        if self.deadline_s is None or self.started_s is None:
            return None
        return self.started_s + self.deadline_s

    @property
    def suspended_by_us(self) -> bool:
        """Whether it stands still because the controller said so, so that it is to be resumed."""
        return self.suspended and bool(self.suspended_since)

    @property
    def resumed_by_others(self) -> bool:
        """Whether somebody else has resumed it although the controller had suspended it."""
        return not self.suspended and bool(self.suspended_since)


class ReplicasFacts(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a ReplicaSet or StatefulSet.

    Attributes:
        uid: of the object.
        created_s: s since the epoch.
        working: whether a pod of it is ready now.
    """

    uid: str
    created_s: float
    working: bool


class NamespaceFacts(msgspec.Struct, frozen=True):
    """What is kept of a namespace: labels and annotations that are policies.

    Attributes:
        uid: of the namespace.
        labels: of the Compute Gardener.
        annotations: of the Compute Gardener and of Joulie.
    """

    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]


def keep_gated(pod: Pod) -> GatedPod | None:
    """What is kept of a pod; nothing without the gate, or of one that is being deleted.

    Raises:
        QuantityError: a creation time that is none.
    """
    meta = pod.metadata
    if meta.deletion_timestamp is not None or all(gate.name != names.GATE for gate in pod.spec.scheduling_gates):
        return None
    return GatedPod(meta.uid, created_s(meta), pod.spec.priority or 0, owner_of(meta), asking_of(meta, pod.spec))


def keep_job(job: Job) -> JobFacts | None:
    """What is kept of a Job; nothing of one that has ended.

    Raises:
        QuantityError: a time that is none.
    """
    meta, status = job.metadata, job.status
    ended = any(one.type in {"Complete", "Failed"} and one.status == "True" for one in status.conditions)
    if meta.deletion_timestamp is not None or ended:
        return None
    template = asking_of(job.spec.template.metadata, job.spec.template.spec)
    own = grid_annotations(meta.annotations)
    # The template is what becomes of the pods; the Job's own annotations fill in what it leaves out.
    asking = msgspec.structs.replace(template, annotations={**own, **template.annotations})
    return JobFacts(
        uid=meta.uid,
        created_s=created_s(meta),
        started_s=None if status.start_time is None else parse_rfc3339(status.start_time),
        deadline_s=job.spec.active_deadline_seconds,
        suspended=job.spec.suspend,
        queued=_KUEUE_QUEUE_LABEL in meta.labels,
        asking=asking,
        suspended_since=own.get(SUSPENDED_SINCE),
        work_done_s=_seconds(own.get(WORK_DONE)),
    )


def keep_namespace(namespace: Namespace) -> NamespaceFacts:
    """What is kept of a namespace."""
    meta = namespace.metadata
    labels = {key: value for key, value in meta.labels.items() if key.startswith(names.PREFIX)}
    return NamespaceFacts(meta.uid, labels, grid_annotations(meta.annotations))


def owner_of(meta: ObjectMeta) -> Owner | None:
    """The controller of an object; None without one."""
    controller = meta.controller
    return None if controller is None else Owner(controller.kind, controller.name, controller.uid)


def created_s(meta: ObjectMeta) -> float:
    """When an object was created, s since the epoch.

    Raises:
        QuantityError: it does not say.
    """
    return parse_rfc3339(meta.creation_timestamp or "")


def asking_of(meta: ObjectMeta, spec: PodSpec) -> Asking:
    """What a pod or a template says that bears on when it runs."""
    return Asking(
        spec.scheduler_name,
        grid_annotations(meta.annotations),
        meta.labels.get(names.WORKLOAD_TYPE_LABEL),
        spec.node_selector,
        _affinity(spec),
    )


def grid_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations of the Compute Gardener and of Joulie."""
    return {key: value for key, value in annotations.items() if key.startswith((names.PREFIX, _JOULIE_PREFIX))}


def _affinity(spec: PodSpec) -> Affinity:
    return tuple(_labels_of(term) for term in required_terms(spec) or ())


@lru_cache(maxsize=4096)
def _labels_of(term: NodeSelectorTerm) -> tuple[Requirement, ...]:
    """One value for all pods of a template."""
    return requirements(term.match_expressions)


def _seconds(text: str | None) -> float:
    """A number of seconds that the controller itself has written; 0 where somebody has spoilt it."""
    try:
        return max(0.0, parse_quantity(text)) if text else 0.0
    except QuantityError:
        return 0.0
