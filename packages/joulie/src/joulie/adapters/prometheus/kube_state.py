"""kube-state-metrics: pods of the past, which the API server no longer has. Source: its page Pod metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.pods import pod_of
from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.workload_protocol import Drawn
from joulie.domain.usage import METRIC_NAME, PodKey

_TIMES = {
    "kube_pod_created": "arrived_s",
    "kube_pod_status_scheduled_time": "scheduled_s",
    "kube_pod_start_time": "started_s",
    "kube_pod_completion_time": "ended_s",
}
"""Field of `PodRecord` by metric; the value is a time, s since the epoch."""
_INFO = "kube_pod_info"
_REQUESTS = "kube_pod_container_resource_requests"
_PHASE = "kube_pod_status_phase"
_ANNOTATIONS = "kube_pod_annotations"
_CLASS = "annotation_joulie_io_workload_class"
_PROGRESS = "annotation_joulie_io_progress_metric"
_TRIAL = "annotation_joulie_io_grid_trial"
_BYTES_PER_GIB = 1024.0**3
_VENDORS = {"nvidia_com_gpu": "NVIDIA", "amd_com_gpu": "AMD"}
_EXITS = {"Succeeded": Exit.SUCCEEDED, "Failed": Exit.FAILED}


async def past_pods(prometheus: Prometheus, from_s: float, until_s: float) -> list[PodRecord]:
    """Pods that kube-state-metrics knew at some time of a period; what it does not say is None.

    A pod belongs to its ReplicaSet or Job here, where the API server's own pods name the Deployment or CronJob.

    Raises:
        PrometheusError: see `Prometheus.query_range`.
    """
    window = f"[{until_s - from_s:.0f}s]"
    queries = {
        _INFO: f"max_over_time({_INFO}{window})",
        _REQUESTS: f"max_over_time({_REQUESTS}{window})",
        _PHASE: f'max_over_time({_PHASE}{{phase=~"{"|".join(_EXITS)}"}}{window}) > 0',
        _ANNOTATIONS: f"max_over_time({_ANNOTATIONS}{window})",
        **{metric: f"max_over_time({metric}{window})" for metric in _TIMES},
    }
    asked = (prometheus.query_range(query, until_s, until_s, 60.0) for query in queries.values())
    answers = dict(zip(queries, await asyncio.gather(*asked), strict=True))
    pods = {(labels["uid"], key): _pod(labels, key) for labels, key, _ in _values(answers[_INFO]) if "uid" in labels}
    uid_of = {key: uid for uid, key in pods}

    def update(labels: Mapping[str, str], key: PodKey, **known: Any) -> None:
        place = (labels.get("uid") or uid_of.get(key, ""), key)
        if place in pods:
            pods[place] = replace(pods[place], **known)

    for metric, field in _TIMES.items():
        for labels, key, value in _values(answers[metric]):
            update(labels, key, **{field: value})
    for labels, key, _ in _values(answers[_PHASE]):
        update(labels, key, exit=_EXITS[labels["phase"]].value)
    for labels, key, _ in _values(answers[_ANNOTATIONS]):
        if labels.get(_CLASS):
            update(labels, key, workload_class=labels[_CLASS])
        if METRIC_NAME.fullmatch(labels.get(_PROGRESS, "")):
            update(labels, key, progress_metric=labels[_PROGRESS])
        if (drawn := Drawn.read(labels.get(_TRIAL, ""))) is not None:
            update(labels, key, **drawn.recorded)
    for (uid, key), known in _requests(answers[_REQUESTS], uid_of).items():
        update({"uid": uid}, key, **known)
    return list(pods.values())


def _pod(labels: Mapping[str, str], key: PodKey) -> PodRecord:
    kind, name = labels.get("created_by_kind"), labels.get("created_by_name")
    owned = bool(kind and name and kind != "<none>")
    return PodRecord(
        labels["uid"],
        *key,
        owner_kind=kind if owned else "Pod",
        owner_name=name if owned else key[1],
        node=labels.get("exported_node") or labels.get("node") or None,
    )


def _requests(histories: list[History], uid_of: Mapping[PodKey, str]) -> dict[tuple[str, PodKey], dict[str, Any]]:
    """Sums of the containers' requests by pod."""
    found: dict[tuple[str, PodKey], dict[str, Any]] = {}
    for labels, key, value in _values(histories):
        uid = labels.get("uid") or uid_of.get(key)
        resource = labels.get("resource", "")
        if uid is None:
            continue
        own = found.setdefault((uid, key), {"cpu_cores": 0.0, "memory_gib": 0.0, "gpus": 0.0})
        if resource == "cpu":
            own["cpu_cores"] += value
        elif resource == "memory":
            own["memory_gib"] += value / _BYTES_PER_GIB
        elif resource in _VENDORS:
            own["gpus"] += value
            own["gpu_vendor"] = _VENDORS[resource]
    return found


def _values(histories: list[History]) -> Iterator[tuple[Mapping[str, str], PodKey, float]]:
    """Labels, pod and value of every series that names a pod and has a value."""
    for history in histories:
        key = pod_of(history.labels)
        if key is not None and history.samples:
            yield history.labels, key, history.samples[-1].value
