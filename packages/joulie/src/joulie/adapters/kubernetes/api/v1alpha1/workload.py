"""WorkloadProfile: how a workload uses power and what it suffers from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    Conditions,
    Fraction,
    JoulieStruct,
    Message,
    Name,
    Score,
    Timestamp,
    one_of,
)
from joulie.adapters.kubernetes.api.v1alpha1.power import WorkloadReference
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level


class WorkloadClass(StrEnum):
    """What a workload may run on; equal to `joulie.domain.policy.WorkloadClass`, which needs numpy."""

    PERFORMANCE = "performance"
    STANDARD = "standard"


class WorkloadProfileSpec(JoulieStruct, frozen=True):
    """Which workload this is about.

    Attributes:
        workload_ref: the workload.
        node_name: node that it runs on, or mostly does.
    """

    workload_ref: WorkloadReference
    node_name: Name | None = None


class Criticality(JoulieStruct, frozen=True):
    """How critical the workload is.

    Attributes:
        workload_class: performance is kept off capped nodes; standard runs anywhere.
    """

    workload_class: Annotated[str, one_of(WorkloadClass)] | None = msgspec.field(default=None, name="class")


class Migratability(JoulieStruct, frozen=True):
    """Whether the workload can be moved.

    Attributes:
        reschedulable: its pods may be restarted elsewhere.
    """

    reschedulable: bool | None = None


class CpuUse(JoulieStruct, frozen=True):
    """How the workload uses CPUs.

    Attributes:
        intensity: how hard.
        bound: what limits it.
        avg_utilization_pct: mean utilisation of what it requests, %.
        cap_sensitivity: how much a power cap slows it.
    """

    intensity: Annotated[str, one_of(Level)] | None = None
    bound: Annotated[str, one_of(CpuBound)] | None = None
    avg_utilization_pct: Score | None = None
    cap_sensitivity: Annotated[str, one_of(Level)] | None = None


class GpuUse(JoulieStruct, frozen=True):
    """How the workload uses GPUs.

    Attributes:
        intensity: how hard.
        bound: what limits it.
        avg_utilization_pct: mean utilisation of what it requests, %.
        cap_sensitivity: how much a power cap slows it.
    """

    intensity: Annotated[str, one_of(GpuLevel)] | None = None
    bound: Annotated[str, one_of(GpuBound)] | None = None
    avg_utilization_pct: Score | None = None
    cap_sensitivity: Annotated[str, one_of(GpuLevel)] | None = None


class WorkloadProfileStatus(JoulieStruct, frozen=True):
    """What the classifier concluded.

    Attributes:
        criticality: how critical the workload is.
        migratability: whether it can be moved.
        cpu: how it uses CPUs.
        gpu: how it uses GPUs.
        reschedule_recommended: whether it would be better off on another node.
        reschedule_reason: why.
        classification_reason: which measurements and annotations led to this.
        confidence: how much data there was, 0 to 1.
        last_updated: when this was concluded.
        conditions: what is true of the profile, and why.
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


class WorkloadProfile(KubernetesObject, kw_only=True, frozen=True):
    """How a workload uses power: kept by the classifier, read by the operator and the scheduler extender.

    Annotations of the pod win over it.

    Attributes:
        spec: which workload this is about.
        status: what the classifier concluded.
    """

    metadata: ObjectMeta
    spec: WorkloadProfileSpec
    status: WorkloadProfileStatus = WorkloadProfileStatus()
