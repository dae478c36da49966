"""List requests: selectors, paging, and continue tokens that keep a list at the version of its first page."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from joulie_lab.fakes.kubernetes import errors, selectors
from joulie_lab.fakes.kubernetes.kinds import Kind
from joulie_lab.fakes.kubernetes.store import Snapshot, Store

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter."
)


class _Token(msgspec.Struct):
    """Content of a continue token: the list and the position in it."""

    list: str
    start: int


def list_objects(store: Store, kind: Kind, namespace: str, params: Mapping[str, str]) -> bytes:
    """The response body of a list request.

    Raises:
        StatusError: 400 for invalid parameters, 410 for an expired token, 504 for a version not reached yet.
    """
    chosen = selectors.selection(kind, params.get("labelSelector", ""), params.get("fieldSelector", ""))
    limit = _whole(params, "limit")
    token = params.get("continue", "")
    if token:
        name, start, snapshot = _continued(store, token)
    else:
        _check_version(store, params)
        found = store.table(kind).in_order(namespace)
        items = [stored for stored in found if chosen is None or chosen(stored.obj)]
        name, start, snapshot = f"{store.revision}/{id(items)}", 0, Snapshot(store.revision, items)
        if params.get("resourceVersion") == "0":
            # Served from the watch cache, which does not page.
            limit = 0
    end = start + limit if limit else len(snapshot.items)
    left = len(snapshot.items) - end
    metadata: dict[str, object] = {"resourceVersion": str(snapshot.revision)}
    if left > 0:
        store.keep_snapshot(name, snapshot)
        metadata["continue"] = base64.urlsafe_b64encode(msgspec.json.encode(_Token(name, end))).decode()
        if chosen is None:
            metadata["remainingItemCount"] = left
    elif token:
        store.drop_snapshot(name)
    return _body(kind, metadata, [stored.raw for stored in snapshot.items[start:end]])


def _body(kind: Kind, metadata: dict[str, object], items: list[bytes]) -> bytes:
    if not kind.custom:
        # Items of built-in lists do not repeat their kind.
        head = len(f'"apiVersion":"{kind.api_version}","kind":"{kind.kind}",') + 1
        items = [b"{" + item[head:] for item in items]
    head_of_list = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
    return msgspec.json.encode(head_of_list)[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _continued(store: Store, token: str) -> tuple[str, int, Snapshot]:
    try:
        where = msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Token)
    except ValueError as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
    snapshot = store.snapshot(where.list)
    if snapshot is None:
        raise errors.expired(_EXPIRED)
    return where.list, where.start, snapshot


def _check_version(store: Store, params: Mapping[str, str]) -> None:
    version = _whole(params, "resourceVersion")
    if version > store.revision:
        message = f"Too large resource version: {version}, current: {store.revision}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise errors.StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})
    if params.get("resourceVersionMatch") == "Exact" and version < store.revision:
        raise errors.expired(f"The resourceVersion for the provided list is too old: {version}")


def _whole(params: Mapping[str, str], name: str) -> int:
    text = params.get(name, "") or "0"
    if not text.isdecimal():
        raise errors.bad_request(f'Invalid value: "{text}": {name} must be a whole number')
    return int(text)
