"""Writes of WorkloadProfiles: they never overwrite a manual profile and never recreate a deleted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import (
    WorkloadProfile,
    WorkloadProfileSpec,
    WorkloadProfileStatus,
    WorkloadReference,
)
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.resources import WORKLOAD_PROFILES
from joulie.apps.operator.classifier.workloads import Workload
from joulie.apps.operator.facts import ProfileEntry, keep_profile
from joulie.program.leadership import NotLeadingError


@dataclass(frozen=True)
class DesiredProfile:
    """The desired profile of one workload, next to the stored one.

    Attributes:
        workload: the workload.
        stored: its stored profile; None without one.
        status: status to write; None if the stored one is up to date.
    """

    workload: Workload
    stored: ProfileEntry | None
    status: WorkloadProfileStatus | None

    @property
    def needed(self) -> bool:
        """Whether anything has to be written."""
        return self.stored is None or self.status is not None or self.moved

    @property
    def moved(self) -> bool:
        """Whether the stored profile has another node name or another owner."""
        stored, reference = self.stored, self.workload.reference
        if stored is None:
            return False
        return stored.node_name != self.workload.node_name or (
            reference is not None and reference.uid not in stored.owner_uids
        )


class ProfileWriter:
    """Creates, updates and deletes profiles.

    Args:
        client: Kubernetes client.
        may_write: whether this process still holds the lease; checked before every write.
        wrote: called with the kind of write after each write.
    """

    def __init__(self, client: KubeClient, *, may_write: Callable[[], bool], wrote: Callable[[str], None]) -> None:
        self._client = client
        self._may_write = may_write
        self._wrote = wrote

    async def write(self, wanted: DesiredProfile) -> ProfileEntry | None:
        """Write one profile. Returns the stored profile; None if another client created or deleted it in the meantime.

        Raises:
            KubernetesError: a write failed.
            NotLeadingError: the lease was lost.
        """
        entry = wanted.stored
        try:
            if entry is None:
                entry = await self._create(wanted.workload)
            elif wanted.moved:
                entry = await self._move(wanted.workload, entry)
            if wanted.status is not None:
                entry = await self._conclude(wanted.workload.key, wanted.status)
        except (ConflictError, NotFoundError):
            return None
        return entry

    async def delete(self, key: Key, entry: ProfileEntry) -> None:
        """Delete a profile, if one with its UID still exists.

        Raises:
            KubernetesError: the deletion failed.
            NotLeadingError: the lease was lost.
        """
        self._check_lease()
        try:
            await self._client.delete(WORKLOAD_PROFILES, key.name, key.namespace, uid=entry.uid)
        except (ConflictError, NotFoundError):
            return
        self._wrote("delete")

    async def _create(self, workload: Workload) -> ProfileEntry:
        namespace, owner = workload.key
        self._check_lease()
        metadata: dict[str, Any] = {
            "name": names.profile_name(owner.kind, owner.name),
            "labels": {names.MANAGED_BY_LABEL: names.CLASSIFIER},
        }
        if workload.reference is not None:
            metadata["ownerReferences"] = [workload.reference]
        reference = WorkloadReference(owner.kind, owner.name, namespace)
        # Created, not applied, so that a profile of the same name that was created in the meantime is not overwritten.
        created = await self._client.create(
            WORKLOAD_PROFILES,
            {"metadata": metadata, "spec": WorkloadProfileSpec(reference, workload.node_name)},
            namespace,
            field_manager=names.CLASSIFIER_FIELD_MANAGER,
        )
        self._wrote("create")
        return keep_profile(created)

    async def _move(self, workload: Workload, entry: ProfileEntry) -> ProfileEntry:
        namespace, owner = workload.key
        self._check_lease()
        metadata: dict[str, Any] = {"uid": entry.uid}
        if workload.reference is not None:
            metadata["ownerReferences"] = [_merged(workload.reference)]
        # A merge patch can remove the node name, and never recreates a deleted profile.
        moved = await self._client.patch(
            WORKLOAD_PROFILES,
            names.profile_name(owner.kind, owner.name),
            {"metadata": metadata, "spec": {"nodeName": workload.node_name}},
            namespace=namespace,
            field_manager=names.CLASSIFIER_FIELD_MANAGER,
        )
        self._wrote("spec")
        return keep_profile(moved)

    async def _conclude(self, key: WorkloadKey, status: WorkloadProfileStatus) -> ProfileEntry:
        namespace, owner = key
        self._check_lease()
        concluded: WorkloadProfile = await self._client.apply(
            WORKLOAD_PROFILES,
            names.profile_name(owner.kind, owner.name),
            {"status": status},
            field_manager=names.CLASSIFIER_FIELD_MANAGER,
            namespace=namespace,
            subresource="status",
        )
        self._wrote("status")
        return keep_profile(concluded)

    def _check_lease(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")


def _merged(reference: OwnerReference) -> dict[str, str]:
    """An owner reference in the form of a merge patch."""
    return {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
    }
