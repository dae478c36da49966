"""MultiKueue's resources in the manager cluster, and the nomination of worker clusters for a workload.

Kueue copies a workload to the clusters in ``status.nominatedClusterNames`` and assigns it to the first of them that
admits it, unless its configuration names one of its own dispatchers (KEP-693, Dispatcher API, since v0.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from joulie.adapters.kubernetes.api.kueue import (
    AdmissionCheck,
    CheckState,
    MultiKueueCluster,
    MultiKueueConfig,
    Workload,
    WorkloadWithStatus,
)
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.kueue import CONCURRENCY, GROUP, find_kueue, raise_first, unanswered
from joulie.adapters.kubernetes.resources import Resource
from joulie.adapters.kubernetes.wire import Key
from joulie.adapters.kubernetes.writer import Job, write_all

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""``spec.controllerName`` of MultiKueue's AdmissionChecks."""
_KUEUES_MANAGER = "kueue-admission"
"""Kueue's field manager. A nomination of another manager could not be removed by Kueue, and so would keep it from
assigning the workload to a cluster (kubernetes-sigs/kueue#6185)."""


@dataclass(frozen=True)
class MultiKueueResources:
    """MultiKueue's resources in one API version.

    Attributes:
        workloads: Workloads with their whole status.
        configs: MultiKueueConfigs.
        clusters: MultiKueueClusters.
    """

    workloads: Resource[WorkloadWithStatus]
    configs: Resource[MultiKueueConfig]
    clusters: Resource[MultiKueueCluster]

    @classmethod
    def for_version(cls, version: str) -> MultiKueueResources:
        """The resources in an API version."""
        return cls(
            Resource(GROUP, version, "workloads", "Workload", True, WorkloadWithStatus),
            Resource(GROUP, version, "multikueueconfigs", "MultiKueueConfig", False, MultiKueueConfig),
            Resource(GROUP, version, "multikueueclusters", "MultiKueueCluster", False, MultiKueueCluster),
        )


def config_of(check: AdmissionCheck) -> str | None:
    """Name of the MultiKueueConfig of an AdmissionCheck; None if another controller answers it."""
    parameters = check.spec.parameters
    return parameters.name if check.spec.controller_name == MULTIKUEUE and parameters is not None else None


def is_connected(cluster: MultiKueueCluster) -> bool:
    """Whether Kueue is connected to a worker cluster."""
    return any(one.type == "Active" and one.status == "True" for one in cluster.status.conditions)


def last_check(workload: Workload) -> str | None:
    """The only check that a workload with quota still waits for, while no cluster is assigned to it; else None.

    Kueue since v0.19 dispatches a workload only then; earlier versions would copy one that another check delays.
    """
    pending = unanswered(workload)
    ready = sum(one.state == CheckState.READY for one in workload.status.admission_checks)
    alone = len(pending) == 1 and ready + 1 == len(workload.status.admission_checks)
    return pending[0] if alone and workload.status.cluster_name is None else None


async def write_nomination(
    client: KubeClient, resources: MultiKueueResources, key: Key, version: str, clusters: Sequence[str]
) -> None:
    """Nominate worker clusters for a workload, provided that it still has the given resource version.

    Written as Kueue does: the whole status, in the name of its field manager. Fields that are omitted would be removed.

    Raises:
        KubernetesError: the write failed; `ConflictError` if the workload has changed.
    """
    found = await client.get(resources.workloads, key.name, key.namespace)
    await client.apply(
        resources.workloads,
        key.name,
        {
            "metadata": {"resourceVersion": version},
            "status": {**found.status, "nominatedClusterNames": list(clusters)},
        },
        field_manager=_KUEUES_MANAGER,
        namespace=key.namespace,
        subresource="status",
    )


async def nominate_all(client: KubeClient) -> list[str]:
    """Nominate all connected clusters for every workload that waits for a nomination, in place of a controller.

    Returns:
        Namespace and name of the nominated workloads; empty without Kueue.

    Raises:
        KubernetesError: a workload could not be nominated; all others were.
    """
    kueue = await find_kueue(client)
    if kueue is None:
        return []
    resources = MultiKueueResources.for_version(kueue.workloads.version)
    checks = {check.metadata.name: config_of(check) for check in (await client.list(kueue.checks)).items}
    configs = {name: config for name, config in checks.items() if config is not None}
    clusters = {one.metadata.name: one.spec.clusters for one in (await client.list(resources.configs)).items}
    connected = {one.metadata.name for one in (await client.list(resources.clusters)).items if is_connected(one)}
    nominated: list[str] = []

    async def nominate(key: Key, version: str, names: Sequence[str]) -> None:
        await write_nomination(client, resources, key, version, names)
        nominated.append(str(key))

    jobs: list[Job] = []
    for workload in (await client.list(kueue.workloads)).items:
        config = configs.get(last_check(workload) or "")
        if config is None or workload.status.nominated_cluster_names:
            continue
        if names := [name for name in clusters.get(config, ()) if name in connected]:
            key = Key(workload.metadata.namespace, workload.metadata.name)
            jobs.append(partial(nominate, key, workload.metadata.resource_version, names))
    raise_first(await write_all(jobs, concurrency=CONCURRENCY))
    return sorted(nominated)
