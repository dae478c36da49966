"""Reads and answers Kueue's AdmissionChecks: finds Kueue's resources and writes the check states that Joulie owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from joulie.adapters.kubernetes.api.kueue import AdmissionCheck, AdmissionCheckState, CheckState, Workload
from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import Resource
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.wire import Key
from joulie.adapters.kubernetes.writer import Job, write_all

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""API versions of Kueue that Joulie supports, preferred first."""
CONTROLLER_NAME = "joulie.io/grid"
"""``spec.controllerName`` of the AdmissionChecks that Joulie controls."""
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


def _has_quota(workload: Workload) -> bool:
    """Whether a workload has reserved quota and is neither admitted, evicted nor finished."""
    over = any(workload.has(condition) for condition in ("Admitted", "Evicted", "Finished"))
    alive = workload.spec.active and workload.metadata.deletion_timestamp is None
    return alive and workload.has("QuotaReserved") and not over


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


async def open_checks(client: KubeClient, now_s: float, text: str) -> list[str]:
    """Set all pending checks that Joulie controls to Ready, for when no controller is there to answer them.

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
    opened: list[str] = []

    async def release(key: Key, version: str, ours: Sequence[str]) -> None:
        states = [AdmissionCheckState(name, CheckState.READY, rfc3339(now_s), text) for name in ours]
        await write_status(client, resources.workloads, key, version, {"admissionChecks": states})
        opened.append(str(key))

    jobs: list[Job] = []
    for workload in (await client.list(resources.workloads)).items if checks else ():
        meta = workload.metadata
        ours = [name for name in unanswered(workload) if name in checks]
        if ours:
            jobs.append(partial(release, Key(meta.namespace, meta.name), meta.resource_version, ours))
    for failure in await write_all(jobs, concurrency=CONCURRENCY):
        if not isinstance(failure.error, NotFoundError | ConflictError):
            raise failure.error
    return sorted(opened)
