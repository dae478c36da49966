"""Kueue's part in a test: what it writes of the workloads that it admits."""

from typing import Any

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.kueue import KueueResources

Json = dict[str, Any]

NOW = "2026-03-13T12:00:00Z"
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
    """What Kueue does to the workloads of a namespace."""

    def __init__(self, client: KubeClient, resources: KueueResources, namespace: str) -> None:
        self._client = client
        self._resources = resources
        self._namespace = namespace

    async def check(self, name: str, controller: str) -> None:
        """An AdmissionCheck, as an administrator makes it."""
        await self._client.create(
            self._resources.checks, {"metadata": {"name": name}, "spec": {"controllerName": controller}}
        )

    async def submit(self, name: str, annotations: dict[str, str], **template: Any) -> None:
        """A workload comes into the queue."""
        await self._client.create(self._resources.workloads, workload(name, annotations, **template), self._namespace)

    async def reserve(self, name: str, *checks: str) -> None:
        """It gets quota, and its checks are asked."""
        await self._write(name, {"QuotaReserved": "True", "Evicted": "False"}, checks, ADMISSION)

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
        """The quota is taken back."""
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
        status["admissionChecks"] = [
            {"name": check, "state": "Pending", "message": "", "lastTransitionTime": NOW} for check in checks
        ]
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
