"""A proxy before an API server, which refuses, delays and breaks what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Self

import uvicorn

from joulie.adapters.kubernetes.connection import Connection
from joulie.program.http import EmbeddedServer

_KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: proxy, cluster: {{server: "{url}"}}}}]
users: [{{name: proxy, user: {{}}}}]
contexts: [{{name: proxy, context: {{cluster: proxy, user: proxy}}}}]
current-context: proxy
"""
_PASSED = frozenset({"content-type", "retry-after"})

Message = MutableMapping[str, Any]


class DisturbingProxy:
    """Serves plain HTTP without credentials and passes everything on through `upstream`.

    Attributes:
        requests: methods and paths that came in.
        slow_s: seconds by which each portion of an answer is late.
    """

    def __init__(self, upstream: Connection) -> None:
        self.requests: list[tuple[str, str]] = []
        self.slow_s = 0.0
        self._upstream = upstream
        self._refusals = 0
        self._refusal = (429, 1)
        config = uvicorn.Config(
            self._serve, http="httptools", ws="none", lifespan="off", interface="asgi3", proxy_headers=False,
            log_config=None, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = EmbeddedServer(config)
        self._listener = socket.create_server(("127.0.0.1", 0))

    async def __aenter__(self) -> Self:
        self._serving = await self._server.begin(self._listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.break_connections()
        self._server.stop()
        await self._serving
        await self._upstream.aclose()

    def kubeconfig(self, path: Path) -> Path:
        port = self._listener.getsockname()[1]
        path.write_text(_KUBECONFIG.format(url=f"http://127.0.0.1:{port}"))
        return path

    def refuse(self, count: int, status: int, retry_after_s: int) -> None:
        """Answer the next requests like an overloaded server."""
        self._refusals, self._refusal = count, (status, retry_after_s)

    def break_connections(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    async def _serve(self, scope: Message, receive: Callable[[], Any], send: Callable[[Message], Any]) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["method"], scope["path"]))
        if self._refusals:
            self._refusals -= 1
            status, retry_after_s = self._refusal
            headers = [(b"retry-after", str(retry_after_s).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"too many requests, please try again later"})
            return
        query = scope["query_string"].decode()
        url = scope["path"] + (f"?{query}" if query else "")
        given = {name.decode(): value.decode() for name, value in scope["headers"] if name == b"content-type"}
        response = await self._upstream.send(scope["method"], url, headers=given, content=body or None, stream=True)
        try:
            headers = [(n.encode(), v.encode()) for n, v in response.headers.items() if n in _PASSED]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for portion in response.aiter_bytes():
                await asyncio.sleep(self.slow_s)
                await send({"type": "http.response.body", "body": portion, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()
