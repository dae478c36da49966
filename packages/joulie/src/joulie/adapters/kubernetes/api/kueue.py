"""What Joulie reads and writes of Kueue's objects; fields, states and conditions are the same in v1beta1 and v1beta2.

Source: the API reference of Kueue (kueue.x-k8s.io).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from joulie.adapters.kubernetes.api.core import CoreCondition, PodTemplate
from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject


class CheckState(StrEnum):
    """What a check says of a workload."""

    PENDING = "Pending"
    """Nothing yet. The workload holds its quota all the while."""
    READY = "Ready"
    RETRY = "Retry"
    """Not now: Kueue takes the quota back and queues the workload again later."""
    REJECTED = "Rejected"


class PodSet(ApiStruct, frozen=True):
    """Pods of a workload that are alike."""

    name: str = ""
    template: PodTemplate = PodTemplate()


class WorkloadSpec(ApiStruct, frozen=True):
    """What Kueue admits as a whole."""

    pod_sets: tuple[PodSet, ...] = ()
    active: bool = True


class PodSetUpdate(ApiStruct, frozen=True):
    """What a check adds to pods. A key that they have already makes the admission fail."""

    name: str
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class AdmissionCheckState(ApiStruct, frozen=True):
    """What one check says of a workload.

    Attributes:
        name: of the AdmissionCheck.
        state: see `CheckState`; other words come from other versions.
        last_transition_time: of the state.
        message: for people.
        requeue_after_seconds: with Retry, how long after the transition the workload is queued again; at once without.
        pod_set_updates: with Ready.
    """

    name: str
    state: str
    last_transition_time: str | None
    message: str
    requeue_after_seconds: int | None = None
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class RequeueState(ApiStruct, frozen=True):
    """When a workload is queued again."""

    requeue_at: str | None = None


class WorkloadStatus(ApiStruct, frozen=True):
    """How far a workload is."""

    conditions: tuple[CoreCondition, ...] = ()
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    requeue_state: RequeueState | None = None


class Workload(KubernetesObject, frozen=True):
    """What Kueue queues: it stands for a Job, or for another object of its queues."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def has(self, condition: str) -> bool:
        """Whether a condition holds: QuotaReserved, Admitted, Evicted, Finished."""
        return any(one.type == condition and one.status == "True" for one in self.status.conditions)


class AdmissionCheckSpec(ApiStruct, frozen=True):
    """Who answers for a check."""

    controller_name: str = ""


class AdmissionCheckStatus(ApiStruct, frozen=True):
    """Whether somebody answers. ClusterQueues with a check that is not Active admit nothing."""

    conditions: tuple[CoreCondition, ...] = ()


class AdmissionCheck(KubernetesObject, frozen=True):
    """One more thing, beside quota, that the workloads of a ClusterQueue need in order to run."""

    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()
