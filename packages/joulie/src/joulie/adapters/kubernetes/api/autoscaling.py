"""Autoscalers with the fields that Joulie uses: HorizontalPodAutoscalers and KEDA's ScaledObjects.

Source: the API references of Kubernetes (autoscaling/v2) and of KEDA (keda.sh/v1alpha1).
"""

from __future__ import annotations

from joulie.adapters.kubernetes.api.core import CoreCondition
from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject


class MetricValue(ApiStruct, frozen=True):
    """The target of a metric, or its current value: one of them is set in a target."""

    average_utilization: int | None = None
    average_value: str | int | None = None
    value: str | int | None = None


class MetricSource(ApiStruct, frozen=True):
    """A metric of one source, in a spec its target, in a status its current value."""

    target: MetricValue = MetricValue()
    current: MetricValue = MetricValue()


class Metric(ApiStruct, frozen=True):
    """A metric that a HorizontalPodAutoscaler scales by; one of its sources is set."""

    resource: MetricSource | None = None
    container_resource: MetricSource | None = None
    pods: MetricSource | None = None
    object: MetricSource | None = None
    external: MetricSource | None = None

    @property
    def source(self) -> MetricSource | None:
        """The source that is set; None in the status of a metric that cannot be read."""
        sources = (self.resource, self.container_resource, self.pods, self.object, self.external)
        return next((one for one in sources if one is not None), None)


class ScaleTarget(ApiStruct, frozen=True):
    """The workload that an autoscaler scales."""

    kind: str = ""
    name: str = ""


class HorizontalPodAutoscalerSpec(ApiStruct, frozen=True):
    """Spec of a HorizontalPodAutoscaler."""

    max_replicas: int = 0
    min_replicas: int = 1
    scale_target_ref: ScaleTarget = ScaleTarget()
    metrics: tuple[Metric, ...] = ()


class HorizontalPodAutoscalerStatus(ApiStruct, frozen=True):
    """Status of a HorizontalPodAutoscaler; its metrics are in the order of the spec's."""

    current_replicas: int | None = None
    conditions: tuple[CoreCondition, ...] = ()
    current_metrics: tuple[Metric, ...] | None = None


class HorizontalPodAutoscaler(KubernetesObject, frozen=True):
    """A HorizontalPodAutoscaler."""

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


class ScaledObjectSpec(ApiStruct, frozen=True):
    """Spec of a ScaledObject; KEDA's defaults apply where a number is missing."""

    max_replica_count: int | None = None
    min_replica_count: int | None = None


class ScaledObject(KubernetesObject, frozen=True):
    """A ScaledObject of KEDA."""

    spec: ScaledObjectSpec = ScaledObjectSpec()
