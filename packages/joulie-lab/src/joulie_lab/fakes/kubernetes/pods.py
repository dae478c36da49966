"""Action subresources of pods and service accounts: binding, eviction and token."""

from __future__ import annotations

from joulie_lab.fakes.kubernetes import errors, selectors
from joulie_lab.fakes.kubernetes.api import Api, Deletion, Writer
from joulie_lab.fakes.kubernetes.kinds import POD, POD_DISRUPTION_BUDGET, SERVICE_ACCOUNT, Json, Kind
from joulie_lab.fakes.kubernetes.store import Stored

_BINDING = Kind("", "v1", "pods/binding", "Binding")
_EVICTION_RETRY_S = 10
"""Retry-After of an eviction while the disruption controller has not processed the budget yet, s."""


def bind(api: Api, namespace: str, name: str, binding: Json) -> None:
    """Bind a pod to a node, as a scheduler does.

    Raises:
        StatusError: 404 if the pod does not exist; 409 if it is already bound, gated or terminating.
    """
    pod = api.get(POD, namespace, name)
    node = (binding.get("target") or {}).get("name")
    if not node:
        raise errors.invalid(_BINDING, name, [("target.name", "Required value")])
    uid = (binding.get("metadata") or {}).get("uid")
    if uid and uid != pod.uid:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod.uid}"
        raise errors.conflict(_BINDING, name, why)
    if pod.obj["metadata"].get("deletionTimestamp"):
        raise errors.conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod.obj["spec"].get("nodeName"):
        why = f'pod {name} is already assigned to node "{pod.obj["spec"]["nodeName"]}"'
        raise errors.conflict(_BINDING, name, why)
    if pod.obj["spec"].get("schedulingGates"):
        raise errors.conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    api.store.put(POD, pod.key, _bound(api, pod, node), pod.managers)


def _bound(api: Api, pod: Stored, node: str) -> Json:
    spec = {**pod.obj["spec"], "nodeName": node}
    status = pod.obj.get("status", {})
    others = [condition for condition in status.get("conditions", ()) if condition["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
    conditions = [*others, scheduled | {"lastTransitionTime": api.timestamp()}]
    metadata = dict(pod.obj["metadata"])
    return {**pod.obj, "metadata": metadata, "spec": spec, "status": {**status, "conditions": conditions}}


def evict(api: Api, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> None:
    """Evict a pod: delete it unless a disruption budget forbids it.

    Raises:
        StatusError: 404 if the pod does not exist, 409 if a precondition fails, 429 if a budget forbids it.
    """
    pod = api.get(POD, namespace, name)
    options = eviction.get("deleteOptions") or {}
    dry_run = dry_run or bool(options.get("dryRun"))
    running = pod.obj.get("status", {}).get("phase") not in {"Succeeded", "Failed", "Pending"}
    if running and not pod.obj["metadata"].get("deletionTimestamp"):
        _check_budgets(api, pod, dry_run=dry_run)
    uid = (options.get("preconditions") or {}).get("uid", "")
    api.delete(POD, namespace, name, Deletion(grace_s=options.get("gracePeriodSeconds"), uid=uid, dry_run=dry_run))


def _check_budgets(api: Api, pod: Stored, *, dry_run: bool) -> None:
    labels = pod.obj["metadata"].get("labels") or {}
    for budget in api.store.table(POD_DISRUPTION_BUDGET).in_order(pod.key.namespace):
        if not selectors.matches(budget.obj["spec"].get("selector"), labels):
            continue
        status = budget.obj.get("status", {})
        name = budget.key.name
        if status.get("observedGeneration", 0) < budget.obj["metadata"]["generation"]:
            text = f"The disruption budget {name} is still being processed by the server."
            cause = {"reason": "DisruptionBudget", "message": text}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise errors.too_many_requests(message, _EVICTION_RETRY_S, [cause])
        if status.get("disruptionsAllowed", 0) <= 0:
            healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
            text = f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": text}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise errors.too_many_requests(message, 0, [cause])
        counted = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
        body = {**budget.obj, "status": counted}
        api.replace(
            POD_DISRUPTION_BUDGET, budget.key.namespace, name, body, Writer("kube-apiserver", "status", dry_run=dry_run)
        )


def token(api: Api, namespace: str, name: str, request: Json) -> tuple[Json, str]:
    """Issue a service account token; returns the TokenRequest's response and the token in it.

    Raises:
        StatusError: 404 if the service account does not exist.
    """
    api.get(SERVICE_ACCOUNT, namespace, name)
    lifetime_s = (request.get("spec") or {}).get("expirationSeconds", 3600)
    issued = api.new_uid()
    status = {"token": issued, "expirationTimestamp": api.timestamp(lifetime_s)}
    answer = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", **request, "status": status}
    return answer, issued
