"""A scheduler for the fake cluster that places pods like kube-scheduler and calls the same extender.

It does not support preemption, topology spread, pod affinity and volumes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from heapq import heappop, heappush
from itertools import count

import numpy as np

from joulie_lab.fakes import placement
from joulie_lab.fakes.extender import ExtenderClient, ExtenderError, ExtenderSettings
from joulie_lab.fakes.kubernetes import pods
from joulie_lab.fakes.kubernetes.api import Api, Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import NODE, POD, Json
from joulie_lab.fakes.kubernetes.store import Change, ObjectKey, Stored
from joulie_lab.fakes.kubernetes.watch import Follower
from joulie_lab.fakes.placement import NodeState, PodRequest

_log = logging.getLogger(__name__)
_STATUS_WRITER = Writer("kube-scheduler", "status")
_ENDED = frozenset({"Succeeded", "Failed"})


class FakeScheduler:
    """Schedules the pods of one scheduler name one by one, by priority and then by age.

    Args:
        api: API of the cluster.
        extender: extender to call with the feasible nodes; None for none.
        name: spec.schedulerName of the pods to schedule.
        backoff_s: minimum time before unschedulable pods are retried after a change in the cluster, on the event
            loop's clock, s.
        flush_s: time after which unschedulable pods are retried in any case, s.
    """

    def __init__(
        self,
        api: Api,
        extender: ExtenderSettings | None = None,
        *,
        name: str = "default-scheduler",
        backoff_s: float = 1.0,
        flush_s: float = 300.0,
    ) -> None:
        self._api = api
        self._extender_settings = extender
        self._extender: ExtenderClient | None = None
        self._name = name
        self._backoff_s = backoff_s
        self._flush_s = flush_s
        self._nodes: dict[str, NodeState] = {}
        self._placed: dict[ObjectKey, str] = {}
        self._on_node: dict[str, dict[ObjectKey, PodRequest]] = {}
        self._waiting: dict[ObjectKey, Stored] = {}
        self._unschedulable: set[ObjectKey] = set()
        self._queue: list[tuple[int, int, ObjectKey]] = []
        self._arrivals = count()
        self._next_start = 0

    async def run(self) -> None:
        """Schedule until cancelled."""
        wake = asyncio.Event()
        async with AsyncExitStack() as stack:
            if self._extender_settings is not None:
                self._extender = await stack.enter_async_context(ExtenderClient(self._extender_settings))
            nodes = stack.enter_context(Follower(self._api.store, NODE, wake))
            pods_ = stack.enter_context(Follower(self._api.store, POD, wake))
            clock = asyncio.get_running_loop().time
            retry_at_s = flush_at_s = clock() + self._flush_s
            while True:
                wake.clear()
                if self._observe(nodes, pods_):
                    retry_at_s = min(retry_at_s, clock() + self._backoff_s)
                if clock() >= min(retry_at_s, flush_at_s):
                    self._retry_unschedulable()
                    retry_at_s = flush_at_s = clock() + self._flush_s
                if pod := self._next_pod():
                    await self._schedule(pod)
                    await asyncio.sleep(0)
                    continue
                await _wait(wake, min(retry_at_s, flush_at_s) - clock())

    def _observe(self, nodes: Follower, pods_: Follower) -> bool:
        """Process changes; returns whether unschedulable pods may have become schedulable."""
        freed = False
        for change in nodes.changes():
            self._node_changed(change)
            freed = True
        for change in pods_.changes():
            freed |= self._pod_changed(change)
        return freed

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            if change.old is not None:
                self._nodes.pop(change.old.key.name, None)
            return
        node = NodeState.from_object(change.new.obj)
        for request in self._on_node.get(node.name, {}).values():
            node.add(request)
        self._nodes[node.name] = node

    def _pod_changed(self, change: Change) -> bool:
        """Process a pod's change; returns whether it freed resources of a node or changed while unschedulable."""
        stored = change.new or change.old
        if stored is None:
            return False
        key = stored.key
        node_name = stored.obj["spec"].get("nodeName", "")
        gone = change.new is None or stored.obj.get("status", {}).get("phase") in _ENDED
        left = gone and key in self._placed
        if left:
            self._leave(key)
        elif node_name and not gone and key not in self._placed:
            self._place(key, node_name, PodRequest.from_object(stored.obj))
        if gone or node_name or not self._is_mine(stored.obj):
            self._waiting.pop(key, None)
            self._unschedulable.discard(key)
            return left
        known = self._waiting.get(key)
        self._waiting[key] = stored
        if known is None or known.obj["spec"] != stored.obj["spec"]:
            self._enqueue(stored)
        return left

    def _enqueue(self, pod: Stored) -> None:
        self._unschedulable.discard(pod.key)
        heappush(self._queue, (-pod.obj["spec"].get("priority", 0), next(self._arrivals), pod.key))

    def _retry_unschedulable(self) -> None:
        for key in [key for key in self._waiting if key in self._unschedulable]:
            self._enqueue(self._waiting[key])

    def _is_mine(self, pod: Json) -> bool:
        ready = not pod["spec"].get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
        return ready and pod["spec"].get("schedulerName", "default-scheduler") == self._name

    def _place(self, key: ObjectKey, node: str, request: PodRequest) -> None:
        self._placed[key] = node
        self._on_node.setdefault(node, {})[key] = request
        if node in self._nodes:
            self._nodes[node].add(request)

    def _leave(self, key: ObjectKey) -> None:
        node = self._placed.pop(key)
        request = self._on_node[node].pop(key)
        if not self._on_node[node]:
            del self._on_node[node]
        if node in self._nodes:
            self._nodes[node].add(request, -1)

    def _next_pod(self) -> Stored | None:
        """The pod with the highest priority in the active queue; None if the queue is empty."""
        while self._queue:
            _, _, key = heappop(self._queue)
            if key in self._waiting and key not in self._unschedulable:
                return self._waiting[key]
        return None

    async def _schedule(self, pod: Stored) -> None:
        request = PodRequest.from_object(pod.obj)
        feasible, obstacles = self._feasible(request)
        extra: Mapping[str, int] = {}
        if feasible and self._extender is not None:
            try:
                feasible, extra = await self._call_extender(self._extender, pod.obj, feasible, obstacles)
            except ExtenderError as error:
                self._mark_unschedulable(pod, str(error))
                return
        if not feasible:
            self._mark_unschedulable(pod, _message(len(self._nodes), obstacles))
            return
        best = self._best(request, feasible, extra)
        self._place(pod.key, best, request)
        self._waiting.pop(pod.key, None)
        try:
            binding = {"metadata": {"uid": pod.uid}, "target": {"kind": "Node", "name": best}}
            pods.bind(self._api, *pod.key, binding)
        except StatusError as error:
            # Deleted, or bound by another scheduler, during the extender call: the watch event for that will follow.
            self._leave(pod.key)
            _log.info("not bound", extra={"pod": "/".join(pod.key), "why": str(error)})

    def _feasible(self, request: PodRequest) -> tuple[list[str], Counter[str]]:
        """Feasible nodes, searched from where the last search ended; in large clusters not all of them."""
        names = list(self._nodes)
        wanted = placement.nodes_to_find(len(names))
        found: list[str] = []
        obstacles: Counter[str] = Counter()
        for step in range(len(names)):
            name = names[(self._next_start + step) % len(names)]
            why = placement.obstacle(request, self._nodes[name])
            if why:
                obstacles[why] += 1
                continue
            found.append(name)
            if len(found) == wanted:
                self._next_start = (self._next_start + step + 1) % len(names)
                break
        return found, obstacles

    async def _call_extender(
        self, extender: ExtenderClient, pod: Json, feasible: list[str], obstacles: Counter[str]
    ) -> tuple[list[str], Mapping[str, int]]:
        """The nodes that the extender's filter passes, and its scores; an ignorable extender's failure is skipped.

        Raises:
            ExtenderError: the filter call failed and the extender is not ignorable.
        """
        try:
            names, failed = await extender.filter(pod, feasible)
            passed = set(names)
            feasible = [name for name in feasible if name in passed]
            obstacles.update(failed.values())
        except ExtenderError as error:
            if not extender.settings.ignorable:
                raise
            _log.warning("extender ignored", extra={"why": str(error)})
        if len(feasible) < 2:
            return feasible, {}
        try:
            return feasible, await extender.prioritize(pod, feasible)
        except ExtenderError as error:
            _log.warning("extender ignored", extra={"why": str(error)})
            return feasible, {}

    def _best(self, request: PodRequest, feasible: Sequence[str], extra: Mapping[str, int]) -> str:
        nodes = [self._nodes[name] for name in feasible]
        scores = placement.scores(request, nodes) + np.array([extra.get(name, 0) for name in feasible])
        return feasible[int(np.argmax(scores))]

    def _mark_unschedulable(self, pod: Stored, message: str) -> None:
        """Mark a pod as unschedulable with the reason, and requeue it for later."""
        self._unschedulable.add(pod.key)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

        def explain(obj: Json) -> Json:
            status = obj.get("status", {})
            conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
            before = conditions.get("PodScheduled", {})
            same = before.get("status") == "False"
            since = before["lastTransitionTime"] if same else self._api.timestamp()
            conditions["PodScheduled"] = condition | {"lastProbeTime": None, "lastTransitionTime": since}
            return {**obj, "status": {**status, "conditions": list(conditions.values())}}

        try:
            self._api.patch(POD, *pod.key, explain, _STATUS_WRITER)
        except StatusError as error:
            _log.info("pod not explained", extra={"pod": "/".join(pod.key), "why": str(error)})


def _message(total: int, obstacles: Counter[str]) -> str:
    if not total:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {why}" for why, count in obstacles.items()))
    return f"0/{total} nodes are available: {reasons}."


async def _wait(wake: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await wake.wait()
    except TimeoutError:
        pass
