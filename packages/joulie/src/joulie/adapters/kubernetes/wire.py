"""Encodes and decodes the API's wire format: objects, lists, watch events and errors."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import httpx2 as httpx
import msgspec

from joulie.adapters.kubernetes.api.meta import KubernetesObject
from joulie.adapters.kubernetes.errors import ApiError, InvalidError, UnreadableAnswerError, api_error
from joulie.adapters.kubernetes.resources import Resource

_PORTION = 500

T = TypeVar("T", bound=KubernetesObject)

Body = msgspec.Struct | Mapping[str, Any]


@dataclass(frozen=True)
class Scope(Generic[T]):
    """The objects to list or watch; an empty selector selects all."""

    resource: Resource[T]
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """URL path of the collection."""
        return self.resource.path(self.namespace)

    def parameters(self, **others: str | int) -> dict[str, str | int]:
        """Query parameters: the selectors and `others`, without empty and zero values."""
        return parameters(labelSelector=self.label_selector, fieldSelector=self.field_selector, **others)


class PatchKind(StrEnum):
    """The kind of a patch; the values are the media types."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class EventKind(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Key(NamedTuple):
    """Identity of an object within its resource; the namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that could not be decoded; it is reported and does not affect the others.

    Attributes:
        key: object key; None if not even the metadata could be decoded.
        problem: decoding error, with the path in the object.
    """

    key: Key | None
    problem: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects at one resource version.

    Attributes:
        items: decoded objects.
        resource_version: version to start a watch from.
        unreadable: objects that exist but could not be decoded.
        next_page: continue token of the next page; empty on the last page.
    """

    items: list[T]
    resource_version: str
    unreadable: list[Unreadable]
    next_page: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One event of a watch.

    Attributes:
        kind: event type.
        key: object key; empty in bookmarks.
        resource_version: version from which a watch can be resumed.
        object: current object, or its last state if deleted; None in bookmarks and if `problem` is set.
        problem: decoding error; empty if the object was decoded.
    """

    kind: EventKind
    key: Key
    resource_version: str
    object: T | None = None
    problem: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class _Identity(msgspec.Struct):
    metadata: _Meta


class _ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "next_page": "continue"}):
    resource_version: str = ""
    next_page: str = ""


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None  # Go sometimes writes an empty list as null


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


_KINDS = {kind.value: kind for kind in EventKind}

_decode_identity = msgspec.json.Decoder(_Identity).decode
_decode_list = msgspec.json.Decoder(_List).decode
_decode_change = msgspec.json.Decoder(_Change).decode


@cache
def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind)


def decode_listing(resource: Resource[T], body: bytes) -> Iterator[Listing[T]]:
    """Decode a page of a list in chunks, between which a caller can yield to the event loop.

    Objects are decoded one by one, so that a malformed object affects no other.

    Raises:
        UnreadableAnswerError: the body is not a list.
    """
    try:
        page = _decode_list(body)
    except msgspec.DecodeError as error:
        raise UnreadableAnswerError(f"list {resource.plural}: not a list: {error}") from None
    raws = page.items or []
    for start in range(0, len(raws) or 1, _PORTION):
        items: list[T] = []
        unreadable: list[Unreadable] = []
        decode = _decoder(resource.type).decode
        for raw in raws[start : start + _PORTION]:
            try:
                items.append(decode(raw))
            except msgspec.DecodeError as error:
                unreadable.append(Unreadable(_key(raw), str(error)))
        yield Listing(items, page.metadata.resource_version, unreadable, page.metadata.next_page)


async def read_events(resource: Resource[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent[T]]:
    """Decode the events of an open watch.

    Args:
        resource: resource that is watched.
        chunks: body of the response.

    Raises:
        ApiError: the server ended the watch with an error, most often `GoneError`.
        UnreadableAnswerError: a line of the body is not a watch event.
    """
    decode = _decoder(resource.type).decode
    async for line in split_lines(chunks):
        try:
            change = _decode_change(line)
        except msgspec.DecodeError as error:
            raise UnreadableAnswerError(f"watch {resource.plural}: invalid watch event: {error}") from None
        if change.type == "ERROR":
            raise api_error(change.object, verb="watch", where=resource.plural)
        kind = _KINDS.get(change.type)
        if kind is None:
            raise UnreadableAnswerError(f"watch {resource.plural}: unknown event type {change.type[:40]!r}")
        if kind is EventKind.BOOKMARK:
            yield WatchEvent(kind, Key("", ""), _decode_identity(change.object).metadata.resource_version)
            continue
        try:
            obj = decode(change.object)
        except msgspec.DecodeError as error:
            try:
                meta = _decode_identity(change.object).metadata
            except msgspec.DecodeError:
                raise UnreadableAnswerError(f"watch {resource.plural}: event without metadata: {error}") from None
            yield WatchEvent(kind, Key(meta.namespace, meta.name), meta.resource_version, None, str(error))
        else:
            found = obj.metadata
            yield WatchEvent(kind, Key(found.namespace, found.name), found.resource_version, obj)


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split a stream of chunks into lines; each byte is copied once, however long a line is."""
    unfinished: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        unfinished.append(first)
        if not rest:
            continue
        yield b"".join(unfinished)
        for line in rest[:-1]:
            yield line
        unfinished = [rest[-1]] if rest[-1] else []


def response_error(response: httpx.Response, body: bytes, verb: str, where: str) -> ApiError:
    """Convert an error response to a typed error; the body is passed in, since that of a stream must be read first."""
    retry_after = response.headers.get("retry-after", "")
    return api_error(body, http_status=response.status_code, retry_after=retry_after, verb=verb, where=where)


def _key(raw: msgspec.Raw) -> Key | None:
    try:
        meta = _decode_identity(raw).metadata
    except msgspec.DecodeError:
        return None
    return Key(meta.namespace, meta.name)


def page_sizes(first: int) -> tuple[int, ...]:
    """Page sizes to try in turn when a list expires between two pages; the last, 0, is one response and cannot expire.

    The single response comes last because of its memory: 100,000 pods are half a gigabyte of JSON.
    """
    return (first, 10 * first, 0) if first else (0,)


def decode_object(resource: Resource[T], body: bytes) -> T:
    """Decode one object.

    Raises:
        UnreadableAnswerError: the body cannot be decoded as the resource's type.
    """
    try:
        decoded: T = _decoder(resource.type).decode(body)
    except msgspec.DecodeError as error:
        name = _key(msgspec.Raw(body))
        raise UnreadableAnswerError(f"cannot decode {resource.kind}{f' {name}' if name else ''}: {error}") from None
    return decoded


def parameters(**values: str | int) -> dict[str, str | int]:
    """Query parameters without empty and zero values."""
    return {key: value for key, value in values.items() if value}


def document(resource: Resource[T], body: Body, name: str | None = None) -> dict[str, Any]:
    """The object to send, with apiVersion, kind and name filled in."""
    found = {**msgspec.to_builtins(body), "apiVersion": resource.api_version, "kind": resource.kind}
    found["metadata"] = {**found.get("metadata", {}), **({"name": name} if name else {})}
    return found


def encode(body: Any) -> bytes:
    """Encode as JSON; rejects NaN and infinity, which msgspec writes as null and a patch would take as a removal.

    Raises:
        InvalidError: a number is not finite; the message lists the paths.
    """
    body = msgspec.to_builtins(body)
    bad = list(_not_finite(body, ""))
    if bad:
        raise InvalidError(422, "Invalid", f"not a finite number: {', '.join(bad)}", what="encode", hint="not sent")
    return msgspec.json.encode(body)


def _not_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _not_finite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{path}[{index}]")
