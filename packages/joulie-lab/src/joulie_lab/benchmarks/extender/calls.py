"""Calls of kube-scheduler to an extender, and a minimal client that makes them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from enum import Enum, auto
from time import perf_counter
from typing import Any

import numpy as np

from joulie.adapters.kubernetes.gpu_parts import GPU_MILLI_ANNOTATION
from joulie.adapters.kubernetes.names import CPU_SENSITIVITY_ANNOTATION, WORKLOAD_CLASS_ANNOTATION

VERBS = ("filter", "prioritize")
NAMESPACE = "team"
BODIES = 20
"""Different orders and choices of names, so that nothing can be remembered from one call to the next."""
RACK = 16
"""Nodes of a rack."""
_FQDN = "ip-10-{}-{}-12.eu-central-1.compute.internal"


class Pods(Enum):
    """What calls are about."""

    ALIKE = auto()
    """Standard pods of one Job."""
    PERFORMANCE = auto()
    """Performance pods of one Job, which half of the nodes refuse."""
    CROWDED = auto()
    """The same, where the power budgets of every other rack have nothing left."""
    DIFFERENT = auto()
    """Standard pods that request this and that: more kinds than an extender remembers."""
    SHARED = auto()
    """Standard pods of one Job that ask for half a GPU."""

    @property
    def full_power(self) -> bool:
        """Whether they need full power."""
        return self in {Pods.PERFORMANCE, Pods.CROWDED}

    def refused(self, node: int) -> bool:
        """Whether /filter refuses a node."""
        return (self.full_power and is_eco(node)) or (self is Pods.CROWDED and is_crowded(node // RACK))


def is_eco(node: int) -> bool:
    """Whether a node runs under caps."""
    return node % 2 == 1


def is_crowded(rack: int) -> bool:
    """Whether the power budget of a rack has nothing left where pods are crowded."""
    return rack % 2 == 1


def short_names(count: int) -> list[str]:
    """Node names as people choose them."""
    return [f"node-{index:05d}" for index in range(count)]


def long_names(count: int) -> list[str]:
    """Node names as a cloud provider makes them."""
    return [_FQDN.format(index // 250, index % 250) for index in range(count)]


class Caller:
    """A minimal HTTP client on one persistent connection."""

    def __init__(self, port: int) -> None:
        """Connect to a port on loopback."""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(4 * 2**20))

    def __enter__(self) -> Caller:
        """The client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._socket.close()

    def ask(self, request: bytes) -> float:
        """Seconds from the first byte out to the last byte in."""
        began_s = perf_counter()
        self._socket.sendall(request)
        received, expected = 0, 0
        while not expected or received < expected:
            count = self._socket.recv_into(self._buffer[received:])
            if not count:
                raise ConnectionError("the extender closed the connection")
            received += count
            expected = expected or _expected(bytes(self._buffer[: min(received, 1024)]))
        seconds = perf_counter() - began_s
        if not bytes(self._buffer[:12]).endswith(b" 200"):
            raise RuntimeError(f"the extender refused: {bytes(self._buffer[:received])[:500]!r}")
        return seconds


def _expected(beginning: bytes) -> int:
    """Length of the answer that begins so, 0 while its header is not complete."""
    header, end, _ = beginning.lower().partition(b"\r\n\r\n")
    if not end:
        return 0
    return len(header) + 4 + int(header.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def requests(names: list[str], size: int, pods: Pods) -> Iterator[tuple[bytes, bytes]]:
    """Calls of /filter, and of /prioritize for the nodes that pass it."""
    rng = np.random.default_rng(1)
    for index in range(BODIES):
        offered = rng.permutation(len(names))[:size].tolist()
        passed = [node for node in offered if not pods.refused(node)]
        cores = 1 + index if pods is Pods.DIFFERENT else 8
        bodies = [body([names[node] for node in nodes], pods, cores) for nodes in (offered, passed)]
        yield _request("filter", bodies[0]), _request("prioritize", bodies[1])


def _request(verb: str, body: bytes) -> bytes:
    head = f"POST /{verb} HTTP/1.1\r\nHost: joulie\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def body(names: list[str], pods: Pods = Pods.ALIKE, cores: int = 8) -> bytes:
    """A call as kube-scheduler makes it, for a pod of a Job."""
    annotations = {CPU_SENSITIVITY_ANNOTATION: "high"}
    if pods.full_power:
        annotations[WORKLOAD_CLASS_ANNOTATION] = "performance"
    if pods is Pods.SHARED:
        annotations[GPU_MILLI_ANNOTATION] = "500"
    metadata = {**_METADATA, "annotations": annotations}
    resources = {"requests": {"cpu": str(cores), "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
    spec = {**_SPEC, "containers": [{**_CONTAINER, "resources": resources}]}
    pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


_METADATA: dict[str, Any] = {
    "name": "train-7qk2v",
    "namespace": NAMESPACE,
    "uid": "3e61346f-a27c-46f8-8359-f81ac426d5a0",
    "resourceVersion": "268",
    "labels": {"app": "train", "batch.kubernetes.io/job-name": "train"},
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}],
}
_CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "registry.k8s.io/pause:3.10",
    "volumeMounts": [{"name": "kube-api-access-lkxn6", "readOnly": True, "mountPath": "/var/run/secrets"}],
    "imagePullPolicy": "IfNotPresent",
}
_SPEC: dict[str, Any] = {
    "volumes": [{"name": "kube-api-access-lkxn6", "projected": {"defaultMode": 420, "sources": []}}],
    "restartPolicy": "Never",
    "schedulerName": "default-scheduler",
    "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
    "priority": 0,
}
