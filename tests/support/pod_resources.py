"""A kubelet's PodResources endpoint: gRPC over a unix socket, with messages that the protobuf library encodes.

Its descriptors follow k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, fields that Joulie does not read included.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources")],
    "PodResources": [
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("containers", 3, "ContainerResources"),
        ("cpu_ids", 4, "int64"),
    ],
    "ContainerResources": [
        ("name", 1, "string"),
        ("devices", 2, "ContainerDevices"),
        ("cpu_ids", 3, "int64"),
        ("memory", 4, "ContainerMemory"),
        ("dynamic_resources", 5, "DynamicResource"),
    ],
    "ContainerMemory": [("memory_type", 1, "string"), ("size", 2, "uint64")],
    "ContainerDevices": [
        ("resource_name", 1, "string"),
        ("device_ids", 2, "strings"),
        ("topology", 3, "TopologyInfo"),
    ],
    "TopologyInfo": [("nodes", 1, "NUMANode")],
    "NUMANode": [("ID", 1, "int64")],
    "DynamicResource": [
        ("claim_name", 2, "string"),
        ("claim_namespace", 3, "string"),
        ("claim_resources", 4, "ClaimResource"),
    ],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice"),
        ("driver_name", 2, "string"),
        ("pool_name", 3, "string"),
        ("device_name", 4, "string"),
    ],
    "CDIDevice": [("name", 1, "string")],
}
_SINGULAR = {"TopologyInfo"}


def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": kinds.TYPE_STRING,
        "strings": kinds.TYPE_STRING,
        "int64": kinds.TYPE_INT64,
        "uint64": kinds.TYPE_UINT64,
    }
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            single = kind in {"string", "uint64", *_SINGULAR} or (name == "NUMANode")
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_OPTIONAL if single else kinds.LABEL_REPEATED
            if kind in scalars:
                added.type = scalars[kind]
            else:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


_RESPONSE = _response_class()


def response(pods: Mapping[tuple[str, str], Mapping[str, Sequence[str]]]) -> bytes:
    """Bytes of a ListPodResourcesResponse: device IDs by resource, by namespace and name of a pod.

    A resource ``driver.example.com/claim`` ending in ``/claim`` is a DRA claim of devices of that driver.
    """
    message = _RESPONSE()
    for (namespace, name), resources in pods.items():
        pod = message.pod_resources.add(name=name, namespace=namespace)
        container = pod.containers.add(name="main", cpu_ids=[0, 1, 2**40])
        container.memory.add(memory_type="memory", size=2**35)
        for resource, ids in resources.items():
            if resource.endswith("/claim"):
                claim = container.dynamic_resources.add(claim_name="gpus", claim_namespace=namespace)
                for device in ids:
                    driver = resource.removesuffix("/claim")
                    made = claim.claim_resources.add(driver_name=driver, pool_name="node", device_name=device)
                    made.cdi_devices.add(name=f"k8s.{driver}/claim={device}")
                continue
            devices = container.devices.add(resource_name=resource, device_ids=ids)
            devices.topology.nodes.add(ID=1)
    data: bytes = message.SerializeToString()
    return data


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection; answers every call with the message, or with a status other than OK."""

    def __init__(self, answer: Callable[[], bytes | str]) -> None:
        self._answer = answer
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http2.initiate_connection()
        transport.write(self._http2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive_data(data):
            if isinstance(event, h2.events.StreamEnded) and event.stream_id is not None:
                self._respond(event.stream_id)
        self._transport.write(self._http2.data_to_send())

    def _respond(self, stream: int) -> None:
        answer = self._answer()
        headers = [(":status", "200"), ("content-type", "application/grpc")]
        if isinstance(answer, str):
            failed = [("grpc-status", "12"), ("grpc-message", answer)]
            self._http2.send_headers(stream, [*headers, *failed], end_stream=True)
            return
        self._http2.send_headers(stream, headers)
        body = bytes(1) + len(answer).to_bytes(4) + answer
        for place in range(0, len(body), 16384):
            self._http2.send_data(stream, body[place : place + 16384])
        self._http2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


class PodResourcesSocket:
    """A kubelet that answers with `pods`, or fails with `error`."""

    def __init__(self) -> None:
        self.pods: Mapping[tuple[str, str], Mapping[str, Sequence[str]]] = {}
        self.error: str | None = None
        self.calls = 0

    def answer(self) -> bytes | str:
        self.calls += 1
        return response(self.pods) if self.error is None else self.error


@contextlib.contextmanager
def kubelet_socket(path: Path) -> Iterator[PodResourcesSocket]:
    """Serve PodResources on a socket, in a thread of its own."""
    kubelet = PodResourcesSocket()
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        server = await loop.create_unix_server(lambda: _Connection(kubelet.answer), path)
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(task)
        loop.close()

    task = loop.create_task(serve())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10.0)
    try:
        yield kubelet
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10.0)
