"""Autoscalers with the fields that Joulie uses: HorizontalPodAutoscalers and KEDA's ScaledObjects.

Source: the API references of Kubernetes (autoscaling/v2) and of KEDA (keda.sh/v1alpha1).
"""

from __future__ import annotations

from joulie.adapters.kubernetes.api.meta import ApiStruct, KubernetesObject


class HorizontalPodAutoscalerSpec(ApiStruct, frozen=True):
    """Spec of a HorizontalPodAutoscaler."""

    max_replicas: int = 0
    min_replicas: int = 1


class HorizontalPodAutoscalerStatus(ApiStruct, frozen=True):
    """Status of a HorizontalPodAutoscaler."""

    current_replicas: int | None = None


class HorizontalPodAutoscaler(KubernetesObject, frozen=True):
    """A HorizontalPodAutoscaler."""

    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


class ScaledObjectSpec(ApiStruct, frozen=True):
    """Spec of a ScaledObject; KEDA's defaults apply where a number is missing."""

    max_replica_count: int | None = None
    min_replica_count: int | None = None


class ScaledObjectStatus(ApiStruct, frozen=True):
    """Status of a ScaledObject: the HorizontalPodAutoscaler that KEDA has made for it."""

    hpa_name: str = ""


class ScaledObject(KubernetesObject, frozen=True):
    """A ScaledObject of KEDA."""

    spec: ScaledObjectSpec = ScaledObjectSpec()
    status: ScaledObjectStatus = ScaledObjectStatus()
