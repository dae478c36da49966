"""Errors of the Kubernetes client, one class per reaction that a caller can take."""

from __future__ import annotations

import msgspec

_DISRUPTION_BUDGET = "DisruptionBudget"
_MAX_TEXT = 500


class KubernetesError(Exception):
    """Base of all errors of the Kubernetes client. Messages never contain a secret."""


class ConfigurationError(KubernetesError):
    """No usable kubeconfig, context, credential or certificate. Retrying without a change is useless."""


class ConnectionLostError(KubernetesError):
    """No complete response: the connection was refused, timed out or broke.

    Attributes:
        sent: whether the server may have received the request, and so may have acted on it.
        permanent: whether a retry is useless, as for a certificate that does not verify.
    """

    def __init__(self, message: str, *, sent: bool, permanent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.permanent = permanent


class UnreadableAnswerError(KubernetesError):
    """The response cannot be decoded as the requested type."""


class ApiError(KubernetesError):
    """The API server answered with an error status.

    Attributes:
        status: HTTP status code.
        reason: reason in the Status object (``NotFound``); empty if none.
        message: message of the server.
        retry_after_s: time after which the server asks for a retry, s; None if it gave none.
        causes: reasons of the causes in the Status object.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        what: str = "",
        hint: str = "",
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        text = f"{what or 'request'}: {status} {reason or 'error'}: {message or 'the server gave no message'}"
        super().__init__(f"{text} ({hint})" if hint else text)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.causes = causes


class UnauthorizedError(ApiError):
    """401: the credential is missing, wrong or expired."""


class ForbiddenError(ApiError):
    """403: the credential is valid, but RBAC or admission denies the request."""


class NotFoundError(ApiError):
    """404: the object or the resource does not exist."""


class ConflictError(ApiError):
    """409: the object already exists, changed since it was read, or another field manager owns a field."""


class GoneError(ApiError):
    """410: the resource version is too old; list again."""


class InvalidError(ApiError):
    """400 or 422: the object does not pass the API's validation."""


class TooManyRequestsError(ApiError):
    """429: the server is overloaded, or an eviction would violate a disruption budget."""

    @property
    def disruption_budget(self) -> bool:
        """Whether a PodDisruptionBudget rejected the eviction; an immediate retry is useless then."""
        return _DISRUPTION_BUDGET in self.causes


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] = []
    retry_after_seconds: float = 0


_DENIED_AT_ADMISSION = ("denied request", "denied the request")
"""Texts of a 403 from an admission policy or webhook, which RBAC cannot fix."""


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_decode_status = msgspec.json.Decoder(_Status).decode


def api_error(
    body: bytes | msgspec.Raw, *, http_status: int = 0, retry_after: str = "", verb: str = "", where: str = ""
) -> ApiError:
    """Convert a Status object, or an error response without one (a proxy's page), to a typed error.

    Args:
        body: response body, or the object of a watch's ERROR event.
        http_status: HTTP status code; 0 takes the code in the Status object.
        retry_after: Retry-After header, s; dates, which API servers do not send, are ignored.
        verb: RBAC verb: get, list, watch, create, patch, update or delete.
        where: target of the request: ``nodes/n1``.
    """
    try:
        status = _decode_status(body)
    except msgspec.DecodeError:
        status = _Status(message=bytes(body)[:_MAX_TEXT].decode(errors="replace").strip())
    code = http_status or status.code
    details = status.details or _Details()
    kind = _BY_STATUS.get(code, ApiError)
    return kind(
        code,
        status.reason,
        status.message,
        what=f"{verb} {where}".strip(),
        hint=_hint(kind, verb, where, status.message),
        retry_after_s=_seconds(retry_after) or details.retry_after_seconds or None,
        causes=tuple(cause.reason for cause in details.causes),
    )


def _hint(kind: type[ApiError], verb: str, where: str, message: str) -> str:
    if kind is ForbiddenError and not any(denied in message for denied in _DENIED_AT_ADMISSION):
        return f"grant the verb {verb} on {where} to this program's account by RBAC, or use the chart's roles"
    if kind is UnauthorizedError:
        return "check the token, certificate or exec plugin of this program's account"
    if kind is NotFoundError and verb in ("list", "watch", "create"):
        return "is the CustomResourceDefinition installed, and the namespace there?"
    return ""


def _seconds(header: str) -> float:
    return float(header) if header.isdecimal() else 0.0
