"""Failures as the API server words them: an HTTP status and a Status object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulie_lab.fakes.kubernetes.kinds import Kind


class StatusError(Exception):
    """A refused request.

    Attributes:
        code: HTTP status.
        reason: the machine-readable reason, as apimachinery's StatusReason names it.
        details: the Status object's details.
    """

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    @property
    def retry_after_s(self) -> int | None:
        """Seconds for the Retry-After header, or None."""
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
    """No such object."""
    return StatusError(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def no_such_resource() -> StatusError:
    """No such path."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: Kind, name: str) -> StatusError:
    """An object of this name is there."""
    return StatusError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: Kind, name: str, why: str) -> StatusError:
    """The object is not what the caller believes."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(kind, name))


def another_uid(kind: Kind, name: str, wanted: str, found: str) -> StatusError:
    """The object is not the one that was to be deleted."""
    why = f"the UID in the precondition ({wanted}) does not match the UID in record ({found})"
    what = f'Operation cannot be fulfilled on {kind.kind} "{name}"'
    message = f"{what}: {why}. The object might have been deleted and then recreated"
    return StatusError(409, "Conflict", message, _details(kind, name))


def stale(kind: Kind, name: str) -> StatusError:
    """The object has changed since the caller read it."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def apply_conflict(causes: Sequence[tuple[str, str]]) -> StatusError:
    """Fields that other managers own would change; causes are pairs of manager and field."""
    listed = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": field}
        for manager, field in causes
    ]
    what = ", ".join(f'conflict with "{manager}": {field}' for manager, field in causes)
    plural = "" if len(causes) == 1 else "s"
    message = f"Apply failed with {len(causes)} conflict{plural}: {what}"
    return StatusError(409, "Conflict", message, {"causes": listed})


def invalid(kind: Kind, name: str, causes: Sequence[tuple[str, str]]) -> StatusError:
    """The object breaks its schema or a rule of its kind; causes are pairs of field and message."""
    what = "; ".join(f"{field}: {message}" if field else message for field, message in causes)
    message = f'{kind.kind}{"." + kind.group if kind.group else ""} "{name}" is invalid: {what}'
    listed = [{"reason": "FieldValueInvalid", "message": text, "field": field} for field, text in causes]
    group = {"group": kind.group} if kind.group else {}
    details = {"name": name, **group, "kind": kind.kind, "causes": listed}
    return StatusError(422, "Invalid", message, details)


def expired(message: str) -> StatusError:
    """The resource version or continue token is older than what is kept."""
    return StatusError(410, "Expired", message)


def bad_request(message: str) -> StatusError:
    """The request makes no sense."""
    return StatusError(400, "BadRequest", message)


def method_not_allowed() -> StatusError:
    """The resource has no such verb."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """The body's type is not among those accepted."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", message)


def unauthorized() -> StatusError:
    """Without a token that the cluster gave out."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def too_many_requests(message: str, retry_after_s: int, causes: Sequence[dict[str, str]] = ()) -> StatusError:
    """Come back later."""
    details: dict[str, Any] = {"retryAfterSeconds": retry_after_s}
    return StatusError(429, "TooManyRequests", message, details | ({"causes": list(causes)} if causes else {}))


def injected(code: int, retry_after_s: int | None) -> StatusError:
    """A failure that a test asked for."""
    reasons = {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout", 409: "Conflict"}
    reason = {**reasons, 403: "Forbidden", 404: "NotFound", 410: "Expired", 422: "Invalid"}.get(code, "Unknown")
    details = {} if retry_after_s is None else {"retryAfterSeconds": retry_after_s}
    return StatusError(code, reason, "injected failure", details)
