"""Kubernetes' own objects: nodes, pods, leases, events and their kin."""

from __future__ import annotations

from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject, ObjectMeta, ObjectReference

Quantities = dict[str, str | int | float]
"""Resource name to quantity as written (``"100m"``, ``"2Gi"``): see `joulie.adapters.kubernetes.times`."""


# ---- nodes


class Taint(ApiStruct, frozen=True):
    """Keeps pods away that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """What was asked of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(default="", name="providerID")


class CoreCondition(ApiStruct, frozen=True):
    """A condition of a node or pod; these are older than the standard ones and lack their obligations."""

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
    """What the kubelet says of the machine."""

    architecture: str = ""
    kernel_version: str = ""
    kubelet_version: str = ""
    operating_system: str = ""
    os_image: str = ""


class NodeStatus(ApiStruct, frozen=True):
    """What a node has, without the list of its images."""

    capacity: Quantities = msgspec.field(default_factory=dict)
    allocatable: Quantities = msgspec.field(default_factory=dict)
    conditions: tuple[CoreCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo | None = None


class Node(KubernetesObject, frozen=True):
    """A machine of the cluster."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# ---- pods


class ResourceRequirements(ApiStruct, frozen=True):
    """What a container, or a pod as a whole, asks for and may use at most."""

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)


class Container(ApiStruct, frozen=True):
    """One container. An init container whose restart policy is Always is a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """A condition on one label (or field) of a node."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that must all hold; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A term that adds its weight to the score of the nodes that it matches."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(ApiStruct, frozen=True):
    """What a pod requires, and what it would like, of the labels of its node."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    """Affinity of a pod; that to other pods is kube-scheduler's business alone."""

    node_affinity: NodeAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    """A taint that a pod can live with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSchedulingGate(ApiStruct, frozen=True):
    """While a pod has one, no scheduler looks at it."""

    name: str


class PodSpec(ApiStruct, frozen=True):
    """What a pod asks for."""

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
    priority: int | None = None
    priority_class_name: str = ""
    restart_policy: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None


class PodStatus(ApiStruct, frozen=True):
    """Where a pod is in its life."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[CoreCondition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str | None = None
    nominated_node_name: str = ""


class Pod(KubernetesObject, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ContainerRun(ApiStruct, frozen=True):
    """When a container began to run, and when it ended."""

    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """What a container does; neither while it waits."""

    running: ContainerRun | None = None
    terminated: ContainerRun | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """Where a container is in its life."""

    state: ContainerState = ContainerState()
    restart_count: int = 0


class PodStatusWithContainers(PodStatus, frozen=True):
    """Where a pod is in its life, with its containers."""

    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodWithContainers(Pod, frozen=True):
    """A pod for who must know when its containers ran; all others are spared reading that."""

    status: PodStatusWithContainers = PodStatusWithContainers()


# ---- leases and events


class LeaseSpec(ApiStruct, frozen=True):
    """Who holds a lease, and until when; times are RFC 3339 with six decimals."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubernetesObject, frozen=True):
    """A lock with an expiry date."""

    spec: LeaseSpec = LeaseSpec()


class EventSource(ApiStruct, frozen=True):
    """Who reports an Event."""

    component: str = ""
    host: str = ""


class Event(KubernetesObject, frozen=True):
    """Something worth telling about an object."""

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


# ---- objects of which little is read


class Namespace(KubernetesObject, frozen=True):
    """A namespace; its annotations can give defaults to its pods."""


class ServiceAccount(KubernetesObject, frozen=True):
    """The identity of a program."""


class ConfigMap(KubernetesObject, frozen=True):
    """Text by name."""

    data: dict[str, str] = msgspec.field(default_factory=dict)


class Secret(KubernetesObject, frozen=True):
    """Bytes by name, base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name})"


class MutatingWebhookConfiguration(KubernetesObject, frozen=True):
    """Webhooks that may change objects before they are stored, whole, since one is made after another."""

    webhooks: tuple[dict[str, Any], ...] = ()


class Deployment(KubernetesObject, frozen=True):
    """A workload of pods that replace each other."""


class ReplicasStatus(ApiStruct, frozen=True):
    """How many pods of a workload there are, and how many of them work."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


class ReplicaSet(KubernetesObject, frozen=True):
    """Stands between a pod and its Deployment."""

    status: ReplicasStatus = ReplicasStatus()


class StatefulSet(KubernetesObject, frozen=True):
    """A workload of pods with names of their own."""

    status: ReplicasStatus = ReplicasStatus()


class DaemonSet(KubernetesObject, frozen=True):
    """A workload with a pod on each node."""


class PodTemplate(ApiStruct, frozen=True):
    """What the pods of a workload are made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class JobSpec(ApiStruct, frozen=True):
    """What was asked of a Job. Its deadline counts from the status' start time, which a resumption sets anew."""

    suspend: bool = False
    active_deadline_seconds: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(ApiStruct, frozen=True):
    """How far a Job is."""

    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    conditions: tuple[CoreCondition, ...] = ()


class Job(KubernetesObject, frozen=True):
    """A workload that ends; it may stand between a pod and its CronJob."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class CronJob(KubernetesObject, frozen=True):
    """A workload that runs again and again, each time as a Job."""


class CustomResourceDefinition(KubernetesObject, frozen=True):
    """A CRD as generated by `joulie_lab.adapters.crd`, and what the API server says of it."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)
