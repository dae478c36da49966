"""Kubernetes' built-in objects: nodes, pods, workloads, leases and events."""

from __future__ import annotations

from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject, ObjectMeta, ObjectReference

Quantities = dict[str, str | int | float]
"""Quantity by resource name, as written (``"100m"``, ``"2Gi"``); see `joulie.domain.resource_quantity`."""


# ---- nodes


class Taint(ApiStruct, frozen=True):
    """A taint, which repels pods that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """Spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(default="", name="providerID")


class CoreCondition(ApiStruct, frozen=True):
    """A condition of a node or pod; it predates metav1.Condition and has fewer required fields."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None


class NodeAddress(ApiStruct, frozen=True):
    """One address of a node."""

    type: str
    address: str


class NodeSystemInfo(ApiStruct, frozen=True):
    """System information reported by the kubelet."""

    architecture: str = ""
    boot_id: str = msgspec.field(name="bootID", default="")
    kernel_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    os_image: str = ""


class NodeStatus(ApiStruct, frozen=True):
    """Status of a node, without its list of images."""

    capacity: Quantities = msgspec.field(default_factory=dict)
    allocatable: Quantities = msgspec.field(default_factory=dict)
    conditions: tuple[CoreCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo | None = None


class Node(KubernetesObject, frozen=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# ---- pods


class ResourceRequirements(ApiStruct, frozen=True):
    """Resource requests and limits of a container or of a whole pod."""

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)


class Container(ApiStruct, frozen=True):
    """A container. An init container whose restart policy is Always is a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """A requirement on one label (or field) of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that must all hold; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which at least one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A term that adds its weight to the score of matching nodes."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(ApiStruct, frozen=True):
    """Required and preferred node affinity of a pod."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    """Affinity of a pod; inter-pod affinity is left to kube-scheduler and not decoded."""

    node_affinity: NodeAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    """A toleration of a taint."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSchedulingGate(ApiStruct, frozen=True):
    """A scheduling gate; schedulers ignore a pod until it has none left."""

    name: str


class PodResourceClaim(ApiStruct, frozen=True):
    """A ResourceClaim that a pod uses: an existing one, or one made from a template for the pod."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(ApiStruct, frozen=True):
    """Spec of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: Quantities = msgspec.field(default_factory=dict)
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    restart_policy: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None


class ContainerAllocation(ApiStruct, frozen=True, kw_only=True):
    """What the node has allocated to a container: differs from its spec while an in-place resize is pending."""

    name: str = ""
    allocated_resources: Quantities = msgspec.field(default_factory=dict)


class PodResourceClaimStatus(ApiStruct, frozen=True):
    """The ResourceClaim that was made from a template of a pod; none where the pod did not need one."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(ApiStruct, frozen=True):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[CoreCondition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str | None = None
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    container_statuses: tuple[ContainerAllocation, ...] = ()
    init_container_statuses: tuple[ContainerAllocation, ...] = ()


class Pod(KubernetesObject, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ContainerRun(ApiStruct, frozen=True):
    """Start and end time of a container."""

    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """State of a container; both fields are None while it is waiting."""

    running: ContainerRun | None = None
    terminated: ContainerRun | None = None


class ContainerStatus(ContainerAllocation, frozen=True):
    """Status of a container."""

    state: ContainerState = ContainerState()
    restart_count: int = 0


class PodStatusWithContainers(PodStatus, frozen=True):
    """Status of a pod with that of its containers."""

    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodWithContainers(Pod, frozen=True):
    """A pod with the run times of its containers, which other readers of pods need not decode."""

    status: PodStatusWithContainers = PodStatusWithContainers()


# ---- volumes


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """Nodes that a volume can be used from."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """Spec of a PersistentVolume."""

    local: dict[str, Any] | None = None
    node_affinity: VolumeNodeAffinity | None = None


class PersistentVolume(KubernetesObject, frozen=True):
    """A volume of the cluster."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


# ---- leases and events


class LeaseSpec(ApiStruct, frozen=True):
    """Holder and expiry of a lease; times are RFC 3339 with six decimals."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubernetesObject, frozen=True):
    """A lease: a lock that expires unless it is renewed."""

    spec: LeaseSpec = LeaseSpec()


class EventSource(ApiStruct, frozen=True):
    """The component that reports an Event."""

    component: str = ""
    host: str = ""


class Event(KubernetesObject, frozen=True):
    """A core/v1 Event about an object."""

    involved_object: ObjectReference = ObjectReference(kind="", name="")
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    source: EventSource | None = None
    action: str = ""
    reporting_component: str = ""
    reporting_instance: str = ""


# ---- objects of which few fields are decoded


class Namespace(KubernetesObject, frozen=True):
    """A namespace; its annotations can set defaults for its pods."""


class ServiceAccount(KubernetesObject, frozen=True):
    """A service account."""


class ConfigMap(KubernetesObject, frozen=True):
    """A ConfigMap: text values by key."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(KubernetesObject, frozen=True):
    """A Secret: base64-encoded values by key."""

    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"


class MutatingWebhookConfiguration(KubernetesObject, frozen=True):
    """A mutating webhook configuration, decoded in full because copies of it are made."""

    webhooks: tuple[dict[str, Any], ...] = ()


class APIService(KubernetesObject, frozen=True):
    """An APIService, which registers an aggregated API."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class ReplicasStatus(ApiStruct, frozen=True):
    """Numbers of a workload's pods: all, ready and available."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


class DeploymentStatus(ReplicasStatus, frozen=True):
    """Status of a Deployment."""

    conditions: tuple[CoreCondition, ...] = ()


class Deployment(KubernetesObject, frozen=True):
    """A Deployment."""

    status: DeploymentStatus = DeploymentStatus()


class ReplicaSet(KubernetesObject, frozen=True):
    """A ReplicaSet, usually controlled by a Deployment."""

    status: ReplicasStatus = ReplicasStatus()


class StatefulSet(KubernetesObject, frozen=True):
    """A StatefulSet."""

    status: ReplicasStatus = ReplicasStatus()


class DaemonSet(KubernetesObject, frozen=True):
    """A DaemonSet."""


class PodTemplate(ApiStruct, frozen=True):
    """Template of a workload's pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class TemplateSpec(ApiStruct, frozen=True):
    """Spec of a DaemonSet, Deployment or StatefulSet."""

    template: PodTemplate = PodTemplate()


class WithTemplate(KubernetesObject, frozen=True):
    """A Deployment or StatefulSet with the template of its pods."""

    spec: TemplateSpec = TemplateSpec()


class DaemonSetWithTemplate(DaemonSet, frozen=True):
    """A DaemonSet with the template of its pods, which says on which nodes they run."""

    spec: TemplateSpec = TemplateSpec()


class JobSpec(ApiStruct, frozen=True):
    """Spec of a Job. The active deadline counts from the status' start time, which is reset when the Job is resumed."""

    suspend: bool = False
    active_deadline_seconds: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(ApiStruct, frozen=True):
    """Status of a Job."""

    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    conditions: tuple[CoreCondition, ...] = ()


class Job(KubernetesObject, frozen=True):
    """A Job, possibly controlled by a CronJob."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJobSpec(ApiStruct, frozen=True):
    """Spec of a CronJob; without a time zone, that of kube-controller-manager counts, usually UTC."""

    schedule: str = ""
    time_zone: str | None = None
    suspend: bool = False


class CronJob(KubernetesObject, frozen=True):
    """A CronJob."""

    spec: CronJobSpec = CronJobSpec()


class CustomResourceDefinition(KubernetesObject, frozen=True):
    """A CRD as generated by `joulie_lab.adapters.crd`, and its status from the API server."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)
