"""Errors of the API server: an HTTP status and a Status object, with the real server's wording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulie_lab.fakes.kubernetes.kinds import Kind


class StatusError(Exception):
    """A rejected request.

    Attributes:
        code: HTTP status code.
        reason: machine-readable reason: a StatusReason of apimachinery.
        details: details of the Status object.
    """

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    @property
    def retry_after_s(self) -> int | None:
        """Value of the Retry-After header, s; None without one."""
        return self.details.get("retryAfterSeconds")

    def body(self) -> dict[str, Any]:
        """The Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }
        return status | ({"details": self.details} if self.details else {})


def _details(kind: Kind, name: str, **more: Any) -> dict[str, Any]:
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural, **more}


def not_found(kind: Kind, name: str) -> StatusError:
    """404: the object does not exist."""
    return StatusError(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def no_such_resource() -> StatusError:
    """404: the path does not exist."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> StatusError:
    """409: an object of this name exists."""
    return StatusError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: Kind, name: str, why: str) -> StatusError:
    """409: the object is not in the expected state."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(kind, name))


def another_uid(kind: Kind, name: str, wanted: str, found: str) -> StatusError:
    """409: the UID precondition fails."""
    why = f"the UID in the precondition ({wanted}) does not match the UID in record ({found})"
    what = f'Operation cannot be fulfilled on {kind.kind} "{name}"'
    message = f"{what}: {why}. The object might have been deleted and then recreated"
    return StatusError(409, "Conflict", message, _details(kind, name))


def stale(kind: Kind, name: str) -> StatusError:
    """409: the object has changed since the caller read it."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def apply_conflict(causes: Sequence[tuple[str, str]]) -> StatusError:
    """409: apply would change fields that other managers own; causes are pairs of manager and field."""
    listed = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": field}
        for manager, field in causes
    ]
    what = ", ".join(f'conflict with "{manager}": {field}' for manager, field in causes)
    plural = "" if len(causes) == 1 else "s"
    message = f"Apply failed with {len(causes)} conflict{plural}: {what}"
    return StatusError(409, "Conflict", message, {"causes": listed})


def invalid(kind: Kind, name: str, causes: Sequence[tuple[str, str]]) -> StatusError:
    """422: the object violates its schema or a rule of its kind; causes are pairs of field and message."""
    what = "; ".join(f"{field}: {message}" if field else message for field, message in causes)
    message = f'{kind.kind}{"." + kind.group if kind.group else ""} "{name}" is invalid: {what}'
    listed = [{"reason": "FieldValueInvalid", "message": text, "field": field} for field, text in causes]
    group = {"group": kind.group} if kind.group else {}
    details = {"name": name, **group, "kind": kind.kind, "causes": listed}
    return StatusError(422, "Invalid", message, details)


def expired(message: str) -> StatusError:
    """410: the resource version or continue token is older than the retained history."""
    return StatusError(410, "Expired", message)


def bad_request(message: str) -> StatusError:
    """400: the request is malformed."""
    return StatusError(400, "BadRequest", message)


def method_not_allowed() -> StatusError:
    """405: the resource does not support the verb."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415: the media type of the body is not supported."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", message)


def unauthorized() -> StatusError:
    """401: no valid bearer token."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def too_many_requests(message: str, retry_after_s: int, causes: Sequence[dict[str, str]] = ()) -> StatusError:
    """429: retry later."""
    details: dict[str, Any] = {"retryAfterSeconds": retry_after_s}
    return StatusError(429, "TooManyRequests", message, details | ({"causes": list(causes)} if causes else {}))


def injected(code: int, retry_after_s: int | None) -> StatusError:
    """An injected failure."""
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout", 409: "Conflict"}
    reason = {**reasons, 403: "Forbidden", 404: "NotFound", 410: "Expired", 422: "Invalid"}.get(code, "Unknown")
    details = {} if retry_after_s is None else {"retryAfterSeconds": retry_after_s}
    return StatusError(code, reason, "injected failure", details)
