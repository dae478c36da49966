"""cAdvisor, built into the kubelet: CPU time and memory of pods, busy cores of nodes. Source: cAdvisor, metrics.

Its series overlap: a pod's container ``""`` is the pod as a whole, ``POD`` its sandbox, and ``id="/"`` the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import NodeSums, rate_of
from joulie.adapters.prometheus.nodes import NODE_LABELS, NodeIndex
from joulie.adapters.prometheus.pods import pod_courses, pod_values
from joulie.adapters.prometheus.readings import Steps
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey, PodUsage

_CPU = "container_cpu_usage_seconds_total"
_MEMORY = "container_memory_working_set_bytes"
_BY_NODE = ", ".join(NODE_LABELS)
_MAX_CORES = 8192.0
"""Plausible maximum of a node or pod; larger values are left out."""
_MAX_BYTES = float(1 << 50)


class _Labels(NamedTuple):
    """Names of the labels of a scrape configuration, and a matcher for series that use them."""

    namespace: str
    pod: str
    container: str
    matcher: str

    @property
    def containers(self) -> str:
        """Matchers for single containers."""
        return f'{self.pod}!="", {self.container}!="", {self.container}!="POD"{self.matcher}'

    @property
    def whole_pods(self) -> str:
        """Matchers for pods as a whole, which are the only series of some runtimes."""
        return f'{self.pod}!="", {self.container}=""{self.matcher}'

    @property
    def by_pod(self) -> str:
        return f"{self.namespace}, {self.pod}"


_SCHEMES = (
    _Labels("namespace", "pod", "container", ', exported_pod="", pod_name=""'),
    _Labels("exported_namespace", "exported_pod", "exported_container", ""),
    _Labels("namespace", "pod_name", "container_name", ""),  # before Kubernetes 1.16
)


class Cadvisor:
    """CPU and memory usage measured by cAdvisor.

    Args:
        prometheus: client of the server that scrapes it.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus

    async def pods(self, window_s: float, *, step_s: float | None = None) -> PodUsage:
        """Mean usage of pods over the last `window_s` seconds.

        The rate of a counter counts time without scrapes as idle: a pod that is younger than the window, and every pod
        after an outage of Prometheus, would seem to use less CPU than it does. With `step_s` the mean is over those
        steps of the window that were scraped from beginning to end; a pod without any has no entry.

        Args:
            window_s: window, at least two scrapes long, s.
            step_s: step, at least two scrapes long, s; no effect if the window is shorter than two steps.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        window = f"{window_s:.0f}s"
        if step_s is None or window_s < 2.0 * step_s:
            cores = [_pod_cores(labels, window) for labels in _SCHEMES]
        else:
            steps = f"[{window}:{step_s:.0f}s]"
            cores = [f"avg_over_time(({_scraped_pod_cores(labels, step_s)}){steps})" for labels in _SCHEMES]
        cpu, memory = await asyncio.gather(
            self._prometheus.query(" or ".join(cores)),
            self._prometheus.query(" or ".join(_pod_bytes(labels, window) for labels in _SCHEMES)),
        )
        return PodUsage(
            await asyncio.to_thread(pod_values, cpu, _MAX_CORES),
            await asyncio.to_thread(pod_values, memory, _MAX_BYTES),
        )

    async def courses(self, steps: Steps) -> Mapping[PodKey, Mapping[float, float]]:
        """Busy cores of pods by time, s since the epoch; times at which a pod was not scraped are left out.

        Raises:
            PrometheusError: see `Prometheus.query_range`.
        """
        query = " or ".join(_scraped_pod_cores(labels, steps.mean_s) for labels in _SCHEMES)
        found = await self._prometheus.query_range(query, steps.start_s, steps.end_s, steps.step_s)
        return await asyncio.to_thread(pod_courses, found, _MAX_CORES)

    async def nodes(self, index: NodeIndex, window_s: float) -> Mapping[str, Reading]:
        """Mean busy cores of nodes over the last `window_s` seconds, at least two scrapes long.

        Many installations drop the series of whole nodes. The busy cores of such a node are the sum of its pods,
        without processes outside of pods.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        window = f"{window_s:.0f}s"
        histories = await self._prometheus.query_samples(f'{_CPU}{{id="/"}}[{window}]')
        found = await asyncio.to_thread(_busy_cores, histories, index)
        if found.keys() >= index.names:
            return found
        return await self._by_pods(index, window) | found

    async def _by_pods(self, index: NodeIndex, window: str) -> dict[str, Reading]:
        cores, times = await asyncio.gather(
            self._prometheus.query(" or ".join(_node_cores(labels, window) for labels in _SCHEMES)),
            self._prometheus.query(" or ".join(_node_times(labels) for labels in _SCHEMES)),
        )
        time_s = {node: one.value for one in times if (node := index.node_of(one.labels)) is not None}
        found: dict[str, Reading] = {}
        for one in cores:
            node = index.node_of(one.labels)
            if node in time_s and 0.0 <= one.value <= _MAX_CORES:
                found[node] = max(Reading(time_s[node], one.value), found.get(node, Reading(time_s[node], 0.0)))
        return found


def _busy_cores(histories: Sequence[History], index: NodeIndex) -> dict[str, Reading]:
    sums = NodeSums()
    for history in histories:
        node = index.node_of(history.labels)
        if node is not None:
            sums.add("node", node, history.labels.get("cpu", ""), rate_of(history.samples, _MAX_CORES))
    return sums.sums("node")


# The inner maximum removes duplicates: series of one container from several scrape jobs.


def _pod_cores(labels: _Labels, window: str) -> str:
    by = labels.by_pod
    containers = f"max by ({by}, {labels.container}, id, cpu) (rate({_CPU}{{{labels.containers}}}[{window}]))"
    whole = f"sum by ({by}, id) (max by ({by}, id, cpu) (rate({_CPU}{{{labels.whole_pods}}}[{window}])))"
    return f"sum by ({by}) ({containers}) or max by ({by}) ({whole})"


def _scraped_pod_cores(labels: _Labels, window_s: float) -> str:
    """Like `_pod_cores`, for pods that were scraped just before the window and in its second half.

    Ranges test for this, since `offset` alone would accept a sample of up to five minutes earlier.
    """
    by, series = labels.by_pod, f'{_CPU}{{{labels.pod}!=""{labels.matcher}}}[{window_s / 2.0 * 1000.0:.0f}ms]'
    before, lately = f"present_over_time({series} offset {window_s:.0f}s)", f"present_over_time({series})"
    return f"({_pod_cores(labels, f'{window_s:.0f}s')}) and on ({by}) {before} and on ({by}) {lately}"


def _pod_bytes(labels: _Labels, window: str) -> str:
    by = labels.by_pod
    containers = f"max by ({by}, {labels.container}) ({_mean_of_running(labels.containers, window)})"
    return f"sum by ({by}) ({containers}) or max by ({by}) ({_mean_of_running(labels.whole_pods, window)})"


def _mean_of_running(matchers: str, window: str) -> str:
    """Mean memory of running containers: the memory of a container before its restart is not added."""
    return f"avg_over_time({_MEMORY}{{{matchers}}}[{window}]) and {_MEMORY}{{{matchers}}}"


def _node_cores(labels: _Labels, window: str) -> str:
    containers, whole = (
        f"sum by ({_BY_NODE}) (max by ({_BY_NODE}, id, cpu) (rate({_CPU}{{{matchers}}}[{window}])))"
        for matchers in (labels.containers, labels.whole_pods)
    )
    return f"{containers} or {whole}"


def _node_times(labels: _Labels) -> str:
    return f'max by ({_BY_NODE}) (timestamp({_CPU}{{{labels.pod}!=""{labels.matcher}}}))'
