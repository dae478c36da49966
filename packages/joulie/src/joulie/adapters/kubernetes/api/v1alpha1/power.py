"""NodeTwin (desired and predicted state of a node) and NodePowerProfile (an administrator's override of it)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject, ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1.fields import (
    CapMegahertz,
    CapPercent,
    CapWatts,
    Conditions,
    ControlStatus,
    Count,
    Fraction,
    GpuId,
    JoulieStruct,
    Message,
    Name,
    PodReference,
    Rule,
    Score,
    Text,
    Timestamp,
    Watts,
    one_of,
    up_to,
)

MAX_BUDGETS = 32
"""PowerBudgets that a twin names."""


class Profile(StrEnum):
    """Power profile of a node; equal to `joulie.domain.policy.Profile`, which needs numpy."""

    PERFORMANCE = "performance"
    ECO = "eco"


class SchedulableClass(StrEnum):
    """Scheduling class of a node."""

    PERFORMANCE = "performance"
    ECO = "eco"
    DRAINING = "draining"
    UNKNOWN = "unknown"


class SleepPhase(StrEnum):
    """State of a node that sleeps, is about to, or wakes; the first word of its mark."""

    EMPTYING = "emptying"
    CORDONED = "cordoned"
    ASLEEP = "asleep"
    WAKING = "waking"
    FAILED = "failed"


class PowerSource(StrEnum):
    """Source of a node's measured power."""

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
    """Method of sharing a GPU."""

    MIG = "mig"
    TIME_SLICING = "time-slicing"
    NONE = "none"


class CpuCap(JoulieStruct, frozen=True):
    """Power cap of each CPU package. Watts take precedence over percent; without either, packages are uncapped.

    Attributes:
        package_power_cap_watts: power cap of each package, W.
        package_power_cap_pct_of_max: power cap of each package, % of the package's maximum.
    """

    package_power_cap_watts: CapWatts | None = None
    package_power_cap_pct_of_max: CapPercent | None = None


class GpuPowerCap(JoulieStruct, frozen=True):
    """Power cap of each GPU of the node. Watts take precedence over percent.

    Attributes:
        scope: scope of the cap.
        cap_watts_per_gpu: power cap of each GPU, W.
        cap_pct_of_max: power cap of each GPU, % of its default limit.
    """

    scope: Annotated[str, one_of(GpuCapScope)] | None = None
    cap_watts_per_gpu: CapWatts | None = None
    cap_pct_of_max: CapPercent | None = None


class GpuCap(JoulieStruct, frozen=True):
    """Power control of the GPUs.

    Attributes:
        power_cap: power cap; uncapped if absent.
    """

    power_cap: GpuPowerCap | None = None


class GpuLimit(JoulieStruct, frozen=True):
    """Limits of one GPU, for the pod that holds it. They end with the pod's hold on the GPU.

    Attributes:
        id: GPU, as `status.controlStatus.gpus` names it.
        watts: power limit, W; the GPU keeps a lower limit that it has.
        max_sm_clock_mhz: maximum of the SM clock, MHz; locked to the next supported clock below, where the agent may
            (`GPU_CLOCKS`).
        pod: pod that the limit is for.
        owner: whose limit it is, where it is not one that Joulie found: the annotation by which the pod states it.
    """

    id: GpuId
    pod: PodReference
    watts: CapWatts | None = None
    owner: Text | None = None
    max_sm_clock_mhz: CapMegahertz | None = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.watts) || has(self.maxSmClockMhz)", "a limit needs watts or maxSmClockMhz"),
    )


class PolicyReference(JoulieStruct, frozen=True):
    """The policy that determined the desired state.

    Attributes:
        name: name of the policy, or of the NodePowerProfile that overrides it.
    """

    name: Text | None = None


class Scheduling(JoulieStruct, frozen=True):
    """Scheduling state of the node.

    Attributes:
        draining: whether the node is draining: it keeps full power and accepts no performance pods until it can be
            capped.
    """

    draining: bool | None = None


class PowerSpec(JoulieStruct, frozen=True):
    """The desired power state of one node.

    Attributes:
        node_name: name of the node.
        profile: power profile: performance (full power) or eco (capped).
        cpu: power cap of the CPUs.
        gpu: power control of the GPUs.
        policy: policy that determined this state.
        scheduling: scheduling state of the node.
    """

    node_name: Name
    profile: Annotated[str, one_of(Profile)]
    cpu: CpuCap | None = None
    gpu: GpuCap | None = None
    policy: PolicyReference | None = None
    scheduling: Scheduling | None = None


class NodeTwinSpec(PowerSpec, frozen=True):
    """The desired power state of one node, written by the operator.

    Attributes:
        gpu_limits: power limits of single GPUs, below the cap of all GPUs. The agent lifts them when `lastUpdated` has
            not changed for its GPU_LIMIT_LEASE.
    """

    gpu_limits: Annotated[tuple[GpuLimit, ...], up_to(64)] = ()

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.nodeName == oldSelf.nodeName", "nodeName is immutable: delete the object instead"),
    )


class EffectiveCapState(JoulieStruct, frozen=True):
    """The caps in force, which the scores were computed with, % of the maximum; 100 if uncapped or not confirmed.

    Attributes:
        cpu_pct: cap of the CPUs, %.
        gpu_pct: cap of the GPUs, %.
    """

    cpu_pct: Score | None = None
    gpu_pct: Score | None = None


class PowerMeasurement(JoulieStruct, frozen=True):
    """Measured power of the node and the limits that it is compared with.

    Attributes:
        source: source of the measurement.
        measured_node_power_w: measured power of the node, W.
        cpu_capped_power_w: total power limit in force of all CPUs, W.
        gpu_capped_power_w: total power limit in force of all GPUs, W.
        node_capped_power_w: power limit in force of the node, W.
        cpu_tdp_w: total uncapped power of all CPUs, W.
        gpu_tdp_w: total uncapped power of all GPUs, W.
        node_tdp_w: uncapped power of the node, W.
        power_trend_w_per_min: trend of the measured power, W/min.
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
    """A workload: the top-level owner of pods, or a pod without an owner.

    Attributes:
        kind: Job, Deployment, StatefulSet, DaemonSet, CronJob or Pod.
        name: name of the workload.
        namespace: namespace of the workload.
    """

    kind: Name
    name: Name
    namespace: Name | None = None


class RescheduleRecommendation(JoulieStruct, frozen=True):
    """A workload that should be moved to another node.

    Attributes:
        workload_ref: the workload.
        reason: human-readable reason.
    """

    workload_ref: WorkloadReference
    reason: Message | None = None


class GpuSlicingRecommendation(JoulieStruct, frozen=True):
    """Recommended sharing of the node's GPUs.

    Attributes:
        mode: mig (partitions), time-slicing or none.
        slice_type: MIG profile, such as 1g.10gb.
        slices_per_gpu: number of slices per GPU.
        total_slices: number of slices on the node.
        reason: human-readable reason.
        estimated_utilization_gain: estimated gain in utilisation, percentage points.
        confidence: confidence of the recommendation, 0 to 1.
    """

    mode: Annotated[str, one_of(SlicingMode)] | None = None
    slice_type: Text | None = None
    slices_per_gpu: Count | None = msgspec.field(default=None, name="slicesPerGPU")
    total_slices: Count | None = None
    reason: Message | None = None
    estimated_utilization_gain: Score | None = None
    confidence: Fraction | None = None


class PlannedSleep(JoulieStruct, frozen=True):
    """The state of sleep that an observed node would be in.

    Attributes:
        state: emptying (its pods would be moved), cordoned (closed to pods, so that it can sleep), asleep, waking, or
            failed (it would have been told to wake in vain).
        since: time since when it would be.
        reason: why.
    """

    state: Annotated[str, one_of(SleepPhase)]
    since: Timestamp
    reason: Text = ""


class PlannedState(JoulieStruct, frozen=True):
    """The power state that a node in observe mode would be in.

    Attributes:
        profile: power profile that is planned.
        cpu: power cap of the CPUs under that profile.
        gpu: power control of the GPUs under that profile.
        policy: policy that determined the plan.
        draining: whether pods on the node need full power, so that it would have to drain before it is capped.
        sleep: how it would sleep, where sleep is only observed; absent where it would be open to pods.
    """

    profile: Annotated[str, one_of(Profile)] | None = None
    cpu: CpuCap | None = None
    gpu: GpuCap | None = None
    policy: PolicyReference | None = None
    draining: bool | None = None
    sleep: PlannedSleep | None = None


class NodeTwinStatus(JoulieStruct, frozen=True):
    """The predicted state of the node. Written by the operator, except `controlStatus`, which the agent writes.

    Attributes:
        schedulable_class: scheduling class of the node: the kinds of pods that it accepts.
        predicted_power_headroom_score: predicted power headroom below the cap, 0 (none) to 100; absent if unknown.
        predicted_cooling_stress_score: predicted use of the cooling capacity, 0 to 100.
        predicted_psu_stress_score: predicted use of the rack's power capacity, 0 to 100.
        hardware_density_score: relative compute density, 0 to 100.
        estimated_pue: estimated power usage effectiveness (PUE) of the facility.
        effective_cap_state: caps in force, as the agent confirmed them; the scores were computed with them.
        power_measurement: measured power and its limits.
        control_status: results of applying the caps, reported by the agent.
        reschedule_recommendations: workloads that should be moved to other nodes.
        gpu_slicing_recommendation: recommended sharing of the GPUs.
        planned: what would be done, on a node in observe mode or whose sleep is only observed; absent where the plan is
            applied.
        power_budgets: PowerBudgets in force that cover the node.
        last_updated: time of the operator's last update.
        conditions: conditions of the node, such as Draining, and reasons for missing data.
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
    planned: PlannedState | None = None
    power_budgets: Annotated[tuple[Name, ...], up_to(MAX_BUDGETS)] = ()
    last_updated: Timestamp | None = None
    conditions: Conditions = ()


class NodeTwin(KubernetesObject, kw_only=True, frozen=True):
    """The digital twin of a node: its desired power state (spec) and predicted state (status).

    The operator writes it. The agent enforces the spec and reports in `status.controlStatus`. The scheduler extender
    places pods by the status.

    Attributes:
        spec: desired power state.
        status: predicted state.
    """

    metadata: ObjectMeta
    spec: NodeTwinSpec
    status: NodeTwinStatus = NodeTwinStatus()


class NodePowerProfileStatus(JoulieStruct, frozen=True):
    """Whether the override is in effect.

    Attributes:
        conditions: conditions of the override.
    """

    conditions: Conditions = ()


class NodePowerProfile(KubernetesObject, kw_only=True, frozen=True):
    """Pins the power profile and caps of one node. It overrides the policy, but never the drain guard.

    It takes effect only with the label joulie.io/override=true; objects without the label were left by older versions
    and have no effect.

    Attributes:
        spec: power state to pin.
        status: whether the override is in effect.
    """

    metadata: ObjectMeta
    spec: PowerSpec
    status: NodePowerProfileStatus = NodePowerProfileStatus()
