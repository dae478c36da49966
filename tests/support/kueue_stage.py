"""Kueue's part in a test: what it writes of the workloads that it admits, as Kueue v0.19.1 was seen to do."""

from collections.abc import Iterable
from typing import Any

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.kueue import KueueResources
from joulie.adapters.kubernetes.multikueue import MultiKueueResources
from joulie.adapters.kubernetes.resources import JOBS, PODS, Resource

Json = dict[str, Any]

NOW = "2026-03-13T12:00:00Z"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"
ADMISSION: Json = {"clusterQueue": "queue", "podSetAssignments": [{"name": "main", "count": 1}]}


def condition(kind: str, holds: str) -> Json:
    """A condition of a workload."""
    return {"type": kind, "status": holds, "reason": "Test", "message": "", "lastTransitionTime": NOW}


def workload(name: str, annotations: dict[str, str], **template: Any) -> Json:
    """A workload of one Job with one set of pods."""
    spec = {
        "schedulerName": "compute-gardener-scheduler",
        "containers": [{"name": "main", "image": "none"}],
        **template,
    }
    pods = {"name": "main", "count": 1, "template": {"metadata": {"annotations": annotations}, "spec": spec}}
    return {"metadata": {"name": name}, "spec": {"queueName": "queue", "podSets": [pods]}}


class Kueue:
    """What Kueue does to the workloads of a namespace, with a quota of one of them at a time.

    Attributes:
        preempted: names of the workloads that were evicted for one of higher priority, in this order.
    """

    def __init__(self, client: KubeClient, resources: KueueResources, namespace: str) -> None:
        self._client = client
        self._resources = resources
        self._namespace = namespace
        self.preempted: list[str] = []

    async def check(self, name: str, controller: str) -> None:
        """An AdmissionCheck, as an administrator makes it."""
        await self._client.create(
            self._resources.checks, {"metadata": {"name": name}, "spec": {"controllerName": controller}}
        )

    async def submit(self, name: str, annotations: dict[str, str], **template: Any) -> None:
        """A workload comes into the queue."""
        await self._client.create(self._resources.workloads, workload(name, annotations, **template), self._namespace)

    async def submit_job(
        self, name: str, annotations: dict[str, str], *, own: dict[str, str] | None = None, priority: int = 0
    ) -> None:
        """A Job of Kueue's comes, and its workload, whose template is the Job's.

        Args:
            name: of both.
            annotations: of the template.
            own: annotations of the Job itself.
            priority: of the workload.
        """
        body = workload(name, annotations)
        (pods,) = body["spec"]["podSets"]
        job = {
            "metadata": {"name": name, "annotations": own or {}, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
            "spec": {"suspend": True, "template": pods["template"]},
        }
        made = await self._client.create(JOBS, job, self._namespace)
        body["spec"]["priority"] = priority
        await self._queue(body, [(JOBS, name, made.metadata.uid, True)], own or {})

    async def submit_pods(self, name: str, annotations: dict[str, str], *, group: bool = False, **spec: Any) -> None:
        """A pod, or a group of two, comes, and its workload, whose template has no metadata.

        Args:
            name: of the pod and of the workload.
            annotations: of the pods.
            group: whether it is a group, of which no pod controls the workload.
            **spec: of the pods.
        """
        body = workload(name, {}, **spec)
        (pods,) = body["spec"]["podSets"]
        del pods["template"]["metadata"]
        owners = []
        for pod in (f"{name}-0", f"{name}-1") if group else (name,):
            labels = {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/managed": "true"}
            metadata = {"name": pod, "annotations": annotations, "labels": labels}
            made = await self._client.create(
                PODS, {"metadata": metadata, "spec": pods["template"]["spec"]}, self._namespace
            )
            owners.append((PODS, pod, made.metadata.uid, not group))
        await self._queue(body, owners, annotations)

    async def _queue(
        self, body: Json, owners: Iterable[tuple[Resource[Any], str, str, bool]], annotations: dict[str, str]
    ) -> None:
        """Create a workload with the gate of its owner."""
        body["metadata"]["ownerReferences"] = [
            {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "uid": uid, "controller": controls}
            for kind, name, uid, controls in owners
        ]
        body["metadata"]["annotations"] = {key: annotations[key] for key in (GATED_BY,) if key in annotations}
        await self._client.create(self._resources.workloads, body, self._namespace)

    async def reconcile(self) -> None:
        """Workloads get the gate of the objects that they represent. Kueue refuses one that comes later."""
        for found in (await self._client.list(self._resources.workloads, namespace=self._namespace)).items:
            for owner in found.metadata.owner_references:
                resource = JOBS if owner.kind == JOBS.kind else PODS
                meta = (await self._client.get(resource, owner.name, self._namespace)).metadata
                gates = meta.annotations.get(GATED_BY)
                if gates == found.metadata.annotations.get(GATED_BY):
                    continue
                if found.metadata.annotations.get(GATED_BY) is None:
                    raise AssertionError("cannot add admission gate after creation")
                body = {"metadata": {"annotations": {GATED_BY: gates}}}
                await self._client.patch(
                    self._resources.workloads, found.metadata.name, body, namespace=self._namespace
                )
                break

    async def cycle(self, *checks: str) -> None:
        """One cycle of the scheduler: the workload of highest priority that is not gated gets the quota.

        Another one that has it is preempted first if its priority is lower. Checks are asked only after that.
        """
        await self.reconcile()
        found = (await self._client.list(self._resources.workloads, namespace=self._namespace)).items
        priorities = {one.metadata.name: await self._priority(one.metadata.name) for one in found}
        holders = [one.metadata.name for one in found if one.has("QuotaReserved")]
        waiting = [
            one.metadata.name
            for one in found
            if not one.has("QuotaReserved") and not one.metadata.annotations.get(GATED_BY)
        ]
        if not waiting:
            return
        first = max(waiting, key=lambda name: priorities[name])
        for holder in holders:
            if priorities[holder] >= priorities[first]:
                return
            self.preempted.append(holder)
            await self.end_eviction(holder, *checks)
        await self.reserve(first, *checks)

    async def _priority(self, name: str) -> int:
        path = self._resources.workloads.path(self._namespace, name)
        return int(msgspec.json.decode(await self._client.raw("GET", path))["spec"].get("priority", 0))

    async def admit(self, name: str) -> None:
        """All its checks are Ready: it runs."""
        await self._write(name, {"QuotaReserved": "True", "Admitted": "True"}, (), ADMISSION)

    async def clusters(self, **zones: str) -> None:
        """MultiKueue with an AdmissionCheck `multikueue` and connected worker clusters, each with its zone."""
        found = MultiKueueResources.for_version(self._resources.workloads.version)
        await self._client.create(
            self._resources.checks,
            {
                "metadata": {"name": "multikueue"},
                "spec": {
                    "controllerName": "kueue.x-k8s.io/multikueue",
                    "parameters": {
                        "apiGroup": "kueue.x-k8s.io",
                        "kind": "MultiKueueConfig",
                        "name": "workers",
                    },
                },
            },
        )
        await self._client.create(found.configs, {"metadata": {"name": "workers"}, "spec": {"clusters": sorted(zones)}})
        for name, zone in zones.items():
            spec: Json = {"kubeConfig": {"location": name, "locationType": "Secret"}}
            if found.clusters.version != "v1beta1":
                spec = {"clusterSource": spec}
            await self._client.create(
                found.clusters,
                {
                    "metadata": {"name": name, "labels": {"joulie.io/grid-zone": zone} if zone else {}},
                    "spec": spec,
                },
            )
            await self.connect(name, "True")

    async def connect(self, cluster: str, holds: str) -> None:
        """A worker cluster is connected, or is lost."""
        found = MultiKueueResources.for_version(self._resources.workloads.version)
        await self._client.apply(
            found.clusters,
            cluster,
            {"status": {"conditions": [condition("Active", holds)]}},
            field_manager="kueue",
            subresource="status",
        )

    async def assign(self, name: str, cluster: str) -> None:
        """A worker cluster has admitted it: it is assigned to that one, and no cluster is nominated any more."""
        found = await self._client.get(self._resources.workloads, name, self._namespace)
        states = [
            {**state, "state": "Ready"} if state["name"] == "multikueue" else state
            for state in msgspec.to_builtins(found.status.admission_checks)
        ]
        await self._apply(
            name,
            {
                "admission": ADMISSION,
                "admissionChecks": states,
                "clusterName": cluster,
                "conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")],
            },
        )

    async def reserve(self, name: str, *checks: str) -> None:
        """It gets quota, and its checks are asked. Those that an eviction has reset are applied as they are read."""
        found = await self._client.get(self._resources.workloads, name, self._namespace)
        known = {one.name for one in found.status.admission_checks}
        asked = tuple(check for check in checks if check not in known)
        await self._write(name, {"QuotaReserved": "True", "Evicted": "False"}, asked, ADMISSION)

    async def delay(self, name: str) -> None:
        """A check said Retry with a delay: Kueue notes the time, and evicts when it has come."""
        found = await self._client.get(self._resources.workloads, name, self._namespace)
        status = {
            "requeueState": {"requeueAt": "2099-01-01T00:00:00Z"},
            "conditions": [condition("QuotaReserved", "True")],
            "admission": ADMISSION,
            "admissionChecks": list(found.status.admission_checks),
        }
        await self._apply(name, status)

    async def is_evicted(self, name: str) -> bool:
        """Whether its eviction has begun."""
        return (await self._client.get(self._resources.workloads, name, self._namespace)).has("Evicted")

    async def begin_eviction(self, name: str, *checks: str) -> None:
        """A check said Retry: first its state is reset, while quota is still reserved."""
        await self._write(name, {"QuotaReserved": "True", "Evicted": "True"}, checks, ADMISSION)

    async def end_eviction(self, name: str, *checks: str) -> None:
        """The quota is taken back, and the checks are reset."""
        await self._write(name, {"QuotaReserved": "False", "Evicted": "True"}, checks)

    async def state(self, name: str, check: str) -> Json:
        """What a check says of a workload; without its time."""
        found = await self._client.get(self._resources.workloads, name, self._namespace)
        (state,) = [one for one in found.status.admission_checks if one.name == check]
        return {
            "state": state.state,
            "message": state.message,
            "requeue_after_s": state.requeue_after_seconds,
            "annotations": [one.annotations for one in state.pod_set_updates],
        }

    async def _write(
        self, name: str, conditions: dict[str, str], checks: tuple[str, ...], admission: Json | None = None
    ) -> None:
        status: Json = {} if admission is None else {"admission": admission}
        status["conditions"] = [condition(kind, holds) for kind, holds in conditions.items()]
        # Kueue applies all that it has read of the checks but for those that it resets, and so owns it, too.
        found = await self._client.get(self._resources.workloads, name, self._namespace)
        kept = [one for one in found.status.admission_checks if one.name not in checks]
        status["admissionChecks"] = [*msgspec.to_builtins(kept)] + [
            {"name": check, "state": "Pending", "message": "", "lastTransitionTime": NOW} for check in checks
        ]
        if found.status.nominated_cluster_names and admission is not None and conditions.get("Evicted") != "True":
            status["nominatedClusterNames"] = list(found.status.nominated_cluster_names)
        await self._apply(name, status)

    async def _apply(self, name: str, status: Json) -> None:
        await self._client.apply(
            self._resources.workloads,
            name,
            {"status": status},
            field_manager="kueue-admission",
            namespace=self._namespace,
            subresource="status",
        )
