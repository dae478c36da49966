"""The HTTP API of Kubernetes as an ASGI application: paths, parameters and bodies; the verbs are in `api`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from joulie_lab.fakes.kubernetes import discovery, errors, patches, pods, selectors, strategy, watch
from joulie_lab.fakes.kubernetes.api import Api, Deletion, Writer
from joulie_lab.fakes.kubernetes.errors import StatusError
from joulie_lab.fakes.kubernetes.faults import Faults
from joulie_lab.fakes.kubernetes.kinds import NAMESPACE, POD, SERVICE_ACCOUNT, Json, Kind
from joulie_lab.fakes.kubernetes.listing import list_objects
from joulie_lab.fakes.kubernetes.store import Stored

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_WATCH_TIMEOUT_S = 1800.0
_TRUE = frozenset({"1", "true", "True"})


@dataclass(frozen=True)
class Request:
    """A parsed HTTP request.

    Attributes:
        method: HTTP method.
        path: unquoted segments of the path.
        params: query parameters.
        headers: headers by lower-case name.
        body: raw body.
    """

    method: str
    path: tuple[str, ...]
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Decode the body.

        Raises:
            StatusError: 400 if it is not JSON.
        """
        try:
            return strategy.normalise(msgspec.json.decode(self.body)) if self.body else {}
        except msgspec.DecodeError as error:
            raise errors.bad_request(f"the body is not JSON, which is all that this server reads: {error}") from error

    def document(self) -> Json:
        """Decode the body, which must be a JSON object.

        Raises:
            StatusError: 400 if it is not.
        """
        decoded = self.json()
        if not isinstance(decoded, dict):
            raise errors.bad_request("the body of the request must be an object")
        return decoded

    def writer(self, subresource: str) -> Writer:
        """The author of a write; without a field manager, the name in the User-Agent header."""
        manager = self.params.get("fieldManager") or self.headers.get("user-agent", "unknown").split("/")[0]
        return Writer(manager, subresource, self.params.get("dryRun") == "All")


@dataclass(frozen=True)
class Target:
    """The resource, object or subresource that a path names."""

    kind: Kind
    namespace: str
    name: str
    subresource: str


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Application:
    """The API server as an ASGI application.

    Args:
        api: verbs of the API.
        faults: failures to inject.
        tokens: accepted bearer tokens; tokens issued to service accounts are added.
        bookmark_s: interval between bookmarks of a watch, s.
        closing: whether the server is shutting down, which ends watches.
    """

    def __init__(
        self, api: Api, faults: Faults, tokens: set[str], bookmark_s: float, closing: Callable[[], bool]
    ) -> None:
        self._api = api
        self._faults = faults
        self._tokens = tokens
        self._bookmark_s = bookmark_s
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = await _read(scope, receive)
        try:
            self._check(request)
            if _is_watch(request):
                await self._watch(request, self._target(request.path), receive, send)
                return
            answer = self._answer(request)
        except StatusError as error:
            retry = () if error.retry_after_s is None else ((b"retry-after", str(error.retry_after_s).encode()),)
            answer = Answer(error.code, msgspec.json.encode(error.body()), retry)
        await _send(send, answer)

    def _check(self, request: Request) -> None:
        """Reject requests that an injected fault applies to, and requests without a valid token."""
        failure = self._faults.take(request.method, "/" + "/".join(request.path))
        if failure is not None:
            raise failure
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self._tokens:
            raise errors.unauthorized()

    def _target(self, path: tuple[str, ...]) -> Target:
        match path:
            case ("api", version, *rest):
                group = ""
            case ("apis", group, version, *rest):
                pass
            case _:
                raise errors.no_such_resource()
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and not (len(rest) == 3 and rest[2] in {"status", "finalize"}):
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *more = (*rest, "", "", "")
        if not plural or any(more):
            raise errors.no_such_resource()
        kind = self._api.kind(group, version, plural)
        if (namespace and not kind.namespaced) or (name and kind.namespaced and not namespace):
            raise errors.no_such_resource()
        return Target(kind, namespace, name, subresource)

    def _answer(self, request: Request) -> Answer:
        found = discovery.document(request.path, self._api.kinds)
        if found is not None:
            return Answer(200, found)
        target = self._target(request.path)
        if target.subresource in {"binding", "eviction", "token"}:
            return self._act(request, target)
        if target.subresource and not (target.subresource == "status" and target.kind.status):
            raise errors.no_such_resource()
        verbs = {"GET": self._get, "POST": self._post, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}
        if request.method not in verbs:
            raise errors.method_not_allowed()
        return verbs[request.method](request, target)

    def _get(self, request: Request, target: Target) -> Answer:
        if target.name:
            return Answer(200, self._api.get(target.kind, target.namespace, target.name).raw)
        return Answer(200, list_objects(self._api.store, target.kind, target.namespace, request.params))

    def _post(self, request: Request, target: Target) -> Answer:
        if target.name or (target.kind.namespaced and not target.namespace):
            raise errors.method_not_allowed()
        body = self._written(request, target.kind)
        return Answer(201, self._api.create(target.kind, target.namespace, body, request.writer("")).raw)

    def _put(self, request: Request, target: Target) -> Answer:
        if not target.name:
            raise errors.method_not_allowed()
        body = self._written(request, target.kind)
        stored, new = self._api.replace(
            target.kind, target.namespace, target.name, body, request.writer(target.subresource)
        )
        return _written_answer(stored, new=new)

    def _patch(self, request: Request, target: Target) -> Answer:
        if not target.name:
            raise errors.method_not_allowed()
        kind, writer = target.kind, request.writer(target.subresource)
        media_type = request.headers.get("content-type", "").split(";")[0]
        if media_type == _APPLY:
            # Apply needs an explicit field manager; the User-Agent is no substitute.
            writer = Writer(request.params.get("fieldManager", ""), writer.subresource, writer.dry_run)
            force = request.params.get("force", "") in _TRUE
            body = request.document()
            stored, new = self._api.apply(kind, target.namespace, target.name, body, writer, force=force)
            return _written_answer(stored, new=new)
        return Answer(200, self._api.patch(kind, target.namespace, target.name, _change(request, kind), writer).raw)

    def _delete(self, request: Request, target: Target) -> Answer:
        deletion = _deletion(request)
        if not target.name:
            return self._delete_all(request, target, deletion)
        stored = self._api.delete(target.kind, target.namespace, target.name, deletion)
        if target.kind.key in {POD.key, NAMESPACE.key} or stored.obj["metadata"].get("deletionTimestamp"):
            return Answer(200, stored.raw)
        group = {"group": target.kind.group} if target.kind.group else {}
        details = {"name": target.name, **group, "kind": target.kind.plural, "uid": stored.uid}
        return Answer(200, _success(details))

    def _delete_all(self, request: Request, target: Target, deletion: Deletion) -> Answer:
        params = request.params
        chosen = selectors.selection(target.kind, params.get("labelSelector", ""), params.get("fieldSelector", ""))
        for stored in list(self._api.store.table(target.kind).in_order(target.namespace)):
            if chosen is None or chosen(stored.obj):
                self._api.delete(target.kind, *stored.key, deletion)
        return Answer(200, _success({"kind": target.kind.plural}))

    def _act(self, request: Request, target: Target) -> Answer:
        """Handle action subresources: binding, eviction and token."""
        if request.method != "POST":
            raise errors.method_not_allowed()
        namespace, name, body = target.namespace, target.name, request.document()
        if target.kind.key == POD.key and target.subresource == "binding":
            pods.bind(self._api, namespace, name, body)
            return Answer(201, _success({}, 201))
        if target.kind.key == POD.key and target.subresource == "eviction":
            pods.evict(self._api, namespace, name, body, dry_run=request.writer("").dry_run)
            return Answer(201, _success({}, 201))
        if target.kind.key == SERVICE_ACCOUNT.key and target.subresource == "token":
            answer, token = pods.token(self._api, namespace, name, body)
            self._tokens.add(token)
            return Answer(201, msgspec.json.encode(answer))
        raise errors.no_such_resource()

    def _written(self, request: Request, kind: Kind) -> Json:
        body = request.document()
        if kind.custom and not (body.get("kind") and body.get("apiVersion")):
            missing = "Kind" if not body.get("kind") else "apiVersion"
            why = f"Object '{missing}' is missing"
            raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {why}")
        if request.params.get("fieldValidation") == "Strict":
            strategy.check_strictly(kind, body)
        return body

    async def _watch(self, request: Request, target: Target, receive: Receive, send: Send) -> None:
        asked = self._watch_request(request, target)
        store = self._api.store
        table = store.table(target.kind)
        gone = asyncio.create_task(_disconnected(receive))
        gone.add_done_callback(lambda _: table.wake())
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            lines = watch.stream(
                store, asked, lambda: gone.done() or self._closing(), lambda: self._faults.watch_delay_s
            )
            async with aclosing(lines):
                async for portion in lines:
                    await send({"type": "http.response.body", "body": portion, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()

    def _watch_request(self, request: Request, target: Target) -> watch.WatchRequest:
        params = request.params
        field_selector = params.get("fieldSelector", "")
        if target.name:
            field_selector = ",".join(filter(None, (field_selector, f"metadata.name={target.name}")))
        version = params.get("resourceVersion", "")
        if version and not version.isdecimal():
            raise errors.bad_request(f'resourceVersion: Invalid value: "{version}"')
        bookmarks = params.get("allowWatchBookmarks") in _TRUE
        return watch.WatchRequest(
            target.kind,
            target.namespace,
            selectors.selection(target.kind, params.get("labelSelector", ""), field_selector),
            int(version) if version not in {"", "0"} else None,
            float(params.get("timeoutSeconds") or _WATCH_TIMEOUT_S),
            self._bookmark_s if bookmarks else None,
        )


def _change(request: Request, kind: Kind) -> Callable[[Json], Json]:
    """Compute the new object from the old one and a patch."""
    media_type = request.headers.get("content-type", "").split(";")[0]
    patch = request.json()
    if media_type == _JSON_PATCH and isinstance(patch, list):
        return lambda obj: patches.json_patch(obj, patch)
    if not isinstance(patch, dict):
        raise errors.bad_request("the patch does not have the form that its media type asks for")
    if media_type == _MERGE:
        return lambda obj: _object(patches.merge_patch(obj, patch))
    if media_type == _STRATEGIC and not kind.custom:
        return lambda obj: _object(patches.strategic_merge_patch(obj, patch, kind.shape))
    accepted = [_JSON_PATCH, _MERGE, _APPLY] if kind.custom else [_JSON_PATCH, _MERGE, _STRATEGIC, _APPLY]
    raise errors.unsupported_media_type(accepted)


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise errors.bad_request("the patch leaves no object")
    return value


def _deletion(request: Request) -> Deletion:
    options = request.document()
    grace = request.params.get("gracePeriodSeconds") or options.get("gracePeriodSeconds")
    conditions = options.get("preconditions") or {}
    propagation = request.params.get("propagationPolicy") or options.get("propagationPolicy")
    return Deletion(
        grace_s=None if grace is None else int(grace),
        uid=conditions.get("uid", ""),
        revision=conditions.get("resourceVersion", ""),
        orphan=propagation == "Orphan",
        dry_run=request.params.get("dryRun") == "All" or bool(options.get("dryRun")),
    )


def _written_answer(stored: Stored, *, new: bool) -> Answer:
    return Answer(201 if new else 200, stored.raw)


def _success(details: Json, code: int = 200) -> bytes:
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return msgspec.json.encode(status | ({"details": details} if details else {"code": code}))


def _is_watch(request: Request) -> bool:
    return request.method == "GET" and request.params.get("watch") in _TRUE


async def _read(scope: Scope, receive: Receive) -> Request:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    return Request(
        scope["method"],
        tuple(unquote(part) for part in raw_path.decode("ascii").strip("/").split("/")),
        dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True)),
        {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body,
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, answer: Answer) -> None:
    length = (b"content-length", str(len(answer.body)).encode())
    headers = [(b"content-type", b"application/json"), length, *answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
