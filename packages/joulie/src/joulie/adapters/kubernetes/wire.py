"""How objects, lists, changes and errors look on the wire, and what they become in Python."""

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
    """Which objects to list or watch; an empty selector selects all."""

    resource: Resource[T]
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """URL path of the collection."""
        return self.resource.path(self.namespace)

    def parameters(self, **others: str | int) -> dict[str, str | int]:
        """Query parameters: the selectors and `others`, without those that are empty or zero."""
        return parameters(labelSelector=self.label_selector, fieldSelector=self.field_selector, **others)


class PatchKind(StrEnum):
    """How a patch is to be read; the values are the media types."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class EventKind(StrEnum):
    """What a watch says about an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Key(NamedTuple):
    """Identity of an object within its resource; the namespace is empty where there is none."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that does not fit its struct: reported, never fatal to the others.

    Attributes:
        key: of the object; None where not even its metadata could be read.
        problem: what does not fit, and where in the object.
    """

    key: Key | None
    problem: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Objects as they were at one version of the cluster.

    Attributes:
        items: the objects.
        resource_version: from which to watch.
        unreadable: objects that are there, but do not fit their type.
        next_page: token of the next page; empty on the last one.
    """

    items: list[T]
    resource_version: str
    unreadable: list[Unreadable]
    next_page: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """One change.

    Attributes:
        kind: what happened.
        key: to whom; empty in bookmarks.
        resource_version: from which a watch can be resumed.
        object: as it is now, or was when deleted; None in bookmarks and where `problem` is set.
        problem: why the object could not be read.
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
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null at times


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
    """A page of a list, in portions that leave an event loop room to breathe.

    Each object stands alone, so that a bad one costs only itself.

    Raises:
        UnreadableAnswerError: not a list at all.
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
    """The changes of an open watch, of which `chunks` is the body.

    Raises:
        ApiError: the server ends the watch with an error; `GoneError` above all.
        UnreadableAnswerError: something that is no change.
    """
    decode = _decoder(resource.type).decode
    async for line in split_lines(chunks):
        try:
            change = _decode_change(line)
        except msgspec.DecodeError as error:
            raise UnreadableAnswerError(f"watch {resource.plural}: not a change: {error}") from None
        if change.type == "ERROR":
            raise api_error(change.object, verb="watch", where=resource.plural)
        kind = _KINDS.get(change.type)
        if kind is None:
            raise UnreadableAnswerError(f"watch {resource.plural}: unknown kind of change {change.type[:40]!r}")
        if kind is EventKind.BOOKMARK:
            yield WatchEvent(kind, Key("", ""), _decode_identity(change.object).metadata.resource_version)
            continue
        try:
            obj = decode(change.object)
        except msgspec.DecodeError as error:
            try:
                meta = _decode_identity(change.object).metadata
            except msgspec.DecodeError:
                raise UnreadableAnswerError(f"watch {resource.plural}: a change without metadata: {error}") from None
            yield WatchEvent(kind, Key(meta.namespace, meta.name), meta.resource_version, None, str(error))
        else:
            found = obj.metadata
            yield WatchEvent(kind, Key(found.namespace, found.name), found.resource_version, obj)


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of a stream that arrives in pieces; each byte is copied once, however long a line is."""
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


def error_of(response: httpx.Response, body: bytes, verb: str, where: str) -> ApiError:
    """The typed error of an answer; its body is passed since a stream's has to be read first."""
    retry_after = response.headers.get("retry-after", "")
    return api_error(body, http_status=response.status_code, retry_after=retry_after, verb=verb, where=where)


def _key(raw: msgspec.Raw) -> Key | None:
    try:
        meta = _decode_identity(raw).metadata
    except msgspec.DecodeError:
        return None
    return Key(meta.namespace, meta.name)


def page_sizes(first: int) -> tuple[int, ...]:
    """Page sizes to try in turn while a list expires between its pages; 0, the last, is one piece, which cannot.

    That piece comes last for its memory: 100,000 pods are half a gigabyte of JSON.
    """
    return (first, 10 * first, 0) if first else (0,)


def decode_object(resource: Resource[T], body: bytes) -> T:
    """One object.

    Raises:
        UnreadableAnswerError: it does not fit its type.
    """
    try:
        decoded: T = _decoder(resource.type).decode(body)
    except msgspec.DecodeError as error:
        name = _key(msgspec.Raw(body))
        raise UnreadableAnswerError(f"{resource.kind} {name or ''} does not fit its type: {error}") from None
    return decoded


def parameters(**values: str | int) -> dict[str, str | int]:
    """Query parameters, without those that are empty or zero."""
    return {key: value for key, value in values.items() if value}


def document(resource: Resource[T], body: Body, name: str | None = None) -> dict[str, Any]:
    """The object as it goes out, with apiVersion, kind and name filled in."""
    found = {**msgspec.to_builtins(body), "apiVersion": resource.api_version, "kind": resource.kind}
    found["metadata"] = {**found.get("metadata", {}), **({"name": name} if name else {})}
    return found


def encode(body: Any) -> bytes:
    """JSON; NaN and infinity are refused, since msgspec writes them as null, which removes a field.

    Raises:
        InvalidError: with the paths of what JSON cannot carry.
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
