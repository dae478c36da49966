"""Who may read what: TokenReview and SubjectAccessReview, as the API server answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import UnreadableAnswerError

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
T = TypeVar("T")

_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class UserInfo(msgspec.Struct, frozen=True):
    """A user as the API server knows it."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: UserInfo | None = None
    audiences: list[str] = []


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


async def user_of(client: KubeClient, token: str, audience: str | None = None) -> UserInfo | None:
    """The user of a bearer token; None for a token that the API server does not accept.

    Args:
        client: Kubernetes client.
        token: the token.
        audience: whom the token must be for; None for the API server.

    Raises:
        KubernetesError: the API server cannot be asked.
    """
    spec = {"token": token} if audience is None else {"token": token, "audiences": [audience]}
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status = (await _review(client, _TOKEN_REVIEWS, review, _TokenReview)).status
    # An authenticator that knows no audiences returns none, and has then not checked them.
    accepted = status.authenticated and (audience is None or audience in status.audiences)
    return status.user if accepted else None


async def is_allowed(client: KubeClient, user: UserInfo, attributes: Mapping[str, str]) -> bool:
    """Whether a user may do something.

    Args:
        client: Kubernetes client.
        user: the user.
        attributes: resourceAttributes of the review: verb, group, resource, namespace.

    Raises:
        KubernetesError: the API server cannot be asked.
    """
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": dict(attributes),
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return (await _review(client, _ACCESS_REVIEWS, review, _AccessReview)).status.allowed


async def _review(client: KubeClient, path: str, review: Mapping[str, Any], answer: type[T]) -> T:
    body = await client.raw("POST", path, body=msgspec.json.encode(review))
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.DecodeError as error:
        raise UnreadableAnswerError(f"create {path}: {error}") from None
