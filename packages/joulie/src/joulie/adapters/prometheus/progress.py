"""Progress of pods: counters that they name themselves, by an annotation that is the name of a metric."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.pods import pod_courses
from joulie.adapters.prometheus.readings import Steps
from joulie.domain.usage import PodKey

MAX_METRICS = 32
"""Maximum number of metrics that pods may name; each is one query."""
MAX_PER_S = 1e15
_BY_POD = "namespace, pod, exported_namespace, exported_pod"


def by_pod(function: str, metric: str, window: str) -> str:
    """PromQL of a metric's growth by pod: ``rate`` or ``increase``, which both see a counter begin anew."""
    return f"sum by ({_BY_POD}) ({function}({metric}[{window}]))"


async def progress_courses(
    prometheus: Prometheus, metric_of: Mapping[PodKey, str], steps: Steps
) -> Mapping[PodKey, Mapping[float, float]]:
    """By how much the counters of pods grew in each step, by its end, s since the epoch; no value where none is known.

    Args:
        prometheus: the server that scrapes the pods.
        metric_of: metric that a pod names; those beyond the first `MAX_METRICS`, by name, are not asked for.
        steps: steps of the recording.

    Raises:
        PrometheusError: see `Prometheus.query_range`.
    """
    found: dict[PodKey, Mapping[float, float]] = {}
    for metric in sorted(set(metric_of.values()))[:MAX_METRICS]:
        query = by_pod("increase", metric, f"{steps.mean_s:.0f}s")
        histories = await prometheus.query_range(query, steps.start_s, steps.end_s, steps.step_s)
        courses = await asyncio.to_thread(pod_courses, histories, MAX_PER_S * steps.mean_s)
        found |= {pod: course for pod, course in courses.items() if metric_of.get(pod) == metric}
    return found
