"""The resources that the fake cluster serves, and their differences in API behaviour.

Source: the strategies of the Kubernetes API server's registry, and its OpenAPI (x-kubernetes-list-type).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Merge rules of the fields that are not plain maps, by field name.

    Field names stand for paths: within one kind, no name has two meanings here.

    Attributes:
        keyed: lists of objects merged by key (list type "map"), with their keys.
        sets: lists of scalars merged by value (list type "set").
        atomic: maps owned as a whole (map type "atomic").
    """

    keyed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sets: frozenset[str] = frozenset()
    atomic: frozenset[str] = frozenset()


_METADATA_KEYED = {"ownerReferences": ("uid",)}
_CORE = Shape(
    keyed={
        **_METADATA_KEYED,
        "conditions": ("type",),
        "addresses": ("type",),
        "containers": ("name",),
        "initContainers": ("name",),
        "ephemeralContainers": ("name",),
        "env": ("name",),
        "ports": ("containerPort", "protocol"),
        "volumes": ("name",),
        "volumeMounts": ("mountPath",),
        "imagePullSecrets": ("name",),
        "schedulingGates": ("name",),
        "podIPs": ("ip",),
        "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    },
    sets=frozenset({"finalizers"}),
    atomic=frozenset({"nodeSelector", "selector", "labelSelector"}),
)
_CUSTOM = Shape(keyed={**_METADATA_KEYED, "conditions": ("type",)}, sets=frozenset({"finalizers"}))

_NAMES = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}


def _paths(*names: str) -> dict[str, tuple[str, ...]]:
    return _NAMES | {name: tuple(name.split(".")) for name in names}


@dataclass(frozen=True)
class Kind:
    """One resource.

    Attributes:
        group: API group; empty for the core group.
        version: API version.
        plural: resource name in paths.
        kind: kind in objects.
        namespaced: whether objects are namespaced.
        status: whether status is a subresource, written separately from the rest of the object.
        generation: whether metadata.generation counts changes other than of metadata and status.
        custom: whether it is defined by a CustomResourceDefinition.
        created_by_replace: whether PUT creates an object that does not exist.
        replace_without_version: whether PUT works without a resource version.
        selectable: paths of the fields that field selectors support.
        shape: merge rules.
        schema: structural schema of a custom resource; None accepts everything.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    generation: bool = False
    custom: bool = False
    created_by_replace: bool = False
    replace_without_version: bool = True
    selectable: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType(_NAMES))
    shape: Shape = _CORE
    schema: Mapping[str, Any] | None = None

    @property
    def api_version(self) -> str:
        """The apiVersion of objects: ``v1``, ``joulie.io/v1alpha1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """Name in error messages: ``pods``, ``nodetwins.joulie.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def key(self) -> tuple[str, str]:
        """Group and plural, which identify the resource in the cluster."""
        return self.group, self.plural


POD = Kind(
    "", "v1", "pods", "Pod", status=True, generation=True,
    selectable=_paths(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
)  # fmt: skip
NODE = Kind("", "v1", "nodes", "Node", namespaced=False, status=True, selectable=_paths("spec.unschedulable"))
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False, status=True, selectable=_paths("status.phase"))
EVENT = Kind(
    "", "v1", "events", "Event", created_by_replace=True,
    selectable=_paths(
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
)  # fmt: skip
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
POD_DISRUPTION_BUDGET = Kind(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    status=True,
    generation=True,
    replace_without_version=False,
)
CRD = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
    namespaced=False, status=True, generation=True, replace_without_version=False, shape=_CUSTOM,
)  # fmt: skip

BUILT_IN: tuple[Kind, ...] = (
    POD, NODE, NAMESPACE, EVENT, SERVICE_ACCOUNT, POD_DISRUPTION_BUDGET, CRD,
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "secrets", "Secret", selectable=_paths("type")),
    Kind("", "v1", "services", "Service", status=True),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, status=True),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", created_by_replace=True, replace_without_version=False),
    Kind("apps", "v1", "replicasets", "ReplicaSet", status=True, generation=True),
    Kind("apps", "v1", "deployments", "Deployment", status=True, generation=True),
    Kind("apps", "v1", "statefulsets", "StatefulSet", status=True, generation=True),
    Kind("apps", "v1", "daemonsets", "DaemonSet", status=True, generation=True),
    Kind("batch", "v1", "jobs", "Job", status=True, generation=True),
    Kind("batch", "v1", "cronjobs", "CronJob", status=True, generation=True),
    Kind(
        "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", status=True, generation=True,
        replace_without_version=False,
    ),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True),
    Kind(
        "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False,
        selectable=_paths("spec.nodeName", "spec.driver"),
    ),
)  # fmt: skip


def _joulie(plural: str, kind: str, *, namespaced: bool = False) -> Kind:
    return custom_kind("joulie.io", "v1alpha1", plural, kind, namespaced=namespaced, status=True, schema=None)


def custom_kind(
    group: str, version: str, plural: str, kind: str, *, namespaced: bool, status: bool, schema: Json | None
) -> Kind:
    """A resource of a CustomResourceDefinition."""
    return Kind(
        group, version, plural, kind, namespaced=namespaced, status=status, generation=True, custom=True,
        replace_without_version=False, shape=_CUSTOM if schema is None else shape_of(schema), schema=schema,
    )  # fmt: skip


JOULIE: tuple[Kind, ...] = (
    _joulie("nodetwins", "NodeTwin"),
    _joulie("nodehardwares", "NodeHardware"),
    _joulie("workloadprofiles", "WorkloadProfile", namespaced=True),
    _joulie("energybudgets", "EnergyBudget", namespaced=True),
    _joulie("powertrials", "PowerTrial"),
    _joulie("powerbudgets", "PowerBudget"),
    _joulie("telemetryprofiles", "TelemetryProfile"),
    _joulie("nodepowerprofiles", "NodePowerProfile"),
)
"""Joulie's own resources without schemas, for clusters created without definitions."""


def kinds_of_definition(definition: Json) -> Iterable[Kind]:
    """The served versions of a CustomResourceDefinition."""
    spec = definition["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if version.get("served", True):
            yield custom_kind(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                status="status" in version.get("subresources", {}),
                schema=version.get("schema", {}).get("openAPIV3Schema"),
            )


def shape_of(schema: Json) -> Shape:
    """The merge rules in a structural schema."""
    keyed: dict[str, tuple[str, ...]] = dict(_METADATA_KEYED)
    sets = {"finalizers"}
    atomic: set[str] = set()

    def visit(name: str, part: Json) -> None:
        if part.get("x-kubernetes-list-type") == "map":
            keyed[name] = tuple(part["x-kubernetes-list-map-keys"])
        elif part.get("x-kubernetes-list-type") == "set":
            sets.add(name)
        if part.get("x-kubernetes-map-type") == "atomic":
            atomic.add(name)
        for child, below in part.get("properties", {}).items():
            visit(child, below)
        for below in (part.get("items"), part.get("additionalProperties")):
            if isinstance(below, dict):
                visit("", below)

    visit("", schema)
    return Shape(keyed=keyed, sets=frozenset(sets), atomic=frozenset(atomic))
