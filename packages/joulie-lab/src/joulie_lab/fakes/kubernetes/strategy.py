"""Per-kind processing of writes by the API server: defaulting, reset of fields, and validation.

Covers only behaviour that Joulie's programs, a scheduler or a kubelet depend on. Source: the registry strategies and
defaulting functions of Kubernetes.
"""

from __future__ import annotations

import re
from typing import Any

from joulie_lab.fakes.kubernetes import schema
from joulie_lab.fakes.kubernetes.errors import bad_request, invalid
from joulie_lab.fakes.kubernetes.kinds import CRD, NAMESPACE, POD, Json, Kind

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)  # fmt: skip
_NAME_MESSAGE = (
    'Invalid value: "{}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '
    "'-' or '.', and must start and end with an alphanumeric character"
)


def normalise(value: Any) -> Any:
    """Normalise a JSON value as the API server does: whole floats become integers (60.0 is read back as 60)."""
    if isinstance(value, dict):
        return {key: normalise(part) for key, part in value.items()}
    if isinstance(value, list):
        return [normalise(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def without_nulls(value: Any) -> Any:
    """Remove nulls from a value of a built-in kind, where null and absent are equivalent."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value


def prepare_create(kind: Kind, obj: Json) -> Json:
    """Fill in the defaults of a new object and drop fields that clients may not set."""
    if kind.custom and kind.status:
        obj = {key: value for key, value in obj.items() if key != "status"}
    if kind.key == POD.key:
        return _default_pod(obj)
    if kind.key == NAMESPACE.key:
        return {**obj, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if kind.key == CRD.key:
        return _established(obj)
    return completed(kind, obj)


def prepare_update(kind: Kind, old: Json, new: Json, subresource: str) -> Json:
    """Restrict a write: status changes only by its subresource, which changes nothing else."""
    if subresource == "status":
        reset = {"metadata", "spec"} if kind.custom else {"spec"}
        kept = {key: old[key] for key in reset if key in old}
        return completed(kind, {**{key: value for key, value in new.items() if key not in reset}, **kept})
    if kind.status:
        new = {key: value for key, value in new.items() if key != "status"}
        if "status" in old:
            new["status"] = old["status"]
    return completed(kind, new)


def completed(kind: Kind, obj: Json) -> Json:
    """Apply the schema's defaults and pruning; in built-in kinds, drop nulls."""
    if kind.custom:
        return obj if kind.schema is None else schema.prune(obj, kind.schema)
    dropped: Json = without_nulls(obj)
    return dropped


def check(kind: Kind, old: Json | None, new: Json) -> None:
    """Reject an object that violates the rules of its kind.

    Raises:
        StatusError: 422 if it does.
    """
    name = new["metadata"]["name"]
    causes: list[tuple[str, str]] = []
    if old is None and not (len(name) <= 253 and _SUBDOMAIN.fullmatch(name)):
        causes.append(("metadata.name", _NAME_MESSAGE.format(name)))
    causes += _label_problems(new["metadata"])
    if kind.schema is not None:
        causes += schema.problems(new, kind.schema)
    if kind.key == POD.key:
        causes += _pod_problems(new) if old is None else _pod_change_problems(old, new)
    if causes:
        raise invalid(kind, name, causes)


def check_strictly(kind: Kind, body: Json) -> None:
    """Reject fields that the schema does not define (fieldValidation=Strict).

    Raises:
        StatusError: 400, with the unknown fields.
    """
    if kind.schema is None:
        return
    pruned = schema.prune(body, kind.schema)
    unknown = sorted(_missing(body, pruned, ""))
    if unknown:
        listed = ", ".join(f'unknown field "{field}"' for field in unknown)
        raise bad_request(f"strict decoding error: {listed}")


def _missing(before: Any, after: Any, path: str) -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        lost = [f"{path}{key}" for key in before if key not in after]
        below = (_missing(before[key], after[key], f"{path}{key}.") for key in before if key in after)
        return lost + [field for fields in below for field in fields]
    if isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(zip(before, after, strict=True))
        return [field for index, (a, b) in pairs for field in _missing(a, b, f"{path[:-1]}[{index}].")]
    return []


def _label_problems(metadata: Json) -> list[tuple[str, str]]:
    causes = []
    for key, value in (metadata.get("labels") or {}).items():
        if not _LABEL_KEY.fullmatch(key):
            causes.append(("metadata.labels", f'Invalid value: "{key}": not a qualified name'))
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            causes.append(("metadata.labels", f'Invalid value: "{value}": not a valid label value'))
    return causes


def _established(definition: Json) -> Json:
    accepted = {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"}
    established = {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "accepted"}
    names = definition["spec"]["names"]
    stored = [version["name"] for version in definition["spec"]["versions"] if version.get("storage")]
    status = {"conditions": [accepted, established], "acceptedNames": names, "storedVersions": stored}
    return {**without_nulls(definition), "status": status}


_POD_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "enableServiceLinks": True,
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "securityContext": {},
}
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_CHANGEABLE_IN_POD_SPEC = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")


def _default_pod(obj: Json) -> Json:
    pod: Json = without_nulls(obj)
    spec = {**_POD_DEFAULTS, **pod.get("spec", {})}
    spec["priority"] = _SYSTEM_PRIORITIES.get(spec.get("priorityClassName", ""), spec["priority"])
    for name in ("containers", "initContainers"):
        if name in spec:
            spec[name] = [_default_container(container) for container in spec[name]]
    status: Json = {"phase": "Pending", "qosClass": _qos(spec)}
    gated = spec.get("schedulingGates") and not spec.get("nodeName")
    if gated:
        message = "Scheduling is blocked due to non-empty scheduling gates"
        condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
        status["conditions"] = [condition | {"lastProbeTime": None, "lastTransitionTime": None}]
    return {**pod, "spec": spec, "status": status}


def _default_container(container: Json) -> Json:
    resources = container.get("resources", {})
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    defaulted = {**resources, "requests": requests} if requests else resources
    return {"imagePullPolicy": "IfNotPresent", **container, "resources": defaulted}


def _qos(spec: Json) -> str:
    resources = [container["resources"] for container in spec.get("containers", ())]
    if not any(part.get("requests") or part.get("limits") for part in resources):
        return "BestEffort"
    needed = {"cpu", "memory"}
    exact = (needed <= part.get("limits", {}).keys() and part["limits"] == part["requests"] for part in resources)
    return "Guaranteed" if all(exact) else "Burstable"


def _pod_problems(pod: Json) -> list[tuple[str, str]]:
    causes = []
    if not pod["spec"].get("containers"):
        causes.append(("spec.containers", "Required value"))
    if pod["spec"].get("nodeName") and pod["spec"].get("schedulingGates"):
        causes.append(("spec.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"))
    return causes


def _pod_change_problems(old: Json, new: Json) -> list[tuple[str, str]]:
    """Violations of a pod's immutability: only images, added tolerations, removed gates and deadlines may change."""
    before, after = old["spec"], new["spec"]
    causes = []
    gates = [gate["name"] for gate in before.get("schedulingGates", ())]
    if any(gate["name"] not in gates for gate in after.get("schedulingGates", ())):
        causes.append(("spec.schedulingGates", "Forbidden: only deletion is allowed"))
    if any(toleration not in after.get("tolerations", ()) for toleration in before.get("tolerations", ())):
        causes.append(("spec.tolerations", "Forbidden: existing tolerations can not be modified or removed"))
    gated: tuple[str, ...] = ("nodeSelector", "affinity") if gates else ()
    if _fixed_part(before, gated) != _fixed_part(after, gated):
        allowed = (
            "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
            "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds`"
        )
        causes.append(("spec", f"Forbidden: pod updates may not change fields other than {allowed}"))
    return causes


def _fixed_part(spec: Json, also_changeable: tuple[str, ...]) -> Json:
    fixed = {
        key: value for key, value in spec.items() if key not in _CHANGEABLE_IN_POD_SPEC and key not in also_changeable
    }
    for name in ("containers", "initContainers"):
        if name in fixed:
            fixed[name] = [{**container, "image": ""} for container in fixed[name]]
    return fixed


def check_identity(kind: Kind, body: Json, name: str, namespace: str) -> None:
    """Reject a body that contradicts the path of the request.

    Raises:
        StatusError: 400 if it does.
    """
    if body.get("kind", kind.kind) != kind.kind or body.get("apiVersion", kind.api_version) != kind.api_version:
        sent = f"{body.get('apiVersion')}, Kind={body.get('kind')}"
        raise bad_request(f"{sent} in version {kind.version!r} cannot be handled as a {kind.kind}")
    metadata = body.get("metadata") or {}
    if name and metadata.get("name", name) != name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})")
    if kind.namespaced and metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
