"""Measured cap sensitivity: the throughput of workloads before and after the power cap of their node changed.

Caps are taken from NodeTwins. Throughput is queried once, when enough time has passed after a change, so that only the
change itself has to be kept in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.prometheus import Prometheus, PrometheusError
from joulie.adapters.prometheus.pods import pod_courses
from joulie.apps.operator.classifier.metrics import ClassifierMetrics
from joulie.domain.profiles.cap_response import CapChange, CapResponse, cap_response, pooled
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey
from joulie.domain.workload import Level

WINDOW_S = 600.0
"""Window before and after a change in which throughput is compared, s."""
SETTLING_S = 120.0
"""Time excluded after a change, s: agents apply caps within their interval, and rates look back."""
STEP_S = 30.0
"""Step of the range query, s."""
KEPT = 5
"""Number of responses kept per workload, the latest."""
_MAX_RATE = 1e15

_log = logging.getLogger(__name__)


class Depths(NamedTuple):
    """Depth of a node's caps, 1 - cap / base, in [0, 1]; 0 if uncapped."""

    cpu: float
    gpu: float


class Change(NamedTuple):
    """A change of a node's caps.

    Attributes:
        since_s: when the node was last observed with the old caps, s since the epoch.
        seen_s: when it was first observed with the new caps, s since the epoch.
        before: old caps.
        after: new caps.
    """

    since_s: float
    seen_s: float
    before: Depths
    after: Depths

    @property
    def due_s(self) -> float:
        """Time from which the change can be evaluated, s since the epoch."""
        return self.seen_s + SETTLING_S + WINDOW_S


class Responses(NamedTuple):
    """Response of a workload to CPU and GPU caps; None if unknown."""

    cpu: CapResponse | None = None
    gpu: CapResponse | None = None


class _Kept(NamedTuple):
    cpu: deque[CapResponse]
    gpu: deque[CapResponse]


class CapResponses:
    """Learns from changes of caps how workloads respond to them. Created each time this replica becomes leader.

    Memory is bounded by the number of nodes and workloads of the cluster.

    Args:
        prometheus: Prometheus client.
        query: PromQL for the throughput of pods, work per second, by namespace and pod.
        metrics: classifier metrics.
    """

    def __init__(self, prometheus: Prometheus, query: str, metrics: ClassifierMetrics) -> None:
        self._prometheus = prometheus
        self._query = query
        self._metrics = metrics
        self._looked_s: float | None = None
        self._depths: dict[str, Depths] = {}
        self._changed_s: dict[str, float] = {}
        self._pending: dict[str, Change] = {}
        self._kept: dict[WorkloadKey, _Kept] = {}

    def for_workload(self, workload: WorkloadKey) -> Responses:
        """The pooled responses of a workload."""
        kept = self._kept.get(workload)
        return Responses() if kept is None else Responses(pooled(kept.cpu), pooled(kept.gpu))

    async def update(
        self, twins: Iterable[NodeTwin], workloads: Mapping[WorkloadKey, Mapping[Key, PodFacts]], now_s: float
    ) -> None:
        """Record changes of caps, and evaluate earlier changes that are due.

        Args:
            twins: NodeTwins of all nodes.
            workloads: all pods by workload.
            now_s: current time, s since the epoch.
        """
        self._record_changes({twin.spec.node_name: depths_of(twin) for twin in twins}, now_s)
        due = {node: change for node, change in self._pending.items() if change.due_s <= now_s}
        if due:
            for node in due:
                del self._pending[node]
            await self._evaluate(due, workloads)
        for gone in self._kept.keys() - workloads.keys():
            del self._kept[gone]

    def _record_changes(self, depths: Mapping[str, Depths], now_s: float) -> None:
        for node, now in depths.items():
            before = self._depths.get(node, now)
            if before == now or self._looked_s is None:
                continue
            # A change preceded or followed by another one within the window cannot be evaluated.
            disturbed = self._pending.pop(node, None) is not None
            quiet_s = self._looked_s - self._changed_s.get(node, float("-inf"))
            if not disturbed and quiet_s >= WINDOW_S:
                self._pending[node] = Change(self._looked_s, now_s, before, now)
            self._changed_s[node] = now_s
        for known in (self._changed_s, self._pending):
            for gone in known.keys() - depths.keys():
                del known[gone]
        self._depths = dict(depths)
        self._looked_s = now_s

    async def _evaluate(
        self, changes: Mapping[str, Change], workloads: Mapping[WorkloadKey, Mapping[Key, PodFacts]]
    ) -> None:
        start_s = min(change.since_s for change in changes.values()) - WINDOW_S
        end_s = max(change.due_s for change in changes.values())
        try:
            histories = await self._prometheus.query_range(self._query, start_s, end_s, STEP_S)
        except PrometheusError as error:
            self._metrics.query_errors.labels("cap-response").inc()
            _log.info("cannot read throughput of workloads", extra={"problem": str(error)})
            return
        series = await asyncio.to_thread(pod_courses, histories, _MAX_RATE)
        for key, pods in workloads.items():
            for node, there in _by_node(pods.values(), changes):
                self._record_response(key, there, changes[node], series)

    def _record_response(
        self,
        key: WorkloadKey,
        pods: Sequence[PodFacts],
        change: Change,
        series: Mapping[PodKey, Mapping[float, float]],
    ) -> None:
        rates = throughput(pods, change, series)
        if not rates:
            return
        try:
            found = responses_to(change, rates, gpus=any(pod.requests.gpus > 0.0 for pod in pods))
        except InvalidQuantityError as error:
            _log.info("invalid throughput", extra={"workload": f"{key[0]}/{key[1].name}", "problem": str(error)})
            return
        self._metrics.cap_responses.labels("measured" if any(found) else "unclear").inc()
        if any(found):
            kept = self._kept.setdefault(key, _Kept(deque(maxlen=KEPT), deque(maxlen=KEPT)))
            kept.cpu.extend(filter(None, [found.cpu]))
            kept.gpu.extend(filter(None, [found.gpu]))


def depths_of(twin: NodeTwin) -> Depths:
    """The depth of the caps in a NodeTwin's status; an absent cap counts as uncapped."""
    caps = twin.status.effective_cap_state
    if caps is None:
        return Depths(0.0, 0.0)
    cpu, gpu = (1.0 - min(max(pct / 100.0, 0.0), 1.0) for pct in (_or_full(caps.cpu_pct), _or_full(caps.gpu_pct)))
    return Depths(cpu, gpu)


def _or_full(percent: float | None) -> float:
    return 100.0 if percent is None else percent


def _by_node(pods: Iterable[PodFacts], changes: Mapping[str, Change]) -> Iterator[tuple[str, list[PodFacts]]]:
    """The pods of a workload on each node whose caps changed.

    A node on which one of them started or is terminating within the window is skipped: that changes the others' work.
    """
    there: dict[str, list[PodFacts]] = {}
    for pod in pods:
        if pod.node_name in changes:
            there.setdefault(pod.node_name, []).append(pod)
    for node, of_node in there.items():
        if all(_ran_through(pod, changes[node]) for pod in of_node):
            yield node, of_node


def _ran_through(pod: PodFacts, change: Change) -> bool:
    return not pod.terminating and pod.running_since_s is not None and pod.running_since_s <= change.since_s - WINDOW_S


def throughput(
    pods: Iterable[PodFacts], change: Change, series: Mapping[PodKey, Mapping[float, float]]
) -> list[Reading]:
    """Summed throughput of pods within the windows of a change, at the times for which all pods have a sample."""
    of_pods = [series.get((pod.namespace, pod.name), {}) for pod in pods]
    times_s = set(of_pods[0]).intersection(*of_pods[1:]) if of_pods else set()
    within = sorted(time_s for time_s in times_s if change.since_s - WINDOW_S <= time_s <= change.due_s)
    return [Reading(time_s, sum(course[time_s] for course in of_pods)) for time_s in within]


def responses_to(change: Change, rates: Sequence[Reading], *, gpus: bool) -> Responses:
    """The response of a workload to a change of caps.

    If the caps of CPUs and GPUs changed together, the effects cannot be told apart. But neither cap alone slows a
    workload more than both do, so a low response to both is a low response to each.

    Args:
        change: change of caps.
        rates: throughput around the change.
        gpus: whether the workload holds GPUs; GPU caps do not affect others.
    """
    changed = (change.before.cpu != change.after.cpu, gpus and change.before.gpu != change.after.gpu)
    cpu, gpu = (
        _response(change, before, after, rates) if is_changed else None
        for is_changed, before, after in zip(changed, change.before, change.after, strict=True)
    )
    if all(changed):
        return Responses(*(one if one is not None and one.level is Level.LOW else None for one in (cpu, gpu)))
    return Responses(cpu, gpu)


def _response(change: Change, before: float, after: float, rates: Sequence[Reading]) -> CapResponse | None:
    settling_s = change.seen_s - change.since_s + SETTLING_S
    return cap_response(
        rates,
        CapChange(change.since_s, before, after),
        window_s=change.due_s - change.since_s,
        settling_s=settling_s,
    )
