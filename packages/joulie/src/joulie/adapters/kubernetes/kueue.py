"""Kueue's resources, the check states that Joulie writes, and the admission gate that it lifts.

The gate is an entry of the annotation `GATED_BY`, which Kueue honours since v0.19: it copies the annotation from a Job
or pod to its Workload, and reserves no quota, so preempts nothing, until the annotation is empty (KEP-6915).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from joulie.adapters.kubernetes.api.kueue import AdmissionCheck, AdmissionCheckState, CheckState, Workload
from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import PODS, Resource
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.wire import Key
from joulie.adapters.kubernetes.writer import Failure, Job, write_all

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""API versions of Kueue that Joulie supports, preferred first."""
CONTROLLER_NAME = "joulie.io/grid"
"""``spec.controllerName`` of the AdmissionChecks that Joulie controls, and the name of its admission gate."""
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
"""Annotation with the gates of an object, separated by commas. Gates can only be removed after creation."""
FIELD_MANAGER = "joulie-grid"
CONCURRENCY = 8
"""Maximum number of concurrent status writes."""

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True)
class KueueResources:
    """Kueue's resources in one API version.

    Attributes:
        workloads: Workloads, which Kueue queues and admits.
        checks: AdmissionChecks.
    """

    workloads: Resource[Workload]
    checks: Resource[AdmissionCheck]

    @classmethod
    def for_version(cls, version: str) -> KueueResources:
        """The resources in an API version."""
        return cls(
            Resource(GROUP, version, "workloads", "Workload", True, Workload),
            Resource(GROUP, version, "admissionchecks", "AdmissionCheck", False, AdmissionCheck),
        )


async def find_kueue(client: KubeClient) -> KueueResources | None:
    """Kueue's resources in the newest API version that the cluster serves and Joulie supports; None without Kueue.

    Raises:
        KubernetesError: the API server could not be queried.
    """
    for version in VERSIONS:
        try:
            await client.raw("GET", f"/apis/{GROUP}/{version}")
        except NotFoundError:
            continue
        return KueueResources.for_version(version)
    return None


def is_ours(check: AdmissionCheck) -> bool:
    """Whether Joulie controls an AdmissionCheck."""
    return check.spec.controller_name == CONTROLLER_NAME and check.metadata.deletion_timestamp is None


def unanswered(workload: Workload) -> tuple[str, ...]:
    """Names of the pending checks of a workload with reserved quota; empty while it is being evicted.

    During an eviction, Kueue resets checks to Pending before it releases the quota, and would never process a Retry
    written at that point (KEP-3258).
    """
    if not _has_quota(workload):
        return ()
    return tuple(one.name for one in workload.status.admission_checks if one.state == CheckState.PENDING)


def delayed(workload: Workload) -> tuple[AdmissionCheckState, ...]:
    """All check states of a workload that holds its quota although a check answered Retry with a delay; else empty.

    KEP-3258 says that such a workload is evicted at once, which frees its quota. Kueue evaluates the delay first and
    evicts only when it is over (seen in v0.15.2).

    Raises:
        QuantityError: a timestamp is invalid.
    """
    states, requeue = workload.status.admission_checks, workload.status.requeue_state
    retried_s = [parse_rfc3339(one.last_transition_time or "") for one in states if one.state == CheckState.RETRY]
    rejected = any(one.state == CheckState.REJECTED for one in states)
    if not retried_s or rejected or requeue is None or requeue.requeue_at is None or not _has_quota(workload):
        return ()
    # requeueAt must belong to the latest Retry: evicted with an older one, the workload would be requeued at once.
    return states if parse_rfc3339(requeue.requeue_at) > max(retried_s) else ()


def is_gated(workload: Workload) -> bool:
    """Whether Joulie's admission gate keeps a workload from reserving quota."""
    return CONTROLLER_NAME in _gates(workload.metadata) and _is_alive(workload) and not workload.has("Finished")


def _has_quota(workload: Workload) -> bool:
    """Whether a workload has reserved quota and is neither admitted, evicted nor finished."""
    over = any(workload.has(condition) for condition in ("Admitted", "Evicted", "Finished"))
    return _is_alive(workload) and workload.has("QuotaReserved") and not over


def _is_alive(workload: Workload) -> bool:
    return workload.spec.active and workload.metadata.deletion_timestamp is None


@dataclass(frozen=True)
class QueuedObject:
    """An object that a workload represents: a Job, or a pod.

    Attributes:
        resource: its resource.
        metadata: its metadata as read.
    """

    resource: Resource[KubernetesObject]
    metadata: ObjectMeta

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod; else its template makes pods."""
        return self.resource.plural == PODS.plural


async def read_owners(client: KubeClient, namespace: str, owners: Sequence[OwnerReference]) -> list[QueuedObject]:
    """The objects that a workload represents, without deleted ones: a Job, a pod, or all the pods of a group.

    Raises:
        KubernetesError: an owner could not be read.
    """
    found: list[QueuedObject] = []

    async def read(owner: OwnerReference) -> None:
        resource = _resource_of(owner)
        metadata = (await client.get(resource, owner.name, namespace)).metadata
        if metadata.uid == owner.uid:
            found.append(QueuedObject(resource, metadata))

    raise_first(await write_all([partial(read, owner) for owner in owners], concurrency=CONCURRENCY))
    return sorted(found, key=lambda one: one.metadata.name)


async def lift_gate(client: KubeClient, owners: Iterable[QueuedObject]) -> None:
    """Remove Joulie's admission gate from the owners of a workload; Kueue then removes it from the workload.

    Raises:
        KubernetesError: an owner could not be written; all others were.
    """

    async def lift(owner: QueuedObject) -> None:
        meta = owner.metadata
        others = ",".join(one for one in _gates(meta) if one != CONTROLLER_NAME)
        body = {"metadata": {"uid": meta.uid, "annotations": {GATED_BY: others or None}}}
        await client.patch(owner.resource, meta.name, body, namespace=meta.namespace, field_manager=FIELD_MANAGER)

    gated = [one for one in owners if CONTROLLER_NAME in _gates(one.metadata)]
    raise_first(await write_all([partial(lift, one) for one in gated], concurrency=CONCURRENCY))


def _gates(meta: ObjectMeta) -> list[str]:
    return [gate for part in meta.annotations.get(GATED_BY, "").split(",") if (gate := part.strip())]


def _resource_of(owner: OwnerReference) -> Resource[KubernetesObject]:
    """The resource of an owner. All kinds that Kueue queues have regular plurals."""
    group, _, version = owner.api_version.rpartition("/")
    return Resource(group, version, f"{owner.kind.lower()}s", owner.kind, True, KubernetesObject)


def raise_first(failures: Sequence[Failure]) -> None:
    """Raise the first error that is not that of an object which was deleted or replaced."""
    for failure in failures:
        if not isinstance(failure.error, NotFoundError | ConflictError):
            raise failure.error


def check_states(states: Sequence[AdmissionCheckState]) -> list[dict[str, Any]]:
    """Check states for `write_status`, with explicit pod set updates.

    Kueue owns whatever a check state holds as well as Joulie, so a field that an apply omits keeps its old value.
    """
    return [msgspec.to_builtins(one) | {"podSetUpdates": msgspec.to_builtins(one.pod_set_updates)} for one in states]


async def write_status(
    client: KubeClient, resource: Resource[T], key: Key, version: str, status: Mapping[str, Any]
) -> None:
    """Apply Joulie's part of a status, provided that the object still has the given resource version.

    Raises:
        KubernetesError: the write failed; `ConflictError` if the object has changed.
    """
    await client.apply(
        resource,
        key.name,
        {"metadata": {"resourceVersion": version}, "status": status},
        field_manager=FIELD_MANAGER,
        namespace=key.namespace or None,
        subresource="status",
    )


async def release_workloads(client: KubeClient, now_s: float, text: str) -> list[str]:
    """Lift all of Joulie's admission gates and answer its pending checks with Ready, in place of a controller.

    Args:
        client: Kubernetes client.
        now_s: current time, s since the epoch.
        text: message of the check state.

    Returns:
        Namespace and name of the released workloads; empty without Kueue.

    Raises:
        KubernetesError: a workload could not be released; all others were.
    """
    resources = await find_kueue(client)
    if resources is None:
        return []
    checks = {check.metadata.name for check in (await client.list(resources.checks)).items if is_ours(check)}
    released: list[str] = []

    async def answer(key: Key, workload: Workload, ours: Sequence[str]) -> None:
        states = [AdmissionCheckState(name, CheckState.READY, rfc3339(now_s), text) for name in ours]
        status = {"admissionChecks": check_states(states)}
        await write_status(client, resources.workloads, key, workload.metadata.resource_version, status)
        released.append(str(key))

    async def lift(key: Key, workload: Workload) -> None:
        await lift_gate(client, await read_owners(client, key.namespace, workload.metadata.owner_references))
        released.append(str(key))

    jobs: list[Job] = []
    for workload in (await client.list(resources.workloads)).items:
        key = Key(workload.metadata.namespace, workload.metadata.name)
        if is_gated(workload):
            jobs.append(partial(lift, key, workload))
        elif ours := [name for name in unanswered(workload) if name in checks]:
            jobs.append(partial(answer, key, workload, ours))
    raise_first(await write_all(jobs, concurrency=CONCURRENCY))
    return sorted(released)
