"""Maps the labels of a series to its pod, and collects values by pod."""

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
"""Labels of namespace and pod. `namespace` and `pod` come last: they may name the exporter's own pod, in which case
Prometheus has renamed the exporter's labels."""
_MAX_CHARS = 253
"""Maximum length of a name in Kubernetes."""


def pod_of(labels: Mapping[str, str]) -> PodKey | None:
    """Pod of a series with these labels; None if they name none."""
    for namespace_label, pod_label in _LABELS:
        namespace, pod = labels.get(namespace_label, ""), labels.get(pod_label, "")
        if namespace and pod:
            return (namespace, pod) if max(len(namespace), len(pod)) <= _MAX_CHARS else None
    return None


def pod_values(series: Iterable[Series], maximum: float) -> dict[PodKey, float]:
    """Values by pod of series that are aggregated by pod; those below 0 or above `maximum` are left out."""
    found: dict[PodKey, float] = {}
    for one in series:
        pod = pod_of(one.labels)
        if pod is not None and 0.0 <= one.value <= maximum:
            found.setdefault(pod, one.value)
    return found


def pod_courses(histories: Iterable[History], maximum: float) -> dict[PodKey, dict[float, float]]:
    """Values by pod and time of series that are aggregated by pod; those below 0 or above `maximum` are left out."""
    found: dict[PodKey, dict[float, float]] = {}
    for history in histories:
        pod = pod_of(history.labels)
        if pod is not None:
            course = found.setdefault(pod, {})
            for time_s, value in history.samples:
                if 0.0 <= value <= maximum:
                    course.setdefault(time_s, value)
    return found
