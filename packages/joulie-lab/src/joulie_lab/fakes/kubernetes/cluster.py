"""The fake cluster: an API server on a local port, with fault injection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn
from uvicorn.server import ServerState

from joulie.program.http import EmbeddedServer
from joulie_lab.fakes.kubernetes.api import Api, Clock, Entropy
from joulie_lab.fakes.kubernetes.asgi import Application
from joulie_lab.fakes.kubernetes.faults import Faults
from joulie_lab.fakes.kubernetes.kinds import Json
from joulie_lab.fakes.kubernetes.store import Store

_KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: fake, cluster: {{server: "{url}"}}}}]
users: [{{name: fake, user: {{token: "{token}"}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake, namespace: default}}}}]
current-context: fake
"""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class FakeCluster:
    """An in-memory Kubernetes API server on 127.0.0.1; an async context manager that serves while entered.

    Programs connect to it by `kubeconfig` as to any other cluster; code in this process may use `api`.

    Args:
        definitions: initial CustomResourceDefinitions, whose schemas are enforced; without any, Joulie's resources are
            served without validation.
        now: current time in UTC, for timestamps.
        entropy: source of random bytes for UIDs and generated names (``numpy.random.Generator.bytes`` for reproducible
            runs).
        bookmark_s: interval between bookmarks of a watch, s.
        history: number of changes per resource that a watch can resume over.
        max_events: maximum number of Event objects.
        port: port to listen on; 0 for a free one.

    Attributes:
        api: verbs of the API, without HTTP.
        token: bearer token in the kubeconfig.
    """

    def __init__(
        self,
        definitions: Iterable[Json] = (),
        *,
        now: Clock = _utc_now,
        entropy: Entropy = os.urandom,
        bookmark_s: float = 60.0,
        history: int = 5000,
        max_events: int = 5000,
        port: int = 0,
    ) -> None:
        self.api = Api(Store(history), definitions, now=now, entropy=entropy, max_events=max_events)
        self.token = self.api.new_uid()
        self._faults = Faults()
        self._port = port
        self._server: EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._app = Application(self.api, self._faults, {self.token}, bookmark_s, self._is_stopping)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """URL of the API server."""
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this cluster and return its path."""
        path.write_text(_KUBECONFIG.format(url=self.url, token=self.token), encoding="utf-8")
        return path

    async def start(self) -> None:
        """Start serving; after `stop`, with the same objects and on the same port."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app, http="httptools", ws="none", lifespan="off", proxy_headers=False, log_config=None,
            access_log=False, date_header=False, server_header=False, timeout_keep_alive=75,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = EmbeddedServer(config)
        self._serving = await self._server.begin(listener)

    async def stop(self) -> None:
        """Stop serving: watches end and connections close; the objects are kept."""
        if self._server is None or self._serving is None:
            return
        self._server.stop()
        self.api.store.wake()
        await self._serving
        self._server = self._serving = None

    # ---- fault injection

    def fail_next(
        self,
        count: int,
        status: int,
        retry_after_s: int | None = None,
        *,
        method: str | None = None,
        path: str | None = None,
    ) -> None:
        """Answer the next `count` requests with an error.

        Args:
            count: number of requests.
            status: HTTP status, such as 429, 500 or 410.
            retry_after_s: value of the Retry-After header.
            method: HTTP method to match; None for all.
            path: text that the path must contain; None for all.
        """
        self._faults.fail_next(count, status, retry_after_s=retry_after_s, method=method, path=path)

    def recover(self) -> None:
        """Answer all requests again."""
        self._faults.clear()

    def compact(self) -> None:
        """Discard history, as etcd's compaction does: watches that resume from an older version get 410."""
        self.api.store.compact()

    def drop_connections(self) -> None:
        """Break all open connections, even in the middle of a response."""
        state: ServerState | None = self._server.server_state if self._server else None
        for connection in list(state.connections) if state else ():
            if connection.transport is not None:
                connection.transport.abort()

    def delay_watches(self, seconds: float) -> None:
        """Delay watch events by this time from now on."""
        self._faults.watch_delay_s = seconds

    def _is_stopping(self) -> bool:
        return self._server is None or self._server.should_exit
