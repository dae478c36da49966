"""Kubelets of all nodes of the fake cluster: pods that are bound start, and pods that are deleted end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from heapq import heappop, heappush

from joulie_lab.fakes.kubernetes.api import Api, Deletion, Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.kinds import NODE, POD, Json
from joulie_lab.fakes.kubernetes.store import ObjectKey, Stored
from joulie_lab.fakes.kubernetes.watch import Follower

_WRITER = Writer("kubelet", "status")
_NOW = Deletion(grace_s=0)


class FakeKubelet:
    """Updates the status of pods: bound pods become Running; deleted pods and pods of deleted nodes are removed.

    Args:
        api: API of the cluster.
        start_s: time from binding to Running on the event loop's clock, s.
        stop_s: time from deletion to removal, s.
    """

    def __init__(self, api: Api, *, start_s: float = 0.5, stop_s: float = 0.0) -> None:
        self._api = api
        self._start_s = start_s
        self._stop_s = stop_s
        self._due: list[tuple[float, ObjectKey, str]] = []
        self._expected: set[tuple[ObjectKey, str]] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        wake = asyncio.Event()
        clock = asyncio.get_running_loop().time
        with ExitStack() as stack:
            nodes = stack.enter_context(Follower(self._api.store, NODE, wake))
            pods = stack.enter_context(Follower(self._api.store, POD, wake))
            while True:
                wake.clear()
                self._observe(nodes, pods, clock())
                while self._due and self._due[0][0] <= clock():
                    _, key, uid = heappop(self._due)
                    self._act(key, uid)
                    # Thousands of pods may be due at once; yield so that the server can serve other requests.
                    await asyncio.sleep(0)
                try:
                    async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                        await wake.wait()
                except TimeoutError:
                    pass

    def _observe(self, nodes: Follower, pods: Follower, now_s: float) -> None:
        changes = nodes.changes()
        for pod in self._pods_on({c.old.key.name for c in changes if c.old is not None and c.new is None}):
            self._end(pod.key)
        # Pods may be bound to a node that was created only now.
        for pod in self._pods_on({c.new.key.name for c in changes if c.new is not None and c.old is None}):
            self._expect(pod, now_s)
        for change in pods.changes():
            if change.new is not None:
                self._expect(change.new, now_s)

    def _expect(self, pod: Stored, now_s: float) -> None:
        """Schedule a pod's next transition."""
        if not pod.obj["spec"].get("nodeName"):
            return
        deleted = "deletionTimestamp" in pod.obj["metadata"]
        if deleted:
            heappush(self._due, (now_s + self._stop_s, pod.key, pod.uid))
        elif pod.obj.get("status", {}).get("phase") == "Pending" and (pod.key, pod.uid) not in self._expected:
            self._expected.add((pod.key, pod.uid))
            heappush(self._due, (now_s + self._start_s, pod.key, pod.uid))

    def _act(self, key: ObjectKey, uid: str) -> None:
        """Start or end a pod, if it is due."""
        self._expected.discard((key, uid))
        pod = self._api.find(POD, *key)
        if pod is None or pod.uid != uid:
            return
        if "deletionTimestamp" in pod.obj["metadata"]:
            self._end(key)
        elif pod.obj["status"].get("phase") == "Pending" and self._api.find(NODE, "", pod.obj["spec"]["nodeName"]):
            self._api.patch(POD, *key, self._started, _WRITER)

    def _pods_on(self, nodes: set[str]) -> list[Stored]:
        if not nodes:
            return []
        return [pod for pod in self._api.store.table(POD).in_order("") if pod.obj["spec"].get("nodeName") in nodes]

    def _end(self, key: ObjectKey) -> None:
        try:
            self._api.delete(POD, *key, _NOW)
        except StatusError:
            # Already deleted together with its owner or namespace.
            return

    def _started(self, pod: Json) -> Json:
        now = self._api.timestamp()
        conditions = {entry["type"]: entry for entry in pod["status"].get("conditions", ())}
        for kind in ("Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"):
            conditions[kind] = {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        status = {
            **pod["status"],
            "phase": "Running",
            "startTime": now,
            "conditions": list(conditions.values()),
            "containerStatuses": [_container_status(container, now) for container in pod["spec"]["containers"]],
        }
        return {**pod, "status": status}


def _container_status(container: Json, now: str) -> Json:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
