"""Which pod a series is about, and values by pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from joulie.adapters.prometheus.answers import History, Series
from joulie.domain.usage import PodKey

_LABELS = (
    ("exported_namespace", "exported_pod"),
    ("container_namespace", "pod_name"),
    ("pod_namespace", "pod_name"),
    ("namespace", "pod_name"),
    ("namespace", "pod"),
)
"""Labels of the namespace and of the pod. `namespace` and `pod` come last: they may be those of the exporter itself,
and then its own are renamed."""
_MAX_CHARS = 253
"""Of names in Kubernetes: a longer one is no pod's."""


def pod_of(labels: Mapping[str, str]) -> PodKey | None:
    """The pod that a series with these labels is about; None where they name none."""
    for namespace_label, pod_label in _LABELS:
        namespace, pod = labels.get(namespace_label, ""), labels.get(pod_label, "")
        if namespace and pod:
            return (namespace, pod) if max(len(namespace), len(pod)) <= _MAX_CHARS else None
    return None


def pod_values(series: Iterable[Series], maximum: float) -> dict[PodKey, float]:
    """Value by pod, of series that are aggregated by pod; those below 0 or above `maximum` are left out."""
    found: dict[PodKey, float] = {}
    for one in series:
        pod = pod_of(one.labels)
        if pod is not None and 0.0 <= one.value <= maximum:
            found.setdefault(pod, one.value)
    return found


def pod_courses(histories: Iterable[History], maximum: float) -> dict[PodKey, dict[float, float]]:
    """Values by pod and time, of series that are aggregated by pod; those below 0 or above `maximum` are left out."""
    found: dict[PodKey, dict[float, float]] = {}
    for history in histories:
        pod = pod_of(history.labels)
        if pod is not None:
            course = found.setdefault(pod, {})
            for time_s, value in history.samples:
                if 0.0 <= value <= maximum:
                    course.setdefault(time_s, value)
    return found
