"""An HTTP/1.1 server of few lines whose answers a test writes byte by byte: to break off, to stall, to lie."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect

QUICK = RetryPolicy(attempts=3, initial_wait_s=0.001, max_wait_s=1.0)
_ROUNDS_TO_ACCEPT = 5
"""Rounds of the event loop within which `talk` begins with a connection that the system has accepted, and more."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    peer: str = ""
    """Common name of the client's certificate."""


class Answer:
    """Writes to one connection; what is not written is not sent."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def whole(self, status: int, body: bytes = b"{}", headers: str = "") -> None:
        self._writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body)
        await self._writer.drain()

    async def begin(self) -> None:
        self._writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        await self.chunk(b"")

    def finish(self) -> None:
        """Close the connection once what was written is sent."""
        self._writer.close()

    def drop(self) -> None:
        self._writer.transport.abort()


Handler = Callable[[Request, Answer], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve on a free port of 127.0.0.1; gives the URL."""
    connections: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while not writer.is_closing():
                    await handler(await _read(reader, _peer(writer)), Answer(writer))
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await _accept_no_more(server)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round


async def _accept_no_more(server: asyncio.Server) -> None:
    """Close the server, once what it has accepted is known to `talk`: until then asyncio closes it for nobody."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(_ROUNDS_TO_ACCEPT):
        await asyncio.sleep(0)
    server.close()


def _peer(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("peercert") or {}
    names = {key: value for group in certificate.get("subject", ()) for key, value in group}
    return names.get("commonName", "")


async def _read(reader: asyncio.StreamReader, peer: str) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    return Request(method, url.path, dict(parse_qsl(url.query)), headers, body, peer)


@asynccontextmanager
async def client_of(handler: Handler, tmp_path, retry: RetryPolicy = QUICK) -> AsyncIterator[KubeClient]:
    """A client of a scripted server."""
    async with serving(handler) as url:
        file = tmp_path / "kubeconfig"
        file.write_text(kubeconfig(url))
        async with KubeClient(connect(kubeconfig=file, environ={}), retry=retry) as client:
            yield client


def kubeconfig(server: str, *, cluster: str = "", user: str = "{}", name: str = "test") -> str:
    """A kubeconfig of one context; `cluster` is more YAML within the cluster, `user` a flow mapping."""
    return (
        f"current-context: {name}\n"
        f"contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]\n"
        f"clusters: [{{name: {name}, cluster: {{server: '{server}'{cluster}}}}}]\n"
        f"users: [{{name: {name}, user: {user}}}]\n"
    )
