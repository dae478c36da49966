"""GPUs that the kubelet gave to pods, by its PodResources API: gRPC over a unix socket.

One unary call a cycle needs no gRPC library: the Kubernetes client's HTTP library speaks HTTP/2, by h2, which it loads
where it is found (0.9 MB). Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; gRPC over HTTP/2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2

from joulie.adapters.kubelet.protobuf import ProtobufError, chunks
from joulie.domain.gpu_allocations import Allocation, claimed_device
from joulie.ports.telemetry import SourceError

_LIST = "http://localhost/v1.PodResourcesLister/List"
_HEADERS = {"content-type": "application/grpc", "te": "trailers"}
_EMPTY = bytes(5)
"""A gRPC message without content: no compression, length 0."""
_PREFIX_BYTES = 5
_TIMEOUT_S = 2.0
_MAX_BYTES = 16 * 1024 * 1024
_GPU_RESOURCES = ("nvidia.com/", "amd.com/")
_DRA_GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com")


class PodResources:
    """Client of the kubelet of this machine.

    Args:
        socket: its unix socket, usually ``/var/lib/kubelet/pod-resources/kubelet.sock``.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def gpus(self) -> list[Allocation]:
        """GPUs that pods hold. Pods that have ended may be listed until their containers are removed.

        Raises:
            SourceError: the kubelet does not answer, or not as expected.
        """
        return allocations(await self._list())

    async def _list(self) -> bytes:
        transport = httpx2.AsyncHTTPTransport(uds=str(self._socket), http1=False, http2=True, verify=False)
        try:
            async with httpx2.AsyncClient(transport=transport, timeout=_TIMEOUT_S, trust_env=False) as client:
                answer = await client.post(_LIST, content=_EMPTY, headers=_HEADERS)
        except (httpx2.HTTPError, OSError) as error:
            raise SourceError(
                f"the kubelet does not answer at {self._socket}: {str(error) or type(error).__name__}"
            ) from error
        body = answer.content
        # A call that fails has no message; its status is in the headers where nothing else is sent.
        if answer.status_code != 200 or len(body) < _PREFIX_BYTES:
            problem = answer.headers.get("grpc-message") or answer.headers.get("grpc-status") or answer.status_code
            raise SourceError(f"PodResources at {self._socket}: {problem}")
        length = int.from_bytes(body[1:_PREFIX_BYTES])
        if body[0] != 0 or length != len(body) - _PREFIX_BYTES or length > _MAX_BYTES:
            raise SourceError(f"PodResources at {self._socket}: unexpected answer of {len(body)} bytes")
        return body[_PREFIX_BYTES:]


def allocations(message: bytes) -> list[Allocation]:
    """The GPUs of a ListPodResourcesResponse; pods without any are left out.

    Raises:
        SourceError: the message is malformed.
    """
    try:
        found = [_pod(pod) for number, pod in chunks(message) if number == 1]
    except (ProtobufError, UnicodeDecodeError) as error:
        raise SourceError(f"PodResources: malformed answer: {error}") from error
    return [allocation for allocation in found if allocation.devices]


def _pod(message: bytes) -> Allocation:
    name = namespace = ""
    devices: list[str] = []
    for number, content in chunks(message):
        if number == 1:
            name = content.decode()
        elif number == 2:
            namespace = content.decode()
        elif number == 3:
            devices += _container(content)
    return Allocation((namespace, name), tuple(devices))


def _container(message: bytes) -> Iterator[str]:
    for number, content in chunks(message):
        if number == 2:
            yield from _devices(content)
        elif number == 5:
            yield from _claimed(content)


def _devices(message: bytes) -> Iterator[str]:
    fields = list(chunks(message))
    resource = next((content.decode() for number, content in fields if number == 1), "")
    if resource.startswith(_GPU_RESOURCES):
        yield from (content.decode() for number, content in fields if number == 2)


def _claimed(message: bytes) -> Iterator[str]:
    """Devices of a DRA claim, whose names, ``gpu-0``, only their driver's ResourceSlices explain."""
    for number, resource in chunks(message):
        if number == 4:
            driver, pool, device = (_text(resource, field) for field in (2, 3, 4))
            if driver in _DRA_GPU_DRIVERS:
                yield claimed_device(driver, pool, device)


def _text(message: bytes, field: int) -> str:
    return next((content.decode() for number, content in chunks(message) if number == field), "")
