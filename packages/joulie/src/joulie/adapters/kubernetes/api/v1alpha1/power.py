"""NodeTwin, the desired and predicted state of a node, and NodePowerProfile, the administrator's override of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    CapPercent,
    CapWatts,
    Conditions,
    ControlStatus,
    Count,
    Fraction,
    JoulieStruct,
    Message,
    Name,
    Rule,
    Score,
    Text,
    Timestamp,
    Watts,
    one_of,
    up_to,
)


class Profile(StrEnum):
    """Power profile of a node; equal to `joulie.domain.policy.Profile`, which needs numpy."""

    PERFORMANCE = "performance"
    ECO = "eco"


class SchedulableClass(StrEnum):
    """What the scheduler may put on a node."""

    PERFORMANCE = "performance"
    ECO = "eco"
    DRAINING = "draining"
    UNKNOWN = "unknown"


class PowerSource(StrEnum):
    """Where the measured power of a node comes from."""

    RAPL = "rapl"
    NVML = "nvml"
    KEPLER = "kepler"
    PROMETHEUS = "prometheus"
    HTTP = "http"
    UTILIZATION = "utilization"
    STATIC = "static"


class GpuCapScope(StrEnum):
    """What a GPU cap applies to."""

    PER_GPU = "perGpu"


class SlicingMode(StrEnum):
    """How GPUs can be shared."""

    MIG = "mig"
    TIME_SLICING = "time-slicing"
    NONE = "none"


class CpuCap(JoulieStruct, frozen=True):
    """Power cap of each CPU package; watts win over percent, neither means uncapped.

    Attributes:
        package_power_cap_watts: cap of each package, W.
        package_power_cap_pct_of_max: cap in percent of the package's maximum.
    """

    package_power_cap_watts: CapWatts | None = None
    package_power_cap_pct_of_max: CapPercent | None = None


class GpuPowerCap(JoulieStruct, frozen=True):
    """Power cap of each GPU, the same on all of the node; watts win over percent.

    Attributes:
        scope: what the cap applies to.
        cap_watts_per_gpu: cap of each GPU, W.
        cap_pct_of_max: cap in percent of the GPU's default limit.
    """

    scope: Annotated[str, one_of(GpuCapScope)] | None = None
    cap_watts_per_gpu: CapWatts | None = None
    cap_pct_of_max: CapPercent | None = None


class GpuCap(JoulieStruct, frozen=True):
    """Power control of the GPUs.

    Attributes:
        power_cap: the cap; absent means uncapped.
    """

    power_cap: GpuPowerCap | None = None


class PolicyReference(JoulieStruct, frozen=True):
    """The policy that the desired state comes from.

    Attributes:
        name: of the policy, or of the NodePowerProfile that overrode it.
    """

    name: Text | None = None


class Scheduling(JoulieStruct, frozen=True):
    """What the desired state means for scheduling.

    Attributes:
        draining: whether the node keeps full power, closed to performance pods, until it can be capped.
    """

    draining: bool | None = None


class PowerSpec(JoulieStruct, frozen=True):
    """The desired power state of one node.

    Attributes:
        node_name: name of the node.
        profile: full power, or capped.
        cpu: caps of the CPUs.
        gpu: caps of the GPUs.
        policy: where this comes from.
        scheduling: what it means for scheduling.
    """

    node_name: Name
    profile: Annotated[str, one_of(Profile)]
    cpu: CpuCap | None = None
    gpu: GpuCap | None = None
    policy: PolicyReference | None = None
    scheduling: Scheduling | None = None


class NodeTwinSpec(PowerSpec, frozen=True):
    """The desired power state of one node, written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.nodeName == oldSelf.nodeName", "nodeName is immutable: delete the object instead"),
    )


class EffectiveCapState(JoulieStruct, frozen=True):
    """The caps that the scores were computed with, percent of the maximum; 100 where uncapped.

    Attributes:
        cpu_pct: of the CPUs, %.
        gpu_pct: of the GPUs, %.
    """

    cpu_pct: Score | None = None
    gpu_pct: Score | None = None


class PowerMeasurement(JoulieStruct, frozen=True):
    """Measured power and the limits that it is compared with.

    Attributes:
        source: where the measurement comes from.
        measured_node_power_w: power of the node, W.
        cpu_capped_power_w: power limit in force of all CPUs, W.
        gpu_capped_power_w: power limit in force of all GPUs, W.
        node_capped_power_w: power limit in force of the node, W.
        cpu_tdp_w: power of all CPUs uncapped, W.
        gpu_tdp_w: power of all GPUs uncapped, W.
        node_tdp_w: power of the node uncapped, W.
        power_trend_w_per_min: slope of the measured power, W/min.
    """

    source: Annotated[str, one_of(PowerSource, "http-error", "http-no-endpoint", "prometheus-no-data")] | None = None
    measured_node_power_w: Watts | None = None
    cpu_capped_power_w: Watts | None = None
    gpu_capped_power_w: Watts | None = None
    node_capped_power_w: Watts | None = None
    cpu_tdp_w: Watts | None = None
    gpu_tdp_w: Watts | None = None
    node_tdp_w: Watts | None = None
    power_trend_w_per_min: float | None = None


class WorkloadReference(JoulieStruct, frozen=True):
    """The top owner of some pods, or a pod without one.

    Attributes:
        kind: Job, Deployment, StatefulSet, DaemonSet, CronJob or Pod.
        name: its name.
        namespace: its namespace.
    """

    kind: Name
    name: Name
    namespace: Name | None = None


class RescheduleRecommendation(JoulieStruct, frozen=True):
    """A workload that would be better off elsewhere.

    Attributes:
        workload_ref: the workload.
        reason: why, for people.
    """

    workload_ref: WorkloadReference
    reason: Message | None = None


class GpuSlicingRecommendation(JoulieStruct, frozen=True):
    """How the GPUs of the node could be shared better.

    Attributes:
        mode: by partitions, by time, or not at all.
        slice_type: partition profile, such as 1g.10gb.
        slices_per_gpu: slices of each GPU.
        total_slices: slices of the node.
        reason: why, for people.
        estimated_utilization_gain: expected gain in utilisation, percent points.
        confidence: how sure this is, 0 to 1.
    """

    mode: Annotated[str, one_of(SlicingMode)] | None = None
    slice_type: Text | None = None
    slices_per_gpu: Count | None = msgspec.field(default=None, name="slicesPerGPU")
    total_slices: Count | None = None
    reason: Message | None = None
    estimated_utilization_gain: Score | None = None
    confidence: Fraction | None = None


class NodeTwinStatus(JoulieStruct, frozen=True):
    """The predicted state of the node. The operator writes all of it but `controlStatus`, which is the agent's.

    Attributes:
        schedulable_class: what the scheduler may put on the node.
        predicted_power_headroom_score: power left below the cap, 0 none to 100 all; absent where unknown.
        predicted_cooling_stress_score: share of the cooling capacity in use, 0 to 100.
        predicted_psu_stress_score: share of the rack's power capacity in use, 0 to 100.
        hardware_density_score: relative compute density, 0 to 100.
        estimated_pue: power usage effectiveness of the facility.
        effective_cap_state: the caps that the scores were computed with.
        power_measurement: measured power and its limits.
        control_status: what the agent did about the caps.
        reschedule_recommendations: workloads that would be better off elsewhere.
        gpu_slicing_recommendation: how the GPUs could be shared better.
        last_updated: when the operator last wrote.
        conditions: what is true of the node, such as Draining, and why data is missing.
    """

    schedulable_class: Annotated[str, one_of(SchedulableClass)] | None = None
    predicted_power_headroom_score: Score | None = None
    predicted_cooling_stress_score: Score | None = None
    predicted_psu_stress_score: Score | None = None
    hardware_density_score: Score | None = None
    estimated_pue: Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 1})] | None = msgspec.field(
        default=None, name="estimatedPUE"
    )
    effective_cap_state: EffectiveCapState | None = None
    power_measurement: PowerMeasurement | None = None
    control_status: ControlStatus | None = None
    reschedule_recommendations: Annotated[tuple[RescheduleRecommendation, ...], up_to(256)] = ()
    gpu_slicing_recommendation: GpuSlicingRecommendation | None = None
    last_updated: Timestamp | None = None
    conditions: Conditions = ()


class NodeTwin(KubernetesObject, kw_only=True, frozen=True):
    """The digital twin of a node: what it should do (spec) and how it is expected to fare (status).

    The operator writes it, the agent enforces the spec and reports in `status.controlStatus`, the scheduler extender
    places pods by the status.

    Attributes:
        spec: the desired power state.
        status: the predicted state.
    """

    metadata: ObjectMeta
    spec: NodeTwinSpec
    status: NodeTwinStatus = NodeTwinStatus()


class NodePowerProfileStatus(JoulieStruct, frozen=True):
    """Whether the override counts.

    Attributes:
        conditions: what is true of the override, and why.
    """

    conditions: Conditions = ()


class NodePowerProfile(KubernetesObject, kw_only=True, frozen=True):
    """Pins the power profile and caps of one node, over the policy but never over the drain guard.

    It counts only with the label joulie.io/override=true; objects without it were left by older versions and pin
    nothing.

    Attributes:
        spec: the power state to pin.
        status: whether it counts.
    """

    metadata: ObjectMeta
    spec: PowerSpec
    status: NodePowerProfileStatus = NodePowerProfileStatus()
