"""The API resources that Joulie uses: their URL paths and the types of their objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from joulie.adapters.kubernetes.api import autoscaling, core, devices, v1alpha1
from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.names import GROUP, VERSION

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One resource of the Kubernetes API.

    Attributes:
        group: API group; empty for the core group.
        version: API version.
        plural: plural name, as in URLs.
        kind: kind, as in objects.
        namespaced: whether its objects are namespaced.
        type: struct that decodes its objects.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """The objects' apiVersion: ``v1``, ``joulie.io/v1alpha1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object or of its subresource.

        Args:
            namespace: namespace; None for all namespaces and for cluster-scoped resources.
            name: object name; None for the collection.
            subresource: subresource, such as ``status`` or ``eviction``; None for the object itself.

        Raises:
            ValueError: a namespace for a cluster-scoped resource, or none for a namespaced object.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, got {namespace!r}")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} needs a namespace")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return root + scope + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


def _joulie(plural: str, kind: type[T], *, namespaced: bool = False) -> Resource[T]:
    return Resource(GROUP, VERSION, plural, kind.__name__, namespaced, kind)


NODES = Resource("", "v1", "nodes", "Node", False, core.Node)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, core.Namespace)
PODS = Resource("", "v1", "pods", "Pod", True, core.Pod)
PODS_WITH_CONTAINERS = Resource("", "v1", "pods", "Pod", True, core.PodWithContainers)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, core.ConfigMap)
SECRETS = Resource("", "v1", "secrets", "Secret", True, core.Secret)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, core.ServiceAccount)
EVENTS = Resource("", "v1", "events", "Event", True, core.Event)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, core.Lease)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, core.Deployment)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, core.ReplicaSet)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True, core.StatefulSet)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, core.DaemonSet)
DAEMON_SETS_WITH_TEMPLATE = Resource("apps", "v1", "daemonsets", "DaemonSet", True, core.DaemonSetWithTemplate)
JOBS = Resource("batch", "v1", "jobs", "Job", True, core.Job)
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob", True, core.CronJob)
HORIZONTAL_POD_AUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True,
    autoscaling.HorizontalPodAutoscaler,
)  # fmt: skip
SCALED_OBJECTS = Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject", True, autoscaling.ScaledObject)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, devices.ResourceClaim)
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, core.PersistentVolume)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, devices.ResourceSlice)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False,
    core.CustomResourceDefinition,
)  # fmt: skip
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False,
    core.MutatingWebhookConfiguration,
)  # fmt: skip
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", False, core.APIService)

NODE_TWINS = _joulie("nodetwins", v1alpha1.NodeTwin)
NODE_HARDWARES = _joulie("nodehardwares", v1alpha1.NodeHardware)
NODE_POWER_PROFILES = _joulie("nodepowerprofiles", v1alpha1.NodePowerProfile)
TELEMETRY_PROFILES = _joulie("telemetryprofiles", v1alpha1.TelemetryProfile)
WORKLOAD_PROFILES = _joulie("workloadprofiles", v1alpha1.WorkloadProfile, namespaced=True)
ENERGY_BUDGETS = _joulie("energybudgets", v1alpha1.EnergyBudget, namespaced=True)
POWER_TRIALS = _joulie("powertrials", v1alpha1.PowerTrial)
POWER_BUDGETS = _joulie("powerbudgets", v1alpha1.PowerBudget)
