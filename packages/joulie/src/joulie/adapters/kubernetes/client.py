"""A client of the Kubernetes API in typed structs.

What is safe to repeat is repeated, a few times and with jitter, on 429, on 5xx and when the connection breaks;
`Retry-After` is honoured. A POST is repeated only where the server has not acted on it: nothing was sent, or it
said 429.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2 as httpx
import msgspec
import stamina

from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.connection import TIMEOUT, Connection, connect
from joulie.adapters.kubernetes.errors import (
    ApiError,
    ConfigurationError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreadableAnswerError,
)
from joulie.adapters.kubernetes.resources import Resource
from joulie.adapters.kubernetes.wire import (
    Body,
    EventKind,
    Key,
    Listing,
    PatchKind,
    Scope,
    Unreadable,
    WatchEvent,
    decode_listing,
    decode_object,
    document,
    encode,
    error_of,
    page_sizes,
    parameters,
    read_events,
)

__all__ = [
    "ApiError",
    "ConfigurationError",
    "ConflictError",
    "ConnectionLostError",
    "EventKind",
    "ForbiddenError",
    "GoneError",
    "InvalidError",
    "Key",
    "KubeClient",
    "KubernetesError",
    "Listing",
    "NotFoundError",
    "PatchKind",
    "RetryPolicy",
    "Scope",
    "TooManyRequestsError",
    "UnauthorizedError",
    "Unreadable",
    "UnreadableAnswerError",
    "WatchEvent",
]

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubernetesObject)

_JSON = "application/json"


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long a request is tried.

    Attributes:
        attempts: at most, the first included; 1 never repeats.
        total_s: no new attempt after this long.
        first_wait_s: before the second attempt; doubles from there, with jitter.
        longest_wait_s: between two attempts. A server that asks for more by Retry-After gets its way by an error.
    """

    attempts: int = 5
    total_s: float = 30.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0


class _Version(msgspec.Struct, rename={"git_version": "gitVersion"}):
    git_version: str = ""


class KubeClient:
    """Typed access to one API server. Use as an async context manager.

    All methods raise `KubernetesError`: an `ApiError` by status, `ConnectionLostError` without an answer,
    `ConfigurationError` without a credential, `UnreadableAnswerError` where an object does not fit its struct.
    """

    def __init__(self, connection: Connection, *, retry: RetryPolicy | None = None) -> None:
        self.connection = connection
        self._retry = retry or RetryPolicy()

    @classmethod
    def connect(cls, *, kubeconfig: Path | None = None, context: str | None = None, user_agent: str = "joulie") -> Self:
        """A client of the configured cluster: see `joulie.adapters.kubernetes.connection.connect`."""
        return cls(connect(kubeconfig=kubeconfig, context=context, user_agent=user_agent))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.aclose()

    # ---- reading

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        """One object."""
        return decode_object(resource, await self._call("get", "GET", resource, namespace, name))

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
    ) -> Listing[T]:
        """All objects that match. Those that cannot be read are named in the result and logged.

        A list that outlives its version (410 in the middle) is started again with larger pages.
        """
        scope = Scope(resource, namespace, label_selector, field_selector)
        pages: list[Listing[T]] = []
        for size in page_sizes(page_size):
            try:
                pages = [page async for page in self.pages(scope, size)]
                break
            except GoneError:
                if not size:
                    raise
        unreadable = [bad for page in pages for bad in page.unreadable]
        for bad in unreadable:
            _log.warning("unreadable %s", resource.kind, extra={"object": str(bad.key), "problem": bad.problem})
        return Listing([item for page in pages for item in page.items], pages[-1].resource_version, unreadable)

    async def pages(self, scope: Scope[T], page_size: int = 500) -> AsyncGenerator[Listing[T], None]:
        """The objects that match, in portions, all of one version; `page_size` 0 asks the server for all at once.

        Raises:
            GoneError: the version was compacted while reading; start again.
        """
        params = scope.parameters(limit=page_size)
        while True:
            body = await self._call("list", "GET", scope.resource, scope.namespace, params=params)
            portion: Listing[T] = Listing([], "", [])
            for portion in decode_listing(scope.resource, body):
                yield portion
                await asyncio.sleep(0)
            if not portion.next_page:
                return
            params["continue"] = portion.next_page

    async def watch(
        self,
        resource: Resource[T],
        resource_version: str,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: float = 300,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes since `resource_version`, until the server ends the watch after `timeout_s`, which is normal.

        Leave it early only under `contextlib.aclosing`, which closes the connection at once.

        Raises:
            GoneError: the version is too old; list again.
        """
        scope = Scope(resource, namespace, label_selector, field_selector)
        async with self.open_watch(scope, resource_version, timeout_s=timeout_s) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def open_watch(
        self, scope: Scope[T], resource_version: str, *, timeout_s: float = 300, idle_s: float = 90
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """As `watch`; being entered says that the server has accepted the watch.

        Args:
            scope: what to watch.
            resource_version: from which on.
            timeout_s: after which the server ends the watch.
            idle_s: without a byte, after which the connection counts as lost. API servers send a bookmark a minute.
        """
        params = scope.parameters(
            watch=1,
            resourceVersion=resource_version,
            allowWatchBookmarks="true",
            timeoutSeconds=max(1, round(timeout_s)),
        )
        timeout = httpx.Timeout(TIMEOUT.write, connect=TIMEOUT.connect, read=idle_s)
        response = await self.connection.send("GET", scope.path, params=params, timeout=timeout, stream=True)
        chunks = self._chunks(scope.resource, response)
        try:
            if response.is_error:
                body = b"".join([chunk async for chunk in chunks])
                raise error_of(response, body, "watch", _where(scope.resource, scope.namespace))
            yield read_events(scope.resource, chunks)
        finally:
            await response.aclose()

    async def _chunks(self, resource: Resource[T], response: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx.TransportError as error:
            raise self.connection.lost(error, f"watch {resource.plural}") from None

    # ---- writing

    async def create(
        self, resource: Resource[T], body: Body, namespace: str | None = None, *, field_manager: str = ""
    ) -> T:
        """Create an object; `ConflictError` if it is there already."""
        new = document(resource, body)
        namespace = namespace or new["metadata"].get("namespace")
        answer = await self._call(
            "create",
            "POST",
            resource,
            namespace,
            params=parameters(fieldManager=field_manager),
            content=encode(new),
            content_type=_JSON,
        )
        return decode_object(resource, answer)

    async def apply(
        self,
        resource: Resource[T],
        name: str,
        body: Body,
        *,
        field_manager: str,
        namespace: str | None = None,
        subresource: str = "",
        force: bool = True,
    ) -> T:
        """Server-side apply: own exactly the fields of `body`; what this manager owned before and is not in it goes.

        Without `force`, a field that another manager owns with another value is a `ConflictError`.
        """
        answer = await self._call(
            "patch",
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            params=parameters(fieldManager=field_manager, force="true" if force else ""),
            content=encode(document(resource, body, name)),
            content_type="application/apply-patch+yaml",
        )
        return decode_object(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Body | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind = PatchKind.MERGE,
        namespace: str | None = None,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        """Change parts of an object; in a merge patch, None removes. JSON patches are lists and are never repeated."""
        answer = await self._call(
            "patch",
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            params=parameters(fieldManager=field_manager),
            content=encode(body),
            content_type=kind.value,
            repeatable=kind is not PatchKind.JSON,
        )
        return decode_object(resource, answer)

    async def replace(
        self,
        resource: Resource[T],
        name: str,
        body: Body,
        *,
        namespace: str | None = None,
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        """Write a whole object; `ConflictError` if it changed since the resourceVersion in `body`."""
        answer = await self._call(
            "update",
            "PUT",
            resource,
            namespace,
            name,
            subresource,
            params=parameters(fieldManager=field_manager),
            content=encode(document(resource, body, name)),
            content_type=_JSON,
        )
        return decode_object(resource, answer)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        grace_s: int | None = None,
        uid: str | None = None,
        propagation: str = "",
    ) -> None:
        """Delete an object; with `uid`, only that very one (`ConflictError` otherwise).

        Args:
            resource: of the object.
            name: of the object.
            namespace: of the object.
            grace_s: seconds that a pod gets to end; its own setting by default.
            uid: of the object.
            propagation: Foreground, Background or Orphan; the resource's default where empty.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        await self._call("delete", "DELETE", resource, namespace, name, content=encode(options), content_type=_JSON)

    async def create_subresource(
        self, resource: Resource[T], name: str, subresource: str, body: Body, namespace: str | None = None
    ) -> None:
        """POST to a subresource: eviction, binding, token."""
        await self._call(
            "create",
            "POST",
            resource,
            namespace,
            name,
            subresource,
            content=encode(body),
            content_type=_JSON,
        )

    # ---- the rest

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Body | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Any other request; a method other than POST and PATCH is repeated as above."""
        content = body if body is None or isinstance(body, bytes) else encode(body)
        sent = dict(headers or {})
        if content is not None:
            sent.setdefault("content-type", _JSON)
        return await self._send(
            method, path, method.lower(), path, params or {}, sent, content, method not in ("POST", "PATCH")
        )

    async def version(self) -> str:
        """Version of the API server, such as ``v1.36.3``."""
        try:
            return msgspec.json.decode(await self.raw("GET", "/version"), type=_Version).git_version
        except msgspec.DecodeError as error:
            raise UnreadableAnswerError(f"get /version: {error}: is this an API server?") from None

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource[T],
        namespace: str | None = None,
        name: str | None = None,
        subresource: str = "",
        *,
        params: Mapping[str, str | int] | None = None,
        content: bytes | None = None,
        content_type: str = "",
        repeatable: bool | None = None,
    ) -> bytes:
        path = resource.path(namespace, name, subresource)
        where = _where(resource, namespace, name, subresource)
        headers = {"content-type": content_type} if content_type else {}
        if repeatable is None:
            repeatable = method != "POST"
        return await self._send(method, path, verb, where, params or {}, headers, content, repeatable)

    async def _send(
        self,
        method: str,
        path: str,
        verb: str,
        where: str,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        content: bytes | None,
        repeatable: bool,
    ) -> bytes:
        def wait(error: Exception) -> bool | float:
            return self._wait_before_repeat(error, repeatable)

        retry = self._retry
        async for attempt in stamina.retry_context(
            wait,
            attempts=retry.attempts,
            timeout=retry.total_s,
            wait_initial=retry.first_wait_s,
            wait_max=retry.longest_wait_s,
            wait_jitter=retry.first_wait_s,
        ):
            with attempt:
                response = await self.connection.send(method, path, params=params, headers=headers, content=content)
                if response.is_error:
                    raise error_of(response, response.content, verb, where)
                return response.content
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _wait_before_repeat(self, error: Exception, repeatable: bool) -> bool | float:
        """Whether to try again, and if the server says so, after how many seconds."""
        if isinstance(error, ConnectionLostError):
            return not error.permanent and (repeatable or not error.sent)
        if isinstance(error, TooManyRequestsError):
            refused = not error.disruption_budget
        else:
            refused = isinstance(error, ApiError) and error.status >= httpx.codes.INTERNAL_SERVER_ERROR and repeatable
        if refused and isinstance(error, ApiError) and error.retry_after_s:
            return error.retry_after_s if error.retry_after_s <= self._retry.longest_wait_s else False
        return refused


def _where(resource: Resource[T], namespace: str | None, name: str | None = None, subresource: str = "") -> str:
    """What a request is about, as RBAC names it: ``nodetwins.joulie.io/status n1``."""
    kind = f"{resource.plural}.{resource.group}".rstrip(".") + (f"/{subresource}" if subresource else "")
    return kind + (f" {name}" if name else "") + (f" in namespace {namespace}" if namespace else "")
