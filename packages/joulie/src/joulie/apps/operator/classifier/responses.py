"""Cap sensitivity as measured: the throughput of workloads before and after the cap of their node changed.

Caps are those that NodeTwins state. The throughput is asked for once, when enough time has passed after a change, so
that nothing but the change itself has to be remembered.
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
"""Time before and after a change that counts, s."""
SETTLING_S = 120.0
"""Time after a change that does not, s: agents apply caps within their interval, and rates look back."""
STEP_S = 30.0
KEPT = 5
"""Responses of a workload that are kept, the latest."""
_MAX_RATE = 1e15

_log = logging.getLogger(__name__)


class Depths(NamedTuple):
    """How deep the caps of a node are, 1 - cap / base; 0 uncapped."""

    cpu: float
    gpu: float


class Change(NamedTuple):
    """A change of a node's caps.

    Attributes:
        since_s: when the node was last seen with the caps before it.
        seen_s: when it was first seen with the others.
        before: the caps.
        after: the caps.
    """

    since_s: float
    seen_s: float
    before: Depths
    after: Depths

    @property
    def due_s(self) -> float:
        """When enough time has passed to judge it."""
        return self.seen_s + SETTLING_S + WINDOW_S


class Responses(NamedTuple):
    """How a workload responded to caps; None where that is not known."""

    cpu: CapResponse | None = None
    gpu: CapResponse | None = None


class _Kept(NamedTuple):
    cpu: deque[CapResponse]
    gpu: deque[CapResponse]


class CapResponses:
    """Learns from changes of caps how workloads respond to them. One term of leadership.

    What it keeps is bounded by the nodes and the workloads of the cluster.

    Args:
        prometheus: to ask for throughput.
        query: PromQL of the work that pods do in a second, by namespace and pod.
        metrics: to count in.
    """

    def __init__(self, prometheus: Prometheus, query: str, metrics: ClassifierMetrics) -> None:
        self._prometheus = prometheus
        self._query = query
        self._metrics = metrics
        self._looked_s: float | None = None
        self._depths: dict[str, Depths] = {}
        self._changed_s: dict[str, float] = {}
        self._waiting: dict[str, Change] = {}
        self._kept: dict[WorkloadKey, _Kept] = {}

    def of(self, workload: WorkloadKey) -> Responses:
        """How a workload responds to caps."""
        kept = self._kept.get(workload)
        return Responses() if kept is None else Responses(pooled(kept.cpu), pooled(kept.gpu))

    async def look(
        self, twins: Iterable[NodeTwin], workloads: Mapping[WorkloadKey, Mapping[Key, PodFacts]], now_s: float
    ) -> None:
        """Take note of caps that changed, and judge changes that have waited for long enough.

        Args:
            twins: of all nodes.
            workloads: all pods by workload.
            now_s: s since the epoch.
        """
        self._note({twin.spec.node_name: depths_of(twin) for twin in twins}, now_s)
        due = {node: change for node, change in self._waiting.items() if change.due_s <= now_s}
        if due:
            for node in due:
                del self._waiting[node]
            await self._judge(due, workloads)
        for gone in self._kept.keys() - workloads.keys():
            del self._kept[gone]

    def _note(self, depths: Mapping[str, Depths], now_s: float) -> None:
        for node, now in depths.items():
            before = self._depths.get(node, now)
            if before == now or self._looked_s is None:
                continue
            # A change that another one follows, or went before, within the window tells nothing.
            disturbed = self._waiting.pop(node, None) is not None
            quiet_s = self._looked_s - self._changed_s.get(node, float("-inf"))
            if not disturbed and quiet_s >= WINDOW_S:
                self._waiting[node] = Change(self._looked_s, now_s, before, now)
            self._changed_s[node] = now_s
        for known in (self._changed_s, self._waiting):
            for gone in known.keys() - depths.keys():
                del known[gone]
        self._depths = dict(depths)
        self._looked_s = now_s

    async def _judge(
        self, changes: Mapping[str, Change], workloads: Mapping[WorkloadKey, Mapping[Key, PodFacts]]
    ) -> None:
        start_s = min(change.since_s for change in changes.values()) - WINDOW_S
        end_s = max(change.due_s for change in changes.values())
        try:
            histories = await self._prometheus.query_range(self._query, start_s, end_s, STEP_S)
        except PrometheusError as error:
            self._metrics.query_errors.labels("cap-response").inc()
            _log.info("no throughput of workloads", extra={"problem": str(error)})
            return
        courses = await asyncio.to_thread(pod_courses, histories, _MAX_RATE)
        for key, pods in workloads.items():
            for node, there in _by_node(pods.values(), changes):
                self._learn(key, there, changes[node], courses)

    def _learn(
        self,
        key: WorkloadKey,
        pods: Sequence[PodFacts],
        change: Change,
        courses: Mapping[PodKey, Mapping[float, float]],
    ) -> None:
        rates = throughput(pods, change, courses)
        if not rates:
            return
        try:
            found = responses_to(change, rates, gpus=any(pod.requests.gpus > 0.0 for pod in pods))
        except InvalidQuantityError as error:
            _log.info("throughput is refused", extra={"workload": f"{key[0]}/{key[1].name}", "problem": str(error)})
            return
        self._metrics.cap_responses.labels("measured" if any(found) else "unclear").inc()
        if any(found):
            kept = self._kept.setdefault(key, _Kept(deque(maxlen=KEPT), deque(maxlen=KEPT)))
            kept.cpu.extend(filter(None, [found.cpu]))
            kept.gpu.extend(filter(None, [found.gpu]))


def depths_of(twin: NodeTwin) -> Depths:
    """The caps that a NodeTwin states; what it does not say is not capped."""
    caps = twin.status.effective_cap_state
    if caps is None:
        return Depths(0.0, 0.0)
    cpu, gpu = (1.0 - min(max(pct / 100.0, 0.0), 1.0) for pct in (_or_full(caps.cpu_pct), _or_full(caps.gpu_pct)))
    return Depths(cpu, gpu)


def _or_full(percent: float | None) -> float:
    return 100.0 if percent is None else percent


def _by_node(pods: Iterable[PodFacts], changes: Mapping[str, Change]) -> Iterator[tuple[str, list[PodFacts]]]:
    """The pods of a workload on each node whose caps changed.

    Nothing comes of a node where one of them came or went within the window: the others' work changed with that.
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
    pods: Iterable[PodFacts], change: Change, courses: Mapping[PodKey, Mapping[float, float]]
) -> list[Reading]:
    """Work of pods in a second, together, within the windows of a change; at the times that all are known at."""
    of_pods = [courses.get((pod.namespace, pod.name), {}) for pod in pods]
    times_s = set(of_pods[0]).intersection(*of_pods[1:]) if of_pods else set()
    within = sorted(time_s for time_s in times_s if change.since_s - WINDOW_S <= time_s <= change.due_s)
    return [Reading(time_s, sum(course[time_s] for course in of_pods)) for time_s in within]


def responses_to(change: Change, rates: Sequence[Reading], *, gpus: bool) -> Responses:
    """What a change of caps says of a workload.

    Where the caps of CPUs and GPUs changed together, nobody can tell whose it was; but each alone slows no more than
    both, so that "hardly at all" is true of each.

    Args:
        change: of caps.
        rates: throughput around it.
        gpus: whether the workload holds GPUs; others do not care for caps of GPUs.
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
