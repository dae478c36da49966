"""Kueue's objects with the fields that Joulie uses, which are the same in v1beta1 and v1beta2.

Source: the API reference of Kueue (kueue.x-k8s.io).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.core import CoreCondition, PodTemplate
from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject


class CheckState(StrEnum):
    """State of an admission check of a workload."""

    PENDING = "Pending"
    """Not answered yet. The workload holds its quota meanwhile."""
    READY = "Ready"
    RETRY = "Retry"
    """Rejected for now: Kueue releases the quota and requeues the workload later."""
    REJECTED = "Rejected"


class PodSet(ApiStruct, frozen=True):
    """A set of identical pods of a workload."""

    name: str = ""
    template: PodTemplate = PodTemplate()


class WorkloadSpec(ApiStruct, frozen=True):
    """Spec of a Workload."""

    pod_sets: tuple[PodSet, ...] = ()
    active: bool = True


class PodSetUpdate(ApiStruct, frozen=True):
    """Changes that a check makes to a pod set. A key that the pods already have makes the admission fail."""

    name: str
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class AdmissionCheckState(ApiStruct, frozen=True):
    """The state of one admission check of a workload.

    Attributes:
        name: name of the AdmissionCheck.
        state: a `CheckState`; other Kueue versions may have other values.
        last_transition_time: time of the last change of `state`, RFC 3339.
        message: human-readable explanation.
        requeue_after_seconds: with Retry, delay from the transition until the workload is requeued, s; None requeues
            it at once.
        pod_set_updates: with Ready, changes to the pod sets.
    """

    name: str
    state: str
    last_transition_time: str | None
    message: str
    requeue_after_seconds: int | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class RequeueState(ApiStruct, frozen=True):
    """Requeue state of a workload after an eviction."""

    requeue_at: str | None = None


class WorkloadStatus(ApiStruct, frozen=True):
    """Status of a Workload."""

    conditions: tuple[CoreCondition, ...] = ()
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    requeue_state: RequeueState | None = None
    cluster_name: str | None = None
    nominated_cluster_names: tuple[str, ...] = ()


class Workload(KubernetesObject, frozen=True):
    """A Workload: Kueue's representation of a Job or another queued object."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def has(self, condition: str) -> bool:
        """Whether a condition is True: QuotaReserved, Admitted, Evicted or Finished."""
        return any(one.type == condition and one.status == "True" for one in self.status.conditions)


class WorkloadWithStatus(KubernetesObject, frozen=True):
    """A Workload with its whole status as it was read."""

    status: dict[str, Any] = msgspec.field(default_factory=dict)


class AdmissionCheckParameters(ApiStruct, frozen=True):
    """Reference to an AdmissionCheck's configuration."""

    name: str = ""


class AdmissionCheckSpec(ApiStruct, frozen=True):
    """Spec of an AdmissionCheck: the controller that answers it, and its configuration."""

    controller_name: str = ""
    parameters: AdmissionCheckParameters | None = None


class AdmissionCheckStatus(ApiStruct, frozen=True):
    """Status of an AdmissionCheck. A ClusterQueue with a check that is not Active admits no workload."""

    conditions: tuple[CoreCondition, ...] = ()


class AdmissionCheck(KubernetesObject, frozen=True):
    """An AdmissionCheck: a condition, besides quota, for the admission of a ClusterQueue's workloads."""

    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class MultiKueueConfigSpec(ApiStruct, frozen=True):
    """Spec of a MultiKueueConfig: names of MultiKueueClusters."""

    clusters: tuple[str, ...] = ()


class MultiKueueConfig(KubernetesObject, frozen=True):
    """A MultiKueueConfig: the worker clusters of an AdmissionCheck of MultiKueue."""

    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()


class MultiKueueClusterStatus(ApiStruct, frozen=True):
    """Status of a MultiKueueCluster. Condition Active: the manager is connected to it."""

    conditions: tuple[CoreCondition, ...] = ()


class MultiKueueCluster(KubernetesObject, frozen=True):
    """A MultiKueueCluster: a worker cluster."""

    status: MultiKueueClusterStatus = MultiKueueClusterStatus()
