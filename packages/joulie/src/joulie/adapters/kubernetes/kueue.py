"""Kueue's objects in a cluster: where they live, and the answers that AdmissionChecks of Joulie's wait for."""

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
"""Best first."""
CONTROLLER_NAME = "joulie.io/grid"
"""``spec.controllerName`` of the AdmissionChecks that Joulie answers for."""
FIELD_MANAGER = "joulie-grid"
CONCURRENCY = 8
"""Answers written at once."""

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True)
class KueueResources:
    """Kueue's resources, in one version.

    Attributes:
        workloads: what waits in queues.
        checks: the AdmissionChecks.
    """

    workloads: Resource[Workload]
    checks: Resource[AdmissionCheck]

    @classmethod
    def of(cls, version: str) -> KueueResources:
        """The resources in a version."""
        return cls(
            Resource(GROUP, version, "workloads", "Workload", True, Workload),
            Resource(GROUP, version, "admissionchecks", "AdmissionCheck", False, AdmissionCheck),
        )


async def find_kueue(client: KubeClient) -> KueueResources | None:
    """Kueue's resources in the newest version that the cluster serves and Joulie knows; None without Kueue.

    Raises:
        KubernetesError: the cluster does not say.
    """
    for version in VERSIONS:
        try:
            await client.raw("GET", f"/apis/{GROUP}/{version}")
        except NotFoundError:
            continue
        return KueueResources.of(version)
    return None


def is_ours(check: AdmissionCheck) -> bool:
    """Whether Joulie answers for a check."""
    return check.spec.controller_name == CONTROLLER_NAME and check.metadata.deletion_timestamp is None


def unanswered(workload: Workload) -> tuple[str, ...]:
    """Names of the checks that a workload with quota waits for; none while it is being evicted.

    Kueue sets checks back to Pending before it has taken the quota back, and would never look at a Retry that is
    written then (its KEP-3258).
    """
    if not _has_quota(workload):
        return ()
    return tuple(one.name for one in workload.status.admission_checks if one.state == CheckState.PENDING)


def delayed(workload: Workload) -> tuple[AdmissionCheckState, ...]:
    """All checks of a workload that keeps its quota although one said Retry with a delay; none of any other workload.

    Kueue's KEP-3258 wants such a workload evicted at once, so that its quota is free. Kueue looks at the delay first
    and evicts when it is over (seen in v0.15.2).

    Raises:
        QuantityError: a time that is none.
    """
    states, requeue = workload.status.admission_checks, workload.status.requeue_state
    said_s = [parse_rfc3339(one.last_transition_time or "") for one in states if one.state == CheckState.RETRY]
    rejected = any(one.state == CheckState.REJECTED for one in states)
    if not said_s or rejected or requeue is None or requeue.requeue_at is None or not _has_quota(workload):
        return ()
    # The delay must be the one that was asked for now: evicted before that, the workload would be queued at once.
    return states if parse_rfc3339(requeue.requeue_at) > max(said_s) else ()


def _has_quota(workload: Workload) -> bool:
    """Whether it has quota, does not run yet, and is not being evicted."""
    over = any(workload.has(condition) for condition in ("Admitted", "Evicted", "Finished"))
    alive = workload.spec.active and workload.metadata.deletion_timestamp is None
    return alive and workload.has("QuotaReserved") and not over


async def write_status(
    client: KubeClient, resource: Resource[T], key: Key, version: str, status: Mapping[str, Any]
) -> None:
    """Write Joulie's part of a status, of the very version of the object that was seen.

    Raises:
        KubernetesError: not written; `ConflictError` where the object has changed.
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
    """Let everything go that waits for an answer of Joulie's: for when there is no controller to give it.

    Args:
        client: of the cluster.
        now_s: s since the epoch.
        text: why, for people.

    Returns:
        Namespace and name of the workloads that were let go; empty without Kueue.

    Raises:
        KubernetesError: something was not answered; what could be done is done.
    """
    resources = await find_kueue(client)
    if resources is None:
        return []
    checks = {check.metadata.name for check in (await client.list(resources.checks)).items if is_ours(check)}
    opened: list[str] = []

    async def let_go(key: Key, version: str, ours: Sequence[str]) -> None:
        states = [AdmissionCheckState(name, CheckState.READY, rfc3339(now_s), text) for name in ours]
        await write_status(client, resources.workloads, key, version, {"admissionChecks": states})
        opened.append(str(key))

    jobs: list[Job] = []
    for workload in (await client.list(resources.workloads)).items if checks else ():
        meta = workload.metadata
        ours = [name for name in unanswered(workload) if name in checks]
        if ours:
            jobs.append(partial(let_go, Key(meta.namespace, meta.name), meta.resource_version, ours))
    for failure in await write_all(jobs, concurrency=CONCURRENCY):
        if not isinstance(failure.error, NotFoundError | ConflictError):
            raise failure.error
    return sorted(opened)
