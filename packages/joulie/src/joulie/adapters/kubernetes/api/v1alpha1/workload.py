"""WorkloadProfile: resource use, power cap sensitivity and criticality of a workload."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    CapMegahertz,
    CapWatts,
    Conditions,
    Count,
    Fraction,
    JoulieStruct,
    Message,
    Name,
    Score,
    Text,
    Timestamp,
    Watts,
    one_of,
)
from joulie.adapters.kubernetes.api.v1alpha1.power import WorkloadReference
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level


class WorkloadClass(StrEnum):
    """Workload class; equal to `joulie.domain.policy.WorkloadClass`, which needs numpy."""

    PERFORMANCE = "performance"
    STANDARD = "standard"


class WorkloadProfileSpec(JoulieStruct, frozen=True):
    """The workload that the profile describes.

    Attributes:
        workload_ref: the workload.
        node_name: node that the workload runs on, or on which most of it runs.
    """

    workload_ref: WorkloadReference
    node_name: Name | None = None


class Criticality(JoulieStruct, frozen=True):
    """Criticality of the workload.

    Attributes:
        workload_class: performance (not placed on capped nodes) or standard (placed on any node).
    """

    workload_class: Annotated[str, one_of(WorkloadClass)] | None = msgspec.field(default=None, name="class")


class Migratability(JoulieStruct, frozen=True):
    """Whether the workload can be moved.

    Attributes:
        reschedulable: whether its pods may be restarted on other nodes.
    """

    reschedulable: bool | None = None


class CpuUse(JoulieStruct, frozen=True):
    """CPU use of the workload.

    Attributes:
        intensity: intensity of CPU use.
        bound: resource that limits its speed.
        avg_utilization_pct: average utilisation of the requested CPUs, %.
        cap_sensitivity: sensitivity of its speed to a power cap.
    """

    intensity: Annotated[str, one_of(Level)] | None = None
    bound: Annotated[str, one_of(CpuBound)] | None = None
    avg_utilization_pct: Score | None = None
    cap_sensitivity: Annotated[str, one_of(Level)] | None = None


class GpuUse(JoulieStruct, frozen=True):
    """GPU use of the workload.

    Attributes:
        intensity: intensity of GPU use.
        bound: resource that limits its speed.
        avg_utilization_pct: average utilisation of the requested GPUs, %.
        cap_sensitivity: sensitivity of its speed to a power cap.
    """

    intensity: Annotated[str, one_of(GpuLevel)] | None = None
    bound: Annotated[str, one_of(GpuBound)] | None = None
    avg_utilization_pct: Score | None = None
    cap_sensitivity: Annotated[str, one_of(GpuLevel)] | None = None


class HeldOutSaving(JoulieStruct, frozen=True):
    """What a limit saves, by windows that were left without it at random (GPU_LIMITS_HOLDOUT).

    The next leader, and the workload's next run, go on from it.

    Attributes:
        windows: number of windows that count.
        left_out: number of those without the limit.
        mean_log_energy: mean logarithm of energy with the limit over that without it, which the saving follows from.
        error_log_energy: its standard error.
        natural_watts: power of a GPU without the limit, W: what a window weighs against those of other workloads.
        saved_pct: energy for the same work that is saved, %; negative where the limit costs energy. Absent, as its
            bounds, while too few windows were left alone.
        low_pct: lower bound of an interval that holds at all looks together, %.
        high_pct: upper bound, %.
    """

    windows: Count
    left_out: Count
    mean_log_energy: float
    error_log_energy: float
    natural_watts: Watts
    saved_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None


class HeldGpuLimit(JoulieStruct, frozen=True):
    """Limit that the workload's GPUs were held at last; its next run starts there, after one check.

    Attributes:
        watts: power limit of each GPU, W; the baseline where no smaller one is known to save energy within the bound.
        max_sm_clock_mhz: maximum of their SM clock, MHz, where that saved more; the power limit is the baseline then.
        baseline_watts: limit that they had before Joulie's first write, W.
        max_slowdown: the bound: time for the same work over that at the baseline.
        reason: why this limit: measured, predicted, nothing better, or that its progress contradicts its GPUs.
        slowdown: time for the same work over that at the baseline; absent if unknown.
        saved_pct: energy for the same work that is saved, %; absent if unknown.
        confidence: probability that the bound is exceeded by no more than 1 %.
        holdout: what it saves by a holdout; absent without one.
        last_updated: time of the last change.
    """

    watts: CapWatts
    max_sm_clock_mhz: CapMegahertz | None = None
    baseline_watts: Watts | None = None
    max_slowdown: float | None = None
    reason: Text | None = None
    slowdown: float | None = None
    saved_pct: float | None = None
    confidence: Fraction | None = None
    holdout: HeldOutSaving | None = None
    last_updated: Timestamp | None = None


class WorkloadProfileStatus(JoulieStruct, frozen=True):
    """The classification of the workload.

    Attributes:
        criticality: criticality of the workload.
        migratability: whether the workload can be moved.
        cpu: CPU use of the workload.
        gpu: GPU use of the workload.
        reschedule_recommended: whether the workload should be moved to another node.
        reschedule_reason: reason for the recommendation.
        classification_reason: measurements and annotations that the classification is based on.
        confidence: confidence of the classification, from the amount of data, 0 to 1.
        last_updated: time of the classification.
        conditions: conditions of the profile.
        gpu_limit: power limit that its GPUs were held at last.
    """

    criticality: Criticality | None = None
    migratability: Migratability | None = None
    cpu: CpuUse | None = None
    gpu: GpuUse | None = None
    reschedule_recommended: bool | None = None
    reschedule_reason: Message | None = None
    classification_reason: Message | None = None
    confidence: Fraction | None = None
    last_updated: Timestamp | None = None
    conditions: Conditions = ()
    gpu_limit: HeldGpuLimit | None = None


class WorkloadProfile(KubernetesObject, kw_only=True, frozen=True):
    """The classification of a workload, written by the classifier and read by the operator and the scheduler extender.

    Annotations of a pod take precedence over it.

    Attributes:
        spec: workload that the profile describes.
        status: classification of the workload.
    """

    metadata: ObjectMeta
    spec: WorkloadProfileSpec
    status: WorkloadProfileStatus = WorkloadProfileStatus()
