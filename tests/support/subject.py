"""What the contract's checks get: an API server, fake or real, and a corner of it for themselves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy, WatchEvent
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import Resource
from support.disturbing_proxy import DisturbingProxy

WAIT_S = 60.0
_numbers = itertools.count(1)

Json = dict[str, Any]


async def _nothing() -> None:
    return None


@dataclass
class Subject:
    """An API server under test.

    Attributes:
        client: never repeats a request, so that each failure shows.
        kubeconfig: for clients of a check's own.
        namespace: of this check alone.
        restart: stops the API server and starts it again.
        compact: makes the server forget the past.
    """

    client: KubeClient
    kubeconfig: Path
    namespace: str = field(default_factory=lambda: f"contract-{next(_numbers)}")
    restart: Callable[[], Awaitable[None]] = _nothing
    compact: Callable[[], Awaitable[None]] = _nothing

    def name(self, text: str) -> str:
        """A name that no other check uses."""
        return f"{self.namespace}-{text}"

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media_type: str = "application/json",
        **params: str | int,
    ) -> Json:
        """An answer as it is on the wire."""
        content = None if body is None else msgspec.json.encode(body)
        answer = await self.client.raw(
            method, path, params=params, body=content, headers={"content-type": media_type} if content else None
        )
        decoded: Json = msgspec.json.decode(answer)
        return decoded

    async def read(self, resource: Resource[Any], name: str, namespace: str | None = None) -> Json:
        """An object as it is on the wire."""
        return await self.request("GET", resource.path(namespace, name))

    async def apply(
        self, resource: Resource[Any], name: str, manager: str, body: Mapping[str, Any], *, subresource: str = "",
        namespace: str | None = None, force: bool = False,
    ) -> Json:  # fmt: skip
        """Apply, and answer with the object as it is on the wire."""
        await self.client.apply(
            resource, name, body, field_manager=manager, namespace=namespace, subresource=subresource, force=force
        )
        return await self.read(resource, name, namespace)

    async def events(self, resource: Resource[Any], version: str, count: int, **options: Any) -> list[WatchEvent[Any]]:
        """The next changes, bookmarks left out."""
        found: list[WatchEvent[Any]] = []
        async with asyncio.timeout(WAIT_S):
            async for event in self.client.watch(resource, version, **options):
                if event.kind != "BOOKMARK":
                    found.append(event)
                if len(found) == count:
                    break
        return found

    @asynccontextmanager
    async def disturbed(self) -> AsyncIterator[tuple[KubeClient, DisturbingProxy]]:
        """A client, with its usual repeats, behind a proxy that disturbs."""
        async with DisturbingProxy(connect(kubeconfig=self.kubeconfig)) as proxy:
            connection = connect(kubeconfig=proxy.kubeconfig(self.kubeconfig.with_name("proxy.kubeconfig")))
            policy = RetryPolicy(attempts=5, total_s=WAIT_S, initial_wait_s=0.01, max_wait_s=2.0)
            async with KubeClient(connection, retry=policy) as client:
                yield client, proxy


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)
