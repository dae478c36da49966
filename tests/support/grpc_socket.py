"""gRPC on unix sockets without a gRPC library: messages from tables of their fields, calls, and a server."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import httpx2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[str, Sequence[tuple[str, int, str]]]
"""Name, number and type of each field, by message; the type of a repeated field ends in ``*``."""

_PREFIX_BYTES = 5
_FRAME_BYTES = 16384
_UNIMPLEMENTED = "12"
_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _KINDS.TYPE_BOOL,
    "int64": _KINDS.TYPE_INT64,
    "string": _KINDS.TYPE_STRING,
    "uint64": _KINDS.TYPE_UINT64,
}


def message_classes(package: str, fields: Fields) -> Mapping[str, Any]:
    """Classes of messages, by name, as the protobuf library makes them of a description."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind in members:
            added = message.field.add(name=field, number=number)
            added.label = _KINDS.LABEL_REPEATED if kind.endswith("*") else _KINDS.LABEL_OPTIONAL
            single = kind.rstrip("*")
            added.type = _SCALARS.get(single, _KINDS.TYPE_MESSAGE)
            if single not in _SCALARS:
                added.type_name = f".{package}.{single}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in fields}


def call(socket: Path, method: str, message: bytes) -> bytes:
    """Make a unary call and return the answer's message.

    Raises:
        AssertionError: the call failed; with what the server says.
    """
    transport = httpx2.HTTPTransport(uds=str(socket), http1=False, http2=True, verify=False)
    with httpx2.Client(transport=transport, trust_env=False) as client:
        headers = {"content-type": "application/grpc", "te": "trailers"}
        answer = client.post(f"http://localhost{method}", content=_prefixed(message), headers=headers)
    assert len(answer.content) >= _PREFIX_BYTES, dict(answer.headers)
    return answer.content[_PREFIX_BYTES:]


class Answer(NamedTuple):
    """What a call is answered with.

    Attributes:
        message: the only message, or the first one of a stream.
        stays: whether it is a stream that stays open.
    """

    message: bytes
    stays: bool = False


Respond = Callable[[str, bytes], Answer | str]
"""Answers a method's message; text is the reason of a failure."""


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection."""

    def __init__(self, respond: Respond, opened: set[Any]) -> None:
        self._answer = respond
        self._opened = opened
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._calls: dict[int, tuple[str, bytearray]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._opened.add(transport)
        self._http2.initiate_connection()
        transport.write(self._http2.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        for event in self._http2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                path = next(value for name, value in event.headers if name == b":path")
                self._calls[event.stream_id] = path.decode(), bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._calls[event.stream_id][1].extend(event.data)
                self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                method, body = self._calls.pop(event.stream_id)
                self._respond(event.stream_id, self._answer(method, bytes(body[_PREFIX_BYTES:])))
        self._transport.write(self._http2.data_to_send())

    def _respond(self, stream: int, answer: Answer | str) -> None:
        headers = [(":status", "200"), ("content-type", "application/grpc")]
        if isinstance(answer, str):
            failed = [("grpc-status", _UNIMPLEMENTED), ("grpc-message", answer)]
            self._http2.send_headers(stream, [*headers, *failed], end_stream=True)
            return
        self._http2.send_headers(stream, headers)
        body = _prefixed(answer.message)
        for place in range(0, len(body), _FRAME_BYTES):
            self._http2.send_data(stream, body[place : place + _FRAME_BYTES])
        if not answer.stays:
            self._http2.send_headers(stream, [("grpc-status", "0")], end_stream=True)


@contextlib.contextmanager
def serving(path: Path, respond: Respond) -> Iterator[None]:
    """Answer calls on a socket, in a thread of its own."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    opened: set[Any] = set()

    async def serve() -> None:
        server = await loop.create_unix_server(lambda: _Connection(respond, opened), path)
        started.set()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await server.serve_forever()
        finally:
            for transport in list(opened):
                transport.abort()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(task)
        loop.close()

    task = loop.create_task(serve())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10.0)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10.0)


def _prefixed(message: bytes) -> bytes:
    """A message as gRPC frames it: not compressed, its length, itself."""
    return bytes(1) + len(message).to_bytes(4) + message
