"""A Kubernetes API client that sends and returns typed structs.

Idempotent requests are retried a few times with jittered exponential backoff on 429, on 5xx and when the connection
breaks; `Retry-After` is honoured. A POST is retried only when the server cannot have acted on it: nothing was sent, or
it answered 429.
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
    page_sizes,
    parameters,
    read_events,
    response_error,
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
    """Limits on the retries of one request.

    Attributes:
        attempts: maximum number of attempts, the first included; 1 disables retries.
        total_s: no new attempt starts later than this after the first, s.
        initial_wait_s: wait before the second attempt, s; doubles with each further attempt, plus jitter.
        max_wait_s: maximum wait between two attempts, s. If Retry-After asks for more, the error is raised at once.
    """

    attempts: int = 5
    total_s: float = 30.0
    initial_wait_s: float = 0.2
    max_wait_s: float = 10.0


class _Version(msgspec.Struct, rename={"git_version": "gitVersion"}):
    git_version: str = ""


class KubeClient:
    """Typed client of one API server. Use as an async context manager.

    All methods raise `KubernetesError`: a subclass of `ApiError` for an error status, `ConnectionLostError` if no
    response arrived, `ConfigurationError` if no credential could be obtained, and `UnreadableAnswerError` if a response
    cannot be decoded as its struct.
    """

    def __init__(self, connection: Connection, *, retry: RetryPolicy | None = None) -> None:
        self.connection = connection
        self._retry = retry or RetryPolicy()

    @classmethod
    def connect(cls, *, kubeconfig: Path | None = None, context: str | None = None, user_agent: str = "joulie") -> Self:
        """Create a client for the configured cluster; see `joulie.adapters.kubernetes.connection.connect`."""
        return cls(connect(kubeconfig=kubeconfig, context=context, user_agent=user_agent))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.aclose()

    # ---- reading

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        """Read one object."""
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
        """Read all matching objects. Objects that cannot be decoded are logged and named in the result.

        If the resource version expires between two pages (410), the list is restarted with larger pages.
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
        """Yield the matching objects in chunks, all of one resource version.

        Args:
            scope: objects to list.
            page_size: number of objects to request per page; 0 requests all in one response.

        Raises:
            GoneError: the resource version was compacted between two pages; start again.
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
        """Yield the changes since `resource_version` until the server ends the watch after `timeout_s`, as it should.

        To stop early, use `contextlib.aclosing`, which closes the connection at once.

        Raises:
            GoneError: the resource version is too old; list again.
        """
        scope = Scope(resource, namespace, label_selector, field_selector)
        async with self.open_watch(scope, resource_version, timeout_s=timeout_s) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def open_watch(
        self, scope: Scope[T], resource_version: str, *, timeout_s: float = 300, idle_s: float = 90
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Open a watch as a context manager, which is entered once the server has accepted the watch.

        Args:
            scope: objects to watch.
            resource_version: version to start from.
            timeout_s: time after which the server ends the watch, s.
            idle_s: time without any data after which the connection counts as lost, s. API servers send a bookmark
                every minute.
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
                raise response_error(response, body, "watch", _where(scope.resource, scope.namespace))
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
        """Create an object; raises `ConflictError` if it already exists."""
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
        """Server-side apply: own exactly the fields in `body`; fields owned before and now missing are removed.

        Without `force`, a field that another manager owns with a different value raises `ConflictError`.
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
        """Patch an object; None in a merge patch removes a field. JSON patches (lists) are never retried."""
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
        """Replace a whole object; raises `ConflictError` if it changed since the resourceVersion in `body`."""
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
        """Delete an object; with `uid`, only if the object still has it (`ConflictError` otherwise).

        Args:
            resource: resource of the object.
            name: object name.
            namespace: object namespace; None if cluster-scoped.
            grace_s: termination grace period, s; None for the object's own.
            uid: UID precondition; None for none.
            propagation: propagation policy: Foreground, Background or Orphan; empty for the resource's default.
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
        """Create a subresource of an object: eviction, binding or token."""
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
        repeatable: bool | None = None,
    ) -> bytes:
        """Send any other request and return the response body.

        Args:
            method: method of HTTP.
            path: path of the URL.
            params: URL parameters.
            body: object to send as JSON, or bytes.
            headers: headers beside those for authentication.
            repeatable: whether to retry it after it may have reached the server; None retries methods other than POST
                and PATCH.

        Raises:
            KubernetesError: the request failed.
        """
        if repeatable is None:
            repeatable = method not in ("POST", "PATCH")
        content = body if body is None or isinstance(body, bytes) else encode(body)
        sent = dict(headers or {})
        if content is not None:
            sent.setdefault("content-type", _JSON)
        return await self._send(method, path, method.lower(), path, params or {}, sent, content, repeatable)

    async def version(self) -> str:
        """Read the API server's version, such as ``v1.36.3``."""
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
            wait_initial=retry.initial_wait_s,
            wait_max=retry.max_wait_s,
            wait_jitter=retry.initial_wait_s,
        ):
            with attempt:
                response = await self.connection.send(method, path, params=params, headers=headers, content=content)
                if response.is_error:
                    raise response_error(response, response.content, verb, where)
                return response.content
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _wait_before_repeat(self, error: Exception, repeatable: bool) -> bool | float:
        """Whether to retry after `error`, and how long to wait first if the server gave a time, s."""
        if isinstance(error, ConnectionLostError):
            return not error.permanent and (repeatable or not error.sent)
        if isinstance(error, TooManyRequestsError):
            refused = not error.disruption_budget
        else:
            refused = isinstance(error, ApiError) and error.status >= httpx.codes.INTERNAL_SERVER_ERROR and repeatable
        if refused and isinstance(error, ApiError) and error.retry_after_s:
            return error.retry_after_s if error.retry_after_s <= self._retry.max_wait_s else False
        return refused


def _where(resource: Resource[T], namespace: str | None, name: str | None = None, subresource: str = "") -> str:
    """The target of a request, as RBAC names it: ``nodetwins.joulie.io/status n1``."""
    kind = f"{resource.plural}.{resource.group}".rstrip(".") + (f"/{subresource}" if subresource else "")
    return kind + (f" {name}" if name else "") + (f" in namespace {namespace}" if namespace else "")
