"""The fields of each Kubernetes object that accounting caches.

Few fields are kept, since a cluster has many objects; the types are comparable, so that changes can be detected.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from joulie.adapters.kubernetes.api.core import ContainerStatus, Namespace, Node, PodWithContainers
from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.api.v1alpha1 import NodeHardware
from joulie.adapters.kubernetes.hardware import allocatable_devices, amount, node_aliases, reported_hardware
from joulie.adapters.kubernetes.pods import Owner, pod_facts
from joulie.adapters.kubernetes.times import time_or_none
from joulie.domain.accounting.identity import NodeFacts
from joulie.domain.grid import names
from joulie.domain.hardware.resolve import ReportedHardware
from joulie.domain.policy import PodPhase

BYTES_PER_GB = 1e9
_GB_PER_GIB = 1.024**3
_OUR_PREFIXES = (names.PREFIX, "joulie.io/")
HARDWARE_PREFIXES = (
    *_OUR_PREFIXES,
    "feature.node.kubernetes.io/cpu",
    "nvidia.com/",
    "amd.com/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
    "beta.kubernetes.io/instance-type",
)
"""Prefixes of node labels and annotations about hardware and location."""
_READY_CONDITIONS = ("ContainersReady", "Ready")


class AccountedPod(msgspec.Struct, frozen=True, gc=False):
    """The cached fields of a pod that runs or has run.

    Attributes:
        uid: pod UID, which distinguishes pods of the same name.
        namespace: pod namespace.
        name: pod name.
        node: name of its node.
        owner: its workload, e.g. the Deployment of a ReplicaSet or the CronJob of a Job.
        controller: owner reference of its controller; None without one.
        cpu_cores: requested cores.
        memory_gb: requested memory, GB.
        gpus: requested GPUs; a partition of a GPU counts for its share.
        running: whether it runs.
        succeeded: whether all its containers have ended without an error.
        started_s: start of its first container, s since the epoch; None if unknown.
        ended_s: end of its last container, s since the epoch; None while it runs, or if unknown.
        annotations: annotations that accounting reads.
        labels: labels that accounting reads.
    """

    uid: str
    namespace: str
    name: str
    node: str
    owner: Owner
    controller: OwnerReference | None = None
    cpu_cores: float = 0.0
    memory_gb: float = 0.0
    gpus: float = 0.0
    running: bool = True
    succeeded: bool = False
    started_s: float | None = None
    ended_s: float | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class AccountedNode(msgspec.Struct, frozen=True):
    """The cached fields of a node.

    Attributes:
        uid: node UID.
        facts: facts that determine its power, without the hardware reported by its agent.
        aliases: other names that exporters may use: host name and addresses.
    """

    uid: str
    facts: NodeFacts
    aliases: tuple[str, ...] = ()


class AccountedNamespace(msgspec.Struct, frozen=True):
    """The cached fields of a namespace, which carry its policies.

    Attributes:
        labels: labels that accounting reads.
        annotations: annotations that accounting reads.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def keep_pod(
    pod: PodWithContainers, label_keys: tuple[str, ...] = (), *, all_labels: bool = False
) -> AccountedPod | None:
    """Reduce a pod to the fields that accounting caches; None if it never ran on a node.

    Args:
        pod: the pod.
        label_keys: labels that energy can be summed by.
        all_labels: keep all of its labels, since a budget selects by them.
    """
    facts = pod_facts(pod)
    if not facts.node_name or facts.phase is PodPhase.PENDING:
        return None
    running = facts.phase is PodPhase.RUNNING
    return AccountedPod(
        uid=facts.uid,
        namespace=facts.namespace,
        name=facts.name,
        node=facts.node_name,
        owner=facts.owner,
        controller=facts.controller,
        cpu_cores=facts.requests.cpu_cores,
        memory_gb=facts.requests.memory_gib * _GB_PER_GIB,
        gpus=facts.requests.gpus,
        running=running,
        succeeded=pod.status.phase == "Succeeded",
        started_s=_started_s(pod),
        ended_s=None if running else _ended_s(pod),
        annotations=_chosen(pod.metadata.annotations, _OUR_PREFIXES),
        labels=pod.metadata.labels if all_labels else _kept_labels(pod.metadata.labels, label_keys),
    )


def keep_node(node: Node) -> AccountedNode:
    """Reduce a node to the fields that accounting caches."""
    meta, status = node.metadata, node.status
    has = status.capacity or status.allocatable
    gpus = {resource: count for resource, count in allocatable_devices(node).items() if resource != "cpu"}
    return AccountedNode(
        meta.uid,
        NodeFacts(
            name=meta.name,
            labels=_chosen(meta.labels, HARDWARE_PREFIXES),
            annotations=_chosen(meta.annotations, HARDWARE_PREFIXES),
            provider_id=node.spec.provider_id,
            cpu_cores=amount(has, "cpu"),
            memory_gb=amount(has, "memory") / BYTES_PER_GB,
            allocatable_gpus={resource: count for resource, count in gpus.items() if count},
        ),
        aliases=node_aliases(node),
    )


def keep_namespace(namespace: Namespace) -> AccountedNamespace:
    """Reduce a namespace to the fields that accounting caches."""
    meta = namespace.metadata
    return AccountedNamespace(_chosen(meta.labels, _OUR_PREFIXES), _chosen(meta.annotations, _OUR_PREFIXES))


def keep_hardware(hardware: NodeHardware) -> tuple[str, ReportedHardware]:
    """The node name of a NodeHardware, and the hardware that the node's agent reported."""
    return hardware.spec.node_name, reported_hardware(hardware)


def _chosen(pairs: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if key.startswith(prefixes)}


def _kept_labels(labels: Mapping[str, str], keys: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key in keys or key.startswith(_OUR_PREFIXES)}


def _started_s(pod: PodWithContainers) -> float | None:
    """When the first container started, s since the epoch; the time of pulling images is charged to nobody.

    A container's status has its last start only, so after a restart the time at which the pod came to its node is used.
    """
    status = pod.status
    containers = (*status.init_container_statuses, *status.container_statuses)
    times = [] if any(one.restart_count for one in containers) else [time_or_none(_run(one)[0]) for one in containers]
    return min((time_s for time_s in times if time_s is not None), default=time_or_none(status.start_time))


def _run(container: ContainerStatus) -> tuple[str | None, str | None]:
    """When a container started and ended."""
    run = container.state.terminated or container.state.running
    return (None, None) if run is None else (run.started_at, run.finished_at)


def _ended_s(pod: PodWithContainers) -> float | None:
    """When the last container ended, s since the epoch; if not known of all, since when the pod has not been ready."""
    status = pod.status
    ends = [time_or_none(_run(one)[1]) for one in status.container_statuses]
    if ends and None not in ends:
        all_ends = (*ends, *(time_or_none(_run(one)[1]) for one in status.init_container_statuses))
        return max(end_s for end_s in all_ends if end_s is not None)
    times = (
        time_or_none(one.last_transition_time)
        for one in pod.status.conditions
        if one.type in _READY_CONDITIONS and one.status == "False"
    )
    known = [time_s for time_s in times if time_s is not None]
    return max(known, default=time_or_none(pod.metadata.deletion_timestamp))
